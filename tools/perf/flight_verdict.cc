#include "tools/perf/flight_verdict.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace entrain::perf {
namespace {

// The calls on the path to the culprit. The value is the rank that leads from the call to the next
// call.
using Visited = std::map<std::tuple<std::string, int64_t, uint64_t, int>, int>;

std::tuple<std::string, int64_t, uint64_t, int> KeyOf(const OpenCall& call) {
  return {call.comm->id, call.tag, call.number, call.rank};
}

const RankDump* DumpOf(const JobComm& comm, int rank) {
  return comm.ranks[static_cast<size_t>(rank)];
}

// The ranks that the errors of other ranks blame, with the text of the first such error.
struct Blamed {
  std::set<int> ranks;
  int by = -1;
  std::string message;
};
Blamed BlamedIn(const JobComm& comm) {
  Blamed blamed;
  for (const RankDump* dump : comm.ranks) {
    if (dump == nullptr || !dump->ended || dump->ended->rank < 0 ||
        dump->ended->rank >= comm.size) {
      continue;
    }
    if (blamed.by < 0) {
      blamed.by = dump->rank;
      blamed.message = absl::StrCat(dump->ended->code, ": ", dump->ended->message);
    }
    blamed.ranks.insert(dump->ended->rank);
  }
  return blamed;
}

// A call of one process, in any of its communicators.
struct ProcessCall {
  const RankDump* dump = nullptr;
  const RankCall* call = nullptr;
};

// Returns the call under way that the process has started first, except `but`.
std::optional<ProcessCall> OldestOf(const Job& job, const std::string& process,
                                    const RankCall* but) {
  std::optional<ProcessCall> oldest;
  const auto of_process = job.processes.find(process);
  if (of_process == job.processes.end()) {
    return oldest;
  }
  for (const RankDump* dump : of_process->second) {
    for (const RankCall& call : dump->calls) {
      if (!call.over() && call.state != "failed" && &call != but &&
          (!oldest || call.started_s_ago > oldest->call->started_s_ago)) {
        oldest = ProcessCall{dump, &call};
      }
    }
  }
  return oldest;
}

class Finder {
 public:
  explicit Finder(const Job& job) : job_(job) {}

  Culprit Find(const OpenCall& call) {
    const auto [visited, is_new] = visited_.emplace(KeyOf(call), -1);
    if (!is_new) {
      return Named(call, visited->second,
                   absl::StrCat("ranks wait for each other in a circle, which comes back to ",
                                call.name, " of ", call.comm->name));
    }
    return call.message != nullptr ? FindForMessage(call) : FindForCollective(call);
  }

 private:
  Culprit Named(const OpenCall& call, int rank, std::string why) {
    return {call.comm, rank, std::move(why), chain_};
  }
  int LowestWaiting(const OpenCall& call) const {
    for (int r = 0; r < call.comm->size; ++r) {
      if (StandingOf(*call.comm, r, call.tag, call.number).standing == Standing::kOpen) {
        return r;
      }
    }
    return -1;
  }

  // Handles the case that the process of `rank` has not made its part of `call`. The process may
  // wait in another call.
  Culprit NotMade(const OpenCall& call, int rank, const std::string& what) {
    const RankDump& dump = *DumpOf(*call.comm, rank);
    const auto elsewhere = OldestOf(job_, dump.process(), call.message);
    if (!elsewhere) {
      const RankCall* const last = dump.Last(call.tag);
      return Named(
          call, rank,
          absl::StrCat("it ", what, ", and no other call is under way there",
                       last == nullptr ? ""
                                       : absl::StrCat("; its last call here, ", last->Name(),
                                                      ", is ", last->state)));
    }
    const JobComm& other = job_.CommOf(*elsewhere->dump);
    visited_[KeyOf(call)] = rank;
    chain_.push_back(absl::StrCat("rank ", rank, " of ", call.comm->name, " ", what, ": it is in ",
                                  elsewhere->call->Name(), " of ", other.name, " as rank ",
                                  elsewhere->dump->rank));
    return Find(AsOpenCall(other, *elsewhere));
  }

