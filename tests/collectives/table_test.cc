// The table of docs/algorithms.md must agree with the schedules.

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

#include "collectives/cost.h"

namespace entrain {
namespace {

constexpr int kSizes[] = {2, 3, 4, 8, 16};

// Returns "| kind | algorithm | rounds | hops | messages | sent | reduced | scratch |". From the
// third column on, each column has one number per size. Bytes are in parts of D, which has as many
// parts as there are ranks.
std::string RowOf(const Algorithm& algorithm) {
  std::vector<std::string> columns[6];
  for (const int n : kSizes) {
    std::vector<int> hosts;
    for (int r = 0; r < n; ++r) {
      hosts.push_back(r < (n + 1) / 2 ? 0 : 1);
    }
    const Spec spec{algorithm.kind, 0, n, 0, 1};
    if (!algorithm.fits(spec, hosts)) {
      for (auto& column : columns) {
        column.push_back("-");
      }
      continue;
    }
    const Cost cost =
        CountWorstCost(algorithm, spec, hosts, UniformLayout(spec, HasParts(spec.kind) ? 1 : n), 1);
    const int64_t figures[6] = {cost.rounds,           cost.hops,
                                cost.messages,         cost.bytes_sent,
                                cost.reduced_elements, cost.scratch_bytes};
    for (int i = 0; i < 6; ++i) {
      columns[i].push_back(absl::StrCat(figures[i]));
    }
  }
  std::string row = absl::StrCat("| ", NameOf(algorithm.kind), " | ", algorithm.name, " |");
  for (const auto& column : columns) {
    absl::StrAppend(&row, " ", absl::StrJoin(column, " "), " |");
  }
  return row;
}

// Returns the rows of the page that begin with a kind and an algorithm.
std::map<std::pair<std::string, std::string>, std::string> RowsOfPage() {
  std::map<std::pair<std::string, std::string>, std::string> rows;
  std::ifstream page(ENTRAIN_ALGORITHMS_PAGE);
  for (std::string line; std::getline(page, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() == 10) {
      rows[{std::string(absl::StripAsciiWhitespace(cells[1])),
            std::string(absl::StripAsciiWhitespace(cells[2]))}] = line;
    }
  }
  return rows;
}

TEST(Table, SaysWhatEveryAlgorithmCosts) {
  const auto rows = RowsOfPage();
  for (const Algorithm& algorithm : Catalog()) {
    const auto row = rows.find({std::string(NameOf(algorithm.kind)), algorithm.name});
    const std::string wanted = RowOf(algorithm);
    if (row == rows.end()) {
      ADD_FAILURE() << "docs/algorithms.md has no row\n" << wanted;
    } else {
      EXPECT_EQ(row->second, wanted);
    }
  }
  EXPECT_EQ(rows.size(), Catalog().size() + 2)
      << "rows besides head and rule that are no algorithm";
}

}  // namespace
}  // namespace entrain
