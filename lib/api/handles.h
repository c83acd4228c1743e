// What the opaque handles of the C API hold: nothing but a share of the object behind them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "include/entrain/entrain.h"
#include "lib/api/array_place.h"
#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/comm/mesh.h"
#include "lib/comm/runtime.h"
#include "lib/engine/work.h"
#include "lib/optim/optimizer.h"
#include "lib/optim/wsam.h"
#include "lib/store/store.h"
#include "lib/train/gradient_channel.h"
#include "lib/train/layer_shards.h"
#include "lib/train/layer_sync.h"

struct entrain_runtime {
  std::shared_ptr<entrain::Runtime> runtime;
};

struct entrain_store {
  std::shared_ptr<entrain::Store> store;
  std::string url;  // lent by entrain_store_url
};

struct entrain_comm {
  std::shared_ptr<entrain::Communicator> comm;
  bool lent = false;  // belongs to a mesh, which frees it
};

struct entrain_reduction {
  entrain::Reduction reduction;
};

struct entrain_batch {
  std::shared_ptr<entrain::Communicator> comm;
  std::vector<entrain::Call> calls;
};

struct entrain_optim {
  std::shared_ptr<const entrain::Optimizer> optimizer;
  entrain::api::ArrayPlace place;
};

struct entrain_wsam {
  std::unique_ptr<entrain::Wsam> wsam;
  entrain::api::ArrayPlace place;  // the base optimizer's
};

struct entrain_mesh {
  std::shared_ptr<entrain::Mesh> mesh;
  std::array<entrain_comm, entrain::kAxes + 1> comms;  // lent by entrain_mesh_comm
};

struct entrain_shard {
  std::unique_ptr<entrain::LayerShards> shards;
};

struct entrain_edit {
  std::unique_ptr<entrain::LayerSync> edit;
  int layers = 0;
  int64_t slab_count = 0;
};

struct entrain_acco {
  std::unique_ptr<entrain::GradientChannel> channel;
};

namespace entrain::api {

// A started call has no struct of its own: its handle is the Work itself, which the handle holds
// one reference of, so that starting a call costs no second allocation. How waits behave is kept in
// the lowest bit of the pointer.
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

}  // namespace entrain::api
