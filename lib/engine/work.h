// Work: a call that was started, with its state, its status, and the functions to call when it is
// over.
//
// Thread safety: any thread may call public functions. Reference counted: the caller's handle and
// the engine each hold one reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/clock.h"
#include "lib/base/mark.h"

namespace entrain {

class Engine;

// A pointer that owns one reference to an object with AddRef() and Release().
template <typename T>
class RefPtr {
 public:
  RefPtr() = default;
  // Takes over one reference that the caller owns.
  static RefPtr Adopt(T* object) {
    RefPtr pointer;
    pointer.object_ = object;
    return pointer;
  }
  // Adds a reference.
  static RefPtr Share(T* object) {
    if (object != nullptr) {
      object->AddRef();
    }
    return Adopt(object);
  }
  RefPtr(const RefPtr& other) : object_(other.object_) {
    if (object_ != nullptr) {
      object_->AddRef();
    }
  }
  RefPtr(RefPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  RefPtr& operator=(RefPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RefPtr() {
    if (object_ != nullptr) {
      object_->Release();
    }
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  // Transfers the reference to the caller.
  T* Leak() { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

struct WorkInfo {
  std::string comm;             // the communicator's name; empty: unknown
  absl::string_view operation;  // a string constant
  int64_t tag = -1;
  uint64_t sequence = 0;  // as in Blame; 0: not a single call
  int64_t started_ns = 0;
  int source = -1;           // recv_any: rank of the sender, once known
  std::string Name() const;  // the name in errors, such as "all_reduce #2"
};

class Work {
 public:
  static constexpr uint64_t kMark = MarkOf("work");
  // `engine` makes progress while a thread waits. It may be null if the work is over before any
  // thread waits for it.
  explicit Work(Engine* engine) : engine_(engine) {}
  virtual ~Work() { Discard(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Acquire: pairs with the release in Finish. If this returns true, the data that the call has
  // written is visible.
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  // Waits until the work is over or `give_up` has passed. Returns true if the work is over. If
  // `background`, the thread sleeps at once instead of spinning.
  bool Wait(Deadline give_up, bool background = false);
  // Any thread may call this after the work was started.
  virtual WorkInfo Info() const { return {}; }
  // If the work produces an object, for example a communicator, returns the mark of its kind
  // (MarkOf). The caller can take the object when the work is over. Otherwise returns 0.
  virtual uint64_t yields() const { return 0; }
  // Calls DriverSeat::Turn once if no other thread drives. Returns done().
  bool Test();
  // Valid only after done() has returned true.
  const absl::Status& status() const { return status_; }

  // Calls `then` once, when the work is over, on the thread that calls Finish. If the work is
  // already over, calls `then` at once on the calling thread. `then` must not block.
  using Continuation = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Then(Continuation then);
  // Calls `done`, a function of the caller, once, when the work is over. `done` may block. It runs
  // on the engine's CallbackThread. If the work is already over, it runs at once on the calling
  // thread. If Notify returns an error, `done` is never called.
  absl::Status Notify(Continuation done);
  // Returns a descriptor that becomes readable when the work is over, and stays readable. The work
  // owns the descriptor and closes it in its destructor.
  absl::StatusOr<int> Descriptor();

  // Returns kMark while this object is a live work.
  uint64_t mark() const { return mark_.value(); }

  void AddRef() { references_.fetch_add(1, std::memory_order_relaxed); }
  // Acquire-release: the thread that deletes the object sees the last uses by all other owners.
  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

 protected:
  friend class Engine;
  // Sets the status and marks the work as over. May be called by the engine's driver, or by the
  // creator before any other thread has a pointer to the work. Only the first call has an effect.
  void Finish(absl::Status status);

  // The first member: mark() reads it even if a handle points to a smaller object of another kind.
  Mark<kMark> mark_;
  Engine* const engine_;

 private:
  std::atomic<uint32_t> references_{1};
  std::atomic<uint32_t> done_{0};
  absl::Status status_;  // written before done_ is set, read only afterwards
  struct Node {
    Continuation then;
    Node* next;
  };
  static Node* Closed();
  // Deletes the continuations that were not called, and closes the descriptor.
  void Discard();
  // A linked list, newest first. Equal to Closed() after Finish has taken the list.
  std::atomic<Node*> continuations_{nullptr};
  std::atomic<int> descriptor_{-1};
};

}  // namespace entrain
