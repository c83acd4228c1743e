// The one loop: takes submitted jobs, polls the transports, runs what became ready, keeps
// deadlines. Owns the transports and one endpoint per peer process.
//
// Who drives. One word says who polls: nobody, a caller, or the engine's own thread. Whoever takes
// it by compare-and-swap is "the driver"; everything marked [driver] runs there and nowhere else. A
// caller that waits takes the word and polls in its own thread, so a blocking call costs no thread
// hop; the engine's thread steps in when nobody does.
//
// Sleeping. The engine's thread never sleeps with the word. It arms the transports, gives the word
// back and sleeps on their descriptors for at most kIdleNapNs, so that what a caller's polling
// disarmed is looked at again soon. A caller spins, yields, and then sleeps with the word; Submit
// wakes it (driver_sleeps_).
//
// Invariants:
//   1 Completions, events and jobs run on the driver, one at a time.
//   2 Nothing posts to, revokes or closes an endpoint while a transport is polled: what completions
//     ask for is put on the attention list and done after the transports have returned.
//   3 A submitted job runs soon: by the driver if there is one, else the submitter drives, else the
//     engine's thread.
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

#include "lib/base/callback_thread.h"
#include "lib/base/clock.h"
#include "lib/base/mpsc_queue.h"
#include "lib/engine/backoff.h"
#include "lib/engine/context_states.h"
#include "lib/engine/work.h"
#include "transports/registry.h"
#include "transports/transport.h"

namespace entrain {

// Something to do on the driver. Deletes itself or is kept by its submitter, as it likes.
class Job : public MpscNode {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;  // [driver]
};

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

struct EngineOptions {
  const Clock* clock = &Clock::Real();
  bool own_thread = true;
};

class Engine final : public Events {
 public:
  explicit Engine(const EngineOptions& options);
  // Ends every communicator, closes every endpoint, ends the thread. Once; not from the engine's
  // thread. The object stays until its last holder lets go, so that threads on their way out of a
  // wait still find it; they find every work done.
  void Shutdown();
  ~Engine() override;
  // What kept the constructor or AddTransport from getting their descriptors.
  const absl::Status& status() const { return status_; }

  // Before anything else is called: the transports, best first.
  void AddTransport(std::unique_ptr<Transport> transport);
  void Start();
  const std::vector<std::unique_ptr<Transport>>& transports() const { return transports_; }
  const Clock& clock() const { return clock_; }

  // ---- Any thread
  void Submit(Job* job);
  // If nobody drives, runs what was submitted here and leaves the rest to the engine's thread.
  void Kick();
  // Runs `body` on the driver and waits for it: at most about one turn of the loop.
  void RunInDriver(absl::AnyInvocable<void()> body);
  // See Work::Wait.
  bool Await(const Work& work, Deadline give_up, bool background);
  // One turn, unless somebody else drives.
  void PollOnce();
  // For a caller that moves a small call's messages by itself (inline_call.h): true when nobody drives
  // and nothing is under way. It is then the driver, polls nothing, and soon calls Leave or Stay.
  bool TakeIfQuiet();
  void Leave();  // [driver]
  // [driver] Goes on as the driver until the work is done, then leaves.
  void Stay(const Work& work);
  // The thread of done(); made by the first who asks.
  absl::StatusOr<std::shared_ptr<CallbackThread>> Callbacks() ABSL_LOCKS_EXCLUDED(callbacks_mutex_);
  // A function of the caller's on another thread, without which this rank does not go on; `who` is in one at a time. Empty: it
  // has returned.
  void NoteFunction(const void* who, absl::string_view name) ABSL_LOCKS_EXCLUDED(callbacks_mutex_);
  // kDeadlineExceeded "it is in NAME, which has not returned for 3 s", of the one that has run longest; OK: none has for
  // `least_ns`.
  absl::Status InFunction(int64_t least_ns) ABSL_LOCKS_EXCLUDED(callbacks_mutex_);
  // More local ranks than cores: waiters give the core away at once.
  void SetCrowded(bool crowded) { crowded_.store(crowded, std::memory_order_relaxed); }
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }

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
  // Something must reach the peers before this driver leaves: control messages that end a
  // communicator.
  void NeedFlush() { flush_ = true; }
  // The same at once, as far as the peers take it: for whoever may exit as soon as it is told. Not
  // from inside a transport's Poll.
  void Flush();
  // Asks for owner->Attend() after the transports have been polled.
  void NeedAttention(ContextOwner* owner);
  // Wakes whoever waits for this work.
  void WakeWaiters(const Work* work);
  // Of the communicators that have a call under way the one that has waited longest, but not `asked`; null: none.
  std::shared_ptr<ContextOwner> WaitsElsewhere(const ContextOwner* asked) const;

