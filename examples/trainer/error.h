// The trainer's failure: one exception, with one line for the user and an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace trainer {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& line, int exit_code = 1)
      : std::runtime_error(line), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  const int exit_code_;
};

}  // namespace trainer
