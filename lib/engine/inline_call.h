// The inline path: the calling thread runs a small blocking call itself. It sends and receives all
// messages without posting, queueing or allocating anything. An executor would send and receive the
// same messages. So one rank may use the inline path while another rank uses an executor. If the
// inline path cannot finish a call, an executor continues from progress().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

#include "lib/engine/backoff.h"
#include "lib/engine/driver_seat.h"
#include "lib/engine/executor.h"
#include "lib/engine/plan.h"

namespace entrain {

// How an inline call ends. After every value except kDone, an executor must continue the call.
enum class InlineEnd : uint8_t { kDone, kNoFit, kNoRoom, kOtherFirst, kWaitedLong, kEngineWanted };
inline constexpr std::array<absl::string_view, 6> kInlineEnds = {
    "the call is over",
    "the plan has several lanes, long messages or many transfers",
    "a message could not be sent at once",
    "only a turn of the engine can take what came first, or a path has ended",
    "a peer was late by a millisecond",
    "another thread needs the engine",
};
constexpr absl::string_view SentenceOf(InlineEnd end) {
  return kInlineEnds[static_cast<size_t>(end)];
}

// How an inline call waits. Its thread must have become the driver through DriverSeat::TakeIfQuiet.
class InlineBackoff {
 public:
  explicit InlineBackoff(DriverSeat& seat) : seat_(seat) {}
  // Returns false if the call has waited long enough, or if another thread needs the driver.
  bool Wait() {
    const bool crowded = seat_.crowded();
    return !seat_.wanted() &&
           (backoff_.Spin(crowded) || backoff_.Yield(seat_.clock().Now(), crowded));
  }
  // Call after Wait has returned false. Returns true if the reason is that another thread needs the
  // driver.
  bool wanted() const { return seat_.wanted(); }
  void Expect() { backoff_.Expect(); }

 private:
  DriverSeat& seat_;
  Backoff backoff_;
};

class InlineCall {
 public:
  // The plan must fit (Plan::fits_inline), and the reduction of the call must not be a function of the
  // caller. `scratch` must have
  // plan.slot_bytes bytes. All arguments must outlive this object.
  InlineCall(const Plan& plan, const Call& call, const Descriptor& descriptor, const Wiring& wiring,
             const Kernels& kernels, std::byte* scratch);

  // [driver] Runs the call until it is over or an executor must continue. The thread must have
  // become the driver through DriverSeat::TakeIfQuiet. Must be called once.
  InlineEnd Run(DriverSeat& seat);
  const Progress& progress() const { return progress_; }

 private:
  InlineEnd RunRound(uint32_t index, InlineBackoff& backoff);
  // SendAll returns kDone when the messages of all sends are copied or lent. ReceiveAll returns
  // kDone when all receives of the round are done.
  InlineEnd SendAll(const Round& round);
  InlineEnd ReceiveAll(const Round& round, InlineBackoff& backoff);
  // Waits until the peers have read all messages that were sent by RTS.
  InlineEnd AwaitTaken(const Round& round, InlineBackoff& backoff);
  // Copies to scratch the messages of this round that are still in the memory of an endpoint.
  void Keep();

  const Plan& plan_;
  const Wiring& wiring_;
  const Descriptor& descriptor_;
  const Binding binding_;
  const Lane& lane_;
  std::byte* const scratch_;
  Progress progress_;
  absl::InlinedVector<Lent, 8> lent_;  // messages of this round in the memory of an endpoint
  uint32_t sends_ = 0;                 // number of sends of this round
  bool crowded_ = false;
};

}  // namespace entrain
