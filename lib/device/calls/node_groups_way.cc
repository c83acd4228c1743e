// The method of node groups. A library (NCCL) works inside each node group, and the hosts'
// transports work between node groups. A rank's place is its index in its node group. Ranks with
// equal places exchange one slice of the data with each other:
//
//   call             inside node groups         between equal places       inside node groups
//   all_reduce       reduce_scatter             all_reduce of the slice    all_gather
//   reduce           reduce_scatter             reduce to the root's       gather, in the root's
//                                               node group                 node group
//   broadcast        broadcast, in the root's   broadcast of the slice     all_gather, in the other
//                    node group                                            node groups
//   reduce_scatter   a reduce_scatter for       reduce_scatter             -
//                    each node group's part
//   all_gather       all_gather of the own      all_gather                 an all_gather for each
//                    node group's part                                     other node group's part
//
// Slices travel between node groups in pieces, as in pieces.h. An all_reduce, reduce or broadcast
// is cut into chunks. A chunk has one piece for each place. Pieces may arrive in any order, but the
// library must get the same calls in the same order on all ranks of a node group. So all calls of
// the first column are put on the stream before any call of the last column. Let an all_reduce of S
// bytes have I node groups of m ranks. A rank then sends at least 2 S (I - 1) / (I m) bytes between
// node groups.
//
// An average is computed in two steps. The library averages inside each node group, and then the
// results of the node groups are averaged. This is correct because all node groups have equal
// sizes.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/device/calls/device_call.h"
#include "lib/device/calls/pieces.h"

namespace entrain {
namespace {

// Returns null if the rank has no such buffer.
std::byte* At(const BufferView& buffer, int64_t offset) {
  return buffer.data == nullptr ? nullptr : static_cast<std::byte*>(buffer.data) + offset;
}

class NodeGroupsWay final : public DeviceWay, private PiecewiseCall {
 public:
  explicit NodeGroupsWay(DeviceCall& call, const NodeGroups& node_groups)
      : way_(call),
        call_(call.call()),
        node_groups_(node_groups),
        place_(node_groups.inside.me),
        width_(SizeOf(call_.dtype)),
        sliced_(!HasParts(call_.kind)),
        root_node_group_(node_groups.AcrossOf(call.core().topology(), call_.root)),
        at_root_(node_groups.across.me == root_node_group_),
        piece_(PieceElements(
            width_, sliced_ ? 1 : node_groups.count,
            sliced_ ? (call_.count + node_groups.size - 1) / node_groups.size : call_.count)),
        pieces_((call_.count + chunk() - 1) / chunk()),
        over_(static_cast<size_t>(pieces_)),
        pipe_(call.side(), *this) {}

  absl::Status Reserve() { return pipe_.Reserve(); }

  absl::StatusOr<bool> Step(bool* moved) override {
    if (steps_.empty()) {
      Plan();
    }
    ENTRAIN_RETURN_IF_ERROR(EnqueueInside(moved));
    ENTRAIN_ASSIGN_OR_RETURN(const bool exchanged, pipe_.Step(moved));
    if (!exchanged || marks_.size() < steps_.size()) {
      return false;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const bool done, marks_.back()->Reached());
    *moved |= done;
    return done;
  }
  // The library may have begun the last call after the last Begun and before the abort. So the
  // stream is marked once more, behind that call.
  bool Quiet() override {
    if (given_ && way_.side().node_groups()->offload->Gone()) {
      given_ = false;
      marks_.push_back(std::make_unique<DeviceMark>(way_.device()));
      marks_.back()->Record(way_.side().work()).IgnoreError();  // the device is lost
    }
    return pipe_.Quiet() && !given_ && (marks_.empty() || marks_.back()->quiet());
  }
  const char* WaitsFor() const override {
    return pipe_.on_wire() ? nullptr : "the ranks of its node group, or copies";
  }
  bool settled() const override { return false; }

 private:
  // A call inside the node group. It may begin when the first `after` pieces are over.
  struct Inside {
    Call call;
    int64_t after = 0;
  };

  // ---- Inside the node group

