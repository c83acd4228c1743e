// The handles of the C API, with destructors. Converts the library's errors to the trainer's Error.
#pragma once

#include <memory>
#include <string>

#include <entrain/entrain.h>
#include <entrain/optim.h>

#include "examples/trainer/error.h"

namespace trainer {

// Throws Error with the library's message unless `status` is ENTRAIN_OK.
inline void Check(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    entrain_error_t error;
    entrain_error_init(&error);
    entrain_last_error_record(&error);
    const int rank = error.guilty_world_rank;
    throw Error(std::string(error.text) +
                (rank < 0 ? "" : " [guilty: rank " + std::to_string(rank) + " of world]"));
  }
}

template <typename T, void (*destroy)(T*)>
struct Destroy {
  void operator()(T* handle) const { destroy(handle); }
};
template <typename T, void (*destroy)(T*)>
using Handle = std::unique_ptr<T, Destroy<T, destroy>>;

using CommHandle = Handle<entrain_comm_t, entrain_comm_destroy>;
using MeshHandle = Handle<entrain_mesh_t, entrain_mesh_destroy>;
using ShardHandle = Handle<entrain_shard_t, entrain_shard_destroy>;
using EditHandle = Handle<entrain_edit_t, entrain_edit_destroy>;
using AccoHandle = Handle<entrain_acco_t, entrain_acco_destroy>;
using OptimHandle = Handle<entrain_optim_t, entrain_optim_destroy>;

}  // namespace trainer
