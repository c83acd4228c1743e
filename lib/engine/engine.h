// The engine polls the transports, runs the calls that are ready, and watches deadlines. It owns
// the transports, one endpoint per peer process, and the contexts of this process's communicators.
//
// Its DriverSeat (driver_seat.h) decides which thread drives and which threads sleep. Everything
// marked [driver] runs only on the driver.
//
// Invariants:
//   1 Completions, events and jobs run on the driver, one at a time.
//   2 While a transport is polled, no code posts to, revokes or closes an endpoint. A completion
//     that needs to do so calls NeedAttention instead. The owner then does it in Attend, after the
//     transports have returned.
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

// A communicator as the engine sees it. All functions are [driver]. Only OnEarly is called inside a
// transport's Poll.
class ContextOwner {
 public:
  virtual ~ContextOwner() = default;
  // Does the work that completions and events could not do themselves.
  virtual void Attend() = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
  // Returns the first instant at which OnTick must be called.
  virtual Deadline next_tick() const = 0;
  virtual void OnTick(int64_t now_ns) = 0;
  // Called inside a transport's Poll. May compare calls, take notes and call NeedAttention. Must
  // not post.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  // Returns the name of a call under way whose input or output touches these bytes, or an empty
  // string if there is no such call.
  virtual std::string UserOf(ConstBytes bytes) const = 0;
  // Called when the engine is about to end.
  virtual void OnShutdown() = 0;
  // Returns the time at which the oldest call under way was started, or nullopt if no call is under
  // way.
  virtual std::optional<int64_t> waits_since() const = 0;
  // Finds the rank that holds up this communicator's oldest call, so that the engine can answer a
  // rank that waits for this rank in another communicator. Runs `then` once, after FindOut has
  // returned. `why` is the error by which the call would end now. `why` is OK if the call is over
  // or if no rank holds the call up. Returns the time by which `then` runs.
  using HeldUpBy = absl::AnyInvocable<void(const absl::Status& why)>;
  virtual Deadline FindOut(HeldUpBy then) = 0;
};

class Engine final : public Events, private Polled {
 public:
  explicit Engine(const SeatOptions& options);
  // Ends every communicator, closes every endpoint and ends the thread. Must be called once, and
  // not from the engine's thread. The engine lives until its last holder releases it. So a thread
  // that returns from a wait can still use the engine, and finds that every work is done.
  void Shutdown();
  // Returns an error if the constructor or AddTransport could not get a descriptor, else OK.
  const absl::Status& status() const { return status_; }

  // Adds a transport. All transports must be added before any other function is called, the best
  // transport first.
  void AddTransport(std::unique_ptr<Transport> transport);
  void Start() { seat_.Start(); }
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }
  const Clock& clock() const { return clock_; }

  // ---- Any thread
  // Through the seat, threads submit jobs, wait for works, and become the driver.
  DriverSeat& seat() { return seat_; }
  CallerFunctions& functions() { return functions_; }
  // Returns a context number that was never used, or 0 if all numbers are used up. From now on the
  // engine keeps messages for this number.
  Context ReserveContext();
  // Gives back a number of ReserveContext that will not be used.
  void ReleaseContext(Context context);

  // ---- [driver]
  // Returns the endpoint to a peer. Connects on first use, over transports_[transport].
  absl::StatusOr<Endpoint*> Connect(const PeerId& peer, size_t transport,
                                    absl::string_view address);
  // Returns the status with which the endpoint's path ended, or OK while the path works.
  absl::Status PathStatus(const Endpoint* endpoint) const;
  void OpenContext(Context context, std::shared_ptr<ContextOwner> owner);
  // Drops data for the context from now on. The owner of the context still gets control messages,
  // lost paths and ticks. It needs them because the ranks may agree on the ranks that go on, even
  // after their communicator has ended (lib/comm/survivors.h).
  void RevokeContext(Context context);
  // Revokes the context. Releases the owner after the current turn.
  void CloseContext(Context context);
  // Tells the peers that this region is not needed any more. If a call uses it, does nothing and
  // returns an error that names the call.
  absl::Status Retire(const SharedRegion& region);
  // Retires the region as soon as no call uses it.
  void RetireWhenUnused(std::shared_ptr<const SharedRegion> region);
  // Returns FAILED_PRECONDITION, naming the call, if a call has a buffer in these bytes.
  absl::Status CheckUnused(ConstBytes bytes) const;
  // Sends now the messages that the driver would otherwise send before it leaves (see NeedFlush).
  // Sends only as much as the peers accept now. Needed if the process may exit as soon as the
  // caller returns. Must not be called inside a transport's Poll.
  void Flush();
  // Asks for a call of owner->Attend() after the transports have been polled.
  void NeedAttention(ContextOwner* owner);
  // Among the communicators with a call under way, except `asked`, returns the one that has waited
  // longest. Returns null if there is none.
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
  // A message of a peer about a context that the peer has opened and this process has only
  // reserved. It is kept until the context is opened here.
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

  // [driver] only:
  std::vector<std::unique_ptr<Path>> paths_;
  absl::flat_hash_map<std::string, Path*> path_of_peer_;
  absl::flat_hash_map<const Endpoint*, Path*> path_of_endpoint_;
  absl::flat_hash_map<Context, std::shared_ptr<ContextOwner>> owners_;
  std::vector<std::shared_ptr<ContextOwner>> closed_owners_;
  std::vector<std::shared_ptr<const SharedRegion>> retiring_;  // calls still use them
  std::vector<ContextOwner*> attention_;
  std::vector<ControlMessage> control_;
  std::vector<Premature> premature_;
  std::vector<std::pair<Endpoint*, absl::Status>> lost_;
  Causes causes_;
};

}  // namespace entrain
