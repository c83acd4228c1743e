#include "tools/command_line.h"

#include <CLI/CLI.hpp>

namespace entrain {

struct CommandLine::Parser {
  Parser(const std::string& about, const std::string& name) : app(about, name) {}

  template <typename T>
  CLI::Option* Last(const std::string& names, T& value, const std::string& help) {
    return app.add_option(names, value, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  CLI::App app;
};

CommandLine::CommandLine(const std::string& about, const std::string& name)
    : parser_(std::make_unique<Parser>(about, name)) {}

CommandLine::~CommandLine() = default;

void CommandLine::Text(const std::string& names, std::string& value, const std::string& help) {
  parser_->Last(names, value, help);
}

void CommandLine::RequiredText(const std::string& names, std::string& value,
                               const std::string& help) {
  parser_->Last(names, value, help)->required();
}

void CommandLine::Choice(const std::string& names, std::string& value, const std::string& help,
                         const std::vector<std::string>& choices) {
  parser_->Last(names, value, help)->check(CLI::IsMember(choices));
}

void CommandLine::Choices(const std::string& names, std::vector<std::string>& values,
                          const std::string& help, const std::vector<std::string>& choices) {
  parser_->app.add_option(names, values, help)->delimiter(',')->check(CLI::IsMember(choices));
}

void CommandLine::Whole(const std::string& names, int& value, const std::string& help, int least,
                        int most) {
  parser_->Last(names, value, help)->check(CLI::Range(least, most));
}

void CommandLine::RequiredWhole(const std::string& names, int& value, const std::string& help,
                                int least, int most) {
  parser_->Last(names, value, help)->required()->check(CLI::Range(least, most));
}

void CommandLine::Real(const std::string& names, double& value, const std::string& help,
                       double least, double most) {
  parser_->Last(names, value, help)->check(CLI::Range(least, most));
}

void CommandLine::Sizes(const std::string& names, std::vector<int64_t>& values,
                        const std::string& help, int64_t least, int64_t most) {
  parser_->app.add_option(names, values, help)
      ->delimiter(',')
      ->check(CLI::Range(least, most))
      ->transform(CLI::AsSizeValue(false));
}

void CommandLine::Flag(const std::string& names, bool& value, const std::string& help) {
  parser_->app.add_flag(names, value, help);
}

void CommandLine::Hidden(const std::string& names, std::string& value) {
  parser_->Last(names, value, "")->group("");
}

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parser_->app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace entrain
