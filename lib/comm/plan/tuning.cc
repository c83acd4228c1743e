#include "lib/comm/plan/tuning.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr absl::string_view kFirstLine = "entrain-tuning 2";
constexpr absl::string_view kLinkNames[kLinks] = {"inproc",     "shm",           "fabric_inside",
                                                  "tcp_inside", "fabric_across", "tcp_across"};
constexpr absl::string_view kOwn = "the library's own values";
constexpr const char* kBuiltin =
#include "lib/comm/plan/tuning_builtin.inc"
    ;

// One figure of a `link` line, and its allowed range. kFigures has all figures in the order of the
// line. The ranges ensure that sums of estimates fit into 64 bits.
struct Figure {
  absl::string_view name;
  double LinkFigures::*field;
  double least, most;
};
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr Figure kFigures[] = {
    {"call_us", &LinkFigures::call_us, 0, 1e6},
    {"latency_us", &LinkFigures::latency_us, 0, 1e6},
    {"message_us", &LinkFigures::message_us, 0, 1e6},
    {"switch_us", &LinkFigures::switch_us, 0, 1e6},
    {"gbs", &LinkFigures::gbs, 1e-4, kInfinite},
    {"host_gbs", &LinkFigures::host_gbs, 1e-4, kInfinite},
    {"reduce_gbs", &LinkFigures::reduce_gbs, 1e-4, kInfinite},
};

using Words = std::vector<absl::string_view>;

absl::Status Wrong(absl::string_view value, absl::string_view is_not) {
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not ", is_not));
}

// Parses the text "LINK ranks N free|crowded" after the first word of a line.
absl::StatusOr<TunedFor> ParseWhere(const Words& words) {
  TunedFor where;
  if (words.size() < 5 || words[2] != "ranks") {
    return Wrong(absl::StrCat(words[0], words.size() > 1 ? " ..." : ""),
                 absl::StrCat(words[0], " LINK ranks N free|crowded ..."));
  }
  size_t link = 0;
  while (link < kLinks && kLinkNames[link] != words[1]) {
    ++link;
  }
  if (link == kLinks) {
    return Wrong(words[1], absl::StrCat("a kind of link: ", absl::StrJoin(kLinkNames, ", ")));
  }
  where.link = static_cast<Link>(link);
  if (!absl::SimpleAtoi(words[3], &where.ranks) || where.ranks < 1) {
    return Wrong(words[3], "a number of ranks");
  }
  if (words[4] != "free" && words[4] != "crowded") {
    return Wrong(words[4], "free or crowded");
  }
  where.crowded = words[4] == "crowded";
  return where;
}

absl::StatusOr<LinkFigures> ParseFigures(const Words& words) {
  LinkFigures figures;
  ENTRAIN_ASSIGN_OR_RETURN(figures.where, ParseWhere(words));
  constexpr size_t kFirst = 5;
  for (size_t i = 0; i < std::size(kFigures); ++i) {
    const Figure& figure = kFigures[i];
    const size_t at = kFirst + 2 * i;
    if (at + 1 >= words.size() || words[at] != figure.name) {
      return Wrong(at < words.size() ? words[at] : "", absl::StrCat(figure.name, " and its value"));
    }
    double value = 0;
    if (!absl::SimpleAtod(words[at + 1], &value) ||
        !(figure.least <= value && value <= figure.most)) {
      return Wrong(words[at + 1],
                   absl::StrCat(figure.name, ", from ", figure.least, " to ", figure.most));
    }
    figures.*figure.field = value;
  }
  const size_t end = kFirst + 2 * std::size(kFigures);
  return words.size() == end ? absl::StatusOr<LinkFigures>(figures)
                             : Wrong(words[end], "a figure of a link");
}

absl::Status ParseLine(absl::string_view line, Tuning* tuning) {
  const Words words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) {
    return absl::OkStatus();
  }
  if (words[0] == "link") {
    ENTRAIN_ASSIGN_OR_RETURN(const LinkFigures figures, ParseFigures(words));
    tuning->links.push_back(figures);
    return absl::OkStatus();
  }
  if (words[0] != "choose") {
    return Wrong(words[0], "link or choose");
  }
  ENTRAIN_ASSIGN_OR_RETURN(const TunedFor where, ParseWhere(words));
  if (words.size() != 6) {
    return Wrong(line, "choose LINK ranks N free|crowded COLLECTIVE:ALGORITHM@LOW-HIGH,...");
  }
  ENTRAIN_ASSIGN_OR_RETURN(std::vector<Override> choices, ParseOverrides(words[5]));
  for (Override& choice : choices) {
    tuning->choices.push_back({where, std::move(choice)});
  }
  return absl::OkStatus();
}

bool Names(const Tuning& tuning, Link link) {
  const auto is = [&](const auto& one) { return one.where.link == link; };
  return std::any_of(tuning.links.begin(), tuning.links.end(), is) ||
         std::any_of(tuning.choices.begin(), tuning.choices.end(), is);
}

