// Translates the calls of one communicator of this library into NCCL calls.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"

#include "lib/device/nccl/communicator_handle.h"
#include "lib/device/nccl/nccl_functions.h"
#include "lib/device/offload.h"

namespace entrain::nccl {

// Returns the number of bytes that a call needs for a copy of its input. Only calls that would
// overwrite their input while they send it need a copy.
int64_t ScratchBytes(const Call& call);

class NcclOffload final : public Offload {
 public:
  NcclOffload(const Functions& functions, std::shared_ptr<CommunicatorHandle> handle, int rank,
              int size, Device& device)
      : functions_(functions),
        handle_(std::move(handle)),
        rank_(rank),
        size_(size),
        device_(device) {}
  ~NcclOffload() override;

  bool Takes(const Call& call) const override;
  absl::Status Enqueue(const Call& call, StreamHandle stream, void* scratch) override;
  absl::StatusOr<bool> Begun() override;
  absl::Status AsyncStatus() override { return handle_->Begun().status(); }
  void Abort() override { handle_->Abort(); }
  bool Gone() override { return handle_->Gone(); }

 private:
  // Start of each rank's part in bytes, and the end of the last part.
  using Offsets = std::vector<int64_t>;
  // A call that is being enqueued.
  struct Order {
    const Call& call;
    Comm comm = nullptr;
    StreamHandle stream = nullptr;
    RedOp op = kSum;
    const char* in = nullptr;  // call.in, or a copy of it
  };

  absl::Status Begin(Order& order);
  absl::Status Group(absl::FunctionRef<absl::Status()> calls);
  absl::Status GroupOverPeers(absl::FunctionRef<absl::Status(int)> with);
  absl::Status Reduce(const Order& order);
  absl::Status BroadcastEach(const Order& order);
  absl::Status ReduceEach(const Order& order);
  absl::Status Gather(const Order& order);
  absl::Status Scatter(const Order& order);
  absl::Status AllToAll(const Order& order);
  absl::Status CopyOwn(void* dst, const void* src, int64_t bytes, StreamHandle stream);
  absl::Status Send(const Order& order, const void* in, int64_t bytes, int peer);
  absl::Status Receive(const Order& order, void* out, int64_t bytes, int peer);
  Offsets OffsetsOf(const Call& call, std::vector<int64_t> PartCounts::*of) const;

  const Functions functions_;
  const std::shared_ptr<CommunicatorHandle> handle_;
  const int rank_, size_;
  Device& device_;
  std::optional<RedOp> made_;  // operator made for the last call; kept until that call has begun
};

}  // namespace entrain::nccl
