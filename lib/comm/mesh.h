// A mesh divides the ranks of a communicator into groups along five axes: tensor, pipeline,
// context, shard and sync. The model group of a rank spans all axes except sync.
// include/entrain/train.h calls shard groups columns, and sync groups rows.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"

namespace entrain {

enum class Axis : int32_t { kTensor = 0, kPipeline, kContext, kShard, kSync, kModel };
constexpr int kAxes = 5;  // kModel is not an axis

struct MeshConfig {
  std::array<int, kAxes> lengths = {1, 1, 1, 1, 0};  // by Axis; sync 0: computed from the size
  // The axes. The first axis varies fastest from rank to rank.
  std::string order = "tensor,context,shard,pipeline,sync";
};

class Mesh {
 public:
  // Splits `comm` once for each axis longer than 1, and once for the model group if it has more
  // than one rank. All groups of one rank share one further split. Collective.
  static absl::StatusOr<std::shared_ptr<Mesh>> Create(std::shared_ptr<Communicator> comm,
                                                      const MeshConfig& config);
  // Makes a mesh of two existing communicators. Collective over both communicators. The sizes of
  // the two communicators must be equal on all ranks. All ranks of `sync` must have the same rank
  // in `shard`. All ranks of `shard` must have the same rank in `sync`.
  static absl::StatusOr<std::shared_ptr<Mesh>> CreateFrom(std::shared_ptr<Communicator> shard,
                                                          std::shared_ptr<Communicator> sync);
  // Returns the communicator that Create has split. Returns null if this communicator was
  // destroyed, or if CreateFrom made the mesh.
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
