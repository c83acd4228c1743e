// How long a call takes: the schedules of all its ranks, run against each other on paper by the
// figures of a machine. Counts nothing twice that overlaps: lanes, roots, chains and ranks that share
// cores come out as they are.
//
// What is modelled. A rank does one thing at a time, in the order in which it can be done: it posts
// rounds, takes messages and combines. More ranks than cores take turns. A message sent is there after the latency, and its bytes go over
// the host's wire (inside a host: its memory; between hosts: what leaves one and enters the other),
// where they follow the bytes of others; the receiver takes them meanwhile. A round is over when its
// messages have been taken, large ones that were sent included.
//
// Whole picoseconds and femtoseconds a byte, so that every machine comes to the same sums: ranks
// choose by them.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "collectives/spec.h"

namespace entrain {

struct LinkModel {
  int64_t latency_ps = 0;  // from having sent to being there
  int64_t message_ps = 0;  // work for each message, of the sender and again of the receiver
  int64_t send_fs = 0;     // the sender's work for each byte
  int64_t receive_fs = 0;  // the receiver's
  int64_t wire_fs = 0;     // each byte on what the ranks of a host share
  // Of messages with more bytes than this the sender keeps the memory until it hears that they were
  // taken, which is large_ps more work for the receiver.
  int64_t eager_bytes = 0;
  int64_t large_ps = 0;
};

struct MachineModel {
  LinkModel inside;  // between ranks of a host
  LinkModel across;  // between hosts
  int64_t reduce_fs =
      0;  // combining two operands, each byte of the result; more by what is touched
  int64_t switch_ps = 0;  // a core goes to another rank
  int cores = 0;          // of each host; 0: enough
};

// From the start of all ranks to the end of the last. `hosts` as in Algorithm::build; `layout`: of
// input and output; at most `window` lanes of a rank are active at a time.
int64_t RunTimeline(absl::Span<const Schedule> schedules, absl::Span<const int> hosts,
                    const Layout& layout, int64_t element_bytes, int window,
                    const MachineModel& machine);

}  // namespace entrain
