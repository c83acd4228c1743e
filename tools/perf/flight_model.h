// Merges the flight dumps of several processes: communicators, their ranks, and the calls that are
// not over.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tools/perf/flight_page.h"

namespace entrain::perf {

struct RankCall {
  uint64_t number = 0;  // 0: a receive that has no message yet
  int64_t tag = -1;
  std::string operation;
  int peer = -1;         // peer of a message; -1: a collective, or any peer
  bool message = false;  // send, recv, recv_any
  std::string arguments, descriptor, algorithm, state;
  double started_s_ago = -1, state_s = -1;  // -1: unknown
  std::vector<int> receives_from, sends_to;

  bool over() const { return state == "done"; }
  bool sends() const { return operation == "send"; }
  std::string Name() const;  // "all_reduce tag 3 #5"
};

struct RankMember {
  std::string process, host_id, transport, address;
};

struct RankError {
  std::string code, message;
  int rank = -1;  // the rank that the error blames; -1: none
};

// One communicator in one process.
struct RankDump {
  std::string id, name;
  std::string host;  // host of the process
  int64_t pid = 0;
  uint64_t generation = 0;
  int rank = 0, size = 0;
  bool driver_answers = true;
  std::optional<RankError> ended;
  std::vector<RankMember> members;
  // The number of calls that were started: collectives by tag; messages by tag, peer and direction.
  std::map<int64_t, uint64_t> collectives;
  std::map<std::tuple<int64_t, int, bool>, uint64_t> messages;  // true: sent
  std::vector<RankCall> calls;
  int64_t unix_ms = 0;
  size_t torn = 0;

  const std::string& process() const { return members[static_cast<size_t>(rank)].process; }
  bool HasOpenCall() const;
  // Return null if the call is not in the dump.
  const RankCall* Collective(int64_t tag, uint64_t number) const;
  const RankCall* Message(int64_t tag, uint64_t number, int peer, bool sends) const;
  // Returns the collective of this tag that was started last, or null if none is in the dump.
  const RankCall* Last(int64_t tag) const;
};

struct JobComm {
  std::string id, name;
  uint64_t generation = 0;
  int size = 0;
  std::vector<RankMember> members;
  std::vector<const RankDump*> ranks;  // null: no dump
  std::vector<int> Missing() const;
};

struct Job {
  std::deque<RankDump> dumps;
  std::vector<JobComm> comms;  // in the order of the first dump that has the communicator
  // The communicators of a process, by its identity.
  std::map<std::string, std::vector<const RankDump*>> processes;
  const JobComm& CommOf(const RankDump& dump) const;
  // Returns the name of the member's host if there is a dump of that host, otherwise its host id.
  std::string HostOf(const RankMember& member) const;
  // Returns "rank 2 of world (host a, pid 7, tcp 10.0.0.1:5, process 3f81a2c0)".
  std::string NameOf(const JobComm& comm, int rank) const;
};

absl::StatusOr<Job> ReadJob(const std::vector<FlightFile>& files);

}  // namespace entrain::perf