// Adds the built-in lines (`own`) of those kinds of links that `tuning` does not name.
void Complete(const Tuning& own, Tuning* tuning) {
  bool named[kLinks];
  for (int link = 0; link < kLinks; ++link) {
    named[link] = Names(*tuning, static_cast<Link>(link));
  }
  const auto take = [&](const auto& from, auto* to) {
    for (const auto& one : from) {
      if (!named[static_cast<size_t>(one.where.link)]) {
        to->push_back(one);
      }
    }
  };
  take(own.links, &tuning->links);
  take(own.choices, &tuning->choices);
}

// Estimates the figures of a link for which the tuning has no line. `speed` comes from the
// transport: the latency of a small message, and the rates of large messages. The figures that do
// not depend on `speed` are guesses.
LinkFigures Estimated(const TunedFor& where, const LinkSpeed& speed) {
  LinkFigures figures;
  figures.where = where;
  figures.call_us = 0.5;
  figures.latency_us = speed.latency_us / 2;
  figures.message_us = speed.latency_us / 4;
  figures.switch_us = 1;
  figures.gbs = speed.gbs;
  figures.host_gbs = speed.host_gbs;
  figures.reduce_gbs = 10;
  figures.from_traits = true;
  return figures;
}

}  // namespace

void LinkSpeed::Worsen(const LinkSpeed& other) {
  latency_us = std::max(latency_us, other.latency_us);
  gbs = std::min(gbs, other.gbs);
  host_gbs = std::min(host_gbs, other.host_gbs);
}

absl::string_view NameOf(Link link) {
  return kLinkNames[static_cast<size_t>(link)];
}

std::string ToText(const TunedFor& where) {
  return absl::StrCat(NameOf(where.link), " ranks ", where.ranks,
                      where.crowded ? " crowded" : " free");
}

std::string ToText(const LinkFigures& figures) {
  std::string text = entrain::ToText(figures.where);
  for (const Figure& figure : kFigures) {
    absl::StrAppendFormat(&text, " %s %.4g", figure.name, figures.*figure.field);
  }
  return text;
}

std::string Tuning::ToText() const {
  std::string text = absl::StrCat(kFirstLine, "\n");
  for (const LinkFigures& one : links) {
    absl::StrAppend(&text, "link ", entrain::ToText(one), "\n");
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    const bool more = i > 0 && choices[i - 1].where == choices[i].where;
    absl::StrAppend(&text,
                    more ? "," : absl::StrCat("choose ", entrain::ToText(choices[i].where), " "),
                    entrain::ToText({&choices[i].choice, 1}));
    if (i + 1 == choices.size() || !(choices[i + 1].where == choices[i].where)) {
      text += "\n";
    }
  }
  return text;
}

std::string Tuning::Fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : ToText()) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return absl::StrFormat("%016x", hash);
}

LinkFigures Tuning::FiguresFor(const TunedFor& where, const LinkSpeed& speed) const {
  const LinkFigures* best = nullptr;
  // Returns the priority of a line. The line with the highest priority is used.
  const auto rank = [&](const LinkFigures& one) {
    const bool within = one.where.ranks <= where.ranks;
    return std::tuple(one.where.crowded == where.crowded, within,
                      within ? one.where.ranks : -one.where.ranks);
  };
  for (const LinkFigures& one : links) {
    if (one.where.link == where.link && (best == nullptr || rank(one) > rank(*best))) {
      best = &one;
    }
  }
  return best == nullptr ? Estimated(where, speed) : *best;
}

absl::StatusOr<Tuning> ParseTuning(absl::string_view text, const std::string& source) {
  Tuning tuning;
  tuning.source = source;
  int number = 0;
  bool begun = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    absl::Status status;
    if (!begun && !line.empty()) {
      begun = true;
      status =
          line == kFirstLine ? absl::OkStatus() : Wrong(line, absl::StrCat("\"", kFirstLine, "\""));
    } else {
      status = ParseLine(line, &tuning);
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tuning: ", source, ":", number, ": ", status.message()));
    }
  }
  if (!begun) {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning: ", source, " does not begin with \"", kFirstLine, "\""));
  }
  if (source != kOwn) {
    Complete(*BuiltinTuning(), &tuning);
  }
  return tuning;
}

const std::shared_ptr<const Tuning>& BuiltinTuning() {
  static const auto* const own = new std::shared_ptr<const Tuning>(
      std::make_shared<const Tuning>(ParseTuning(kBuiltin, std::string(kOwn)).value()));
  return *own;
}

absl::StatusOr<std::shared_ptr<const Tuning>> LoadTuning(const std::string& path) {
  if (path.empty()) {
    return BuiltinTuning();
  }
  std::ifstream file(path);
  std::ostringstream text;
  if (!file.is_open() || !(text << file.rdbuf()) || file.bad()) {
    return ErrnoStatus(errno, absl::StrCat("tuning: cannot read \"", path, "\""));
  }
  ENTRAIN_ASSIGN_OR_RETURN(Tuning tuning, ParseTuning(text.str(), path));
  return std::make_shared<const Tuning>(std::move(tuning));
}

}  // namespace entrain
