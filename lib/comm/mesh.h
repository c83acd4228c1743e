// The mesh: a communicator cut into groups along five axes (tensor, pipeline, context, shard,
// sync), and the model group (all axes but sync). Shard groups are columns and sync groups are
// rows, see include/entrain/train.h.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"

namespace entrain {

enum class Axis : int32_t { kTensor = 0, kPipeline, kContext, kShard, kSync, kModel };
constexpr int kAxes = 5;  // without kModel

struct MeshConfig {
  std::array<int, kAxes> lengths = {1, 1, 1, 1, 0};  // by Axis; sync 0: computed from the size
  std::string order = "tensor,context,shard,pipeline,sync";  // fastest first
};

class Mesh {
 public:
  // Collective. Splits `comm` once for each axis longer than 1, and once for the model group if it
  // is longer than 1.
  static absl::StatusOr<std::shared_ptr<Mesh>> Create(std::shared_ptr<Communicator> comm,
                                                      const MeshConfig& config);
  // Makes a mesh of two existing communicators. Collective over both. All ranks must agree on the
  // shape, and this rank's place in `shard` must be equal on all ranks of `sync`.
  static absl::StatusOr<std::shared_ptr<Mesh>> CreateFrom(std::shared_ptr<Communicator> shard,
                                                          std::shared_ptr<Communicator> sync);
  // Returns the communicator that Create has split, if it still exists; otherwise null.
  std::shared_ptr<Communicator> whole() const { return whole_.lock(); }
  int coordinate(Axis axis) const;
  int length(Axis axis) const;
  // Never returns null. An axis of length 1 has a communicator of one rank.
  const std::shared_ptr<Communicator>& comm(Axis axis) const;

 private:
  std::array<int, kAxes + 1> coordinate_{}, length_{};
  std::array<std::shared_ptr<Communicator>, kAxes + 1> comms_;
  std::weak_ptr<Communicator> whole_;
};

}  // namespace entrain
