// Rounds that are closed without late replicas (options quorum, round_deadline and late). The tests
// hold a replica's caller back until its worker has taken part in the rounds that it is late for.
// Results are compared with a readable reference, and between the ranks bit for bit.
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/wait.h"
#include "tests/train/edit_reference.h"
#include "tests/train/rounds.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::HasSubstr;

const std::vector<int> kAll = {0, 1, 2}, kFirstTwo = {0, 1};
constexpr int kLateReplica = 2;

EditOptions Quorum(int quorum, Late late = Late::kDrop) {
  EditOptions options = Weighed();
  options.quorum = quorum;
  options.late = late;
  options.timeout_ns = 60 * kSecond;
  return options;
}

float Drift(int replica, int step, int layer, int64_t i) {
  return Noise(replica, step, layer, i) / 4;
}

// A step of training; then the next forward pass.
void Train(Replica& r, int step) {
  r.ForEach(r.params(),
            [&](int l, int64_t i, float& value) { value += Drift(r.replica(), step, l, i); });
  r.EndStep();
}
void Sync(Replica& r) {
  ASSERT_EQ(r.edit().RequestSync(), absl::OkStatus());
  EXPECT_TRUE(r.Forward());
}
void AwaitRounds(Replica& r, int64_t rounds) {
  ASSERT_TRUE(Becomes([&] { return r.edit().info().rendezvous >= rounds; }));
}

void ExpectNear(Replica& r, const EditReference& want) {
  r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
    ASSERT_NEAR(value, want.anchor(l)[static_cast<size_t>(i)], 4e-6)
        << "replica " << r.replica() << ", layer " << l << ", element " << i;
  });
}

// Returns a function of a replica and an element: the sum of the replica's drifts in these steps.
std::function<double(int, int64_t)> Brings(int layer, std::function<std::vector<int>(int)> steps) {
  return [layer, steps](int replica, int64_t i) {
    double sum = 0;
    for (const int step : steps(replica)) {
      sum += Drift(replica, step, layer, i);
    }
    return sum;
  };
}

// Replica 2 is late for round 1, and for round 2 if `rounds` is 2. Then all exchange.
void LateForRounds(const Grid& grid, int rounds, Late late) {
  EditReference want(kFourLayers);
  for (int l = 0; l < 4; ++l) {
    for (int step = 0; step < rounds; ++step) {
      want.Exchange(l, kFirstTwo, Brings(l, [step](int) { return std::vector<int>{step}; }));
    }
  }
  const EditReference before = want;
  // The replica has made step 0 before it came, and one step since.
  for (int l = 0; l < 4; ++l) {
    want.Exchange(l, kAll, Brings(l, [&](int replica) {
                    return replica == kLateReplica && late == Late::kCarry ? std::vector<int>{0, 7}
                                                                           : std::vector<int>{7};
                  }));
  }
  Collected ended(grid);
  RunReplicas(grid, FourLayers(), [&](Replica& r) {
    r.Edit(Quorum(2, late));
    r.Forward();
    if (r.replica() == kLateReplica) {
      Train(r, 0);
      AwaitRounds(r, rounds);
      r.Forward();  // takes up the results
      if (late == Late::kDrop) {
        EXPECT_EQ(r.params(), r.Anchor());
        ExpectNear(r, before);
      }
      EXPECT_EQ(r.edit().info().missed, rounds);
    } else {
      for (int step = 0; step < rounds; ++step) {
        Train(r, step);
        EXPECT_TRUE(r.Forward());
        EXPECT_GT(r.edit().Report(0)->weights[0], 0);
        EXPECT_EQ(r.edit().Report(0)->weights[kLateReplica], 0);
      }
      ExpectNear(r, before);
      EXPECT_EQ(r.edit().info().missed, 0);
    }
    Train(r, 7);
    Sync(r);
    ExpectNear(r, want);
    EXPECT_EQ(r.params(), r.Anchor());
    EXPECT_EQ(r.edit().info().rendezvous, rounds + 1);
    EXPECT_EQ(r.edit().info().syncs, rounds + 1);
    ended.Put(r, r.params());
    r.MeetAll();
  });
  ended.ExpectAlike();
}

