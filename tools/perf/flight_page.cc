#include "tools/perf/flight_page.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"
#include "tools/perf/flight_model.h"
#include "tools/perf/flight_verdict.h"
#include <nlohmann/json.hpp>

namespace entrain::perf {
namespace {

using Json = nlohmann::ordered_json;

// The number of calls of one communicator that the page shows in full.
constexpr size_t kMostCalls = 8;

std::string Line(const Job& job, const Culprit& culprit) {
  return culprit.rank < 0
             ? absl::StrCat("none that stands out in ", culprit.comm->name, ": ", culprit.why)
             : absl::StrCat(job.NameOf(*culprit.comm, culprit.rank), ": ", culprit.why);
}

Json ToJson(const Job& job, const Culprit& culprit) {
  Json json{{"communicator", culprit.comm->name},
            {"id", culprit.comm->id},
            {"rank", culprit.rank < 0 ? Json() : Json(culprit.rank)},
            {"why", culprit.why},
            {"chain", culprit.chain}};
  if (culprit.rank >= 0) {
    const auto rank = static_cast<size_t>(culprit.rank);
    const RankMember& member = culprit.comm->members[rank];
    const RankDump* const dump = culprit.comm->ranks[rank];
    json["process"] = member.process;
    json["host"] = job.HostOf(member);
    json["pid"] = dump == nullptr ? Json() : Json(dump->pid);
    json["address"] = member.address;
  }
  return json;
}

std::string Waits(const RankCall& call) {
  std::vector<std::string> waits;
  if (!call.receives_from.empty()) {
    waits.push_back(absl::StrCat("receives from ", RankList(call.receives_from)));
  }
  if (!call.sends_to.empty()) {
    waits.push_back(absl::StrCat("sends to ", RankList(call.sends_to)));
  }
  return absl::StrJoin(waits, ", ");
}

// The state of one rank in a call, as one line shows it.
struct RankLine {
  std::string state, waits;
  double since_s = -1;
};

RankLine LineOf(const RankCall& call) {
  return {call.over() ? "done" : call.state, call.over() ? "" : Waits(call),
          call.over() ? -1 : call.started_s_ago};
}

RankLine LineOf(const JobComm& comm, int rank, const OpenCall& call) {
  const RankStanding standing = StandingOf(comm, rank, call.tag, call.number);
  if (standing.call != nullptr) {
    return LineOf(*standing.call);
  }
  switch (standing.standing) {
    case Standing::kNoDump:
      return {"no dump", ""};
    case Standing::kNotStarted: {
      const RankCall* const last = comm.ranks[static_cast<size_t>(rank)]->Last(call.tag);
      return {"not started",
              last == nullptr ? "" : absl::StrCat("last call ", last->Name(), ", ", last->state)};
    }
    case Standing::kStarting:
      return {"starting", ""};
    default:
      return {"done", ""};
  }
}

void Append(const OpenCall& call, std::string* text, Json* json) {
  std::map<std::string, std::vector<int>> arguments;
  // Groups of ranks whose lines are equal except for the time.
  std::vector<std::pair<RankLine, std::vector<int>>> lines;
  Json ranks = Json::array();
  const JobComm& comm = *call.comm;
  for (int r = 0; r < comm.size; ++r) {
    if (call.message != nullptr && r != call.rank) {
      continue;
    }
    const RankCall* const own =
        call.message != nullptr ? call.message : StandingOf(comm, r, call.tag, call.number).call;
    const RankLine line = call.message != nullptr ? LineOf(*own) : LineOf(comm, r, call);
    if (own != nullptr) {
      arguments[absl::StrCat(own->arguments, own->algorithm.empty() ? "" : ", ", own->algorithm)]
          .push_back(r);
    }
    auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& one) {
      return one.first.state == line.state && one.first.waits == line.waits;
    });
    if (same == lines.end()) {
      same = lines.insert(lines.end(), {line, {}});
    }
    same->first.since_s = std::max(same->first.since_s, line.since_s);
    same->second.push_back(r);
    Json one{{"rank", r}, {"state", line.state}};
    if (own != nullptr) {
      one["arguments"] = own->arguments;
      one["started_s_ago"] = own->started_s_ago < 0 ? Json() : Json(own->started_s_ago);
      one["receives_from"] = own->receives_from;
      one["sends_to"] = own->sends_to;
    }
    ranks.push_back(std::move(one));
  }
  absl::StrAppend(text, "  ", call.name);
  if (arguments.size() == 1) {
    absl::StrAppend(text, ": ", arguments.begin()->first);
  }
  absl::StrAppend(text, "\n");
  for (const auto& [called, by] : arguments) {
    if (arguments.size() > 1) {
      absl::StrAppend(text, "    called ", called, ": ", RankList(by), "\n");
    }
  }
  for (const auto& [line, of] : lines) {
    absl::StrAppend(text, "    ", line.state,
                    line.since_s < 0 ? "" : absl::StrFormat(" for %.1f s", line.since_s), ": ",
                    RankList(of), line.waits.empty() ? "" : "; ", line.waits, "\n");
  }
  json->push_back({{"call", call.name}, {"ranks", std::move(ranks)}});
}