  // ---- [driver] Causes. A process that has lost somebody may end because of that, with a word or without, and its
  // peers must not blame it.
  // Tells all peers what has ended a communicator here. The first cause counts for kGoneOnNs, since what fails then may
  // fail because of it. When calls that were started kGoneOnNs later succeed, this process has survived it, and the peers
  // are told so.
  void TellCause(const absl::Status& why);
  bool told() const { return !told_.ok(); }
  const absl::Status& cause() const { return told_; }
  // A call that was started then has succeeded.
  void Succeeded(int64_t started_ns) {
    if (told() && started_ns - told_at_ns_ > kGoneOnNs) {
      TakeCauseBack();
    }
  }
  // What the peer has told, if it did after `since_ns`; OK: nothing.
  absl::Status CauseOf(const Endpoint* endpoint, int64_t since_ns) const;

  // ---- Events [driver]
  bool Accepts(Context context) override;
  void OnEarly(Endpoint& from, const Envelope& envelope) override;
  void OnControl(Endpoint& from, absl::string_view message) override;
  void OnLost(Endpoint& from, const absl::Status& why) override;

 private:
  enum Driver : int { kFree, kCaller, kEngine };
  enum ContextState : uint8_t { kUnknown, kReserved, kOpen, kRevoked };
  struct Path {
    PeerId peer;
    size_t transport = 0;
    std::unique_ptr<Endpoint> endpoint;
    absl::Status status;
    absl::Status cause;  // what the peer has told of an end of its own
    int64_t cause_at_ns = 0;
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
  struct Waiter {
    const Work* work;
    std::atomic<uint32_t> word{0};
  };

  friend class InlineBackoff;
  bool TryTake(Driver who);
  int Poll();                                    // [driver]
  void AfterPoll();                              // [driver]
  void DispatchControl(ControlMessage message);  // [driver]
  void TakeCauseBack();                          // [driver]
  void SendCause();                              // [driver]
  void TellOfCallback() ABSL_LOCKS_EXCLUDED(callbacks_mutex_);
  void CheckDeadlines();  // [driver]
  bool ArmAll();          // [driver]
  void DriveUntil(const Work& work, Deadline give_up, bool background);
  void SleepAsDriver(Deadline until);  // [driver]
  void SleepAsWaiter(const Work& work, Deadline give_up);
  void ThreadMain();
  // One stint of the engine's thread at the wheel, and its sleep; true: a waiter was woken to take
  // over.
  bool ThreadDrives();
  void WakeDriver();
  void WakeThread();
  bool WakeOneWaiter();
  void DrainWakeFd();
  int TimeoutMs(Deadline until, int64_t cap_ns) const;
  Deadline NextTick() const;  // [driver]

  const Clock& clock_;
  const bool own_thread_;
  std::vector<std::unique_ptr<Transport>> transports_;
  absl::Status status_;
  int epoll_fd_ = -1, wake_fd_ = -1;

  MpscQueue jobs_;
  std::atomic<int> driver_{kFree};
  std::atomic<bool> driver_sleeps_{false};
  std::atomic<bool> thread_in_epoll_{false};
  std::atomic<uint32_t> thread_word_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> crowded_{false};
  std::atomic<int> open_works_{0};  // started and unfinished: whether somebody must go on polling

  absl::Mutex waiters_mutex_;
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(waiters_mutex_);
  std::atomic<int> waiter_count_{0};

  absl::Mutex callbacks_mutex_;
  std::shared_ptr<CallbackThread> callbacks_ ABSL_GUARDED_BY(callbacks_mutex_);
  struct Function {
    const void* who;
    std::string name;
    int64_t since_ns;
  };
  std::vector<Function> functions_
      ABSL_GUARDED_BY(callbacks_mutex_);  // in the order of their begin
  int64_t told_of_callback_ns_ ABSL_GUARDED_BY(callbacks_mutex_) = 0;  // since when it ran

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
  uint32_t polls_ = 0, quiet_takes_ = 0;
  bool flush_ = false, armed_ = false;
  static constexpr int64_t kGoneOnNs = 5 * kSecond;
  absl::Status told_;
  int64_t told_at_ns_ = 0;

  std::thread thread_;

 public:
  // A work was started or is over: while any is open, somebody keeps polling.
  void CountOpenWork(int change) { open_works_.fetch_add(change, std::memory_order_relaxed); }
};

// The backoff of a call that runs on the thread that TakeIfQuiet made the driver.
class InlineBackoff {
 public:
  explicit InlineBackoff(Engine& engine) : engine_(engine) {}
  // False: the call has waited long enough, or somebody needs the engine.
  bool Wait();
  // Of a Wait that returned false: somebody needs the engine.
  bool wanted() const { return !engine_.jobs_.Empty(); }
  void Expect() { backoff_.Expect(); }

 private:
  Engine& engine_;
  Backoff backoff_;
};

}  // namespace entrain
