// The command line of a program. Only this object uses CLI11, because each file that includes its
// headers takes seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace entrain {

// Each function but Parse declares an option. The variable holds the default value, and must
// outlive Parse. If an option is given twice, the later value counts.
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
  // Takes several of the choices, separated by commas.
  void Choices(const std::string& names, std::vector<std::string>& values, const std::string& help,
               const std::vector<std::string>& choices);
  void Whole(const std::string& names, int& value, const std::string& help, int least, int most);
  void RequiredWhole(const std::string& names, int& value, const std::string& help, int least,
                     int most);
  void Real(const std::string& names, double& value, const std::string& help, double least,
            double most);
  // Takes sizes in bytes, such as 64K, separated by commas.
  void Sizes(const std::string& names, std::vector<int64_t>& values, const std::string& help,
             int64_t least, int64_t most);
  void Flag(const std::string& names, bool& value, const std::string& help);
  // Declares an option that --help does not show, for values that a program passes to its own
  // processes.
  void Hidden(const std::string& names, std::string& value);

  // Returns nullopt if the program shall continue, otherwise its exit code: 0 after --help, 2 after
  // wrong arguments. Prints the help or the error.
  std::optional<int> Parse(int argc, char** argv);

 private:
  struct Parser;  // CLI11's
  std::unique_ptr<Parser> parser_;
};

}  // namespace entrain
