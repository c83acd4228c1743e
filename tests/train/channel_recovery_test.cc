// The recovery from every combination of states in which ranks can be in a round. Ranks are
// threads, and rank 3 gives up. Each of the other ranks has come to a different place before it
// learns of this. To play a rank that lacks the result of a call, the rank takes part in the call
// and drops the result.
#include <barrier>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/acco/gradient_round.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int kRanks = 4, kLost = 3;
constexpr int64_t kCount = 10;  // shards of 3, 3, 3, 1; of three ranks: 4, 4, 2
constexpr float kRate = 0.5f, kMomentum = 0.5f;

// The places at which a rank learns of the loss.
enum class Place { kSummed, kVoted, kFinished, kNext };
constexpr Place kPlaces[] = {Place::kSummed, Place::kVoted, Place::kFinished, Place::kNext};

// SGD with momentum on parameters and gradients that are alike in all elements.
struct Reference {
  float theta = 8, momentum = 0;
  int commits = 0;
  // `sum` of `microbatches`.
  void Commit(float sum, float microbatches) {
    const float g = sum / microbatches;
    momentum = commits++ == 0 ? g : kMomentum * momentum + g;
    theta -= kRate * momentum;
  }
};

class Rank {
 public:
  explicit Rank(const std::shared_ptr<Communicator>& comm) : number_(comm->rank()), comm_(comm) {
    OptimizerConfig rule;
    rule.momentum = kMomentum;
    options_.optimizer = *MakeOptimizer(rule);
    options_.count = kCount;
    options_.params = params_.data();
    options_.lr = kRate;
    options_.on_loss = OnLoss::kFinish;
    round_ = std::make_unique<GradientRound>(comm, options_);
    EXPECT_EQ(round_->Allocate(), absl::OkStatus());
    accumulator_ = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
  }
  // Gives the round a gradient of r + `more` in all elements, where r is this rank.
  void Take(float more) {
    for (int64_t i = 0; i < kCount; ++i) {
      reinterpret_cast<float*>(accumulator_.data())[i] = static_cast<float>(number_) + more;
    }
    round_->buffers().Take(accumulator_, true, round_->ranks().cut().layer());
  }
  // Makes the round as far as `to`, and takes part in the calls of the others, which go on to
  // `furthest`. The parameters will be `params`.
  void ComeTo(RoundKind kind, Place to, Place furthest, float params) {
    ASSERT_EQ(round_->AddUp(kind, {1, 0, 0}), absl::OkStatus());
    const bool commit = Commits(kind);
    if (commit && to >= Place::kVoted) {
      ASSERT_EQ(round_->Vote(), absl::OkStatus());
    } else if (commit && furthest >= Place::kVoted) {
      const ShardSums mine = round_->ranks().cut().sums();
      std::vector<ShardSums> all(kRanks);
      ASSERT_EQ(comm_->AllGather(&mine, all.data(), 2, DType::kI64, Tagged()), absl::OkStatus());
    }
    if (to >= Place::kFinished) {
      ASSERT_EQ(round_->MakeStep(), absl::OkStatus());
      ASSERT_EQ(round_->GatherParameters(), absl::OkStatus());
    } else if (commit && to == Place::kVoted) {
      ASSERT_EQ(round_->Decide(round_->place().rounds, round_->state().outcome()),
                absl::OkStatus());
    }
    if (to < Place::kFinished && furthest >= Place::kFinished) {
      const std::vector<float> shard(3, params);
      std::vector<float> all(3 * kRanks);
      ASSERT_EQ(comm_->AllGather(shard.data(), all.data(), 3, DType::kF32, Tagged()),
                absl::OkStatus());
    }
    if (to == Place::kNext) {
      round_->buffers().Publish();
    }
  }
  // Begins the next round, in which it learns of the loss.
  void FailInTheNext(float more) {
    Take(more);
    EXPECT_FALSE(round_->AddUp(RoundKind::kCommit, {1, 0, 0}).ok());
    std::fill_n(reinterpret_cast<float*>(round_->buffers().com()), kCount,
                -1.0f);  // the sums of this round
  }
  void Whole(RoundKind kind) { EXPECT_EQ(round_->Run(kind, {1, 0, 0}), absl::OkStatus()); }
  void GiveUp() { round_->ranks().Abort("gives up"); }
  void AwaitTheEnd() const {
    while (comm_->status().ok()) {
      std::this_thread::yield();
    }
  }
  const std::vector<float>& Published() {
    round_->buffers().Publish();
    return params_;
  }
  const ChannelOptions& options() const { return options_; }
  GradientRound& round() { return *round_; }
  ChannelRanks& ranks() { return round_->ranks(); }

