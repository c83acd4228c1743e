// The content of a flight dump, and its JSON text (docs/flight.md has the format). A dump holds all
// flight recorders of one process.
//
// Thread safety: the values of this file are not shared between threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/call_numbers.h"
#include "lib/comm/call_work.h"
#include "lib/comm/flight/flight_recorder.h"

namespace entrain {

class CommCore;

struct FlightMember {
  std::string process;  // PeerId, in hexadecimal
  int world_rank = -1;
  std::string host, transport, address;
};

// The part of a dump that only the driver of the communicator's engine can read.
struct FlightLook {
  bool answered = false;  // false: the driver has not answered in time
  std::vector<FlightOpen> open = {};
  // The address of each rank as errors show it, for example "shm pid 12"; empty for this rank.
  // There are no elements if the driver has not answered.
  std::vector<std::string> addresses = {};
};

struct FlightComm {
  std::string id;  // equal on all ranks of the communicator, and different from all other ids
  std::string name, world;
  uint64_t generation = 0;
  int rank = 0;
  std::vector<FlightMember> members;
  absl::Status ended;
  bool driver_answers = true;
  std::vector<CallNumbers::Count> started;
  uint64_t submitted = 0, inlined = 0;
  struct Recorded {
    FlightEntry entry;
    std::vector<int> receives_from, sends_to;
  };
  std::vector<Recorded> calls;
};

struct FlightDump {
  std::string why;   // "failure of world", "signal 12"
  std::string host;  // gethostname
  int64_t pid = 0;
  int64_t now_ns = 0;   // time of the dump by Clock::Real(), as for the times of calls
  int64_t unix_ms = 0;  // the same instant, in milliseconds since 1970
  std::vector<FlightComm> comms;
};

// Reads the flight recorder of a communicator and adds `look`. Any thread.
FlightComm Describe(const CommCore& core, const FlightLook& look);
// Merges the calls of `look` into `calls`. If a call has an entry, the entry gets the state and the
// open transfers from `look`. If the entry of a call was overwritten, the call is inserted at the
// front. An entry with state kDone is newer than `look` and stays unchanged. An entry with state
// kFailed gets the state before the failure, because that state shows the ranks for which the call
// waited.
void AddOpen(const FlightLook& look, std::vector<FlightComm::Recorded>* calls);
std::string ToJson(const FlightDump& dump);

}  // namespace entrain