  // Gives as many calls to the library as possible now. A call must wait until the previous call is
  // on the stream, and until the pieces that it needs are over (Inside::after).
  absl::Status EnqueueInside(bool* moved) {
    DeviceOffload& to = *way_.side().node_groups();
    absl::MutexLock lock(&to.mutex);
    if (!given_) {
      ENTRAIN_RETURN_IF_ERROR(to.offload->AsyncStatus());
    }
    const StreamHandle stream = way_.side().work();
    for (;;) {
      if (given_) {
        ENTRAIN_ASSIGN_OR_RETURN(const bool begun, to.offload->Begun());
        if (!begun) {
          return absl::OkStatus();
        }
        marks_.push_back(std::make_unique<DeviceMark>(way_.device()));
        ENTRAIN_RETURN_IF_ERROR(marks_.back()->Record(stream));
        given_ = false;
        *moved = true;
      }
      if (marks_.size() == steps_.size() || steps_[marks_.size()].after > first_open_) {
        return absl::OkStatus();
      }
      given_ = true;
      ENTRAIN_RETURN_IF_ERROR(to.offload->Enqueue(steps_[marks_.size()].call, stream, nullptr));
    }
  }

  void Plan() {
    switch (call_.kind) {
      case CallKind::kReduceScatter:
        for (int i = 0; i < node_groups_.count; ++i) {
          Add(CallKind::kReduceScatter, At(call_.in, i * node_groups_.size * part()),
              way_.scratch() + i * part(), call_.count, 0);
        }
        before_pieces_ = steps_.size();
        return;
      case CallKind::kAllGather:
        // If the call is in place, NCCL may write this rank's part while CopyIn reads it. This is
        // no race, because NCCL writes the bytes that are already there.
        Add(CallKind::kAllGather, At(call_.in, 0), NodeGroupsParts(node_groups_.mine), call_.count,
            0);
        for (int i = 0; i < node_groups_.count; ++i) {
          if (i != node_groups_.mine) {
            Add(CallKind::kAllGather, NodeGroupsParts(i) + place_ * part(), NodeGroupsParts(i),
                call_.count, pieces_);
          }
        }
        return;
      default:
        for (int64_t k = 0; k < pieces_; ++k) {
          PlanFirst(k);
        }
        before_pieces_ = steps_.size();
        for (int64_t k = 0; k < pieces_; ++k) {
          PlanLast(k);
        }
    }
  }
  void PlanFirst(int64_t k) {
    if (call_.kind != CallKind::kBroadcast) {
      AddSliced(CallKind::kReduceScatter, At(call_.in, chunk_first(k) * width_), Slice(k), k, 0);
    } else if (at_root_) {
      Add(CallKind::kBroadcast, At(call_.in, chunk_first(k) * width_),
          At(call_.out, chunk_first(k) * width_), chunk_count(k), 0);
      steps_.back().call.root = RootsPlace();
    }
  }
  void PlanLast(int64_t k) {
    std::byte* const out = At(call_.out, chunk_first(k) * width_);
    if (call_.kind == CallKind::kAllReduce || (call_.kind == CallKind::kBroadcast && !at_root_)) {
      AddSliced(CallKind::kAllGather, Slice(k), out, k, k + 1);
    } else if (call_.kind == CallKind::kReduce && at_root_) {
      AddSliced(CallKind::kGather, Slice(k), out, k, k + 1);
      steps_.back().call.root = RootsPlace();
    }
  }

  // `count` is the number of elements of a part, or of a broadcast's buffer.
  void Add(CallKind kind, std::byte* in, std::byte* out, int64_t count, int64_t after) {
    const int64_t bytes = count * width_, whole = bytes * node_groups_.size;
    Call inside;
    inside.kind = kind;
    inside.reduction = call_.reduction;
    inside.dtype = call_.dtype;
    inside.in = {in, kind == CallKind::kReduceScatter ? whole : bytes, MemoryKind::kDevice};
    inside.out = {out,
                  kind == CallKind::kReduceScatter || kind == CallKind::kBroadcast ? bytes : whole,
                  MemoryKind::kDevice};
    inside.count = count;
    inside.options = call_.options;
    steps_.push_back({std::move(inside), after});
  }
  // Adds a call whose parts are the slices of chunk k.
  void AddSliced(CallKind kind, std::byte* in, std::byte* out, int64_t k, int64_t after) {
    Add(kind, in, out, chunk_count(k) / node_groups_.size, after);
    if (chunk_count(k) % node_groups_.size == 0) {
      return;
    }
    Call& inside = steps_.back().call;
    PartCounts counts;
    for (int place = 0; place < node_groups_.size; ++place) {
      counts.in.push_back(slice_count(k, place));
    }
    counts.out = counts.in;
    inside.uneven = std::make_shared<const PartCounts>(std::move(counts));
    inside.count = chunk_count(k);
    const bool scatters = kind == CallKind::kReduceScatter;
    (scatters ? inside.out : inside.in).bytes = slice_count(k, place_) * width_;
    (scatters ? inside.in : inside.out).bytes = chunk_count(k) * width_;
  }

