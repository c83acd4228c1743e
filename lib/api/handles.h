// The structs behind the opaque handles of the C API. Each begins with a mark of its kind
// (lib/base/mark.h), and has a reference to an object.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "include/entrain/entrain.h"
#include "include/entrain/optim.h"
#include "lib/api/array_place.h"
#include "lib/api/boundary.h"
#include "lib/api/signal_work.h"
#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/base/mark.h"
#include "lib/base/status.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/runtime.h"
#include "lib/comm/mesh.h"
#include "lib/engine/work.h"
#include "lib/optim/optimizer.h"
#include "lib/optim/wsam.h"
#include "lib/store/store.h"
#include "lib/train/acco/gradient_channel.h"
#include "lib/train/edit/layer_sync.h"
#include "lib/train/shard/layer_shards.h"
#include "lib/train/state/open_state.h"

namespace entrain::api {

// If a call that was started on the object is not over, makes it fail and waits for its end. Must
// be called before the object is destroyed.
template <typename Object>
void EndCalls(StartedCalls& calls, Object* object) {
  if (calls.RunsFor(object)) {
    object->Abandon();
    calls.Join();
  }
}

}  // namespace entrain::api

struct entrain_runtime {
  entrain::Mark<entrain::MarkOf("runt")> mark = {};
  std::shared_ptr<entrain::Runtime> runtime;
};

struct entrain_store {
  entrain::Mark<entrain::MarkOf("stor")> mark = {};
  std::shared_ptr<entrain::Store> store;
  std::string url;  // lent to callers of entrain_store_url
  // time limit of calls without a timeout argument
  std::atomic<int64_t> timeout_ns = 30 * entrain::kSecond;
};

struct entrain_comm {
  entrain::Mark<entrain::MarkOf("comm")> mark = {};
  std::shared_ptr<entrain::Communicator> comm;
  bool lent = false;  // the handle belongs to a mesh, which destroys it
  // The store from the environment. Opened by the first entrain_comm_grow that needs it.
  std::shared_ptr<entrain::Store> store = nullptr;
};

struct entrain_reduction {
  entrain::Mark<entrain::MarkOf("redu")> mark = {};
  entrain::Reduction reduction;
};

struct entrain_batch {
  entrain::Mark<entrain::MarkOf("batc")> mark = {};
  std::shared_ptr<entrain::Communicator> comm;
  std::vector<entrain::Call> calls;
};

struct entrain_optim {
  entrain::Mark<entrain::MarkOf("opti")> mark = {};
  std::shared_ptr<const entrain::Optimizer> optimizer;  // kind WSAM: the base
  entrain::api::ArrayPlace place;
  std::unique_ptr<entrain::Wsam> wsam = nullptr;  // kind WSAM only
};

struct entrain_mesh {
  entrain::Mark<entrain::MarkOf("mesh")> mark = {};
  std::shared_ptr<entrain::Mesh> mesh;
  std::array<entrain_comm, entrain::kAxes + 1> comms;  // lent to callers of entrain_mesh_comm
};

struct entrain_shard {
  entrain::Mark<entrain::MarkOf("shar")> mark = {};
  std::shared_ptr<entrain::LayerShards> shards;
  std::shared_ptr<entrain::api::StartedCalls> calls;
  ~entrain_shard() { entrain::api::EndCalls(*calls, shards.get()); }
  const void* object() const { return shards.get(); }
};

struct entrain_edit {
  entrain::Mark<entrain::MarkOf("edit")> mark = {};
  std::shared_ptr<entrain::LayerSync> edit;
  int layers = 0;
  int64_t slab_count = 0;
  std::shared_ptr<entrain::api::StartedCalls> calls;  // the StartedCalls of the shard
  ~entrain_edit() { entrain::api::EndCalls(*calls, edit.get()); }
  const void* object() const { return edit.get(); }
};

struct entrain_acco {
  entrain::Mark<entrain::MarkOf("acco")> mark = {};
  std::shared_ptr<entrain::GradientChannel> channel;
  std::shared_ptr<entrain::api::StartedCalls> calls;
  ~entrain_acco() { entrain::api::EndCalls(*calls, channel.get()); }
  const void* object() const { return channel.get(); }
};

struct entrain_state {
  entrain::Mark<entrain::MarkOf("stat")> mark = {};
  std::shared_ptr<entrain::OpenState> state;          // shared with calls in progress
  std::weak_ptr<const void> owner;                    // the training object; if expired, the state
                                                      // must not be used
  std::shared_ptr<entrain::api::StartedCalls> calls;  // the StartedCalls of the owner
  const void* object() const { return owner.lock().get(); }
};