  static OpenCall AsOpenCall(const JobComm& comm, const ProcessCall& of) {
    OpenCall call{&comm, of.call->tag, of.call->number, of.call->Name(), of.call->started_s_ago};
    if (of.call->message) {
      call.rank = of.dump->rank;
      call.message = of.call;
    }
    return call;
  }

  std::optional<Culprit> NoDump(const OpenCall& call, const std::vector<int>& missing,
                                const std::set<int>& awaited, bool any) {
    const Blamed blamed = BlamedIn(*call.comm);
    const auto first = [&](const std::set<int>& of) {
      const auto found = std::find_if(missing.begin(), missing.end(),
                                      [&](int rank) { return of.count(rank) > 0; });
      return found == missing.end() ? -1 : *found;
    };
    if (const int rank = first(blamed.ranks); rank >= 0) {
      return Named(call, rank,
                   absl::StrCat("it has left no dump, and the error of rank ", blamed.by,
                                " blames it: ", blamed.message));
    }
    if (const int rank = first(awaited); rank >= 0) {
      return Named(call, rank,
                   "it has left no dump, and others wait for it: it is dead, stopped, or was not "
                   "asked");
    }
    if (any && !missing.empty()) {
      return Named(call, missing.front(),
                   "it has left no dump: it is dead, stopped, or was not asked");
    }
    return std::nullopt;
  }

  static std::string Stuck() {
    return "its engine did not answer when the dump was taken: the thread that drives it is stuck";
  }

  Culprit FindForCollective(const OpenCall& call) {
    const JobComm& comm = *call.comm;
    std::vector<RankStanding> standings;
    std::set<int> awaited;
    for (int r = 0; r < comm.size; ++r) {
      standings.push_back(StandingOf(comm, r, call.tag, call.number));
      if (const RankCall* const own = standings.back().call; own != nullptr && !own->over()) {
        awaited.insert(own->receives_from.begin(), own->receives_from.end());
        awaited.insert(own->sends_to.begin(), own->sends_to.end());
      }
    }
    if (const auto different = Different(call, standings)) {
      return *different;
    }
    const std::vector<int> missing = comm.Missing();
    if (const auto dead = NoDump(call, missing, awaited, /*any=*/false)) {
      return *dead;
    }
    for (int r = 0; r < comm.size; ++r) {
      if (const RankDump* const dump = DumpOf(comm, r); dump != nullptr && !dump->driver_answers) {
        return Named(call, r, Stuck());
      }
    }
    if (const auto absent = Absent(call, standings)) {
      return *absent;
    }
    if (const auto dead = NoDump(call, missing, awaited, /*any=*/true)) {
      return *dead;
    }
    return Slow(call, standings);
  }