TEST(Late, DropTakesTheResultsOfTheOthers) {
  LateForRounds({1, 3}, 1, Late::kDrop);
  LateForRounds({1, 3}, 2, Late::kDrop);
  LateForRounds({2, 3}, 2, Late::kDrop);
}

TEST(Late, CarryAddsThePseudoGradientToTheNext) {
  LateForRounds({1, 3}, 1, Late::kCarry);
  LateForRounds({1, 3}, 2, Late::kCarry);
  LateForRounds({2, 3}, 1, Late::kCarry);
}

// Without norm weights, a replica that was late for two rounds weighs a third of another.
TEST(Late, WeightedGivesACarriedPseudoGradientLessWeight) {
  EditOptions options = Quorum(2, Late::kWeighted);
  options.pseudo_gradnorm_reduce = false;
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    const bool late = r.replica() == kLateReplica;
    Train(r, 0);
    if (late) {
      AwaitRounds(r, 2);
      r.Forward();
    } else {
      r.Forward();
      Train(r, 1);
      r.Forward();
    }
    Train(r, 2);
    Sync(r);
    EXPECT_THAT(r.edit().Report(1)->weights,
                testing::Pointwise(testing::DoubleEq(), {3.0 / 7, 3.0 / 7, 1.0 / 7}));
    Train(r, 3);
    Sync(r);
    EXPECT_THAT(r.edit().Report(1)->weights, testing::Each(testing::DoubleEq(1.0 / 3)));
    r.MeetAll();
  });
}

// A dropped pseudo-gradient does not count as a contribution of norm zero, which would weigh most.
TEST(Late, DroppedStepsDoNotCountInAnExchangeWithoutAStepBetween) {
  EditReference want(kFourLayers);
  for (int l = 0; l < 4; ++l) {
    want.Exchange(l, kFirstTwo, Brings(l, [](int) { return std::vector<int>{0}; }));
    want.Exchange(l, kFirstTwo, Brings(l, [](int) { return std::vector<int>{7}; }));
  }
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(Quorum(2));
    r.Forward();
    Train(r, 0);
    if (r.replica() == kLateReplica) {
      AwaitRounds(r, 1);
    } else {
      r.Forward();
      Train(r, 7);
    }
    Sync(r);
    EXPECT_EQ(r.edit().Report(0)->weights[kLateReplica], 0);
    ExpectNear(r, want);
    r.MeetAll();
  });
}

// A pseudo-gradient that is carried through two spells is late for the rounds of both.
TEST(Late, WeightedCountsAllRoundsForWhichItIsLate) {
  EditOptions options = Quorum(2, Late::kWeighted);
  options.pseudo_gradnorm_reduce = false;
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    for (int round = 1; round <= 2; ++round) {
      Train(r, round);
      if (r.replica() == kLateReplica) {
        AwaitRounds(r, round);
      }
      r.Forward();
      r.MeetAll();  // the late replica has taken up
    }
    Train(r, 3);
    Sync(r);
    EXPECT_THAT(r.edit().Report(1)->weights,
                testing::Pointwise(testing::DoubleEq(), {3.0 / 7, 3.0 / 7, 1.0 / 7}));
    r.MeetAll();
  });
}

