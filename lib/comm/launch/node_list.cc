#include "lib/comm/launch/node_list.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

using Names = std::vector<std::string>;

bool IsDigits(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

class NodeListReader {
 public:
  explicit NodeListReader(absl::string_view list) : list_(list) {}

  absl::StatusOr<Names> All() {
    Names all;
    do {
      ENTRAIN_ASSIGN_OR_RETURN(Names names, Host());
      std::move(names.begin(), names.end(), std::back_inserter(all));
      if (all.size() > kMostNodes) {
        return TooMany();
      }
    } while (Take(','));
    return all;
  }

 private:
  bool AtEnd() const { return at_ == list_.size(); }
  bool Take(char c) {
    if (AtEnd() || list_[at_] != c) {
      return false;
    }
    ++at_;
    return true;
  }
  absl::string_view Until(const char* ends) {
    const size_t begin = at_;
    at_ = std::min(list_.find_first_of(ends, at_), list_.size());
    return list_.substr(begin, at_ - begin);
  }
  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("node list \"", list_, "\", at character ", at_ + 1, ": ", what));
  }
  absl::Status TooMany() const { return Wrong(absl::StrCat("more than ", kMostNodes, " nodes")); }

  absl::StatusOr<Names> Host() {
    Names names{""};
    const size_t begin = at_;
    while (!AtEnd() && list_[at_] != ',') {
      Names parts;
      if (Take('[')) {
        ENTRAIN_ASSIGN_OR_RETURN(parts, Bracket());
      } else if (list_[at_] == ']') {
        return Wrong("a ] without its [");
      } else {
        parts.emplace_back(Until("[],"));
        if (parts[0].find_first_of(" \t\n") != std::string::npos) {
          return Wrong("a space in a name");
        }
      }
      if (names.size() * parts.size() > kMostNodes) {
        return TooMany();
      }
      names = Combined(names, parts);
    }
    if (at_ == begin) {
      return Wrong("a name is missing");
    }
    return names;
  }

  static Names Combined(const Names& heads, const Names& tails) {
    Names names;
    names.reserve(heads.size() * tails.size());
    for (const std::string& head : heads) {
      for (const std::string& tail : tails) {
        names.push_back(head + tail);
      }
    }
    return names;
  }

  absl::StatusOr<Names> Bracket() {
    Names numbers;
    do {
      ENTRAIN_RETURN_IF_ERROR(Range(&numbers));
    } while (Take(','));
    if (!Take(']')) {
      return Wrong("expected , or ] after a range");
    }
    return numbers;
  }

  absl::Status Range(Names* numbers) {
    const absl::string_view first = Until("-,]["), last = Take('-') ? Until("-,][") : first;
    uint32_t low = 0, high = 0;
    if (!IsDigits(first) || !IsDigits(last) || !absl::SimpleAtoi(first, &low) ||
        !absl::SimpleAtoi(last, &high) || high < low) {
      return Wrong(absl::StrCat("\"", first, "-", last, "\" is not a range of numbers"));
    }
    if (high - low >= kMostNodes - std::min(kMostNodes, numbers->size())) {
      return TooMany();
    }
    for (uint32_t number = low;; ++number) {
      numbers->push_back(absl::StrFormat("%0*d", static_cast<int>(first.size()), number));
      if (number == high) {
        return absl::OkStatus();
      }
    }
  }

  const absl::string_view list_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list) {
  return NodeListReader(list).All();
}

}  // namespace entrain
