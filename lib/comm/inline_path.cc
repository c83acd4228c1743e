#include "lib/comm/inline_path.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/comm/contribution.h"

namespace entrain {
namespace {

constexpr int64_t kMaxKeptScratch = 64 << 10;

// Adds to a counter. The driver is the only writer, so load and store need not be one atomic
// operation.
void Add(std::atomic<uint64_t>& sum, int64_t more) {
  sum.store(sum.load(std::memory_order_relaxed) + static_cast<uint64_t>(more),
            std::memory_order_relaxed);
}

}  // namespace

bool InlinePath::Pays(const Topology& topology, const Paths& paths) {
  constexpr size_t kFewRanks = 8;
  return (topology.hosts == 1 && paths.inside <= Link::kShm) ||
         topology.host_of.size() <= kFewRanks;
}

bool InlinePath::MayTry(const Call& call) const {
  return pays_.load(std::memory_order_relaxed) && !call.options.background &&
         call.kind != CallKind::kRecvAny && call.reduction.op != ReduceOp::kCustom &&
         !ContributionDiffers(call, ranks_) && !IsPacked(call);
}

std::optional<absl::Status> InlinePath::RunAgain(const CallKey& key, const void* in, void* out) {
  const PlanCache::Query query(key, plans_made());
  if (!cache_.MayHold(query) || !pays_.load(std::memory_order_relaxed) || !seat_.TakeIfQuiet()) {
    return std::nullopt;
  }
  CachedCall* const cached = cache_.Find(query);
  if (cached == nullptr || !cached->Serves(in, out) || funnel_.ended() ||
      !ReserveScratch(cached->plan->slot_bytes)) {
    seat_.Leave();
    return std::nullopt;
  }
  cached->call.in.data = const_cast<void*>(in);
  cached->call.out.data = out;
  funnel_.Number(cached->series, &cached->wiring);
  InlineCall call(*cached->plan, cached->call, cached->descriptor, cached->wiring, BestKernels(),
                  scratch_.data());
  const InlineEnd end = call.Run(seat_);
  if (end == InlineEnd::kDone) {
    return Finish(cached->call, *cached->plan, cached->descriptor, cached->wiring, call.progress());
  }
  return HandOver(end, cached->call, {cached->plan, std::move(scratch_), cached->wiring},
                  call.progress());
}

std::optional<absl::Status> InlinePath::Run(const Call& call) {
  if (!MayTry(call) || !seat_.TakeIfQuiet()) {
    return std::nullopt;
  }
  // Must be read before Admit. If Forget is called during Admit, the plan may be out of date. The
  // plan then has an older number in the cache, so the cache does not use it again.
  const uint64_t made = plans_made();
  pool_.Give(std::move(scratch_));
  Admitted admitted;
  const absl::Status status = funnel_.Admit(call, &admitted);
  if (!status.ok() || admitted.waits) {
    seat_.Leave();
    return status.ok() ? std::nullopt : std::optional(status);
  }
  if (!admitted.plan->fits_inline) {
    return HandOver(InlineEnd::kNoFit, call, std::move(admitted), {});
  }
  const Descriptor descriptor = call.descriptor();
  if (CachedCall::MayRepeat(call)) {
    cache_.Keep(CachedCall(call, descriptor, admitted.wiring, made, admitted.plan));
  }
  InlineCall inlined(*admitted.plan, call, descriptor, admitted.wiring, BestKernels(),
                     admitted.scratch.data());
  if (const InlineEnd end = inlined.Run(seat_); end != InlineEnd::kDone) {
    return HandOver(end, call, std::move(admitted), inlined.progress());
  }
  scratch_ = std::move(admitted.scratch);
  return Finish(call, *admitted.plan, descriptor, admitted.wiring, inlined.progress());
}

bool InlinePath::ReserveScratch(int64_t bytes) {
  if (bytes <= scratch_.size()) {
    return true;
  }
  pool_.Give(std::move(scratch_));
  absl::StatusOr<OwnedBuffer> taken = pool_.Take(bytes);
  if (!taken.ok()) {
    return false;  // the caller then calls Run, and Admit returns the error
  }
  scratch_ = *std::move(taken);
  return true;
}

absl::Status InlinePath::Finish(const Call& call, const Plan& plan, const Descriptor& descriptor,
                                const Wiring& wiring, const Progress& progress) {
  flight_.Inline(call.kind, descriptor, wiring.sequence + 1, call.root, wiring.user_tag,
                 plan.algorithm);
  if (scratch_.size() > kMaxKeptScratch) {
    pool_.Give(std::move(scratch_));
  }
  Add(ends_[static_cast<size_t>(InlineEnd::kDone)], 1);
  Add(bytes_sent_, progress.bytes_sent);
  Add(bytes_received_, progress.bytes_received);
  return owner_.Over(descriptor, wiring);
}

absl::Status InlinePath::HandOver(InlineEnd why, const Call& call, Admitted admitted,
                                  const Progress& progress) {
  Add(ends_[static_cast<size_t>(why)], 1);
  if (why != InlineEnd::kNoFit) {
    ENTRAIN_LOG(kDebug, NameOf(call.kind), " leaves the inline path: ", SentenceOf(why));
  }
  return owner_.GoOn(call, std::move(admitted), progress);
}

}  // namespace entrain