 private:
  static CallOptions Tagged() {
    CallOptions options;
    options.user_tag = GradientRound::kDataTag;
    return options;
  }
  const int number_;
  const std::shared_ptr<Communicator> comm_;
  ChannelOptions options_;
  std::vector<float> params_ = std::vector<float>(kCount, 8);
  OwnedBuffer accumulator_;
  std::unique_ptr<GradientRound> round_;
};

// The ranks that are left come from these places of the third round, which follows two commits.
// Then they make two rounds more, in which they compare the copies.
void Recover(RoundKind kind, const std::vector<Place>& places) {
  const Place furthest = *std::max_element(places.begin(), places.end());
  const bool counted = furthest >= (Commits(kind) ? Place::kVoted : Place::kFinished);
  std::barrier<> meet(kRanks);
  RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    Rank rank(*world->Split(0, world->rank()));
    const int number = world->rank();
    Reference want;
    for (int round = 0; round < 2; ++round) {
      rank.Take(static_cast<float>(round));
      rank.Whole(RoundKind::kCommit);
      want.Commit(static_cast<float>(6 + 4 * round), 4);
    }
    rank.Take(2);
    // Ranks give 2, 3, 4 and 5.
    Reference all = want, rest = want;
    all.Commit(14, 4);
    rest.Commit(9, 3);
    const Place mine = number == kLost ? Place::kSummed : places[static_cast<size_t>(number)];
    rank.ComeTo(kind, mine, furthest, all.theta);
    meet.arrive_and_wait();
    if (number == kLost) {
      rank.GiveUp();
      meet.arrive_and_wait();
      return;
    }
    rank.AwaitTheEnd();
    if (mine == Place::kNext) {
      rank.FailInTheNext(3);
    }
    ASSERT_EQ(rank.round().Recover(), absl::OkStatus());
    EXPECT_THAT(rank.round().ranks().cut().members(), ElementsAre(0, 1, 2));
    if (!counted) {
      EXPECT_EQ(rank.round().place().phase == RoundPhase::kFinished, false);
      rank.Whole(kind);  // again
    }
    EXPECT_EQ(rank.round().state().result().ranks, counted ? 4 : 3);
    EXPECT_EQ(rank.round().state().result().microbatches, counted ? 4 : 3);
    const float params = counted ? all.theta : rest.theta;
    if (mine != Place::kNext) {
      EXPECT_THAT(rank.Published(), Each(params));
      rank.Take(3);
    }
    want = !Commits(kind) ? want : counted ? all : rest;
    rank.Whole(RoundKind::kCommit);
    want.Commit(12, 3);
    EXPECT_THAT(rank.Published(), Each(want.theta));
    rank.Take(4);
    rank.Whole(RoundKind::kCommit);
    want.Commit(15, 3);
    EXPECT_THAT(rank.Published(), Each(want.theta));
    EXPECT_EQ(rank.ranks().losses().size(), 1u);
    EXPECT_EQ(rank.ranks().losses()[0].rank, kLost);
    meet.arrive_and_wait();
  });
}

class FromEveryPlace : public testing::TestWithParam<RoundKind> {};
INSTANTIATE_TEST_SUITE_P(, FromEveryPlace,
                         testing::Values(RoundKind::kCommit, RoundKind::kEstimate),
                         [](const auto& kind) {
                           return kind.param == RoundKind::kCommit ? "commit" : "estimate";
                         });

