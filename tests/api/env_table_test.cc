// The table of environment variables in docs/settings.md equals the table in lib/base/config.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/config.h"

namespace entrain {
namespace {

std::string Row(const EnvVariable& variable) {
  const auto cell = [](const char* text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); };
  return absl::StrCat("| `", variable.name, "` | ", cell(variable.values), " | ",
                      cell(variable.meaning), " |");
}

TEST(EnvTable, IsTheSameOnThePageOfSettings) {
  std::ifstream page(ENTRAIN_SETTINGS_PAGE);
  ASSERT_TRUE(page.is_open());
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (absl::StartsWith(line, "| `ENTRAIN_")) {
      rows.push_back(line);
    }
  }
  std::vector<std::string> expected;
  for (const EnvVariable& variable : EnvTable()) {
    expected.push_back(Row(variable));
  }
  EXPECT_THAT(rows, testing::ElementsAreArray(expected));
}

}  // namespace
}  // namespace entrain
