// Chooses the way of a message between two processes: a table over the message and the facts of the
// path. docs/shm.md has it in words. The sender asks whether a message is eager. The receiver of a
// message sent by RTS asks for its way.
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
  kRing,    // the receiver asks (CTS), the sender copies it into the ring
  kMapped,  // the receiver copies it out of the sender's mapped region
  kLoan,    // the receive is lent the message in such a region
};

inline constexpr size_t kMostEager = 32 << 10, kMostEagerBesideQuickReads = 4 << 10;
inline constexpr uint64_t kRingBesideQuickReads = 2 << 20;

// Facts that hold for all messages of one direction of a path, as long as no connection is
// established or ended.
struct Facts {
  bool spare_cores = false;        // every connected process can have a core of its own
  bool can_read = false;           // the receiver can read the sender's memory
  bool quick_reads = false;        // ReadsAreQuick
  size_t most_eager = kMostEager;  // smaller if the ring holds no longer record
};

struct Ask {
  uint64_t bytes = 0;
  bool credit = false;    // no RTS was sent yet, and there is credit
  bool mapped = false;    // lies in a region mapped here
  bool loan = false;      // the receive takes a loan
  bool exchange = false;  // the receiver meanwhile sends messages by RTS too
  bool awake = true;      // the sender polls
};

constexpr size_t EagerLimit(const Facts& facts) {
  return facts.spare_cores && facts.can_read && facts.quick_reads
             ? std::min(facts.most_eager, kMostEagerBesideQuickReads)
             : facts.most_eager;
}

// The first row that matches decides.
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
  // A small message is sent by RTS only without credit or room. A request for it would take that
  // room again.
  if (!ask.awake || ask.bytes <= kMostEager) {
    return Way::kRead;
  }
  if (!facts.quick_reads) {
    return Way::kRing;
  }
  return !ask.exchange && ask.bytes >= kRingBesideQuickReads ? Way::kRing : Way::kRead;
}

// Returns one line of text: the facts, and the ways that Choose takes with them, each with the size
// from which it is taken.
std::string Explained(const Facts& facts);

// Returns true if reading another process's memory is about as fast as a copy within a process, so
// that one read beats two copies through the ring. Measured once per process, on its own memory.
// False if no memory can be read.
bool ReadsAreQuick();

}  // namespace entrain::shm
