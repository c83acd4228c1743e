#include "lib/train/acco/channel_record.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

std::string TextOf(const std::array<int64_t, 3>& group) {
  return absl::StrCat("first ", group[0], ", count ", group[1], ", ", group[2], " state arrays");
}

}  // namespace

ChannelRecord::ChannelRecord(const ChannelOptions& options)
    : method_(static_cast<int64_t>(options.method)) {
  for (const ParameterGroup& group : options.groups) {
    const Optimizer& rule = group.optimizer ? *group.optimizer : *options.optimizer;
    groups_.push_back({group.first, group.count, rule.state_arrays()});
  }
}

void ChannelRecord::Fill(const Rounds& rounds) {
  const RoundResult &landed = rounds.landed, &made = rounds.made;
  flags_ = {rounds.in_flight, Commits(rounds.kind), rounds.kind == RoundKind::kEstimate,
            rounds.finished};
  counts_ = {landed.rounds, landed.commits, landed.gradients, landed.tokens, made.microbatches};
  values_ = {made.lr, made.grad_norm, made.clip_factor};
}

ChannelRecord::Rounds ChannelRecord::Read(CheckpointKind kind,
                                          const ChannelProgress& progress) const {
  Rounds rounds;
  rounds.in_flight = flags_[0] != 0;
  rounds.kind = flags_[2] != 0 ? RoundKind::kEstimate : RoundKind::kCommit;
  rounds.finished = flags_[3] != 0;
  RoundResult& made = rounds.made;
  made.rounds = progress.rounds();
  made.commits = progress.commits();
  made.gradients = progress.gradients();
  made.tokens = progress.tokens();
  rounds.landed = made;
  if (kind == CheckpointKind::kExact) {
    made.committed = flags_[1] != 0;
    made.microbatches = counts_[4];
    made.lr = values_[0];
    made.grad_norm = values_[1];
    made.clip_factor = values_[2];
    rounds.landed.rounds = counts_[0];
    rounds.landed.commits = counts_[1];
    rounds.landed.gradients = counts_[2];
    rounds.landed.tokens = counts_[3];
  }
  return rounds;
}

absl::Status ChannelRecord::CheckGroup(size_t index, const StateList& state) const {
  std::array<int64_t, 3> there = {};
  for (const StateItem& item : state.items()) {
    if (item.name == absl::StrCat("group/", index)) {
      std::memcpy(there.data(), item.loaded.data(), sizeof(there));
    }
  }
  return there == groups_[index] ? absl::OkStatus()
                                 : absl::FailedPreconditionError(absl::StrCat(
                                       "groups[", index, "] of the checkpoint has ", TextOf(there),
                                       "; here it has ", TextOf(groups_[index])));
}

absl::Status ChannelRecord::CheckLoaded(const StateList& state) const {
  for (size_t i = 0; i < groups_.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(CheckGroup(i, state));
  }
  const int64_t method = state.Loaded("method");
  return state.kind() == CheckpointKind::kPortable || method == method_
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat("the checkpoint is of method ", method,
                                                          ", and here it is ", method_,
                                                          "; a portable one will do"));
}

void ChannelRecord::VisitGroups(StateVisitor& visitor) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    visitor.Array(absl::StrCat("group/", i), Holder::kAll, DType::kI64, groups_[i].data(), 3);
  }
}

void ChannelRecord::VisitRounds(StateVisitor& visitor) {
  visitor.Array("flags", Holder::kAll, DType::kI64, flags_.data(),
                static_cast<int64_t>(flags_.size()));
  visitor.Array("counts", Holder::kAll, DType::kI64, counts_.data(),
                static_cast<int64_t>(counts_.size()));
  visitor.Array("values", Holder::kAll, DType::kF64, values_.data(),
                static_cast<int64_t>(values_.size()));
  visitor.Value("method", Holder::kAll, &method_);
}

}  // namespace entrain
