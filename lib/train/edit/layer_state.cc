#include "lib/train/edit/layer_state.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

absl::Status LayerState::Reserve() {
  if (options_.keeps_means()) {
    ENTRAIN_ASSIGN_OR_RETURN(means_, OwnedBuffer::Allocate(slab_.count() * kFloat));
    ZeroShared(means_.data(), slab_.count() * kFloat);
  }
  return absl::OkStatus();
}

float* LayerState::MeanOf(int layer) const {
  return reinterpret_cast<float*>(means_.data()) + slab_.layer(layer).offset;
}

void LayerState::KeepMean(int layer, const float* mean) {
  if (options_.keeps_means()) {
    CopyShared(MeanOf(layer), mean, slab_.layer(layer).valid * kFloat);
  }
}

// Returns the arrays of the layer's state. A rank that receives them can finish the layer.
std::vector<float*> LayerState::Of(int layer) {
  if (options_.keeps_means()) {
    return {MeanOf(layer)};
  }
  std::vector<float*> parts = {anchors_.anchor(layer)};
  for (int array = 0; array < anchors_.outer_arrays(); ++array) {
    parts.push_back(anchors_.outer(array, layer));
  }
  return parts;
}

absl::StatusOr<OwnedBuffer> LayerState::Broadcast(int layer, int root) {
  const std::vector<float*> parts = Of(layer);
  const int64_t count = slab_.layer(layer).shard;
  const bool sends = members_.sync()->rank() == root;
  OwnedBuffer received;
  if (!sends) {
    ENTRAIN_ASSIGN_OR_RETURN(
        received, OwnedBuffer::Allocate(static_cast<int64_t>(parts.size()) * count * kFloat));
  }
  auto* const room = reinterpret_cast<float*>(received.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    const CallOptions options = members_.Options(layer);
    Worker::Doing(absl::StrCat("layer ", layer, ": the anchor of replica ",
                               members_.replicas()[static_cast<size_t>(root)]),
                  options.timeout_ns);
    ENTRAIN_RETURN_IF_ERROR(
        members_.sync()->Broadcast(sends ? parts[i] : room + static_cast<int64_t>(i) * count, count,
                                   DType::kF32, root, options));
  }
  return received;
}

void LayerState::Take(int layer, const OwnedBuffer& received) {
  const int64_t count = slab_.layer(layer).shard;
  const auto* from = reinterpret_cast<const float*>(received.data());
  for (float* const part : Of(layer)) {
    CopyShared(part, from, count * kFloat);
    from += count;
  }
  anchors_.Seal(layer);
}

}  // namespace entrain
