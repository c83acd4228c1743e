#include "lib/train/acco/channel_newcomer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/elastic/applicants.h"

namespace entrain {

absl::Status ChannelNewcomer::Join(int64_t wait_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(const uint64_t group, GroupOf(own_));
  const int64_t limit_ns = wait_ns > 0 ? wait_ns : options_.limit_ns;
  const Deadline until = Deadline::After(limit_ns);
  return ApplyUntilTakenIn(
      "acco", /*ranks=*/1, own_, options_.admit_store, options_.admit_name, limit_ns,
      [&](const std::shared_ptr<Communicator>& world) { return Attempt(world, group, until); });
}

absl::Status ChannelNewcomer::Attempt(const std::shared_ptr<Communicator>& world, uint64_t group,
                                      Deadline until) {
  // The members make this call after their next commit, which may take a long time.
  ENTRAIN_RETURN_IF_ERROR(CallIn(*world, std::max<int64_t>(until.at_ns - Clock::Real().Now(), 1)));
  EnlargedWorld enlarged;
  std::unique_ptr<ChannelCut> cut;
  ChannelTotals totals;
  const auto take_part = [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(enlarged, MeetNewcomers(world, {.group = group}, alike_));
    ENTRAIN_ASSIGN_OR_RETURN(
        cut, ShareChannel(enlarged, options_, nullptr, round_.buffers().params(), &totals));
    return absl::OkStatus();
  };
  const absl::Status status = take_part();
  const auto members = static_cast<int>(enlarged.parties.donors.size());
  int64_t step = 0;
  const absl::Status all = CompareOutcomes(*world, members, status, &step);
  ENTRAIN_RETURN_IF_ERROR(status);
  const bool may_be_one = options_.on_loss == OnLoss::kFinish && !LossOf(world.get()).ok();
  if (!all.ok() && !may_be_one) {
    return all;
  }
  ranks_ = world->size();
  round_.Become(enlarged, std::move(cut), totals);
  const absl::Status told = all.ok() ? Welcome(*world, options_.limit_ns) : all;
  return told.ok() || !round_.ranks().recovers() ? told : GoOnWithoutLost(members);
}

// Used if a rank was lost after this rank has received all data. This rank does not know whether
// the members have admitted this rank. The error does not tell: a member that does not admit this
// rank ends the communicator, and so does a member that leaves. If the members have admitted this
// rank, they continue with this rank, because they need its shard. Otherwise the members have left
// the communicator, and this function fails at once.
absl::Status ChannelNewcomer::GoOnWithoutLost(int members) {
  const int first_newcomer = round_.ranks().cut().members()[static_cast<size_t>(members)];
  const absl::Status status = round_.Recover();
  if (status.ok() && round_.ranks().cut().members()[0] < first_newcomer) {
    return absl::OkStatus();
  }
  const absl::Status why = absl::AbortedError(absl::StrCat(
      "no member went on with this rank after a loss", status.ok() ? "" : ": ", status.message()));
  round_.ranks().End(why);
  return why;
}

}  // namespace entrain
