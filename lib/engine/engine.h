// The engine. It owns the transports, one endpoint per peer process, and the contexts of this
// process's communicators. It polls the transports, runs the calls that are ready, and checks
// deadlines.
//
// Class DriverSeat (driver_seat.h) decides which thread is the driver and which threads sleep.
// Functions marked [driver] may be called only by the driver.
//
// Invariants:
//   1 Completions, events and jobs run on the driver, one at a time.
//   2 While a transport is in Poll, no code may post to, revoke or close an endpoint. If a
//     completion needs to do so, it calls NeedAttention. The owner then does it in Attend, after
//     all transports have returned from Poll.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/engine/caller_functions.h"
#include "lib/engine/causes.h"
#include "lib/engine/driver_seat.h"
#include "transports/registry.h"
#include "transports/transport.h"

namespace entrain {

// The state of each of the 2^16 context numbers of a process, in one byte each. The bytes are in
// pieces. A piece is allocated when one of its numbers is used for the first time. Numbers are used
// in ascending order, so most processes have only one piece.
//
// Thread safety: any thread. If a thread reads a state that another thread has set, it also sees
// what that thread wrote before Set.
class ContextStates {
 public:
  ContextStates() = default;
  ~ContextStates() {
    for (std::atomic<Piece*>& piece : pieces_) {
      delete piece.load(std::memory_order_relaxed);
    }
  }
  ContextStates(const ContextStates&) = delete;
  ContextStates& operator=(const ContextStates&) = delete;

  // Returns 0 if Set was never called for this number.
  uint8_t Of(Context context) const {
    const Piece* const piece = pieces_[context / kPiece].load(std::memory_order_acquire);
    return piece == nullptr ? 0 : (*piece)[context % kPiece].load(std::memory_order_acquire);
  }
  void Set(Context context, uint8_t state) {
    PieceOf(context)[context % kPiece].store(state, std::memory_order_release);  // pairs with Of
  }

 private:
  static constexpr size_t kPiece = 1024;
  using Piece = std::array<std::atomic<uint8_t>, kPiece>;

  Piece& PieceOf(Context context) {
    std::atomic<Piece*>& place = pieces_[context / kPiece];
    Piece* piece = place.load(std::memory_order_acquire);
    if (piece == nullptr) {
      auto made = std::make_unique<Piece>();
      // Release: a thread that loads the pointer must see the zeros. The exchange fails if another
      // thread has stored a pointer meanwhile.
      if (place.compare_exchange_strong(piece, made.get(), std::memory_order_acq_rel)) {
        piece = made.release();
      }
    }
    return *piece;
  }

  std::array<std::atomic<Piece*>, (1 << 16) / kPiece> pieces_{};
};

// The engine's view of a communicator. All functions are [driver]. Only OnEarly may be called while
// a transport is in Poll.
class ContextOwner {
 public:
  virtual ~ContextOwner() = default;
  // Does what completions and events may not do inside Poll.
  virtual void Attend() = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
  // Returns the earliest time at which OnTick must be called.
  virtual Deadline next_tick() const = 0;
  virtual void OnTick(int64_t now_ns) = 0;
  // Called when a message arrives before its receive is posted, mostly inside a transport's Poll.
  // May compare descriptors, record the message and call NeedAttention. Must not post.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  // Returns the name of a call in progress that has an input or output buffer in these bytes.
  // Returns an empty string if there is none.
  virtual std::string UserOf(ConstBytes bytes) const = 0;
  // Called when the engine is about to shut down.
  virtual void OnShutdown() = 0;
  // Returns the time at which the oldest call in progress was started. Returns nullopt if no call
  // is in progress.
  virtual std::optional<int64_t> waits_since() const = 0;
  // Finds the rank for which this communicator's oldest call waits. The engine uses the result to
  // answer a rank that waits for this rank in another communicator.
  //
  // Calls `then` once, after FindOut has returned. `why` is the error with which the call would end
  // now. `why` is OK if the call is over or waits for no rank. Returns the time at which `then` is
  // called at the latest.
  using HeldUpBy = absl::AnyInvocable<void(const absl::Status& why)>;
  virtual Deadline FindOut(HeldUpBy then) = 0;
};

class Engine final : public Events, private Polled {
 public:
  explicit Engine(const SeatOptions& options);
  // Ends all communicators, closes all endpoints and ends the engine's thread. Must be called once,
  // and not by the engine's thread. The engine object exists until its last owner releases it. So a
  // thread that returns from a wait can still use the engine. The thread finds that its work is
  // over.
  void Shutdown();
  // Returns an error if the constructor or AddTransport could not create or watch a descriptor,
  // else OK.
  const absl::Status& status() const { return status_; }