  // Returns a culprit if ranks gave this number to different calls.
  std::optional<Culprit> Different(const OpenCall& call,
                                   const std::vector<RankStanding>& standings) {
    std::map<std::string, std::vector<int>> callers;
    std::map<std::string, std::string> arguments;
    for (size_t r = 0; r < standings.size(); ++r) {
      if (standings[r].call != nullptr) {
        callers[standings[r].call->descriptor].push_back(static_cast<int>(r));
        arguments[standings[r].call->descriptor] = standings[r].call->arguments;
      }
    }
    if (callers.size() < 2) {
      return std::nullopt;
    }
    std::vector<std::pair<std::string, std::vector<int>>> groups(callers.begin(), callers.end());
    std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
      return std::pair(b.second.size(), a.second) < std::pair(a.second.size(), b.second);
    });
    const bool tie = groups[0].second.size() == groups[1].second.size();
    // The lowest rank that differs from the majority. If there is a tie, the lowest rank that
    // differs from rank 0.
    int lowest = -1;
    std::string its;
    for (size_t g = 1; g < groups.size(); ++g) {
      if (lowest < 0 || groups[g].second.front() < lowest) {
        lowest = groups[g].second.front();
        its = groups[g].first;
      }
    }
    return Named(call, lowest,
                 absl::StrCat("it called ", arguments[its], " where ", RankList(groups[0].second),
                              " called ", arguments[groups[0].first],
                              tie ? ": a tie, so either may be wrong" : ""));
  }

  // Handles ranks that have not started the call. The culprit is the first of them whose process is
  // in no other call. If all of them are in other calls, the search continues with the first one.
  std::optional<Culprit> Absent(const OpenCall& call, const std::vector<RankStanding>& standings) {
    int first = -1;
    for (size_t r = 0; r < standings.size(); ++r) {
      if (standings[r].standing != Standing::kNotStarted) {
        continue;
      }
      const int rank = static_cast<int>(r);
      first = first < 0 ? rank : first;
      if (!OldestOf(job_, DumpOf(*call.comm, rank)->process(), nullptr)) {
        return NotMade(call, rank, absl::StrCat("has not called ", call.name));
      }
    }
    return first < 0
               ? std::nullopt
               : std::optional(NotMade(call, first, absl::StrCat("has not called ", call.name)));
  }

  // Handles the case that all ranks have started the same call.
  Culprit Slow(const OpenCall& call, const std::vector<RankStanding>& standings) {
    const auto open = [&](int rank) {
      const RankStanding& standing = standings[static_cast<size_t>(rank)];
      return standing.standing == Standing::kOpen ? standing.call : nullptr;
    };
    for (int r = 0; r < call.comm->size; ++r) {
      if (open(r) != nullptr && open(r)->state == "reducing") {
        return Named(call, r, "its own reduction function has not returned");
      }
    }
    // A message for which its receiver waits, and which its sender has sent or is still sending.
    // Messages of a sender that waits for nothing come first: other messages may be late because of
    // them.
    struct Transit {
      bool sender_waits;
      int from, to;
    };
    std::vector<Transit> transits;
    for (int to = 0; to < call.comm->size; ++to) {
      for (const int from : open(to) == nullptr ? std::vector<int>() : open(to)->receives_from) {
        const RankCall* const sender = open(from);
        const bool sending = sender != nullptr &&
                             std::count(sender->sends_to.begin(), sender->sends_to.end(), to) > 0;
        const bool sent = standings[static_cast<size_t>(from)].standing == Standing::kOver;
        if (sending || sent) {
          transits.push_back({sender != nullptr && !sender->receives_from.empty(), from, to});
        }
      }
    }
    if (!transits.empty()) {
      const Transit& first = *std::min_element(transits.begin(), transits.end(),
                                               [](const Transit& a, const Transit& b) {
                                                 return std::tuple(a.sender_waits, a.from, a.to) <
                                                        std::tuple(b.sender_waits, b.from, b.to);
                                               });
      return Link(call, first.from, first.to);
    }
    const Blamed blamed = BlamedIn(*call.comm);
    if (!blamed.ranks.empty()) {
      return Named(call, *blamed.ranks.begin(),
                   absl::StrCat("the error of rank ", blamed.by, " blames it: ", blamed.message));
    }
    return FollowWaits(call, standings);
  }

  Culprit Link(const OpenCall& call, int from, int to) {
    const RankMember& sender = call.comm->members[static_cast<size_t>(from)];
    const RankMember& receiver = call.comm->members[static_cast<size_t>(to)];
    return Named(call, from,
                 absl::StrCat("its message to rank ", to,
                              " has not come, and both have made the call: the link from rank ",
                              from, " (", job_.HostOf(sender), ") to rank ", to, " (",
                              job_.HostOf(receiver), ") is slow or broken"));
  }

  Culprit FollowWaits(const OpenCall& call, const std::vector<RankStanding>& standings) {
    std::set<int> seen;
    int rank = LowestWaiting(call);
    while (rank >= 0 && seen.insert(rank).second) {
      const RankStanding& standing = standings[static_cast<size_t>(rank)];
      if (standing.standing != Standing::kOpen || standing.call->receives_from.empty()) {
        return Named(call, rank,
                     absl::StrCat("the others wait for it, and it is ",
                                  standing.call == nullptr ? "starting" : standing.call->state));
      }
      rank = standing.call->receives_from.front();
    }
    return Named(call, -1, "all ranks have made the call, and each waits for another one");
  }

  Culprit FindForMessage(const OpenCall& call) {
    const JobComm& comm = *call.comm;
    const RankCall& message = *call.message;
    const int peer = message.peer;
    if (peer < 0 || message.number == 0) {
      if (const auto dead = NoDump(call, comm.Missing(), {}, /*any=*/true)) {
        return *dead;
      }
      return Named(call, -1, "it takes a message of any rank, and none has come");
    }
    const RankDump* const dump = DumpOf(comm, peer);
    if (dump == nullptr) {
      return *NoDump(call, {peer}, {peer}, true);
    }
    if (!dump->driver_answers) {
      return Named(call, peer, Stuck());
    }
    const bool peer_sends = !message.sends();
    const auto used = dump->messages.find({message.tag, call.rank, peer_sends});
    if (used == dump->messages.end() || used->second < message.number) {
      return NotMade(call, peer,
                     absl::StrCat("has not made the ", peer_sends ? "send" : "receive",
                                  " that matches ", message.Name(), " of rank ", call.rank));
    }
    return peer_sends ? Link(call, peer, call.rank) : Link(call, call.rank, peer);
  }

  const Job& job_;
  Visited visited_;
  std::vector<std::string> chain_;
};

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    runs.push_back(end - i == 1
                       ? absl::StrCat(ranks[i])
                       : absl::StrCat(ranks[i], end - i == 2 ? ", " : "-", ranks[end - 1]));
    i = end;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

