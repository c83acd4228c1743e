#include "transports/settings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "lib/base/config.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

// Users may list this name among the transports. It is not a transport, but a method for calls on
// device memory (lib/device/calls).
constexpr const char* kForDevices = "nccl";

std::string KnownNames() {
  return absl::StrCat(absl::StrJoin(kTransportNames, ", "), ", ", kForDevices);
}

using Values = std::vector<absl::string_view>;

constexpr NamedUnit kRates[] = {{"B/s", 1},          {"kB/s", 1e3},      {"MB/s", 1e6},
                                {"GB/s", 1e9},       {"bit/s", 0.125},   {"kbit/s", 0.125e3},
                                {"Mbit/s", 0.125e6}, {"Gbit/s", 0.125e9}};
// ParseDuration cannot be used, because it accepts neither microseconds nor 0.
constexpr NamedUnit kTimes[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}};

absl::StatusOr<int64_t> Time(absl::string_view text) {
  return ParseUnits(text, kTimes, "a time such as 200us, 1.5ms, 2s or 1m");
}

absl::Status Rate(const Values& values, FaultPlan& plan) {
  constexpr absl::string_view kWhat = "a rate of at least 1B/s, such as 12.5MB/s or 100Mbit/s";
  ENTRAIN_ASSIGN_OR_RETURN(plan.bytes_per_second, ParseUnits(values[0], kRates, kWhat));
  return plan.bytes_per_second > 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("\"", values[0], "\" is not ", kWhat));
}

absl::Status Cut(const Values& values, FaultPlan& plan) {
  ENTRAIN_ASSIGN_OR_RETURN(plan.cut_ns, Time(values[0]));
  plan.cut_ns = std::max<int64_t>(plan.cut_ns, 1);  // 0s means at once
  return absl::OkStatus();
}

absl::Status Seed(const Values& values, FaultPlan& plan) {
  return absl::SimpleAtoi(values[0], &plan.seed)
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("\"", values[0], "\" is not an integer from 0 to 2^64 - 1"));
}

absl::Status Ranks(const Values& values, FaultPlan& plan) {
  for (const absl::string_view value : values) {
    int rank = -1;
    if (!absl::SimpleAtoi(value, &rank) || rank < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is no rank"));
    }
    plan.ranks.push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status Transports(const Values& values, FaultPlan& plan) {
  ENTRAIN_ASSIGN_OR_RETURN(plan.transports, ParseTransports(absl::StrJoin(values, ",")));
  return absl::OkStatus();
}

struct Key {
  absl::string_view name;
  bool list;    // the value of this key may contain commas
  bool effect;  // has an effect without other keys
  absl::Status (*take)(const Values& values, FaultPlan& plan);
};

constexpr Key kKeys[] = {
    {"rate", false, true, Rate},
    {"latency", false, true,
     [](const Values& values, FaultPlan& plan) {
       ENTRAIN_ASSIGN_OR_RETURN(plan.latency_ns, Time(values[0]));
       return absl::OkStatus();
     }},
    {"jitter", false, true,
     [](const Values& values, FaultPlan& plan) {
       ENTRAIN_ASSIGN_OR_RETURN(plan.jitter_ns, Time(values[0]));
       return absl::OkStatus();
     }},
    {"seed", false, false, Seed},
    {"cut", false, true, Cut},
    {"ranks", true, false, Ranks},
    {"transports", true, false, Transports},
};

absl::StatusOr<const Key*> FindKey(absl::string_view name) {
  const Key* const key = std::find_if(std::begin(kKeys), std::end(kKeys),
                                      [&](const Key& known) { return known.name == name; });
  if (key == std::end(kKeys)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is none of ",
                     absl::StrJoin(kKeys, ", ", [](std::string* out, const Key& known) {
                       absl::StrAppend(out, known.name);
                     })));
  }
  return key;
}

absl::StatusOr<FaultPlan> Parse(absl::string_view text) {
  std::vector<std::pair<const Key*, Values>> given;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos) {
      if (given.empty() || !given.back().first->list) {
        return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not NAME=VALUE"));
      }
      given.back().second.push_back(part);
      continue;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Key* key, FindKey(part.substr(0, equals)));
    if (std::any_of(given.begin(), given.end(),
                    [&](const auto& before) { return before.first == key; })) {
      return absl::InvalidArgumentError(absl::StrCat(key->name, " is given twice"));
    }
    given.push_back({key, {part.substr(equals + 1)}});
  }
  FaultPlan plan;
  bool effect = false;
  for (const auto& [key, values] : given) {
    ENTRAIN_RETURN_IF_ERROR(Annotate(key->take(values, plan), key->name));
    effect = effect || key->effect;
  }
  if (!effect) {
    return absl::InvalidArgumentError("needs a rate, a latency, a jitter or a cut");
  }
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseTransports(absl::string_view text) {
  std::vector<std::string> asked;
  if (!absl::StripAsciiWhitespace(text).empty()) {
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      asked.emplace_back(absl::StripAsciiWhitespace(part));
    }
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool known = std::find(std::begin(kTransportNames), std::end(kTransportNames),
                                 asked[i]) != std::end(kTransportNames) ||
                       asked[i] == kForDevices;
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("transports \"", text, "\": \"", asked[i],
                                                     "\" is not a transport of this build (",
                                                     KnownNames(), ")"));
    }
    if (std::count(asked.begin(), asked.end(), asked[i]) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("transports \"", text, "\": \"", asked[i], "\" is named twice"));
    }
  }
  std::vector<std::string> names;
  for (const char* const name : kTransportNames) {
    if (asked.empty() || std::find(asked.begin(), asked.end(), name) != asked.end()) {
      names.emplace_back(name);
    }
  }
  if (asked.empty() || std::find(asked.begin(), asked.end(), kForDevices) != asked.end()) {
    names.emplace_back(kForDevices);
  }
  return names;
}

bool FaultPlan::IsFor(int rank) const {
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool FaultPlan::IsFor(absl::string_view transport) const {
  return transports.empty() ||
         std::find(transports.begin(), transports.end(), transport) != transports.end();
}

absl::StatusOr<FaultPlan> ParseFaultPlan(absl::string_view text) {
  absl::StatusOr<FaultPlan> plan = Parse(text);
  return plan.ok() ? std::move(plan) : Annotate(plan.status(), absl::StrCat("\"", text, "\""));
}

}  // namespace entrain
