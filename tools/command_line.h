// The command line of a program. CLI11 is behind this one object: each file that includes its headers takes seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace entrain {

// Each function but Parse declares an option. The value is the default, and must outlive Parse. An option that is given twice
// takes the later value.
class CommandLine {
 public:
  CommandLine(const std::string& about, const std::string& name);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  void Text(const std::string& names, std::string& value, const std::string& help);
  void RequiredText(const std::string& names, std::string& value, const std::string& help);
  void Choice(const std::string& names, std::string& value, const std::string& help,
              const std::vector<std::string>& choices);
  // Several of the choices, with commas.
  void Choices(const std::string& names, std::vector<std::string>& values, const std::string& help,
               const std::vector<std::string>& choices);
  void Whole(const std::string& names, int& value, const std::string& help, int least, int most);
  void RequiredWhole(const std::string& names, int& value, const std::string& help, int least,
                     int most);
  void Real(const std::string& names, double& value, const std::string& help, double least,
            double most);
  // Bytes such as 64K, with commas.
  void Sizes(const std::string& names, std::vector<int64_t>& values, const std::string& help,
             int64_t least, int64_t most);
  void Flag(const std::string& names, bool& value, const std::string& help);
  // Not in --help: for what a program passes to itself.
  void Hidden(const std::string& names, std::string& value);

  // Returns nothing if the program goes on, otherwise its exit code: 0 after --help, 2 after wrong arguments. Prints the help or
  // what is wrong.
  std::optional<int> Parse(int argc, char** argv);

 private:
  struct Parser;  // CLI11's
  std::unique_ptr<Parser> parser_;
};

}  // namespace entrain
