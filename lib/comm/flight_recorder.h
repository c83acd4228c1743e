// The last calls of a communicator, in fixed memory. docs/flight.md describes a dump of these
// calls.
//
// There are two rings of entries. The calls of the executor are written when they are submitted,
// when their stage changes and when they are over. The calls of the inline path are written once,
// when they are over, because such a call ends or goes to the executor within about a millisecond.
// Writing takes no lock, allocates nothing and reads no clock.
//
// A writer may overwrite an entry while Read copies it. An entry of a submitted call has a version.
// The version is odd while the entry is being written. Read compares the version before and after
// it copies the entry, and reports the entry as torn if it was written meanwhile. Only one thread,
// the driver, writes calls of the inline path. So the count of these calls shows which entries the
// driver may have written meanwhile.
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

#include "lib/base/call.h"

namespace entrain {

enum class FlightState : uint8_t {
  kPlanned = 0,    // submitted; the driver has not started it
  kSending = 1,    // every posted receive is done, and a send is not done
  kReceiving = 2,  // a posted receive is not done
  kReducing = 3,   // the caller's own reduction is running
  kDone = 4,
  kFailed = 5,
};
absl::string_view NameOf(FlightState state);  // "planned"

// The values of a call that do not change while it is under way.
struct FlightCall {
  CallKind kind = CallKind::kBarrier;
  Descriptor descriptor;
  uint64_t number = 0;         // as Blame::sequence; 0: a receive in line (call_funnel.h)
  int peer = -1;               // the peer of a send or receive; the root of other calls
  int64_t tag = -1;            // -1: untagged
  const char* algorithm = "";  // lives for ever
  int64_t started_ns = 0;
};

// An entry, as Read returns it.
struct FlightEntry {
  FlightCall call;
  uint64_t mark = 0;  // 0: a call of the inline path
  FlightState state = FlightState::kDone;
  int64_t since_ns = 0;  // time at which the state began; 0 (unknown) for inline calls
  bool torn = false;     // written during Read, so the other members are not valid
};

class FlightRecorder {
 public:
  static constexpr int kDefaultCalls = 64, kMostCalls = 1 << 16;

  // Keeps the last `calls` calls of each path, rounded up to a power of two. 0: keeps nothing.
  // All times that are passed later must lie between `now_ns` and 200 days after `now_ns`.
  FlightRecorder(int calls, int64_t now_ns);

  // Must be called when a call is submitted. Returns the mark that stands for the call from now on.
  // 0: the call is not kept.
  uint64_t Begin(const FlightCall& call);
  // [driver] Records a new state of the call. Does nothing if a later call has taken its entry.
  void Enter(uint64_t mark, FlightState state, int64_t now_ns);
  // [driver] Records the number and the peer of a receive in line that has got its message.
  void Number(uint64_t mark, uint64_t number, int peer);
  // [driver] Records a call of the inline path that is over. `wire_tag`: Tag::kUntagged for an
  // untagged call.
  void Inline(CallKind kind, const Descriptor& descriptor, uint64_t number, int peer,
              uint32_t wire_tag, const char* algorithm);

  // Returns the entries in the order in which the calls came, as far as this is known: a call of
  // the inline path comes after the submitted calls that had begun before it was over.
  std::vector<FlightEntry> Read() const;
  bool on() const { return mask_ != 0; }
  // Returns how many calls were submitted, and how many the inline path has finished.
  uint64_t submitted() const { return submitted_next_.load(std::memory_order_relaxed); }
  uint64_t inlined() const { return inlined_next_.load(std::memory_order_relaxed); }

 private:
  // All words are atomic, so that a reader may see a mixture of two calls, but no undefined value.
  struct alignas(64) Entry {
    // Submitted calls only. For ticket t: 2t + 1 while the entry is being written, then 2t + 2.
    std::atomic<uint64_t> version{0};
    // Submitted: see Pack. Inline: the number of calls submitted before this call was over.
    std::atomic<uint64_t> state{0};
    std::array<std::atomic<uint64_t>, 2> descriptor{};
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> who{0};  // peer, tag and kind
    std::atomic<uint64_t> started{0};
    std::atomic<const char*> algorithm{nullptr};
  };

  // Ticket (16 bits), state (4 bits) and the microseconds since base_ns_ (44 bits) in one word. So
  // one compare-exchange changes the state of a call, and changes nothing if a later call has taken
  // the entry.
  uint64_t Pack(uint64_t ticket, FlightState state, int64_t at_ns) const;
  // Writes all words but the version and the time of the start.
  static void Write(Entry& entry, uint64_t state, const Descriptor& descriptor, uint64_t number,
                    uint64_t who, const char* algorithm);
  struct Found {
    FlightEntry entry;
    uint64_t state = 0;  // the value of Entry::state
  };
  static Found Torn();
  // Copies the words of an entry, which may be written meanwhile.
  static void Copy(const Entry& entry, FlightEntry* out, uint64_t* state);
  // Return the entry of a ticket, or Torn() if it was written meanwhile or has another ticket.
  Found ReadSubmitted(uint64_t ticket) const;
  Found ReadInlined(uint64_t ticket) const;

  const uint64_t mask_;
  const int64_t base_ns_;
  const std::unique_ptr<Entry[]> submitted_, inlined_;
  std::atomic<uint64_t> submitted_next_{0};
  std::atomic<uint64_t> inlined_next_{0};  // only the driver writes it
};

}  // namespace entrain
