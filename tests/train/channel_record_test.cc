// Read returns what Fill has recorded. CheckLoaded refuses records from which another channel
// cannot continue.
#include "lib/train/acco/channel_record.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

ChannelOptions Method(DelayMethod method) {
  ChannelOptions options;
  options.method = method;
  return options;
}

ChannelRecord::Rounds AfterAnEstimate() {
  ChannelRecord::Rounds rounds;
  rounds.in_flight = true;
  rounds.kind = RoundKind::kEstimate;
  rounds.landed.rounds = 4;
  rounds.landed.commits = 2;
  rounds.landed.gradients = 9;
  rounds.landed.tokens = 90;
  rounds.made.microbatches = 3;
  rounds.made.lr = 0.25;
  rounds.made.grad_norm = 1.5;
  rounds.made.clip_factor = 0.5;
  return rounds;
}

TEST(ChannelRecord, GivesBackTheRoundsOfAnExactCheckpoint) {
  ChannelRecord record(Method(DelayMethod::kAcco));
  record.Fill(AfterAnEstimate());
  ChannelProgress progress(ProgressUnit::kCommits, 0);
  progress.Commit({.microbatches = 9, .tokens = 90});
  progress.EndRound();
  const ChannelRecord::Rounds rounds = record.Read(CheckpointKind::kExact, progress);
  EXPECT_TRUE(rounds.in_flight);
  EXPECT_EQ(rounds.kind, RoundKind::kEstimate);
  EXPECT_FALSE(rounds.finished);
  EXPECT_EQ(rounds.landed.rounds, 4);
  EXPECT_EQ(rounds.landed.commits, 2);
  EXPECT_EQ(rounds.made.rounds, 1);
  EXPECT_EQ(rounds.made.gradients, 9);
  EXPECT_FALSE(rounds.made.committed);
  EXPECT_EQ(rounds.made.microbatches, 3);
  EXPECT_EQ(rounds.made.lr, 0.25);
  EXPECT_EQ(rounds.made.grad_norm, 1.5);
  EXPECT_EQ(rounds.made.clip_factor, 0.5);
}

TEST(ChannelRecord, OfAPortableCheckpointThereIsOnlyTheProgress) {
  ChannelRecord record(Method(DelayMethod::kAcco));
  record.Fill(AfterAnEstimate());
  record.Clear();
  ChannelProgress progress(ProgressUnit::kCommits, 0);
  progress.Commit({.microbatches = 9, .tokens = 90});
  const ChannelRecord::Rounds rounds = record.Read(CheckpointKind::kPortable, progress);
  EXPECT_FALSE(rounds.in_flight);
  EXPECT_EQ(rounds.kind, RoundKind::kCommit);
  EXPECT_EQ(rounds.landed.commits, 1);
  EXPECT_EQ(rounds.made.microbatches, 0);
}

// Behaves as if `from` were saved and then loaded into a channel with `to`.
absl::Status Load(ChannelRecord from, ChannelRecord to, CheckpointKind kind) {
  const Slab slab = *Slab::Make(std::vector<int64_t>{100}, 1, 0);
  StateList saved(slab, kind), loaded(slab, kind);
  for (auto [record, list] : {std::pair(&from, &saved), {&to, &loaded}}) {
    record->VisitGroups(*list);
    if (kind == CheckpointKind::kExact) {
      record->VisitRounds(*list);
    }
  }
  EXPECT_EQ(loaded.Allocate(), absl::OkStatus());
  for (size_t i = 0; i < loaded.items().size(); ++i) {
    StateItem& item = loaded.items()[i];
    std::memcpy(item.loaded.data(), saved.items()[i].live, static_cast<size_t>(item.bytes()));
  }
  return to.CheckLoaded(loaded);
}

TEST(ChannelRecord, AnExactCheckpointIsOfOneMethod) {
  const ChannelRecord acco(Method(DelayMethod::kAcco)), dpu(Method(DelayMethod::kDpu));
  EXPECT_EQ(Load(acco, acco, CheckpointKind::kExact), absl::OkStatus());
  EXPECT_EQ(Load(dpu, acco, CheckpointKind::kExact).message(),
            "the checkpoint is of method 1, and here it is 0; a portable one will do");
  EXPECT_EQ(Load(dpu, acco, CheckpointKind::kPortable), absl::OkStatus());
}

TEST(ChannelRecord, GroupsAreTheSame) {
  ChannelOptions options = Method(DelayMethod::kAcco), other = options;
  options.groups = {{0, 50, *MakeOptimizer({})}};
  other.groups = {{0, 60, *MakeOptimizer({})}};
  EXPECT_EQ(Load(ChannelRecord(options), ChannelRecord(options), CheckpointKind::kPortable),
            absl::OkStatus());
  EXPECT_EQ(
      Load(ChannelRecord(other), ChannelRecord(options), CheckpointKind::kPortable).message(),
      "groups[0] of the checkpoint has first 0, count 60, 0 state arrays; here it has first 0, "
      "count 50, 0 state arrays");
}

}  // namespace
}  // namespace entrain
