#include "lib/comm/mesh.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "lib/base/status.h"
#include "lib/comm/agree.h"

namespace entrain {
namespace {

constexpr const char* kNames[kAxes] = {"tensor", "pipeline", "context", "shard", "sync"};

size_t Index(Axis axis) {
  return static_cast<size_t>(axis);
}

// Returns the axes, beginning with the axis that varies fastest.
absl::StatusOr<std::array<size_t, kAxes>> ParseOrder(const std::string& order) {
  const std::vector<std::string> names = absl::StrSplit(order, ',');
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("order: \"", order, "\" ", why,
                                                   "; it must name each of ",
                                                   absl::StrJoin(kNames, ", "), " once"));
  };
  std::array<size_t, kAxes> axes{};
  std::array<bool, kAxes> seen{};
  if (names.size() != kAxes) {
    return bad(absl::StrCat("has ", names.size(), " names"));
  }
  for (size_t i = 0; i < kAxes; ++i) {
    const auto found = std::find(std::begin(kNames), std::end(kNames), names[i]);
    const auto axis = static_cast<size_t>(found - std::begin(kNames));
    if (axis == kAxes) {
      return bad(absl::StrCat("names \"", names[i], "\""));
    }
    if (seen[axis]) {
      return bad(absl::StrCat("names ", names[i], " twice"));
    }
    seen[axis] = true;
    axes[i] = axis;
  }
  return axes;
}

std::string Product(const std::array<int, kAxes>& lengths) {
  std::vector<std::string> factors;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    factors.push_back(absl::StrCat(kNames[axis], " ", lengths[axis]));
  }
  return absl::StrJoin(factors, " x ");
}

// If the length of sync is 0, computes this length from `size`. Returns the lengths, or an error if
// their product is not `size`.
absl::StatusOr<std::array<int, kAxes>> Complete(std::array<int, kAxes> lengths, int size) {
  int64_t product = 1;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const bool remains = axis == Index(Axis::kSync) && lengths[axis] == 0;
    if (lengths[axis] < 1 && !remains) {
      return absl::InvalidArgumentError(
          absl::StrCat(kNames[axis], ": ", lengths[axis], " is not positive"));
    }
    product *= remains ? 1 : lengths[axis];
    if (product > size) {
      break;  // the lengths are already wrong; stop before the product overflows
    }
  }
  int& sync = lengths[Index(Axis::kSync)];
  if (sync == 0 && size % product == 0) {
    sync = static_cast<int>(size / product);
    product = size;
  }
  if (product != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Product(lengths), sync == 0 ? " (what remains)" : "", " does not make the ",
                     size, " ranks of the communicator"));
  }
  return lengths;
}

// Returns the coordinate of `rank` along each axis.
std::array<int, kAxes> Coordinates(int rank, const std::array<int, kAxes>& lengths,
                                   const std::array<size_t, kAxes>& order) {
  std::array<int, kAxes> coordinates{};
  for (const size_t axis : order) {
    coordinates[axis] = rank % lengths[axis];
    rank /= lengths[axis];
  }
  return coordinates;
}

absl::Status AgreeOnConfig(Communicator& comm, const MeshConfig& config) {
  std::vector<NamedValue> values;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    values.push_back({kNames[axis], static_cast<double>(config.lengths[axis])});
  }
  // The ranks compare a hash of the order, because the text may have any length.
  uint32_t hash = 2166136261u;
  for (const char c : config.order) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  }
  values.push_back({"order (as a number)", static_cast<double>(hash)});
  return AgreeOn(comm, "the communicator", values);
}

// Returns the color of a rank for a split. Two ranks get the same color if they differ only along
// axes for which `along` returns true.
int ColorOf(const std::array<int, kAxes>& coordinates, const std::array<int, kAxes>& lengths,
            const std::function<bool(size_t axis)>& along) {
  int color = 0;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    color = along(axis) ? color : color * lengths[axis] + coordinates[axis];
  }
  return color;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Mesh>> Mesh::Create(std::shared_ptr<Communicator> comm,
                                                   const MeshConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(Annotate(AgreeOnConfig(*comm, config), "mesh"));
  ENTRAIN_ASSIGN_OR_RETURN(const auto order, ParseOrder(config.order));
  ENTRAIN_ASSIGN_OR_RETURN(const auto lengths, Complete(config.lengths, comm->size()));
  const auto coordinates = Coordinates(comm->rank(), lengths, order);
  auto mesh = std::make_shared<Mesh>();
  mesh->whole_ = comm;
  std::shared_ptr<Communicator> alone;
  for (size_t group = 0; group <= kAxes; ++group) {
    const bool model = group == Index(Axis::kModel);
    const auto along = [&](size_t axis) {
      return model ? axis != Index(Axis::kSync) : axis == group;
    };
    const int members = model ? comm->size() / lengths[Index(Axis::kSync)] : lengths[group];
    const int color = members == 1 ? comm->rank() : ColorOf(coordinates, lengths, along);
    std::shared_ptr<Communicator> part = members == 1 ? alone : nullptr;
    if (part == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(part, comm->Split(color, comm->rank()));
    }
    if (members == 1) {
      alone = part;
    }
    mesh->length_[group] = members;
    // The members of `part` are ordered by rank. Along one axis, the order of ranks is the order of
    // coordinates.
    mesh->coordinate_[group] = part->rank();
    mesh->comms_[group] = std::move(part);
  }
  return mesh;
}

absl::StatusOr<std::shared_ptr<Mesh>> Mesh::CreateFrom(std::shared_ptr<Communicator> shard,
                                                       std::shared_ptr<Communicator> sync) {
  // Make both comparisons first. Then combine the results over both groups, so that all ranks get
  // the same result. If a rank gave up after the first comparison, other ranks would wait in the
  // second comparison.
  absl::Status status = AgreeOn(
      *shard, "the shard group",
      {{"size of sync_comm", 1.0 * sync->size()}, {"rank in sync_comm", 1.0 * sync->rank()}});
  status.Update(AgreeOn(
      *sync, "the sync group",
      {{"size of shard_comm", 1.0 * shard->size()}, {"rank in shard_comm", 1.0 * shard->rank()}}));
  int32_t bad = status.ok() ? 0 : 1;
  status.Update(shard->AllReduce(&bad, &bad, 1, DType::kI32, ReduceOp::kMax));
  status.Update(sync->AllReduce(&bad, &bad, 1, DType::kI32, ReduceOp::kMax));
  if (status.ok() && bad != 0) {
    status = absl::DataLossError("the communicators do not form a mesh for other ranks");
  }
  ENTRAIN_RETURN_IF_ERROR(Annotate(status, "mesh"));
  ENTRAIN_ASSIGN_OR_RETURN(const auto alone, shard->Split(shard->rank(), 0));
  auto mesh = std::make_shared<Mesh>();
  mesh->comms_.fill(alone);
  mesh->comms_[Index(Axis::kShard)] = shard;
  mesh->comms_[Index(Axis::kModel)] = shard;
  mesh->comms_[Index(Axis::kSync)] = sync;
  for (size_t group = 0; group <= kAxes; ++group) {
    mesh->length_[group] = mesh->comms_[group]->size();
    mesh->coordinate_[group] = mesh->comms_[group]->rank();
  }
  return mesh;
}

int Mesh::coordinate(Axis axis) const {
  return coordinate_[Index(axis)];
}

int Mesh::length(Axis axis) const {
  return length_[Index(axis)];
}

const std::shared_ptr<Communicator>& Mesh::comm(Axis axis) const {
  return comms_[Index(axis)];
}

}  // namespace entrain
