#include "lib/comm/create/split_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/call.h"
#include "lib/base/status.h"

namespace entrain {

SplitWork::SplitWork(std::shared_ptr<CommCore> parent, std::weak_ptr<Runtime> runtime, int color,
                     int key)
    : Work(&parent->engine()),
      parent_(std::move(parent)),
      runtime_(std::move(runtime)),
      mine_{color, key, parent_->engine().ReserveContext(), 0},
      all_(static_cast<size_t>(parent_->size())) {}

// If the part was never taken, ends it, because other ranks may wait for this rank in calls on the
// part.
SplitWork::~SplitWork() {
  absl::MutexLock lock(&mutex_);
  if (part_ != nullptr && part_->end().status().ok()) {
    part_->EndHere(absl::AbortedError(absl::StrCat(
                       part_->config().name, ": rank ", part_->rank(),
                       " freed the work of the split that made it, and did not take it")),
                   /*leaves=*/true);
  }
}

absl::StatusOr<RefPtr<Work>> SplitWork::Start(std::shared_ptr<CommCore> parent,
                                              std::weak_ptr<Runtime> runtime, int color, int key) {
  auto work =
      RefPtr<SplitWork>::Adopt(new SplitWork(std::move(parent), std::move(runtime), color, key));
  ENTRAIN_RETURN_IF_ERROR(work->Begin());
  return RefPtr<Work>::Adopt(work.Leak());
}

absl::Status SplitWork::Begin() {
  Call call;
  call.kind = CallKind::kSplit;
  call.in = {&mine_, sizeof(mine_)};
  call.out = {all_.data(), static_cast<int64_t>(all_.size() * sizeof(mine_))};
  call.count = sizeof(mine_);
  auto records = parent_->Start(call, /*kick=*/true);
  if (!records.ok()) {
    GiveUp(records.status());
    return records.status();
  }
  records_ = *std::move(records);
  AddRef();  // Run or OnRecords releases this reference
  records_->Then([this](const absl::Status& status) { OnRecords(status); });
  parent_->engine().seat().Kick();
  return absl::OkStatus();
}

void SplitWork::OnRecords(const absl::Status& status) {
  if (status.ok() && mine_.color >= 0) {
    // The part must be made on the driver, and this thread may not be the driver.
    parent_->engine().seat().Submit(this);
    return;
  }
  GiveUp(status);
  Release();
}

void SplitWork::GiveUp(const absl::Status& why) {
  if (mine_.context != 0) {
    parent_->engine().ReleaseContext(static_cast<Context>(mine_.context));
  }
  Finish(why);
}

void SplitWork::Run() {
  auto part = MakePart();
  if (part.ok()) {
    (*part)->Open();
    absl::MutexLock lock(&mutex_);
    part_ = *part;
  } else {
    GiveUp(part.status());
  }
  Finish(absl::OkStatus());  // no effect if GiveUp has finished the work
  Release();
}

absl::StatusOr<std::shared_ptr<CommCore>> SplitWork::MakePart() {
  std::vector<int> ranks;
  for (int r = 0; r < parent_->size(); ++r) {
    const Record& record = all_[static_cast<size_t>(r)];
    if (record.context == 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("split: rank ", r, " has created 65535 communicators, which is the limit"));
    }
    if (record.color == mine_.color) {
      ranks.push_back(r);
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all_[static_cast<size_t>(a)].key < all_[static_cast<size_t>(b)].key;
  });
  std::vector<std::pair<int, Context>> members;
  for (const int r : ranks) {
    members.emplace_back(r, static_cast<Context>(all_[static_cast<size_t>(r)].context));
  }
  return CommCore::MakeFrom(*parent_, absl::StrCat(parent_->config().name, "/", mine_.color),
                            parent_->config().generation, members);
}

absl::StatusOr<std::shared_ptr<CommCore>> SplitWork::Take() {
  ENTRAIN_RETURN_IF_ERROR(status());
  absl::MutexLock lock(&mutex_);
  if (std::exchange(taken_, true)) {
    return absl::FailedPreconditionError("the part of this split was taken before");
  }
  return std::exchange(part_, nullptr);
}

}  // namespace entrain
