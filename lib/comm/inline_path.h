// The inline path runs small blocking calls on the calling thread. All other calls run in an
// executor. The calling thread becomes the engine's driver, and sends and receives the messages of
// the call itself (lib/engine/inline_call.h). Then it leaves the driver's seat (DriverSeat). If a
// call differs from an earlier call only in its addresses, a cache provides its plan. A send or
// receive may also differ in length. If a call cannot finish on the inline path, HandOver gives the
// call to an executor and records the reason.
//
//   RunAgain ── key is cached ──> become driver ── verify ──┐
//   Run ── become driver ── funnel: plan, scratch, number ──┴─> InlineCall ── kDone ──> owner: Over
//                                                                          └─ else ──> owner: GoOn
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/comm/admitted.h"
#include "lib/comm/cost_model.h"
#include "lib/comm/flight_recorder.h"
#include "lib/comm/plan_cache.h"
#include "lib/comm/topology.h"
#include "lib/engine/driver_seat.h"
#include "lib/engine/inline_call.h"
#include "lib/memory/buffer.h"

namespace entrain {

// The interface of the inline path to the object that admits calls (CallFunnel).
class InlineFunnel {
 public:
  virtual ~InlineFunnel() = default;
  // Returns true if the communicator has ended, so that no call may start.
  virtual bool ended() const = 0;
  // Gives the call its plan, its scratch memory and its number. If the call must wait in a line
  // (call_funnel.h), only sets admitted->waits.
  virtual absl::Status Admit(const Call& call, Admitted* admitted) = 0;
  // Gives the next number of this series to a call that already has its plan and scratch memory.
  virtual void Number(CallNumbers::Series series, Wiring* wiring) = 0;
};

// Finishes or continues the calls of the inline path (CallRunner). All functions are [driver].
class InlineOwner {
 public:
  virtual ~InlineOwner() = default;
  // Finishes a call whose messages were all transferred. Compares the call with the calls of the
  // peers, and leaves the driver's seat.
  virtual absl::Status Over(const Descriptor& descriptor, const Wiring& wiring) = 0;
  // Lets an executor continue the call from `progress`. Blocks until the call is over, and leaves
  // the driver's seat.
  virtual absl::Status GoOn(const Call& call, Admitted admitted, const Progress& progress) = 0;
};

class InlinePath {
 public:
  // `ranks`: the size of the communicator. `pays`: the result of Pays. The referenced objects must
  // outlive this object.
  InlinePath(DriverSeat& seat, BufferPool& pool, InlineFunnel& funnel, InlineOwner& owner,
             FlightRecorder& flight, int ranks, bool pays)
      : seat_(seat),
        pool_(pool),
        funnel_(funnel),
        owner_(owner),
        flight_(flight),
        ranks_(ranks),
        pays_(pays) {}

  // Returns true if it is cheap to poll every peer repeatedly: if all ranks share memory, or if
  // there are at most 8 ranks. With sockets each poll is a system call, so epoll is faster for many
  // ranks.
  static bool Pays(const Topology& topology, const Paths& paths);
  void SetPays(bool pays) { pays_.store(pays, std::memory_order_relaxed); }
  // Invalidates all plans in the cache.
  void Forget() { plans_made_.fetch_add(1, std::memory_order_release); }

  // Repeats a call from the cache with new addresses. Only calls without options are in the cache.
  // Returns nullopt without any effect if this is not possible now. Examples: the call is not in
  // the cache, an address is invalid, or the engine is busy. The caller must then check the call
  // and start it in another way.
  std::optional<absl::Status> RunAgain(const CallKey& key, const void* in, void* out);
  // Runs a checked call. Returns nullopt without any effect if the call does not fit the inline
  // path, or if the engine is busy. The caller must then start the call (CommCore::Start).
  std::optional<absl::Status> Run(const Call& call);

  // Returns the number of calls of the inline path that ended with `end`.
  uint64_t count(InlineEnd end) const {
    return ends_[static_cast<size_t>(end)].load(std::memory_order_relaxed);
  }
  // Return the number of bytes that finished calls of the inline path have sent and received.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  uint64_t plans_made() const { return plans_made_.load(std::memory_order_acquire); }
  // Returns true if this call may run on the inline path.
  bool MayTry(const Call& call) const;
  // [driver] Makes the scratch memory at least this large. Returns false if memory is short.
  bool ReserveScratch(int64_t bytes);
  absl::Status Finish(const Call& call, const Plan& plan, const Descriptor& descriptor,
                      const Wiring& wiring, const Progress& progress);
  absl::Status HandOver(InlineEnd why, const Call& call, Admitted admitted,
                        const Progress& progress);

  DriverSeat& seat_;
  BufferPool& pool_;
  InlineFunnel& funnel_;
  InlineOwner& owner_;
  FlightRecorder& flight_;
  const int ranks_;
  std::atomic<bool> pays_;
  std::atomic<uint64_t> plans_made_{0};  // number of calls of Forget
  PlanCache cache_;
  // [driver] The scratch memory of the last call, kept for the next call.
  OwnedBuffer scratch_;
  // Only the driver writes these counters.
  std::array<std::atomic<uint64_t>, kInlineEnds.size()> ends_{};
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};
};

}  // namespace entrain
