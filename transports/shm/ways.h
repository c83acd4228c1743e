// The way of a message between two processes: a table over the message and the facts of the path. docs/shm.md has it in
// words. The sender asks whether a message is eager; the receiver of a message sent by RTS asks for the rest.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace entrain::shm {

enum class Way : uint8_t {
  kEager,   // the sender copies the message into the ring at once
  kRead,    // the receiver reads the sender's memory
  kRing,    // the receiver asks for the message (CTS), and the sender copies it into the ring
  kMapped,  // the receiver copies the message out of the sender's region, which is mapped here
  kLoan,    // the receive is lent the message where it lies in such a region
};

inline constexpr size_t kMostEager = 32 << 10, kMostEagerBesideQuickReads = 4 << 10;
inline constexpr uint64_t kRingBesideQuickReads = 2 << 20;

// What holds for all messages of one direction of a path while no connection comes or goes.
struct Facts {
  bool spare_cores = false;        // every process that is connected can have a core of its own
  bool can_read = false;           // the receiver can read the sender's memory
  bool quick_reads = false;        // ReadsAreQuick
  size_t most_eager = kMostEager;  // less: the ring holds no longer record
};

struct Ask {
  uint64_t bytes = 0;
  bool credit = false;    // no RTS sent yet, and there is credit for it
  bool mapped = false;    // lies in a region that is mapped here
  bool loan = false;      // the receive takes a loan
  bool exchange = false;  // the receiver sends messages by RTS to the sender meanwhile
  bool awake = true;      // the sender polls
};

constexpr size_t EagerLimit(const Facts& facts) {
  return facts.spare_cores && facts.can_read && facts.quick_reads
             ? std::min(facts.most_eager, kMostEagerBesideQuickReads)
             : facts.most_eager;
}

// The first row that fits counts.
constexpr Way Choose(const Ask& ask, const Facts& facts) {
  if (ask.credit && ask.bytes <= EagerLimit(facts)) {
    return Way::kEager;
  }
  if (ask.mapped) {
    return ask.loan ? Way::kLoan : Way::kMapped;
  }
  if (!facts.can_read) {
    return Way::kRing;
  }
  // A small one is here because there was no credit or no room: asking for it would take the room again.
  if (!ask.awake || ask.bytes <= kMostEager) {
    return Way::kRead;
  }
  if (!facts.quick_reads) {
    return Way::kRing;
  }
  return !ask.exchange && ask.bytes >= kRingBesideQuickReads ? Way::kRing : Way::kRead;
}

// One line: the facts, and the ways that Choose takes with them, with the sizes from which on it takes each.
std::string Explained(const Facts& facts);

// Whether reading the memory of another process is about as quick as a copy within a process, so that one reading beats
// two copies through the ring. Measured once per process, on its own memory; false where nothing can be read.
bool ReadsAreQuick();

}  // namespace entrain::shm