  // Returns the device address of this rank's slice of chunk k.
  std::byte* Slice(int64_t k) const {
    return call_.kind == CallKind::kReduce
               ? way_.scratch() + k * piece_ * width_
               : At(call_.kind == CallKind::kBroadcast && is_root() ? call_.in : call_.out,
                    (chunk_first(k) + slice_first(k, place_)) * width_);
  }
  std::byte* NodeGroupsParts(int node_group) const {
    return At(call_.out, node_group * node_groups_.size * part());
  }
  int RootsPlace() const {
    const auto& ranks = node_groups_.inside.ranks;
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), call_.root) - ranks.begin());
  }

  // ---- Between node groups: PiecewiseCall

  int64_t pieces() const override { return pieces_; }
  int64_t InBytes(int64_t piece) const override {
    return elements(piece) * width_ *
           (call_.kind == CallKind::kReduceScatter ? node_groups_.count : 1);
  }
  int64_t OutBytes(int64_t piece) const override {
    return call_.kind == CallKind::kBroadcast
               ? 0
               : elements(piece) * width_ *
                     (call_.kind == CallKind::kAllGather ? node_groups_.count : 1);
  }
  // Returns true when the library has finished the work that the piece needs. The copy stream must
  // not wait for this work. It would delay the copies of all other calls, and other ranks of the
  // node group may need those calls first.
  absl::StatusOr<bool> MayBegin(int64_t piece) const override {
    const auto behind = static_cast<size_t>(BehindOf(piece));
    return behind == 0              ? absl::StatusOr<bool>(true)
           : behind > marks_.size() ? absl::StatusOr<bool>(false)
                                    : marks_[behind - 1]->Reached();
  }
  void IsOver(int64_t piece) override {
    over_[static_cast<size_t>(piece)] = true;
    while (first_open_ < pieces_ && over_[static_cast<size_t>(first_open_)]) {
      ++first_open_;
    }
  }

  absl::StatusOr<bool> CopyIn(int64_t piece, std::byte* in) override {
    const int64_t bytes = elements(piece) * width_;
    if (bytes == 0 || (call_.kind == CallKind::kBroadcast && !at_root_)) {
      return false;
    }
    const StreamHandle stream = way_.side().copy_in();
    if (sliced_) {
      ENTRAIN_RETURN_IF_ERROR(way_.device().Copy(in, Slice(piece), bytes, stream));
    } else if (call_.kind == CallKind::kAllGather) {
      ENTRAIN_RETURN_IF_ERROR(
          way_.device().Copy(in, At(call_.in, piece * piece_ * width_), bytes, stream));
    } else {
      for (int i = 0; i < node_groups_.count; ++i) {
        ENTRAIN_RETURN_IF_ERROR(way_.device().Copy(
            in + i * bytes, way_.scratch() + i * part() + piece * piece_ * width_, bytes, stream));
      }
    }
    return true;
  }

  absl::StatusOr<RefPtr<Work>> Exchange(int64_t piece, std::byte* in, std::byte* out) override {
    if (elements(piece) == 0) {
      return RefPtr<Work>();
    }
    Call between;
    between.kind = call_.kind;
    between.reduction = call_.reduction;
    if (call_.reduction.op == ReduceOp::kPreMultipliedSum) {
      between.reduction = {};  // the factor was already applied inside the node group
    }
    between.dtype = call_.dtype;
    between.count = elements(piece);
    between.root = root_node_group_;
    between.in = {in, InBytes(piece), MemoryKind::kHost};
    between.out = {call_.kind == CallKind::kBroadcast ? in : out,
                   call_.kind == CallKind::kBroadcast ? InBytes(piece) : OutBytes(piece),
                   MemoryKind::kHost};
    return way_.Launch(static_cast<size_t>(piece), std::move(between), way_.side().across());
  }

  absl::StatusOr<bool> CopyOut(int64_t piece, const std::byte* in, const std::byte* out) override {
    const int64_t bytes = elements(piece) * width_;
    const bool keeps = (call_.kind == CallKind::kBroadcast && at_root_) ||
                       (call_.kind == CallKind::kReduce && !at_root_);
    if (bytes == 0 || keeps) {
      return false;
    }
    const StreamHandle stream = way_.side().copy_out();
    if (sliced_) {
      ENTRAIN_RETURN_IF_ERROR(way_.device().Copy(
          Slice(piece), call_.kind == CallKind::kBroadcast ? in : out, bytes, stream));
    } else if (call_.kind == CallKind::kReduceScatter) {
      ENTRAIN_RETURN_IF_ERROR(
          way_.device().Copy(At(call_.out, piece * piece_ * width_), out, bytes, stream));
    } else {
      for (int i = 0; i < node_groups_.count; ++i) {
        if (i != node_groups_.mine) {
          ENTRAIN_RETURN_IF_ERROR(
              way_.device().Copy(NodeGroupsParts(i) + place_ * part() + piece * piece_ * width_,
                                 out + i * bytes, bytes, stream));
        }
      }
    }
    return true;
  }

  // ---- Sizes

  bool is_root() const { return way_.core().rank() == call_.root; }
  int64_t part() const { return call_.count * width_; }
  // Returns the number of steps inside the node group that must be over before the piece may begin.
  int64_t BehindOf(int64_t piece) const {
    return before_pieces_ == 0                      ? 0
           : call_.kind == CallKind::kReduceScatter ? static_cast<int64_t>(before_pieces_)
                                                    : piece + 1;
  }
  // A chunk has one piece for each place. In calls with parts, a chunk is one piece: a range of
  // each part.
  int64_t chunk() const { return sliced_ ? piece_ * node_groups_.size : piece_; }
  int64_t chunk_first(int64_t k) const { return k * chunk(); }
  int64_t chunk_count(int64_t k) const { return std::min(chunk(), call_.count - chunk_first(k)); }
  int64_t slice_count(int64_t k, int place) const {
    return chunk_count(k) / node_groups_.size +
           (place < chunk_count(k) % node_groups_.size ? 1 : 0);
  }
  int64_t slice_first(int64_t k, int place) const {
    return place * (chunk_count(k) / node_groups_.size) +
           std::min<int64_t>(place, chunk_count(k) % node_groups_.size);
  }
  int64_t elements(int64_t piece) const {
    return sliced_ ? slice_count(piece, place_) : chunk_count(piece);
  }

  DeviceCall& way_;
  const Call& call_;
  const NodeGroups& node_groups_;
  const int place_;
  const int64_t width_;
  const bool sliced_;
  const int root_node_group_;  // index of the root's node group in node_groups_.across
  const bool at_root_;         // this rank's node group is the root's
  const int64_t piece_, pieces_;
  std::vector<Inside> steps_;
  size_t before_pieces_ = 0;  // number of steps that precede the pieces
  std::vector<std::unique_ptr<DeviceMark>>
      marks_;  // marks on the stream, one behind each step that has begun
  // True if the step after the marked steps has been given to the library.
  bool given_ = false;
  std::vector<bool> over_;  // by piece
  int64_t first_open_ = 0;
  PiecePipe pipe_;
};

}  // namespace