// The others have made their last step, and replica 2 comes to earlier exchanges. It goes on, and
// loses no progress.
TEST(Late, ARequestedExchangeIsTheSameOnAllReplicas) {
  EditReference want(kFourLayers);
  for (int l = 0; l < 4; ++l) {
    want.Exchange(
        l, kAll, Brings(l, [](int replica) {
          return replica == kLateReplica ? std::vector<int>{0, 1, 2} : std::vector<int>{0};
        }));
  }
  for (const Late late : {Late::kDrop, Late::kCarry}) {
    RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
      r.Edit(Quorum(3, late));
      r.Forward();
      Train(r, 0);
      for (int step = 1; r.replica() == kLateReplica && step < 3; ++step) {
        r.Forward();
        Train(r, step);
      }
      Sync(r);
      ExpectNear(r, want);
      EXPECT_EQ(r.edit().info().rendezvous, 1);
      r.MeetAll();
    });
  }
}

// While a caller computes, only its worker takes part.
TEST(Late, TheParametersOfALateReplicaAreItsCallersUntilItComes) {
  for (const Late late : {Late::kDrop, Late::kCarry}) {
    RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
      r.Edit(Quorum(1, late));
      r.Forward();
      if (r.replica() != 0) {
        const std::vector<float> before = r.params();
        AwaitRounds(r, 3);
        EXPECT_EQ(r.params(), before);
      } else {
        for (int step = 0; step < 3; ++step) {
          Train(r, step);
          EXPECT_TRUE(r.Forward());
        }
      }
      r.MeetAll();
    });
  }
}

TEST(Late, ADeadlineClosesARoundOfThoseThatHaveCome) {
  EditOptions options = Quorum(0);
  options.round_deadline = 0.05;
  Collected ended({1, 3});
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    Train(r, 0);
    if (r.replica() == kLateReplica) {
      AwaitRounds(r, 1);
    }
    r.Forward();
    Train(r, 1);
    Sync(r);
    ended.Put(r, r.params());
    r.MeetAll();
  });
  ended.ExpectAlike();
}

// One rank of a replica is late, so the whole replica is.
TEST(Late, AReplicaIsWholeOrLate) {
  const Grid grid = {2, 3};
  Collected ended(grid);
  RunReplicas(grid, FourLayers(), [&](Replica& r) {
    r.Edit(Quorum(2));
    r.Forward();
    Train(r, 0);
    if (r.replica() == kLateReplica && r.slot() == 1) {
      ASSERT_TRUE(Becomes([&] { return r.edit().info().rendezvous >= 1; }));
    }
    r.Forward();
    EXPECT_EQ(r.edit().info().missed, r.replica() == kLateReplica ? 1 : 0);
    EXPECT_EQ(r.params(), r.Anchor());
    Train(r, 1);
    Sync(r);
    ended.Put(r, r.params());
    r.MeetAll();
  });
  ended.ExpectAlike();
}

// Each replica makes its own number of rounds, and all leave.
TEST(Late, ReplicasLeaveAlsoIfTheyWereLate) {
  for (const Late late : {Late::kDrop, Late::kCarry, Late::kWeighted}) {
    for (const int shards : {1, 2}) {
      const Grid grid = {shards, 3};
      Collected ended(grid);
      RunReplicas(grid, FourLayers(), [&](Replica& r) {
        r.Edit(Quorum(1, late));
        r.Forward();
        for (int step = 0; step < 3 + 2 * r.replica(); ++step) {
          Train(r, step);
          r.Forward();
        }
        Train(r, 9);
        ASSERT_EQ(r.edit().Leave(), absl::OkStatus());
        EXPECT_EQ(r.params(), r.Anchor());
        ended.Put(r, r.params());
        r.MeetAll();
      });
      ended.ExpectAlike();
    }
  }
}

