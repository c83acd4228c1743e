// Finds the culprit of calls that are not over: the rank for which all ranks wait, directly or
// through other ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/perf/flight_model.h"

namespace entrain::perf {

// A call that is not over on every rank. A collective is one call of all ranks. A message is a call
// of the rank whose dump has it.
struct OpenCall {
  const JobComm* comm = nullptr;
  int64_t tag = -1;
  uint64_t number = 0;
  std::string name;   // "all_reduce #5"
  double age_s = -1;  // age on the rank that started the call first; -1: unknown
  int rank = -1;      // the rank whose dump has the message; -1: a collective
  const RankCall* message = nullptr;
};

// The progress of a rank in a collective.
enum class Standing {
  kNoDump,
  kNotStarted,
  kStarting,  // has taken the number; the call is on the inline path, or between its parts
  kOpen,
  kOver,
};
struct RankStanding {
  Standing standing = Standing::kNoDump;
  const RankCall* call = nullptr;  // null: not in the dump
};
RankStanding StandingOf(const JobComm& comm, int rank, int64_t tag, uint64_t number);

// Returns the calls that are not over, the oldest first.
std::vector<OpenCall> OpenCallsOf(const JobComm& comm);

struct Culprit {
  const JobComm* comm = nullptr;
  int rank = -1;  // -1: no rank stands out
  std::string why;
  // The ranks that wait between the first rank and the culprit: "rank 1 of a waits in all_reduce #2
  // of b".
  std::vector<std::string> chain;
};
Culprit FindCulprit(const Job& job, const OpenCall& call);

// Returns "ranks 0-2, 5" or "rank 3".
std::string RankList(const std::vector<int>& ranks);

}  // namespace entrain::perf