bool NodeGroupsServe(const Call& call, const NodeGroups& node_groups) {
  switch (call.kind) {
    case CallKind::kAllReduce:
    case CallKind::kReduce:
    case CallKind::kBroadcast:
      return call.count * SizeOf(call.dtype) >= kLeastDeviceBytes;
    case CallKind::kReduceScatter:
    case CallKind::kAllGather:
      return node_groups.consecutive && call.uneven == nullptr &&
             call.count * SizeOf(call.dtype) >= kLeastDeviceBytes;
    default:
      return false;
  }
}

int64_t NodeGroupsScratch(const Call& call, const NodeGroups& node_groups) {
  const int64_t bytes = call.count * SizeOf(call.dtype);
  return call.kind == CallKind::kReduceScatter ? bytes * node_groups.count
         : call.kind == CallKind::kReduce      ? bytes / node_groups.size + 64 * SizeOf(call.dtype)
                                               : 0;
}

absl::StatusOr<std::unique_ptr<DeviceWay>> MakeNodeGroupsWay(DeviceCall& call,
                                                             const NodeGroups& node_groups) {
  auto way = std::make_unique<NodeGroupsWay>(call, node_groups);
  ENTRAIN_RETURN_IF_ERROR(way->Reserve());
  return way;
}

}  // namespace entrain