TEST_P(FromEveryPlace, AllHaveTheSameParametersAndCopies) {
  std::vector<Place> places(std::begin(kPlaces), std::end(kPlaces));
  if (!Commits(GetParam())) {  // has no votes
    places.erase(places.begin() + 1);
  }
  for (const Place a : places) {
    for (const Place b : places) {
      for (const Place c : places) {
        SCOPED_TRACE(
            absl::StrCat("places ", static_cast<int>(a), static_cast<int>(b), static_cast<int>(c)));
        Recover(GetParam(), {a, b, c});
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// The progress of a rank with a new cut when the next rank is lost.
enum class NewCut { kNone, kPrepared, kTaken };

// Two commits, then rank 3 gives up. The others make a smaller communicator by themselves, and come to
// these states of a cut for it. Then they learn that it has ended too.
void RecoverFromCuts(const std::vector<NewCut>& cuts) {
  std::barrier<> meet(kRanks), prepared(kRanks - 1);
  RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    const auto first = *world->Split(0, world->rank());
    Rank rank(first);
    Reference want;
    for (int round = 0; round < 2; ++round) {
      rank.Take(static_cast<float>(round));
      rank.Whole(RoundKind::kCommit);
      want.Commit(static_cast<float>(6 + 4 * round), 4);
    }
    meet.arrive_and_wait();
    if (world->rank() == kLost) {
      rank.GiveUp();
      meet.arrive_and_wait();
      return;
    }
    rank.AwaitTheEnd();
    ShrinkOptions without;
    without.exclude = {kLost};
    const auto smaller = *first->Shrink(without);
    const NewCut mine = cuts[static_cast<size_t>(world->rank())];
    const std::vector<int> left = {0, 1, 2}, holders = {0, 1, 2, 0};
    if (mine == NewCut::kNone) {
      const auto dropped = *ChannelCut::Make(smaller, rank.options(), left);
      ASSERT_EQ(dropped->TakeFrom(&rank.round().ranks().cut(), holders), absl::OkStatus());
    } else {
      ASSERT_EQ(rank.round().ranks().PrepareCut(smaller, left, holders), absl::OkStatus());
    }
    if (mine == NewCut::kTaken) {
      rank.round().ranks().TakeCut();
    }
    prepared.arrive_and_wait();
    ASSERT_EQ(rank.round().Recover(), absl::OkStatus());
    const bool taken = *std::max_element(cuts.begin(), cuts.end()) == NewCut::kTaken ||
                       *std::min_element(cuts.begin(), cuts.end()) == NewCut::kPrepared;
    EXPECT_EQ(rank.round().place().cuts, taken ? 2 : 1);
    for (int round = 2; round < 4; ++round) {
      rank.Take(static_cast<float>(round));
      rank.Whole(RoundKind::kCommit);
      want.Commit(static_cast<float>(3 + 3 * round), 3);
      EXPECT_THAT(rank.Published(), Each(want.theta));
    }
    meet.arrive_and_wait();
  });
}

TEST(ChannelRecovery, ANewCutIsTakenByAllOrByNone) {
  using enum NewCut;
  for (const std::vector<NewCut>& cuts : {std::vector<NewCut>{kNone, kNone, kNone},
                                          {kPrepared, kNone, kPrepared},
                                          {kPrepared, kPrepared, kPrepared},
                                          {kTaken, kPrepared, kPrepared},
                                          {kPrepared, kTaken, kTaken},
                                          {kTaken, kTaken, kTaken}}) {
    SCOPED_TRACE(absl::StrCat("cuts ", static_cast<int>(cuts[0]), static_cast<int>(cuts[1]),
                              static_cast<int>(cuts[2])));
    RecoverFromCuts(cuts);
    ASSERT_FALSE(HasFailure());
  }
}

// A rank whose joint call has failed with the loss gets the outcome of a rank whose call is over.
TEST(ChannelRecovery, GivesTheOutcomeOfAJointCall) {
  std::barrier<> meet(kRanks);
  RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& world) {
    Rank rank(*world->Split(0, world->rank()));
    rank.Take(0);
    rank.Whole(RoundKind::kCommit);
    meet.arrive_and_wait();
    if (world->rank() == kLost) {
      rank.GiveUp();
      meet.arrive_and_wait();
      return;
    }
    rank.AwaitTheEnd();
    int attempts = 0;
    bool recovered = false;
    const auto everybody = [&] { return AllRanks(rank.round().ranks().comm(), nullptr, 0); };
    const auto attempt = [&](AllRanks& all, std::string* result) -> absl::Status {
      ++attempts;
      *result = absl::StrCat("of rank ", world->rank());
      return world->rank() == 1 ? absl::InvalidArgumentError("agreed")
                                : all.GiveUp(absl::UnavailableError("a rank is lost"));
    };
    const auto lost = [&]() -> absl::Status {
      return recovered ? absl::OkStatus() : absl::UnavailableError("a rank is lost");
    };
    const auto recover = [&] {
      recovered = true;
      return rank.round().Recover();
    };
    const JointCalls::Call call = {everybody, attempt, lost, recover};
    const JointCalls::Outcome outcome = rank.ranks().joint_calls().Make(1, call);
    if (world->rank() == 1) {  // it learns of the loss later
      ASSERT_EQ(rank.round().Recover(), absl::OkStatus());
    }
    EXPECT_EQ(outcome.status, absl::InvalidArgumentError("agreed"));
    EXPECT_EQ(outcome.result, "of rank 1");
    EXPECT_FALSE(outcome.broken);
    EXPECT_EQ(attempts, 1);
    EXPECT_EQ(rank.round().place().phase, RoundPhase::kFinished);
    meet.arrive_and_wait();
  });
}

}  // namespace
}  // namespace entrain
