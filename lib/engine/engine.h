// The engine: polls the transports, runs what became ready, keeps deadlines. Owns the transports, one endpoint per peer
// process, and the contexts of this process's communicators.
//
// Which thread drives, and which threads sleep, is the matter of its DriverSeat (driver_seat.h). Everything marked
// [driver] runs on the driver and nowhere else.
//
// Invariants:
//   1 Completions, events and jobs run on the driver, one at a time.
//   2 Nothing posts to, revokes or closes an endpoint while a transport is polled: what completions
//     ask for is put on the attention list and done after the transports have returned.
#pragma once

#include <atomic>
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
#include "lib/engine/context_states.h"
#include "lib/engine/driver_seat.h"
#include "transports/registry.h"
#include "transports/transport.h"

namespace entrain {

// A communicator as the engine sees it. All calls [driver], never from inside a transport's Poll.
class ContextOwner {
 public:
  virtual ~ContextOwner() = default;
  // What completions and events left to do.
  virtual void Attend() = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
  // The first instant at which OnTick wants to be called; and the call.
  virtual Deadline next_tick() const = 0;
  virtual void OnTick(int64_t now_ns) = 0;
  // From inside a transport's Poll: compare, note, ask for attention; do not post.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  // A call under way whose input or output touches these bytes, by name; empty: none.
  virtual std::string UserOf(ConstBytes bytes) const = 0;
  // The engine is about to end.
  virtual void OnShutdown() = 0;
  // When the oldest call under way was started; nothing: none is.
  virtual std::optional<int64_t> waits_since() const = 0;
  // Whom that call waits for, found out for a rank of another communicator that waits for this one. `then` runs once,
  // not from inside this: with the error that the call would end by now, or OK: it is over, or nobody holds it up.
  // Returns by when.
  using HeldUpBy = absl::AnyInvocable<void(const absl::Status& why)>;
  virtual Deadline FindOut(HeldUpBy then) = 0;
};

class Engine final : public Events, private Polled {
 public:
  explicit Engine(const SeatOptions& options);
  // Ends every communicator, closes every endpoint, ends the thread. Once; not from the engine's
  // thread. The object stays until its last holder lets go, so that threads on their way out of a
  // wait still find it; they find every work done.
  void Shutdown();
  // What kept the constructor or AddTransport from getting their descriptors.
  const absl::Status& status() const { return status_; }

  // Before anything else is called: the transports, best first.
  void AddTransport(std::unique_ptr<Transport> transport);
  void Start() { seat_.Start(); }
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }
  const Clock& clock() const { return clock_; }

  // ---- Any thread
  // Jobs, waits, and the word of the driver.
  DriverSeat& seat() { return seat_; }
  CallerFunctions& functions() { return functions_; }
  // A context number nobody used; 0: all are used up. Messages for it are kept from now on.
  Context ReserveContext();
  // The number will not be used.
  void ReleaseContext(Context context);

  // ---- [driver]
  // The endpoint to a peer, connecting on first use over transports_[transport].
  absl::StatusOr<Endpoint*> Connect(const PeerId& peer, size_t transport,
                                    absl::string_view address);
  // The status a path ended with; OK while it works.
  absl::Status PathStatus(const Endpoint* endpoint) const;
  void OpenContext(Context context, std::shared_ptr<ContextOwner> owner);
  // Messages for it are dropped from now on; the owner is released after the current turn.
  void CloseContext(Context context);
  // Tells the peers that this region is needed no more. An error names a call that uses it; then nothing is done.
  absl::Status Retire(const SharedRegion& region);
  // The same as soon as no call uses it.
  void RetireWhenUnused(std::shared_ptr<const SharedRegion> region);
  // FAILED_PRECONDITION names a call that has a buffer there.
  absl::Status CheckUnused(ConstBytes bytes) const;
  // Sends now what DriverSeat::NeedFlush sends before this driver leaves, as far as the peers take it: for a caller that
  // may exit as soon as it is told. Not from inside a transport's Poll.
  void Flush();
  // Asks for owner->Attend() after the transports have been polled.
  void NeedAttention(ContextOwner* owner);
  // Of the communicators that have a call under way the one that has waited longest, but not `asked`; null: none.
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
  // What a peer said about a context that it has opened and this process has only reserved: kept
  // until it is opened here.
  struct Premature {
    Context context;
    Endpoint* from;
    std::optional<Envelope> envelope;  // of an early message; else `text` is a control message
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

  // [driver] only:
  std::vector<std::unique_ptr<Path>> paths_;
  absl::flat_hash_map<std::string, Path*> path_of_peer_;
  absl::flat_hash_map<const Endpoint*, Path*> path_of_endpoint_;
  absl::flat_hash_map<Context, std::shared_ptr<ContextOwner>> owners_;
  std::vector<std::shared_ptr<ContextOwner>> closed_owners_;
  std::vector<std::shared_ptr<const SharedRegion>> retiring_;  // which calls still use
  std::vector<ContextOwner*> attention_;
  std::vector<ControlMessage> control_;
  std::vector<Premature> premature_;
  std::vector<std::pair<Endpoint*, absl::Status>> lost_;
  Causes causes_;
};

}  // namespace entrain