TEST(Late, ARunGoesOnFromACheckpointThatAllHaveMet) {
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    const Directory directory;
    const Grid grid = {1, 3};
    Collected want(grid), got(grid);
    const auto last = [](Replica& r, Collected& to) {
      for (const int step : {4, 5}) {
        Train(r, step);
        Sync(r);
      }
      to.Put(r, r.params());
      r.MeetAll();
    };
    RunReplicas(grid, FourLayers(), [&](Replica& r) {
      r.Edit(Quorum(2, Late::kCarry));
      r.Forward();
      Train(r, 0);
      if (r.replica() == kLateReplica) {
        AwaitRounds(r, 1);
      }
      r.Forward();
      EXPECT_THAT(std::string(r.edit().state().Save(To(directory, kind)).message()),
                  HasSubstr("edit: save: rank 2: this replica was late for a round"));
      Train(r, 1);
      Sync(r);
      ASSERT_EQ(r.edit().state().Save(To(directory, kind)), absl::OkStatus());
      last(r, want);
    });
    RunReplicas(grid, FourLayers(), [&](Replica& r) {
      r.Edit(Quorum(2, Late::kCarry));
      ASSERT_EQ(r.edit().state().Load(To(directory, kind)), absl::OkStatus());
      r.Forward();
      last(r, got);
    });
    for (int replica = 0; replica < 3; ++replica) {
      EXPECT_EQ(got.at(replica, 0), want.at(replica, 0));
    }
  }
}

// If a load were allowed, the late replica's next arrival would add the movement of the old run's
// anchors.
TEST(Late, NobodyLoadsOrSavesWhileAReplicaIsLate) {
  const Directory directory;
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(Quorum(2, Late::kCarry));
    r.Forward();
    Train(r, 0);
    Sync(r);
    const CheckpointOptions to = To(directory, CheckpointKind::kExact);
    ASSERT_EQ(r.edit().state().Save(to), absl::OkStatus());
    const std::vector<float> saved = r.params();
    r.MeetAll();
    if (r.replica() == kLateReplica) {
      AwaitRounds(r, 2);
    } else {
      Train(r, 1);
      r.Forward();
    }
    for (const absl::Status& status : {r.edit().state().Load(to), r.edit().state().Save(to)}) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("rank 2: a round was closed without this replica"));
    }
    Train(r, 2);
    Sync(r);
    ASSERT_EQ(r.edit().state().Load(to), absl::OkStatus());
    EXPECT_EQ(r.params(), saved);
    r.MeetAll();
  });
}

// A wish that came too late for its round is sent when the replica leaves.
TEST(Late, AWishIsNotLostIfTheReplicaLeavesNext) {
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(Quorum(2));
    r.Forward();
    Train(r, 0);
    if (r.replica() == kLateReplica) {
      ASSERT_EQ(r.edit().Wish(kWantStop), absl::OkStatus());
      AwaitRounds(r, 1);
    }
    r.Forward();
    r.MeetAll();
    ASSERT_EQ(r.edit().Leave(), absl::OkStatus());
    EXPECT_NE(r.edit().info().wishes & static_cast<int>(kWantStop), 0);
    r.MeetAll();
  });
}

// A replica without anchors cannot take part without its caller.
TEST(Late, NoRoundIsClosedBeforeAllHaveBegun) {
  RunReplicas({1, 3}, FourLayers(), [](Replica& r) {
    r.Edit(Quorum(1));
    if (r.replica() == kLateReplica) {
      // Long enough for the others to close a round, if they could.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_EQ(r.edit().info().rendezvous, 0);
    }
    r.Forward();
    if (r.replica() != kLateReplica) {
      Train(r, 0);
      r.Forward();
    } else {
      AwaitRounds(r, 1);
    }
    r.MeetAll();
  });
}

