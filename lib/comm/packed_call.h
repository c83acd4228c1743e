// An all_reduce or reduce_scatter whose contributions travel packed (lib/kernels/packing.h):
// sparsified, or in a type of fewer bits. It is a chain of ordinary calls, which all carry the
// descriptor of the whole call:
//
//   caller   chooses and packs this rank's values for the owner of each slice
//            all_to_all of the slices' lengths      only if they are unknown: sparsified slices
//            all_to_all of the slices
//   driver   unpacks and merges its own slice, in rank order, in pieces that fit the cache; packs
//            the result
//            all_gather of the results' lengths     only if they are unknown; all_reduce only
//            all_gather of the results              all_reduce only
//   driver   unpacks all results, also its own, so that every rank has the same bits
//
// Thread safety: one thread at a time. This is first the thread that starts the call, then the
// thread that finishes a part, mostly the engine's driver.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "collectives/spec.h"
#include "lib/base/call.h"
#include "lib/base/merging.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"
#include "lib/kernels/packing.h"
#include "lib/memory/buffer.h"

namespace entrain {

class CommCore;

class PackedCall final : public Work {
 public:
  // Returns whether the call's contributions travel packed.
  static bool Is(const Call& call);
  // Packs this rank's contribution. The input is not read afterwards. Returns INVALID_ARGUMENT
  // naming the value that cannot be packed.
  static absl::StatusOr<RefPtr<PackedCall>> Make(std::shared_ptr<CommCore> core, const Call& call,
                                                 int64_t now_ns);
  // Makes those checks that do not depend on the input.
  static absl::Status Check(const Call& call, int size);
  // Returns the number of ordinary calls in the chain, the same on all ranks.
  static size_t PartsOf(const Call& call);
  // Makes it, gives it its numbers and begins it.
  static absl::StatusOr<RefPtr<Work>> Start(std::shared_ptr<CommCore> core, const Call& call,
                                            int64_t now_ns);
  // `numbers`: one for each part. On an error no part was started.
  absl::Status Begin(std::vector<Wiring> numbers);
  WorkInfo Info() const override;

 private:
  enum class Part : uint8_t { kLengths, kSlices, kResultLengths, kResults };

  PackedCall(std::shared_ptr<CommCore> core, const Call& call, int64_t now_ns);
  static std::vector<Part> PartsFor(const Call& call);
  absl::Status PackInput();
  absl::Status PackVector(const void* x, Sieve sieve);
  Sieve SieveFor(const void* x) const;
  absl::Status SubtractPacked(float* owed) const;
  absl::Status LaunchNext();
  Call LengthsCall(bool to_all) const;
  absl::StatusOr<Call> CallFor(Part part);
  void OnPartDone(const absl::Status& status);
  absl::Status Digest(Part part);
  absl::Status MergeSlices();
  absl::Status PackResult();
  absl::Status UnpackResults();
  // Ends the call and gives its buffers back.
  void End(const absl::Status& status);

  absl::Status CheckLengths(const Packing& packing, const std::vector<int64_t>& lengths,
                            absl::FunctionRef<int64_t(int)> elements_of) const;
  int64_t elements(int owner) const { return slices_.elements(owner); }
  int64_t first(int owner) const { return slices_.first[static_cast<size_t>(owner)]; }
  bool contributes(int rank) const;
  bool sparse() const { return merging_.sparsification != Sparsification::kNone; }
  Draws DrawsFor(uint64_t purpose) const;
  absl::Status Blamed(const absl::Status& status, int rank) const;

  const std::shared_ptr<CommCore> core_;
  const std::shared_ptr<const Call> call_;
  const Merging& merging_;
  const Kernels& kernels_;
  const int rank_, size_;
  const int64_t now_ns_;
  const Packing packing_, result_packing_;
  Layout slices_;  // by owner, of the whole vector
  const std::vector<Part> parts_;
  size_t next_part_ = 0;
  std::vector<Wiring> numbers_;  // by part
  uint64_t draw_ = 0;            // number of this call in the reduction
  // Bytes of the slices: to_ by owner, from_ by contributor.
  std::vector<int64_t> to_, from_;
  std::vector<int64_t> results_;  // bytes of the results, by owner
  OwnedBuffer packed_, arrived_;  // bytes that go out; bytes that came
};

}  // namespace entrain