namespace entrain::api {

// The handle of a started call is the address of its Work, and holds one reference to it. There is
// no struct entrain_work, because it would cost one more allocation per call. The lowest bit of the
// handle is 1 if waits use ENTRAIN_WAIT_BACKGROUND.
static_assert(alignof(Work) >= 2);

inline entrain_work_t* ToHandle(RefPtr<Work> work, bool background) {
  return reinterpret_cast<entrain_work_t*>(reinterpret_cast<uintptr_t>(work.Leak()) |
                                           uintptr_t{background});
}
inline Work* ToWork(const entrain_work_t* handle) {
  return reinterpret_cast<Work*>(reinterpret_cast<uintptr_t>(handle) & ~uintptr_t{1});
}
inline bool WaitsInBackground(const entrain_work_t* handle) {
  return (reinterpret_cast<uintptr_t>(handle) & 1) != 0;
}

// Returns true if the pointer is not null, and aligned for a mark. Only then a mark may be read.
inline bool IsPlace(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignof(uint64_t) == 0;
}
void LogRefused(const char* function, const absl::Status& status);

// Returns INVALID_ARGUMENT if `handle` is null or `found` is not the expected mark. Texts: "`name`
// is NULL", "`name` is a store, not a communicator", "`name` is not a communicator: it was
// destroyed, or never was one".
absl::Status CheckMark(const void* handle, uint64_t found, uint64_t expected, const char* name);

// Overloads of NotNull for handles: they also check the mark.
template <typename Handle>
requires requires(const Handle* handle) {
  handle->mark.value();
}
absl::Status NotNull(const Handle* handle, const char* name) {
  return CheckMark(handle, IsPlace(handle) ? handle->mark.value() : 0,
                   decltype(handle->mark)::kValue, name);
}
inline absl::Status NotNull(const entrain_work_t* handle, const char* name) {
  const Work* const work = ToWork(handle);
  return CheckMark(work, IsPlace(work) ? work->mark() : 0, Work::kMark, name);
}

// Returns INVALID_ARGUMENT if the optimizer is WSAM, whose step needs two gradients.
absl::Status CheckStepsAlone(const entrain_optim& optim, absl::string_view name);

// Returns FAILED_PRECONDITION if a call that was started on the object, or on another object with
// the same StartedCalls, is not over.
template <typename Handle>
requires requires(const Handle* handle) {
  handle->calls->CheckIdle("");
}
absl::Status CheckIdle(const Handle* handle, const char* name) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(handle, name));
  return handle->calls->CheckIdle(name);
}

// Makes `call`, a call on the object of the handle: on this thread if `work` is null, otherwise on a
// thread of the library, and gives its work.
template <typename Handle>
absl::Status CallOn(const Handle* handle, const char* name, absl::string_view operation,
                    entrain_work_t** work, absl::AnyInvocable<absl::Status()> call) {
  ENTRAIN_RETURN_IF_ERROR(CheckIdle(handle, name));
  if (work == nullptr) {
    return call();
  }
  *work = ToHandle(handle->calls->Start(handle->object(), operation, std::move(call)),
                   /*background=*/false);
  return absl::OkStatus();
}

// What a call that is made by CallOn does.
inline Does DoesOf(entrain_work_t* const* work) {
  return work == nullptr ? Does::kWait : Does::kStart;
}

// Calls `when` with a continuation, and creates a work that is over when the continuation has been
// called.
template <typename Handle>
absl::Status WatchOn(const Handle* handle, absl::string_view operation, int64_t tag,
                     entrain_work_t** work,
                     absl::FunctionRef<absl::Status(Worker::Continuation)> when) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(work), "work"));
  const auto signal = handle->calls->NewWork(operation, tag);
  ENTRAIN_RETURN_IF_ERROR(when([signal](const absl::Status& status) { signal->Over(status); }));
  *work = ToHandle(RefPtr<Work>::Share(signal.get()), /*background=*/false);
  return absl::OkStatus();
}

// Destroys a handle. Does nothing for NULL and in a forked child. If the handle is wrong, or a
// callback that is running must not destroy it, logs an error and destroys nothing. `does`: what
// the destruction needs (lib/base/callback_scope.h).
template <typename Handle>
void Destroy(const char* function, Handle* handle, Does does = Does::kLook) {
  if (handle == nullptr || Forked()) {
    return;
  }
  const FloatEnvironment environment;  // the end of a communicator finishes calls of other ranks
  absl::Status status = NotNull(static_cast<const Handle*>(handle), "the handle");
  if (status.ok()) {
    status = CallbackScope::Check(does);
  }
  if (!status.ok()) {
    LogRefused(function, status);
    return;
  }
  delete handle;
}

}  // namespace entrain::api
