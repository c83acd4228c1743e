// An all_reduce or reduce_scatter whose contributions are sent packed (lib/kernels/packing.h):
// sparsified, or in a type of fewer bits. A packed call is a chain of ordinary calls. These calls
// are its parts. Every part carries the descriptor of the packed call. Each rank owns one slice of
// the vector:
//
//   caller   selects and packs this rank's values for the owner of each slice
//            all_to_all of the slices' lengths      only if sparsified: the lengths are unknown
//            all_to_all of the slices
//   driver   unpacks and merges this rank's slice, in rank order, in pieces that fit the cache;
//            packs the result                       only all_reduce
//            all_gather of the results' lengths     only all_reduce, and only if sparsified
//            all_gather of the results              only all_reduce
//   driver   unpacks all results, also the result of this rank, so that all ranks get equal bits;
//            only all_reduce
//
// Thread safety: none. Only one thread at a time uses the object. The first is the thread that
// starts the call. After each part it is the thread that finishes the part, usually the engine's
// driver.
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
#include "lib/comm/call_funnel.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure/comm_end.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"
#include "lib/kernels/packing.h"
#include "lib/memory/buffer.h"

namespace entrain {

class PackedCall final : public Work {
 public:
  // The parts of the communicator that the call uses. `shell` keeps them alive.
  struct Parts {
    std::shared_ptr<CommShell> shell;
    Engine& engine;
    const CoreConfig& config;
    BufferPool& pool;
    CallFunnel& funnel;
    const CommEnd& end;
  };
  // Makes a packed call and packs this rank's contribution. After that the call does not read its
  // input. Returns Check's error if the arguments are invalid.
  static absl::StatusOr<RefPtr<PackedCall>> Make(const Parts& parts, const Call& call,
                                                 int64_t now_ns);
  // Checks the arguments of the call. Returns INVALID_ARGUMENT if the contributions of a call of
  // this kind, type or length cannot be sent packed. `size`: the number of ranks.
  static absl::Status Check(const Call& call, int size);
  // Returns the number of parts, which is equal on all ranks.
  static size_t PartsOf(const Call& call);
  // Makes a packed call, takes the numbers of its parts and starts the first part. If the first
  // part cannot start, ends the communicator, because the other ranks wait for that part.
  static absl::StatusOr<RefPtr<Work>> Start(const Parts& parts, const Call& call, int64_t now_ns);
  // Starts the first part. `numbers`: one for each part. On an error no part was started.
  absl::Status Begin(std::vector<Wiring> numbers);
  WorkInfo Info() const override;

 private:
  enum class Part : uint8_t { kLengths, kSlices, kResultLengths, kResults };

  PackedCall(const Parts& parts, const Call& call, int64_t now_ns);
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
  // Returns the call's buffers to the pool and finishes the work.
  void End(const absl::Status& status);

  absl::Status CheckLengths(const Packing& packing, const std::vector<int64_t>& lengths,
                            absl::FunctionRef<int64_t(int)> elements_of) const;
  int64_t elements(int owner) const { return slices_.elements(owner); }
  int64_t first(int owner) const { return slices_.first[static_cast<size_t>(owner)]; }
  bool contributes(int rank) const;
  bool sparse() const { return merging_.sparsification != Sparsification::kNone; }
  Draws DrawsFor(uint64_t purpose) const;
  absl::Status Blamed(const absl::Status& status, int rank) const;

  const Parts with_;
  const std::shared_ptr<const Call> call_;
  const Merging& merging_;
  const Kernels& kernels_;
  const int rank_, size_;
  const int64_t now_ns_;
  const Packing packing_, result_packing_;
  Layout slices_;  // by rank, the slice of the vector that the rank owns
  const std::vector<Part> parts_;
  size_t next_part_ = 0;
  std::vector<Wiring> numbers_;  // by part
  uint64_t draw_ = 0;            // number of earlier calls of this reduction; an input of DrawsFor
  // to_: by owner, the bytes of the packed slice that this rank sends. from_: by sender, the bytes
  // of the packed slice that this rank receives. PackResult reuses to_[rank_] for the bytes of the
  // packed result.
  std::vector<int64_t> to_, from_;
  std::vector<int64_t> results_;  // bytes of the packed results, by owner
  OwnedBuffer packed_, arrived_;  // packed_: bytes to send; arrived_: bytes received
};

}  // namespace entrain