TEST(Late, AnchorsAndReportsCanBeReadBesideLateRounds) {
  RunReplicas({1, 3}, FourLayers(), [](Replica& r) {
    r.Edit(Quorum(1));
    r.Forward();
    for (int step = 0; step < 6 && r.replica() == 0; ++step) {
      Train(r, step);
      r.Forward();
    }
    if (r.replica() != 0) {
      AwaitRounds(r, 1);
      std::vector<float> seen(r.params().size());
      while (r.edit().info().rendezvous < 6) {
        ASSERT_EQ(r.edit().CopyAnchor(seen.data()), absl::OkStatus());
        ASSERT_TRUE(r.edit().Report(1).ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_THAT(std::string(r.edit().state().Open(CheckpointKind::kExact).status().message()),
                  HasSubstr("does not go with quorum"));
    }
    r.MeetAll();
  });
}

TEST(Late, AnArrivalThatWaitsTooLongNamesTheReplicasThatAreMissing) {
  EditOptions options = Quorum(2);
  options.timeout_ns = 2 * kSecond;
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    if (r.replica() == 0) {
      Train(r, 0);
      absl::Status status = r.edit().BeginForward(true, true).status();
      status.Update(r.edit().WaitLayer(0));
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(
          std::string(status.message()),
          HasSubstr("the round was not closed within 2000 ms: these replicas have not come: "
                    "1, 2"));
    }
    r.MeetAll();
  });
}

// Its worker answers the others for ever, so only their wait tells that it does not come.
TEST(Late, WithOnLossAReplicaThatDoesNotComeInTimeIsLeftOut) {
  EditOptions options = Quorum(3);
  options.timeout_ns = 3 * kSecond;
  options.on_loss = OnLoss::kFinish;
  RunReplicas({1, 4}, FourLayers(), [&](Replica& r) {
    r.Edit(options);
    r.Forward();
    if (r.replica() >= 2) {
      ASSERT_TRUE(Becomes([&] { return !r.edit().BeginForward(true, true).ok(); }));
      EXPECT_TRUE(absl::IsOutOfRange(r.edit().BeginForward(true, true).status()));
    } else {
      for (int step = 0; step < 3; ++step) {
        Train(r, step);
        EXPECT_TRUE(r.Forward());
      }
      EXPECT_EQ(r.edit().info().replicas, 2);
      EXPECT_EQ(r.edit().info().losses, 2);
    }
    r.MeetAll();
  });
}

TEST(Late, WhatDoesNotGoWithItIsRefusedByName) {
  EditOptions options = Quorum(2);
  EXPECT_EQ(CheckOptions(options), absl::OkStatus());
  const auto refused = [&](auto change, const char* name) {
    EditOptions changed = options;
    change(changed);
    EXPECT_THAT(std::string(CheckOptions(changed).message()), HasSubstr(name));
  };
  using O = EditOptions;
  refused(
      [](O& o) {
        o = {};
        o.quorum = 2;
      },
      "quorum: 2 and round_deadline need an anchor");
  refused([](O& o) { o.use_async = true; }, "use_async");
  refused(
      [](O& o) {
        o.local_sgd_sync_interval = 2;
        o.fragments = 2;
      },
      "fragments");
  refused(
      [](O& o) {
        o.wire_format = WireFormat::kInt8;
        o.error_feedback = true;
      },
      "error_feedback");
  refused(
      [](O& o) {
        o.late = Late::kCarry;
        o.anchor_check = AnchorCheck::kRepair;
      },
      "anchor_check");
  refused(
      [](O& o) {
        o.quorum = 0;
        o.late = Late::kCarry;
      },
      "late: 1 has no effect without quorum");
  RunReplicas({1, 2}, FourLayers(), [&](Replica& r) {
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), r.shared_shards(), Quorum(3)).status().message()),
        HasSubstr("quorum: 3 is more than the 2 replicas"));
    EditOptions slow = Quorum(0);
    slow.round_deadline = 60;
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), r.shared_shards(), slow).status().message()),
        HasSubstr("round_deadline: 60 s is not before timeout_ns: 60000000000 ns"));
    r.MeetAll();
  });
  RunReplicas({1, 1}, FourLayers(), [&](Replica& r) {
    EXPECT_THAT(
        std::string(LayerSync::Create(r.mesh(), r.shared_shards(), Quorum(2)).status().message()),
        HasSubstr("quorum: 2 is more than the 1 replicas"));
  });
}

}  // namespace
}  // namespace entrain
