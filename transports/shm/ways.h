// Chooses the method by which a message travels between two processes (Way). The choice depends
// only on the message (Ask) and on the path (Facts). docs/shm.md has the choice as a table. The
// sender calls Choose to find out whether a message is eager. The receiver of an RTS calls Choose
// to find the method.
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
  kLoan,    // the receive reads the message in place, in the sender's mapped region
};

inline constexpr size_t kMostEager = 32 << 10, kMostEagerBesideQuickReads = 4 << 10;
inline constexpr uint64_t kRingBesideQuickReads = 2 << 20, kRingBesideFairReads = 512 << 10;

// The speed of a read of another process's memory, compared with a copy inside a process.
enum class Reads : uint8_t {
  kSlow,   // two copies through the ring are quicker than one read
  kFair,   // as quick as the ring: it depends on the message
  kQuick,  // a read is quicker
};

// The facts about one direction of a path. They change only if a connection is established or
// ended, or if a side finds that memory cannot be read.
struct Facts {
  bool spare_cores = false;        // each of the connected processes can have a core of its own
  bool can_read = false;           // the receiver can read the sender's memory
  Reads reads = Reads::kSlow;      // result of MeasuredReads
  size_t most_eager = kMostEager;  // smaller if the ring can hold only shorter records
};

struct Ask {
  uint64_t bytes = 0;
  bool credit = false;    // the sender asks, no RTS was sent yet, and there is credit
  bool mapped = false;    // the message lies in a region that the receiver has mapped
  bool loan = false;      // the receive accepts a loan
  bool exchange = false;  // the receiver also has unfinished messages to the sender, sent by RTS
  bool awake = true;      // the sender polls
};

constexpr size_t EagerLimit(const Facts& facts) {
  return facts.spare_cores && facts.can_read && facts.reads == Reads::kQuick
             ? std::min(facts.most_eager, kMostEagerBesideQuickReads)
             : facts.most_eager;
}

// The first condition that holds decides.
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
  // A small message is sent by RTS only if the ring was full or the credit was used up. After a
  // CTS, the message would again need room in the ring.
  if (!ask.awake || ask.bytes <= kMostEager) {
    return Way::kRead;
  }
  const bool quick = facts.reads == Reads::kQuick;
  if (facts.reads == Reads::kSlow || (!quick && !facts.spare_cores)) {
    return Way::kRing;
  }
  const uint64_t most = quick ? kRingBesideQuickReads : kRingBesideFairReads;
  return !ask.exchange && ask.bytes >= most ? Way::kRing : Way::kRead;
}

// Returns one line of text: the facts, and the methods that Choose returns for these facts, with
// the smallest size of each method.
std::string Explained(const Facts& facts);

// Returns the speed of reads on this machine. Measures it once per process, by reading the process's
// own memory. Returns kSlow if no memory can be read.
Reads MeasuredReads();

}  // namespace entrain::shm
