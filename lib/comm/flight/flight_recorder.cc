#include "lib/comm/flight/flight_recorder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "transports/transport.h"

namespace entrain {
namespace {

constexpr int kTicketShift = 48, kStateShift = 44;
constexpr uint64_t kTimeMask = (uint64_t{1} << kStateShift) - 1;
constexpr int kAttempts = 4;  // attempts of a reader to copy an entry that is being written

uint64_t MaskOf(int calls) {
  return calls <= 0 ? 0 : std::bit_ceil(static_cast<uint64_t>(std::max(calls, 2))) - 1;
}

uint64_t WhoOf(CallKind kind, int peer, uint32_t wire_tag) {
  return uint64_t{static_cast<uint32_t>(peer)} << 32 | uint64_t{wire_tag} << 8 |
         static_cast<uint8_t>(kind);
}

void TakeWho(uint64_t who, FlightCall* call) {
  const uint32_t tag = static_cast<uint32_t>(who >> 8) & Tag::kUntagged;
  call->peer = static_cast<int>(static_cast<uint32_t>(who >> 32));
  call->tag = tag == Tag::kUntagged ? -1 : int64_t{tag};
  call->kind = static_cast<CallKind>(who & 0xff);
}

}  // namespace

FlightRecorder::Found FlightRecorder::Torn() {
  Found found;
  found.entry.torn = true;
  return found;
}

absl::string_view NameOf(FlightState state) {
  constexpr absl::string_view kNames[] = {"planned",  "sending", "receiving",
                                          "reducing", "done",    "failed"};
  return kNames[static_cast<size_t>(state)];
}

FlightRecorder::FlightRecorder(int calls, int64_t now_ns)
    : mask_(MaskOf(calls)),
      base_ns_(now_ns),
      submitted_(on() ? new Entry[mask_ + 1] : nullptr),
      inlined_(on() ? new Entry[mask_ + 1] : nullptr) {}

uint64_t FlightRecorder::Pack(uint64_t ticket, FlightState state, int64_t at_ns) const {
  const auto us = static_cast<uint64_t>(std::max<int64_t>(at_ns - base_ns_, 0) / kMicrosecond);
  return ticket << kTicketShift | uint64_t{static_cast<uint8_t>(state)} << kStateShift |
         std::min(us, kTimeMask);
}

void FlightRecorder::Write(Entry& entry, uint64_t state, const Descriptor& descriptor,
                           uint64_t number, uint64_t who, const char* algorithm) {
  const auto words = std::bit_cast<std::array<uint64_t, 2>>(descriptor);
  entry.state.store(state, std::memory_order_relaxed);
  entry.descriptor[0].store(words[0], std::memory_order_relaxed);
  entry.descriptor[1].store(words[1], std::memory_order_relaxed);
  entry.number.store(number, std::memory_order_relaxed);
  entry.who.store(who, std::memory_order_relaxed);
  entry.algorithm.store(algorithm, std::memory_order_relaxed);
}

uint64_t FlightRecorder::Begin(const FlightCall& call) {
  if (!on()) {
    return 0;
  }
  const uint64_t ticket = submitted_next_.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = submitted_[ticket & mask_];
  // A later call may already have overwritten the entry, if this thread was delayed after it took
  // its ticket.
  uint64_t version = entry.version.load(std::memory_order_relaxed);
  if (version % 2 != 0 || version > 2 * ticket ||
      !entry.version.compare_exchange_strong(version, 2 * ticket + 1, std::memory_order_relaxed)) {
    return 0;
  }
  // Release fence: a reader that sees one of the following stores also sees the odd version.
  std::atomic_thread_fence(std::memory_order_release);
  const uint32_t tag = call.tag < 0 ? Tag::kUntagged : static_cast<uint32_t>(call.tag);
  Write(entry, Pack(ticket, FlightState::kPlanned, call.started_ns), call.descriptor, call.number,
        WhoOf(call.kind, call.peer, tag), call.algorithm);
  entry.started.store(static_cast<uint64_t>(call.started_ns), std::memory_order_relaxed);
  entry.version.store(2 * ticket + 2, std::memory_order_release);
  return ticket + 1;
}

void FlightRecorder::Enter(uint64_t mark, FlightState state, int64_t now_ns) {
  if (mark == 0) {
    return;
  }
  const uint64_t next = Pack(mark - 1, state, now_ns);
  std::atomic<uint64_t>& word = submitted_[(mark - 1) & mask_].state;
  uint64_t before = word.load(std::memory_order_relaxed);
  if (before >> kTicketShift == next >> kTicketShift) {
    // Fails only if a later call has just overwritten the entry, because only the driver and Begin
    // change this word.
    word.compare_exchange_strong(before, next, std::memory_order_relaxed);
  }
}

void FlightRecorder::Number(uint64_t mark, uint64_t number, int peer) {
  if (mark == 0) {
    return;
  }
  Entry& entry = submitted_[(mark - 1) & mask_];
  uint64_t version = 2 * mark;
  if (!entry.version.compare_exchange_strong(version, 2 * mark - 1, std::memory_order_relaxed)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);
  const uint64_t who = entry.who.load(std::memory_order_relaxed);
  entry.number.store(number, std::memory_order_relaxed);
  entry.who.store(uint64_t{static_cast<uint32_t>(peer)} << 32 | (who & 0xffffffff),
                  std::memory_order_relaxed);
  entry.version.store(2 * mark, std::memory_order_release);
}

void FlightRecorder::Inline(CallKind kind, const Descriptor& descriptor, uint64_t number, int peer,
                            uint32_t wire_tag, const char* algorithm) {
  if (!on()) {
    return;
  }
  const uint64_t ticket = inlined_next_.load(std::memory_order_relaxed);
  // Release fence: a reader that sees one of the following stores also sees that inlined_next_ has
  // reached `ticket`.
  std::atomic_thread_fence(std::memory_order_release);
  Write(inlined_[ticket & mask_], submitted(), descriptor, number, WhoOf(kind, peer, wire_tag),
        algorithm);
  inlined_next_.store(ticket + 1, std::memory_order_release);
}

void FlightRecorder::Copy(const Entry& entry, FlightEntry* out, uint64_t* state) {
  FlightCall& call = out->call;
  *state = entry.state.load(std::memory_order_relaxed);
  call.descriptor =
      std::bit_cast<Descriptor>(std::array{entry.descriptor[0].load(std::memory_order_relaxed),
                                           entry.descriptor[1].load(std::memory_order_relaxed)});
  call.number = entry.number.load(std::memory_order_relaxed);
  TakeWho(entry.who.load(std::memory_order_relaxed), &call);
  call.started_ns = static_cast<int64_t>(entry.started.load(std::memory_order_relaxed));
  call.algorithm = entry.algorithm.load(std::memory_order_relaxed);
  // Acquire fence: the caller's next loads (of the version or of inlined_next_) are not older than
  // the copied words.
  std::atomic_thread_fence(std::memory_order_acquire);
}

FlightRecorder::Found FlightRecorder::ReadSubmitted(uint64_t ticket) const {
  const Entry& entry = submitted_[ticket & mask_];
  for (int i = 0; i < kAttempts; ++i) {
    Found found;
    const uint64_t version = entry.version.load(std::memory_order_acquire);
    Copy(entry, &found.entry, &found.state);
    if (version == 2 * ticket + 2 && entry.version.load(std::memory_order_relaxed) == version) {
      return found;
    }
  }
  return Torn();
}

FlightRecorder::Found FlightRecorder::ReadInlined(uint64_t ticket) const {
  Found found;
  Copy(inlined_[ticket & mask_], &found.entry, &found.state);
  // The call with the ticket `ticket + mask_ + 1` uses the same entry. When inlined_next_ is that
  // ticket, the driver may have begun to overwrite the entry.
  return inlined_next_.load(std::memory_order_relaxed) <= ticket + mask_ ? found : Torn();
}

std::vector<FlightEntry> FlightRecorder::Read() const {
  std::vector<FlightEntry> all;
  if (!on()) {
    return all;
  }
  // If the inline path gives a call to an executor, the call is only in the ring of submitted
  // calls. So the two rings may be read in any order. The oldest inline entry is left out, because
  // the driver may be overwriting it.
  std::vector<Found> inlined;
  const uint64_t inlined_next = inlined_next_.load(std::memory_order_acquire);
  for (uint64_t t = inlined_next - std::min(inlined_next, mask_); t < inlined_next; ++t) {
    inlined.push_back(ReadInlined(t));
  }
  auto next_inlined = inlined.begin();
  const auto take_inlined = [&](uint64_t before) {
    for (; next_inlined != inlined.end() &&
           (next_inlined->entry.torn || next_inlined->state <= before);
         ++next_inlined) {
      all.push_back(next_inlined->entry);
    }
  };
  const uint64_t next = submitted();
  for (uint64_t ticket = next - std::min(next, mask_ + 1); ticket < next; ++ticket) {
    take_inlined(ticket);
    auto [entry, state] = ReadSubmitted(ticket);
    if (!entry.torn) {
      entry.mark = ticket + 1;
      entry.state = static_cast<FlightState>(state >> kStateShift & 0xf);
      entry.since_ns = base_ns_ + static_cast<int64_t>(state & kTimeMask) * kMicrosecond;
    }
    all.push_back(entry);
  }
  take_inlined(~uint64_t{0});
  return all;
}

}  // namespace entrain
