// Chooses the method by which a message travels between two processes (Way), from a table over the
// message and the facts of the path. docs/shm.md describes the table in words. The sender asks
// whether a message is eager. The receiver of an RTS asks for the method.
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
  kRing,    // the receiver asks (CTS), and the sender copies the message into the ring
  kMapped,  // the receiver copies the message out of the sender's mapped region
  kLoan,    // the receive reads the message in place, in such a region
};

inline constexpr size_t kMostEager = 32 << 10, kMostEagerBesideQuickReads = 4 << 10;
inline constexpr uint64_t kRingBesideQuickReads = 2 << 20;

// Facts that hold for all messages of one direction of a path, as long as no connection is
// established or ended.
struct Facts {
  bool spare_cores = false;        // every connected process can have a core of its own
  bool can_read = false;           // the receiver can read the sender's memory
  bool quick_reads = false;        // ReadsAreQuick
  size_t most_eager = kMostEager;  // smaller if the ring can hold only shorter records
};

struct Ask {
  uint64_t bytes = 0;
  bool credit = false;    // no RTS was sent yet, and there is credit
  bool mapped = false;    // the message lies in a region mapped here
  bool loan = false;      // the receive accepts a loan
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
  // A small message is sent by RTS only if there is no credit or no room. Asking for it through the
  // ring would use that room again.
  if (!ask.awake || ask.bytes <= kMostEager) {
    return Way::kRead;
  }
  if (!facts.quick_reads) {
    return Way::kRing;
  }
  return !ask.exchange && ask.bytes >= kRingBesideQuickReads ? Way::kRing : Way::kRead;
}

// Returns one line of text: the facts, and the methods that Choose returns with these facts, each
// with the smallest size for which Choose returns it.
std::string Explained(const Facts& facts);

// Returns true if reading another process's memory is about as fast as a copy within a process, so
// that one read is faster than two copies through the ring. Measured once per process, on its own
// memory. Returns false if no memory can be read.
bool ReadsAreQuick();

}  // namespace entrain::shm
