// One started call: its state, its status, and the functions to call when it is over.
//
// Thread safety: everything public may be called from any thread. Reference counted: the caller's
// handle and the engine hold one reference each.
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

// A counted pointer to an object with AddRef() and Release().
template <typename T>
class RefPtr {
 public:
  RefPtr() = default;
  // Takes over one reference that the caller holds.
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
  // Gives the reference to the caller.
  T* Leak() { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

// The description of a work.
struct WorkInfo {
  std::string comm;             // the communicator's name; empty: unknown
  absl::string_view operation;  // lives for ever
  int64_t tag = -1;
  uint64_t sequence = 0;  // as in Blame; 0: the work is not a single call
  int64_t started_ns = 0;
  int source = -1;           // sender of a recv_any, once known
  std::string Name() const;  // as in errors: "all_reduce #2"
};

class Work {
 public:
  static constexpr uint64_t kMark = MarkOf("work");
  // `engine` makes progress for waiters. It may be null if the work is finished before any thread
  // waits for the work.
  explicit Work(Engine* engine) : engine_(engine) {}
  virtual ~Work() { Discard(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Acquire: pairs with the release in Finish. If this returns true, the data that the call wrote
  // is visible.
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  // Waits until the work is done or `give_up` has passed. Returns true if the work is done.
  // `background`: the thread sleeps at once instead of spinning.
  bool Wait(Deadline give_up, bool background = false);
  // Any thread may call this once the work has been started.
  virtual WorkInfo Info() const { return {}; }
  // Some works yield an object that can be taken when the work is over. Returns the mark of this
  // kind of object, or 0 if the work yields only its status.
  virtual uint64_t yields() const { return 0; }
  // Takes one turn of the engine if no other thread drives it. Returns done().
  bool Test();
  // Valid once the work is done.
  const absl::Status& status() const { return status_; }

  // Calls `then` once when the work is over, on the thread that finishes the work, which is the
  // engine's driver. If the work is already over, calls `then` on the calling thread. `then` must
  // not block.
  using Continuation = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Then(Continuation then);
  // Calls `done`, a function of the caller, once when the work is over. `done` may block. It runs
  // on the engine's thread of callbacks, or on the calling thread if the work is already over. If
  // Notify returns an error, `done` is not called.
  absl::Status Notify(Continuation done);
  // Returns a descriptor that becomes readable when the work is over, and stays readable. It
  // belongs to the work and is open as long as the work lives.
  absl::StatusOr<int> Descriptor();

  // Returns kMark while this object is a work that was not destroyed.
  uint64_t mark() const { return mark_.value(); }

  void AddRef() { references_.fetch_add(1, std::memory_order_relaxed); }
  // Acquire-release: the last owner sees every other owner's last use.
  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

 protected:
  friend class Engine;
  // Only the engine's driver may call this, or the creator before any other thread knows the work.
  // Only the first status counts.
  void Finish(absl::Status status);

  // Its address can be read even if the caller's handle points to an object of another kind.
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
  // Drops continuations that were not called, and closes the descriptor.
  void Discard();
  // A list. The continuation that was given last comes first. Closed(): Finish has taken the list.
  std::atomic<Node*> continuations_{nullptr};
  std::atomic<int> descriptor_{-1};
};

}  // namespace entrain
