// The last calls of a communicator, in fixed memory. docs/flight.md describes a dump of these
// calls.
//
// There are two rings of entries: one for submitted calls, which an executor runs, and one for
// calls of the inline path. A submitted call is written when it is submitted, when its state
// changes, and when it is over. A call of the inline path is written once, when it is over. Once is
// enough, because such a call ends or goes to an executor within about a millisecond. Writing takes
// no lock, allocates nothing and reads no clock.
//
// A writer may overwrite an entry while Read copies it. An entry of a submitted call has a version,
// as in a seqlock. The version is odd while the entry is being written. Read loads the version
// before and after the copy. If an entry was written during the copy, Read reports the entry as
// torn. Entries of inline calls have no version. Only the driver writes them, so the count of
// inline calls shows the entries that the driver may have written during the copy.
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

// The properties of a call.
struct FlightCall {
  CallKind kind = CallKind::kBarrier;
  Descriptor descriptor;
  uint64_t number = 0;         // as Blame::sequence; 0: a receive in a line (call_funnel.h)
  int peer = -1;               // the peer of a send or receive; the root of other calls
  int64_t tag = -1;            // -1: untagged
  const char* algorithm = "";  // a string that lives for ever
  int64_t started_ns = 0;
};

// An entry in the form that Read returns.
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

  // Keeps the last `calls` submitted calls and the last `calls` inline calls. Rounds `calls` up to
  // a power of two. 0: keeps nothing. All later times must lie between `now_ns` and 200 days after
  // `now_ns`.
  FlightRecorder(int calls, int64_t now_ns);

  // Must be called when a call is submitted. Returns the mark that identifies the call. 0: the call
  // is not kept.
  uint64_t Begin(const FlightCall& call);
  // [driver] Records a new state of the call. Does nothing if a later call has overwritten the
  // call's entry.
  void Enter(uint64_t mark, FlightState state, int64_t now_ns);
  // [driver] Records the number and the peer of a receive that has left its line (call_funnel.h).
  void Number(uint64_t mark, uint64_t number, int peer);
  // [driver] Records a finished call of the inline path. `wire_tag`: Tag::kUntagged for an untagged
  // call.
  void Inline(CallKind kind, const Descriptor& descriptor, uint64_t number, int peer,
              uint32_t wire_tag, const char* algorithm);

  // Returns the entries, oldest first. An inline call comes after the submitted calls that had
  // begun before the inline call was over. The exact order of these calls is not known.
  std::vector<FlightEntry> Read() const;
  bool on() const { return mask_ != 0; }
  // Return the number of submitted calls, and the number of calls that the inline path has
  // finished.
  uint64_t submitted() const { return submitted_next_.load(std::memory_order_relaxed); }
  uint64_t inlined() const { return inlined_next_.load(std::memory_order_relaxed); }

 private:
  // All words are atomic. So a reader may see a mixture of two calls, but no data race occurs.
  struct alignas(64) Entry {
    // Submitted calls only. For ticket t: 2t + 1 while the entry is being written, then 2t + 2.
    std::atomic<uint64_t> version{0};
    // Submitted call: see Pack. Inline call: the number of calls that were submitted before this
    // call was over.
    std::atomic<uint64_t> state{0};
    std::array<std::atomic<uint64_t>, 2> descriptor{};
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> who{0};  // peer, tag and kind
    std::atomic<uint64_t> started{0};
    std::atomic<const char*> algorithm{nullptr};
  };

  // Returns ticket (16 bits), state (4 bits) and the microseconds since base_ns_ (44 bits) in one
  // word. So one compare-exchange changes the state of a call. It fails if a later call has
  // overwritten the entry.
  uint64_t Pack(uint64_t ticket, FlightState state, int64_t at_ns) const;
  // Writes all words except `version` and `started`.
  static void Write(Entry& entry, uint64_t state, const Descriptor& descriptor, uint64_t number,
                    uint64_t who, const char* algorithm);
  struct Found {
    FlightEntry entry;
    uint64_t state = 0;  // the value of Entry::state
  };
  static Found Torn();
  // Copies the words of an entry. Another thread may write the entry at the same time.
  static void Copy(const Entry& entry, FlightEntry* out, uint64_t* state);
  // Return the entry of a ticket. Return Torn() if the entry was written during the copy, or
  // belongs to another ticket.
  Found ReadSubmitted(uint64_t ticket) const;
  Found ReadInlined(uint64_t ticket) const;

  const uint64_t mask_;
  const int64_t base_ns_;
  const std::unique_ptr<Entry[]> submitted_, inlined_;
  std::atomic<uint64_t> submitted_next_{0};
  std::atomic<uint64_t> inlined_next_{0};  // only the driver writes it
};

}  // namespace entrain