// Returns the ranks whose communicator has ended, by the error.
std::map<std::string, std::vector<int>> ErrorsOf(const JobComm& comm) {
  std::map<std::string, std::vector<int>> errors;
  for (const RankDump* dump : comm.ranks) {
    if (dump != nullptr && dump->ended) {
      errors[absl::StrCat(dump->ended->code, ": ", dump->ended->message)].push_back(dump->rank);
    }
  }
  return errors;
}

class Page {
 public:
  explicit Page(const Job& job) : job_(job) {}

  FlightPage Make(size_t files) {
    std::string comms;
    Json list = Json::array();
    for (const JobComm& comm : job_.comms) {
      Add(comm, &comms, &list);
    }
    std::string text =
        absl::StrCat("flight dumps of ", job_.processes.size(), " processes in ", files, " files, ",
                     job_.comms.size(), " communicators\nculprit: ",
                     worst_ ? Line(job_, *worst_) : "none: no call is under way", "\n");
    for (const std::string& step : worst_ ? worst_->chain : std::vector<std::string>()) {
      absl::StrAppend(&text, "  ", step, "\n");
    }
    Json json{{"processes", job_.processes.size()},
              {"culprit", worst_ ? ToJson(job_, *worst_) : Json()},
              {"communicators", std::move(list)}};
    return {absl::StrCat(text, comms), absl::StrCat(json.dump(1), "\n")};
  }

 private:
  void Add(const JobComm& comm, std::string* text, Json* list) {
    const std::vector<int> missing = comm.Missing();
    const std::vector<OpenCall> calls = OpenCallsOf(comm);
    Json errors = Json::array(), json_calls = Json::array();
    absl::StrAppend(text, "\n", comm.name, ": ", comm.size, " ranks",
                    comm.generation == 0 ? "" : absl::StrCat(", generation ", comm.generation),
                    missing.empty() ? "" : absl::StrCat(", no dump of ", RankList(missing)),
                    calls.empty() ? ", no call is under way" : "", "\n");
    for (const auto& [error, ranks] : ErrorsOf(comm)) {
      absl::StrAppend(text, "  ended on ", RankList(ranks), ": ", error, "\n");
      errors.push_back({{"ranks", ranks}, {"error", error}});
    }
    for (const RankDump* dump : comm.ranks) {
      if (dump != nullptr && dump->torn > 0) {
        absl::StrAppend(text, "  rank ", dump->rank, ": ", dump->torn,
                        " calls were being written while the dump was taken\n");
      }
    }
    for (size_t i = 0; i < std::min(calls.size(), kMostCalls); ++i) {
      Append(calls[i], text, &json_calls);
    }
    if (calls.size() > kMostCalls) {
      absl::StrAppend(text, "  and ", calls.size() - kMostCalls, " later calls\n");
    }
    Json json{{"name", comm.name},
              {"id", comm.id},
              {"generation", comm.generation},
              {"size", comm.size},
              {"no_dump", missing},
              {"ended", std::move(errors)},
              {"calls", std::move(json_calls)}};
    if (!calls.empty()) {
      const Culprit culprit = FindCulprit(job_, calls.front());
      absl::StrAppend(text, "  culprit: ", Line(job_, culprit), "\n");
      for (const std::string& step : culprit.chain) {
        absl::StrAppend(text, "    ", step, "\n");
      }
      json["culprit"] = ToJson(job_, culprit);
      // A communicator with a culprit counts more than one without. Among the others, the one with
      // the longest wait counts most.
      const std::pair<bool, double> weight(culprit.rank >= 0, calls.front().age_s);
      if (!worst_ || weight > weight_) {
        worst_ = culprit;
        weight_ = weight;
      }
    }
    list->push_back(std::move(json));
  }

  const Job& job_;
  std::optional<Culprit> worst_;
  std::pair<bool, double> weight_;
};

}  // namespace

absl::StatusOr<FlightPage> MergeFlights(const std::vector<FlightFile>& files) {
  ENTRAIN_ASSIGN_OR_RETURN(const Job job, ReadJob(files));
  return Page(job).Make(files.size());
}

}  // namespace entrain::perf