RankStanding StandingOf(const JobComm& comm, int rank, int64_t tag, uint64_t number) {
  const RankDump* const dump = DumpOf(comm, rank);
  if (dump == nullptr) {
    return {Standing::kNoDump};
  }
  if (const RankCall* const call = dump->Collective(tag, number)) {
    return {call->over() ? Standing::kOver : Standing::kOpen, call};
  }
  const auto used = dump->collectives.find(tag);
  const uint64_t started = used == dump->collectives.end() ? 0 : used->second;
  // An older call without an entry is over: open calls are always in the dump.
  return {started < number    ? Standing::kNotStarted
          : started == number ? Standing::kStarting
                              : Standing::kOver};
}

std::vector<OpenCall> OpenCallsOf(const JobComm& comm) {
  std::map<std::tuple<bool, int64_t, uint64_t, int, std::string>, OpenCall> found;
  for (const RankDump* dump : comm.ranks) {
    if (dump == nullptr) {
      continue;
    }
    for (const RankCall& call : dump->calls) {
      if (call.over()) {
        continue;
      }
      // If ranks made different calls under one number, these calls are one entry.
      OpenCall& open = found[{call.message, call.tag, call.number, call.message ? dump->rank : -1,
                              call.message ? absl::StrCat(call.operation, call.peer) : ""}];
      if (open.comm == nullptr) {
        open = {&comm, call.tag, call.number, call.Name()};
      }
      open.age_s = std::max(open.age_s, call.started_s_ago);
      if (call.message) {
        open.rank = dump->rank;
        open.message = &call;
      }
    }
  }
  // Calls are sorted by age, but an earlier collective always comes before a later collective of
  // the same tag. By age alone the later one could come first. A rank that has finished the earlier
  // collective may have been in the later one for a long time, while another rank has only just
  // started the earlier one.
  std::map<int64_t, double> later_s;  // by tag
  std::vector<std::pair<double, OpenCall>> by_age;
  for (auto call = found.rbegin(); call != found.rend(); ++call) {
    double age_s = call->second.age_s;
    if (call->second.message == nullptr) {
      age_s = later_s[call->second.tag] = std::max(later_s[call->second.tag], age_s);
    }
    by_age.emplace_back(age_s, call->second);
  }
  std::reverse(by_age.begin(), by_age.end());
  std::stable_sort(by_age.begin(), by_age.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<OpenCall> calls;
  for (auto& [age_s, call] : by_age) {
    calls.push_back(std::move(call));
  }
  return calls;
}

Culprit FindCulprit(const Job& job, const OpenCall& call) {
  return Finder(job).Find(call);
}

}  // namespace entrain::perf
