#include "lib/train/acco/channel_cut.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/crc32c.h"
#include "lib/base/status.h"
#include "lib/memory/buffer.h"
#include "lib/train/elastic/state_transfer.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Tag of the messages between neighbours. These messages may be under way at the same time as a
// round's counts and gradients.
constexpr int64_t kCopyTag = 2;

int LeftOf(const Communicator& comm) {
  return (comm.rank() + comm.size() - 1) % comm.size();
}

uint64_t SumOf(const ShardStep& shard, const SlabLayer& layer) {
  return Crc32c(shard.theta(), static_cast<size_t>(layer.valid) * sizeof(float));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelCut>> ChannelCut::Make(std::shared_ptr<Communicator> comm,
                                                             const ChannelOptions& options,
                                                             std::vector<int> members) {
  const std::vector<int64_t> layers = {options.count};
  ENTRAIN_ASSIGN_OR_RETURN(Slab slab, Slab::Make(layers, comm->size(), comm->rank()));
  ENTRAIN_ASSIGN_OR_RETURN(Slab left, Slab::Make(layers, comm->size(), LeftOf(*comm)));
  std::unique_ptr<ChannelCut> cut(new ChannelCut(std::move(comm), options, std::move(members),
                                                 std::move(slab), std::move(left)));
  ENTRAIN_RETURN_IF_ERROR(cut->Allocate());
  return cut;
}

ChannelCut::ChannelCut(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
                       std::vector<int> members, Slab slab, Slab left)
    : comm_(std::move(comm)),
      options_(options),
      members_(std::move(members)),
      slab_(std::move(slab)),
      left_(std::move(left)),
      own_(options, slab_.layer(0)) {}

absl::Status ChannelCut::Allocate() {
  ENTRAIN_RETURN_IF_ERROR(own_.Allocate());
  if (options_.on_loss == OnLoss::kFail || comm_->size() == 1) {
    return absl::OkStatus();
  }
  copy_ = std::make_unique<ShardStep>(options_, left_.layer(0), 0);
  ENTRAIN_RETURN_IF_ERROR(copy_->Allocate());
  const int64_t widest = std::max(SizeOf(options_.params_dtype), SizeOf(options_.wire_dtype));
  ENTRAIN_ASSIGN_OR_RETURN(sum_, OwnedBuffer::Allocate(layer().shard * widest));
  return absl::OkStatus();
}

int64_t ChannelCut::bytes() const {
  return own_.bytes() + (has_copy() ? copy_->bytes() : 0) + sum_.size();
}

void ChannelCut::Start(const std::byte* params) {
  own_.Start(params);
  if (has_copy()) {
    copy_->Start(params);
    AddUp();
  }
}

void ChannelCut::AddUp() {
  sums_ = {.own = SumOf(own_, layer()), .copy = SumOf(*copy_, left_.layer(0))};
}

CallOptions ChannelCut::Limited(const char* doing, int64_t tag, int64_t limit_ns,
                                int64_t bytes) const {
  const int64_t limit = limit_ns > 0 ? TransferLimit(limit_ns, bytes) : options_.timeout_ns;
  Worker::Doing(doing, limit);
  return TimedCall(limit, tag, true);
}

// Sends `count` elements to the right neighbour, and receives `count` elements from the left
// neighbour.
absl::Status ChannelCut::Pass(const void* mine, void* theirs, int64_t count, DType dtype,
                              int64_t limit_ns) {
  Call send, receive;
  send.kind = CallKind::kSend;
  send.in = {const_cast<void*>(mine), count * SizeOf(dtype)};  // the call only reads it
  send.root = (comm_->rank() + 1) % comm_->size();
  receive.kind = CallKind::kRecv;
  receive.out = {theirs, count * SizeOf(dtype)};
  receive.root = LeftOf(*comm_);
  for (Call* call : {&send, &receive}) {
    call->dtype = dtype;
    call->count = count;
    call->options =
        Limited("copies of the neighbours' shards", kCopyTag, limit_ns, count * SizeOf(dtype));
  }
  const Call both[] = {receive, send};
  const RefPtr<Work> work = comm_->StartAll(both);
  work->Wait(Deadline::Never(), true);  // the calls have deadlines of their own
  return Annotate(work->status(), "copy");
}

absl::Status ChannelCut::ExchangeSums(const std::byte* com) {
  if (!has_copy()) {
    return absl::OkStatus();
  }
  const DType wire = options_.wire_dtype;
  return Pass(com + layer().first * SizeOf(wire), sum_.data(), layer().shard, wire);
}

absl::Status ChannelCut::CommitCopy(const GradientSum& sum, const StepTime& t) {
  ENTRAIN_RETURN_IF_ERROR(copy_->Commit({sum_.data(), sum.microbatches, sum.clip}, t));
  AddUp();
  return absl::OkStatus();
}

absl::Status ChannelCut::RenewCopy(int64_t limit_ns) {
  if (!has_copy()) {
    return absl::OkStatus();
  }
  const std::vector<float*> mine = own_.Arrays(), theirs = copy_->Arrays();
  for (size_t i = 0; i < mine.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(Pass(mine[i], theirs[i], layer().shard, DType::kF32, limit_ns));
  }
  AddUp();
  return absl::OkStatus();
}

absl::Status ChannelCut::TakeFrom(const ChannelCut* before, absl::Span<const int> holders,
                                  int64_t limit_ns) {
  const std::vector<ShardMove> moves = MovesOf(options_.count, holders, comm_->size());
  for (size_t array = 0; array < own_.Arrays().size(); ++array) {
    ENTRAIN_RETURN_IF_ERROR(MoveArray(before, moves, array, limit_ns));
  }
  return RenewCopy(limit_ns);
}

uint64_t ChannelCut::Hash() const {
  uint64_t hash = 0, array = 0;
  for (const float* const values : own_.Arrays()) {
    ++array;
    for (int64_t i = 0; i < layer().valid; ++i) {
      // Because the weight is odd, a change of the bits of one value always changes the hash.
      const uint64_t weight =
          (static_cast<uint64_t>(layer().first + i) * 16 + array) * 0x9E3779B97F4A7C15u | 1;
      hash += weight * std::bit_cast<uint32_t>(values[i]);
    }
  }
  return hash;
}

// In `sent`, the pieces for the same rank are adjacent. In `received`, the pieces from the same
// rank are adjacent.
absl::Status ChannelCut::MoveArray(const ChannelCut* before, absl::Span<const ShardMove> moves,
                                   size_t array, int64_t limit_ns) {
  const auto size = static_cast<size_t>(comm_->size());
  PartCounts counts{.in = std::vector<int64_t>(size), .out = std::vector<int64_t>(size)};
  std::vector<float> sent, received(static_cast<size_t>(layer().valid));
  for (const ShardMove& move : moves) {
    if (move.from == comm_->rank()) {
      const bool own = move.shard == before->slab_.slot();
      const SlabLayer& layer = own ? before->layer() : before->left_.layer(0);
      const float* const from = (own ? before->own_ : *before->copy_).Arrays()[array];
      sent.insert(sent.end(), from + (move.first - layer.first),
                  from + (move.first - layer.first + move.count));
      counts.in[static_cast<size_t>(move.to)] += move.count;
    }
    if (move.to == comm_->rank()) {
      counts.out[static_cast<size_t>(move.from)] += move.count;
    }
  }
  Call call;
  call.kind = CallKind::kAllToAll;
  call.dtype = DType::kF32;
  call.in = {sent.data(), static_cast<int64_t>(sent.size() * sizeof(float))};
  call.out = {received.data(), static_cast<int64_t>(received.size() * sizeof(float))};
  call.uneven = std::make_shared<const PartCounts>(std::move(counts));
  call.options =
      Limited("cutting the shards anew", -1, limit_ns,
              static_cast<int64_t>(std::max(sent.size(), received.size()) * sizeof(float)));
  ENTRAIN_RETURN_IF_ERROR(Annotate(comm_->Run(call), "shards"));
  float* const to = own_.Arrays()[array];
  const float* from = received.data();
  for (const ShardMove& move : moves) {
    if (move.to == comm_->rank()) {
      std::copy_n(from, move.count, to + (move.first - layer().first));
      from += move.count;
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
