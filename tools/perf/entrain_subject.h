// The library behind its C API, as a subject of the measuring loop. Also provides a Meeting that
// uses the library.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "entrain/entrain.h"
#include "tools/perf/measure.h"
#include "tools/perf/measured_case.h"
#include "tools/perf/meeting.h"

namespace entrain::perf {

// Converts the result of a C API call, with the text of the failure. Only kAborted keeps its code:
// another rank then reports the reason.
absl::Status FromC(entrain_status_t status);

struct RuntimeDeleter {
  void operator()(entrain_runtime_t* runtime) const { entrain_runtime_destroy(runtime); }
};
struct CommDeleter {
  void operator()(entrain_comm_t* comm) const { entrain_comm_destroy(comm); }
};
struct StoreDeleter {
  void operator()(entrain_store_t* store) const { entrain_store_destroy(store); }
};
struct ReductionDeleter {
  void operator()(entrain_reduction_t* reduction) const { entrain_reduction_destroy(reduction); }
};
using RuntimePtr = std::unique_ptr<entrain_runtime_t, RuntimeDeleter>;
using CommPtr = std::unique_ptr<entrain_comm_t, CommDeleter>;
using StorePtr = std::unique_ptr<entrain_store_t, StoreDeleter>;
using ReductionPtr = std::unique_ptr<entrain_reduction_t, ReductionDeleter>;

class EntrainSubject final : public Subject {
 public:
  static absl::StatusOr<EntrainSubject> Wrap(CommPtr comm);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status Run(const Case& measured, const void* in, void* out) override;
  // Returns the names of the transports to the peers, joined by "+".
  std::string transport() const override { return transport_; }
  std::string algorithm(const Case& measured) const override;

  // Returns the lines of entrain_comm_explain. Empty for point to point.
  absl::StatusOr<std::string> Explain(const Case& measured) const;

  // Allocates with entrain_mem_alloc. The buffers must not outlive this object.
  absl::StatusOr<Buffers> AllocateBuffers(int64_t bytes, bool huge_pages);
  // Allocates private buffers and registers them with entrain_mem_register. They must not outlive
  // this object.
  absl::StatusOr<Buffers> RegisterBuffers(int64_t bytes);

  // Declares that the buffers of calls are in device memory.
  void UseDeviceMemory();

  entrain_comm_t* comm() const { return comm_.get(); }
  // Returns the number of cores that the ranks of a host share, as the library counts them
  // (entrain_comm_explain).
  absl::StatusOr<int> Cores() const;
  // Collective. Returns a meeting in a shared page if all ranks can map one, otherwise a meeting
  // through the communicator.
  absl::StatusOr<std::unique_ptr<Meeting>> Meet(Waiting waiting);
  // Tells the other ranks to end.
  void Abort(const std::string& reason) { entrain_comm_abort(comm_.get(), reason.c_str()); }

 private:
  EntrainSubject(CommPtr comm, int rank, int size, std::string transport)
      : comm_(std::move(comm)), rank_(rank), size_(size), transport_(std::move(transport)) {
    entrain_call_options_init(&options_);
  }
  const entrain_call_options_t* options() const {
    return on_device_ || sum_ != nullptr ? &options_ : nullptr;
  }
  absl::Status MakeSum();
  entrain_status_t PingPong(const Case& measured, const void* in, void* out);

  CommPtr comm_;
  int rank_, size_;
  std::string transport_;
  std::unique_ptr<SharedPage> page_;
  bool on_device_ = false;
  ReductionPtr sum_;  // calls a function of this program; made when it is first measured
  entrain_call_options_t options_{};
};

}  // namespace entrain::perf