  // Adds a transport. Must be called before all other functions except status(). The transport to
  // prefer must be added first.
  void AddTransport(std::unique_ptr<Transport> transport);
  void Start() { seat_.Start(); }
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }
  const Clock& clock() const { return clock_; }

  // ---- Any thread
  // Submits jobs, waits for works, and makes threads the driver.
  DriverSeat& seat() { return seat_; }
  CallerFunctions& functions() { return functions_; }
  // Returns a context number that was never used before. Returns 0 if all numbers are used up. From
  // now on, the engine keeps messages for this context.
  Context ReserveContext();
  // Releases a number of ReserveContext that will not be used.
  void ReleaseContext(Context context);

  // ---- [driver]
  // Returns the endpoint to a peer. The first call for a peer connects, over
  // transports_[transport].
  absl::StatusOr<Endpoint*> Connect(const PeerId& peer, size_t transport,
                                    absl::string_view address);
  // Returns the error with which the path of the endpoint ended. Returns OK while the path works.
  absl::Status PathStatus(const Endpoint* endpoint) const;
  void OpenContext(Context context, std::shared_ptr<ContextOwner> owner);
  // From now on, drops data for the context. Its owner still gets control messages, OnLost and
  // OnTick. It needs them because after a failure the ranks may still agree on the ranks that go on
  // (lib/comm/failure/survivors.h).
  void RevokeContext(Context context);
  // Revokes the context. Releases its owner at the end of the current Turn.
  void CloseContext(Context context);
  // Tells the peers that this process no longer needs the region. If a call uses the region, does
  // nothing and returns an error with the name of the call.
  absl::Status Retire(const SharedRegion& region);
  // Calls Retire as soon as no call uses the region.
  void RetireWhenUnused(std::shared_ptr<const SharedRegion> region);
  // Returns FAILED_PRECONDITION with the name of a call that has a buffer in these bytes. Returns
  // OK if there is no such call.
  absl::Status CheckUnused(ConstBytes bytes) const;
  // Sends now what the driver would otherwise send before it leaves (see NeedFlush), as far as the
  // peers accept it now. Needed if the process may exit as soon as the caller returns. Must not be
  // called inside a transport's Poll.
  void Flush();
  // Makes the engine call owner->Attend() after all transports have returned from Poll.
  void NeedAttention(ContextOwner* owner);
  // Returns the owner of the call that has waited longest, among all communicators except `asked`.
  // Returns null if no call is in progress there.
  std::shared_ptr<ContextOwner> WaitsElsewhere(const ContextOwner* asked) const;

  Causes& causes() { return causes_; }
  const Causes& causes() const { return causes_; }

  // ---- Events [driver]
  bool Accepts(Context context) override;
  void OnEarly(Endpoint& from, const Envelope& envelope) override;
  void OnControl(Endpoint& from, absl::string_view message) override;
  void OnLost(Endpoint& from, const absl::Status& why) override;

 private:
  enum ContextState : uint8_t { kUnknown, kReserved, kOpen, kRevoked };
  struct Path {
    PeerId peer;
    size_t transport = 0;
    std::unique_ptr<Endpoint> endpoint;
    absl::Status status;
  };
  struct ControlMessage {
    Endpoint* from;
    std::string text;
  };
  // A message for a context that the peer has already opened. This process has only reserved the
  // number. The message is kept until OpenContext.
  struct Premature {
    Context context;
    Endpoint* from;
    std::optional<Envelope> envelope;  // null: `text` is a control message
    std::string text;
  };

  // Polled [driver]
  int Poll() override;
  bool Arm() override;
  void CheckDeadlines() override;
  Deadline next_deadline() const override;

  void AfterPoll();                              // [driver]
  void DispatchControl(ControlMessage message);  // [driver]

  const Clock& clock_;
  DriverSeat seat_;
  absl::Status status_;
  std::vector<std::unique_ptr<Transport>> transports_;
  CallerFunctions functions_;

  std::atomic<uint32_t> next_context_{1};
  ContextStates contexts_;  // each a ContextState

  // Used only by the driver:
  std::vector<std::unique_ptr<Path>> paths_;
  absl::flat_hash_map<std::string, Path*> path_of_peer_;
  absl::flat_hash_map<const Endpoint*, Path*> path_of_endpoint_;
  absl::flat_hash_map<Context, std::shared_ptr<ContextOwner>> owners_;
  std::vector<std::shared_ptr<ContextOwner>> closed_owners_;
  std::vector<std::shared_ptr<const SharedRegion>> retiring_;  // regions for RetireWhenUnused
  std::vector<ContextOwner*> attention_;
  std::vector<ControlMessage> control_;
  std::vector<Premature> premature_;
  std::vector<std::pair<Endpoint*, absl::Status>> lost_;
  Causes causes_;
};

}  // namespace entrain
