#include "lib/base/merging.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

absl::Status CheckSparsification(const Merging& merging) {
  const bool sparse = merging.sparsification != Sparsification::kNone;
  const double density = merging.density;
  if (!(density > 0 && density <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("density ", density, " is not in (0, 1]"));
  }
  if (sparse && density == 1) {
    return absl::InvalidArgumentError(
        "density 1 keeps everything: set it below 1, or sparsification to none");
  }
  if (!sparse && density != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "density ", density, " has no effect without sparsification: set that, or density to 1"));
  }
  const int32_t chunk = merging.sparsify_chunk;
  if (chunk != 0 && merging.sparsification != Sparsification::kMagnitude) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparsify_chunk ", chunk,
                     " has no effect without sparsification magnitude: set that, or 0"));
  }
  if (chunk < 0 || chunk > 1 << 20 || chunk % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparsify_chunk ", chunk, " is not a multiple of 64 up to ", 1 << 20));
  }
  return absl::OkStatus();
}

absl::Status CheckFeedback(const Merging& merging) {
  if (merging.error_feedback && !merging.Packs()) {
    return absl::InvalidArgumentError(
        "error_feedback has no effect when everything is sent: set sparsification or wire_format");
  }
  if (merging.error_feedback && merging.sparsification == Sparsification::kRescaledRandom) {
    return absl::InvalidArgumentError(
        "error_feedback sends later what was left out, which rescaled_random makes up for "
        "already: set random");
  }
  if (!(merging.error_decay > 0 && merging.error_decay <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("error_decay ", merging.error_decay, " is not in (0, 1]"));
  }
  if (merging.error_decay != 1 && !merging.error_feedback) {
    return absl::InvalidArgumentError(absl::StrCat(
        "error_decay ", merging.error_decay, " has no effect without error_feedback: set both"));
  }
  return absl::OkStatus();
}

absl::Status CheckWire(const Merging& merging) {
  const bool scaled = IsScaled(merging.wire_format);
  const int32_t block = merging.wire_block;
  if (!scaled && block != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wire_block ", block, " is for wire_format int8, int4 and int2: set one, or 0"));
  }
  if (block != 0 && (block < 16 || block > 65536 || block % 16 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire_block ", block, " is not a multiple of 16 from 16 to 65536"));
  }
  if (merging.wire_format == WireFormat::kFull && merging.wire_rounding != WireRounding::kNearest) {
    return absl::InvalidArgumentError(
        "wire_rounding stochastic has no effect with wire_format f32, which rounds nothing: set "
        "another");
  }
  if (merging.wire_format == WireFormat::kInt2 && merging.sparsification == Sparsification::kNone) {
    return absl::InvalidArgumentError(
        "wire_format int2 has no zero: set a sparsification, or another wire_format");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMerging(const Merging& merging) {
  for (size_t rank = 0; rank < merging.weights.size(); ++rank) {
    if (!std::isfinite(merging.weights[rank])) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights[", rank, "] ", merging.weights[rank], " is not finite"));
    }
  }
  if (absl::Status status = CheckSparsification(merging); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckWire(merging); !status.ok()) {
    return status;
  }
  const bool random = merging.sparsification == Sparsification::kRandom ||
                      merging.sparsification == Sparsification::kRescaledRandom ||
                      merging.wire_rounding == WireRounding::kStochastic;
  if (merging.seed != 0 && !random) {
    return absl::InvalidArgumentError(
        absl::StrCat("seed ", merging.seed,
                     " has no effect: nothing is random; set random sparsification or "
                     "wire_rounding stochastic, or seed to 0"));
  }
  return CheckFeedback(merging);
}

}  // namespace entrain
