// A dump of the flight recorders of one process: what a dump holds, and its JSON text
// (docs/flight.md has the format).
//
// Thread safety: none of the values is shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/call_numbers.h"
#include "lib/comm/call_work.h"
#include "lib/comm/flight_recorder.h"

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
  // By rank, as in errors: "shm pid 12". Empty: for this rank, or all unknown.
  std::vector<std::string> addresses = {};
};

struct FlightComm {
  std::string id;  // equal on all ranks, and no other communicator's
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
  int64_t now_ns = 0;   // of Clock::Real(), as the times of calls
  int64_t unix_ms = 0;  // the same instant, in milliseconds since 1970
  std::vector<FlightComm> comms;
};

// Reads the recorder of a communicator and adds what the driver knows. Any thread.
FlightComm Describe(const CommCore& core, const FlightLook& look);
// Puts the calls of `look` into `calls`: adds what they wait for, and the calls whose entries were
// overwritten. An entry that says that the call is done is the later one, and stays.
void AddOpen(const FlightLook& look, std::vector<FlightComm::Recorded>* calls);
std::string ToJson(const FlightDump& dump);

}  // namespace entrain
