// Tests the state of an EDiT object. The test makes each part of the object itself, and advances each
// part separately.
#include "lib/train/edit/edit_state.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class CountingTrigger final : public SyncTrigger {
 public:
  CountingTrigger() : SyncTrigger(0) {}
  absl::StatusOr<bool> Settled(const StepInfo&) override { return true; }
  void Met() override { ++met; }
  int met = 0;

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo&) override { return false; }
};

// The parts of one rank, whose replica is alone. Four of the five layers have elements, and one of
// these is frozen.
struct Parts {
  Parts(Replica& replica, EditOptions with)
      : r(replica),
        options(std::move(with)),
        counter(0, 1, slab.layers(), schedule.all(), r.shards().stages().begun()),
        behind(slab.layers()),
        exchange(slab, r.shards().live(), options, {}) {
    EXPECT_EQ(exchange.Reserve(), absl::OkStatus());
  }
  // Makes the anchors, as at the end of warm-up.
  void Begin() {
    ASSERT_EQ(exchange.CreateAnchors(), absl::OkStatus());
    exchange.SealAnchors();
    counter.Begin();
    results.Begin(counter.step());
  }
  // Records an exchange at this step, as LayerSync does.
  void Exchanged() {
    const Standing standing = counter.TakeStanding(schedule.all());
    NormTable table;
    table.replicas = {0};
    table.standings = {standing};
    results.Met(table, standing.round);
    results.ExchangeOver(counter.step(), exchange.anchors().checksum());
  }
  void Step() { counter.EndStep(r.shards().stages().begun()); }
  std::set<std::string> Names(CheckpointKind kind) {
    const auto open = state.Open(kind);
    EXPECT_TRUE(open.ok()) << open.status();
    std::set<std::string> names;
    for (const StateEntry& entry : (*open)->entries()) {
      names.insert(entry.array.layer < 0
                       ? entry.array.name
                       : absl::StrCat(entry.array.name, " of ", entry.array.layer));
    }
    return names;
  }

  Replica& r;
  const EditOptions options;
  const Slab& slab = r.shards().slab();
  const FragmentSchedule schedule{options, slab};
  CountingTrigger trigger;
  StepCounter counter;
  RoundsBehind behind;
  Exchange exchange;
  ExchangeResults results{1};
  FirstError error;
  Worker worker{60 * kSecond, [](const absl::Status&) {}};
  RoundRunner runner{worker, exchange, results, error, nullptr};
  LayerGates gates{worker, error, slab.layers(), 0};
  EditState state{{*r.mesh(), r.shards(), options, schedule, trigger, exchange, counter, behind,
                   results, gates, runner, error, worker, nullptr},
                  false};
};

void WithParts(const EditOptions& options, const std::function<void(Parts&)>& body) {
  RunReplicas({1, 1}, Layers(), [&](Replica& r) {
    Parts parts(r, options);
    body(parts);
  });
}

constexpr CheckpointKind kKinds[] = {CheckpointKind::kExact, CheckpointKind::kPortable};

TEST(EditState, IsSavableFromARendezvousToTheNextStep) {
  WithParts(Averaging(), [](Parts& parts) {
    const auto refusal = [&](CheckpointKind kind) {
      return std::string(parts.state.CheckSavable(kind).message());
    };
    for (const CheckpointKind kind : kKinds) {
      EXPECT_THAT(refusal(kind), HasSubstr("step 0 has had no exchange (there was none yet)"));
    }
    parts.Begin();
    for (const CheckpointKind kind : kKinds) {
      EXPECT_EQ(refusal(kind), "");
    }
    parts.Step();
    for (const CheckpointKind kind : kKinds) {
      EXPECT_THAT(refusal(kind), HasSubstr("step 1 has had no exchange (the last was at step 0)"));
    }
    // A rendezvous without an exchange.
    parts.counter.TakeStanding(parts.schedule.all());
    EXPECT_EQ(refusal(CheckpointKind::kExact), "");
    EXPECT_THAT(refusal(CheckpointKind::kPortable), HasSubstr("the last was at step 0"));
    parts.Step();
    parts.Exchanged();
    for (const CheckpointKind kind : kKinds) {
      EXPECT_EQ(refusal(kind), "");
    }
    parts.r.shards().stages().CountBegun();
    for (const CheckpointKind kind : kKinds) {
      EXPECT_THAT(refusal(kind), HasSubstr("gradients of step 2 have been reduced already"));
    }
  });
}

TEST(EditState, IsNotSavableDuringAnExchange) {
  WithParts(Averaging(), [](Parts& parts) {
    parts.Begin();
    const auto round = std::make_shared<ExchangeRound>(
        parts.schedule.all(), Standing{.steps_since = 1}, false, ExchangeRound::InFlight{});
    parts.gates.Begin(round, [&] { return parts.runner.PostTurn(round); });
    for (const CheckpointKind kind : kKinds) {
      EXPECT_EQ(parts.state.CheckSavable(kind),
                absl::FailedPreconditionError(
                    "the exchange of layer 0 is under way; wait for all layers first"));
      EXPECT_FALSE(parts.state.Open(kind).ok());
    }
  });
}

TEST(EditState, OnlyTheExactKindHoldsExchangesBehindFurtherSteps) {
  EditOptions options = Averaging();
  options.overlap_steps = 1;
  for (const bool use_async : {false, true}) {
    options.use_async = use_async;
    WithParts(options, [&](Parts& parts) {
      parts.Begin();
      parts.behind.Add(ExchangeRound::Arrived(parts.schedule.all(), 0));
      const auto behind = HasSubstr("an exchange runs behind these steps");
      const std::string exact(parts.state.CheckSavable(CheckpointKind::kExact).message());
      const std::string portable(parts.state.CheckSavable(CheckpointKind::kPortable).message());
      EXPECT_THAT(portable, behind);
      if (use_async) {
        EXPECT_THAT(exact, behind);
      } else {
        EXPECT_EQ(exact, "");
        EXPECT_THAT(parts.Names(CheckpointKind::kExact), Contains("behind/begun"));
      }
    });
  }
}

TEST(EditState, HoldsEachParameterOnce) {
  WithParts(Averaging(), [](Parts& parts) {
    parts.Begin();
    const std::set<std::string> names = parts.Names(CheckpointKind::kPortable);
    EXPECT_THAT(names,
                IsSupersetOf({"steps", "rendezvous", "syncs", "anchor of 0", "anchor of 4"}));
    EXPECT_THAT(names, Contains(absl::StrCat("params of ", kFrozen)));
    EXPECT_THAT(names, Not(Contains("params of 0"))) << "they are the anchor";
    EXPECT_THAT(names, Not(Contains("anchor of 1"))) << "a layer without elements";
  });
  WithParts(Plain(), [](Parts& parts) {
    parts.counter.Begin();
    parts.results.Begin(0);
    const std::set<std::string> names = parts.Names(CheckpointKind::kPortable);
    EXPECT_THAT(names, IsSupersetOf({"params of 0", "params of 4"}));
    EXPECT_THAT(names, Not(Contains("anchor of 0")));
  });
}

TEST(EditState, HoldsArraysOfTheCaller) {
  WithParts(Averaging(), [](Parts& parts) {
    parts.Begin();
    int64_t mine[2] = {1, 2};
    ASSERT_EQ(parts.state.AddState("mine", Holder::kRank, DType::kI64, mine, 2), absl::OkStatus());
    EXPECT_FALSE(parts.state.AddState("mine", Holder::kRank, DType::kI64, mine, 2).ok());
    const auto open = parts.state.Open(CheckpointKind::kExact);
    ASSERT_TRUE(open.ok()) << open.status();
    const auto names = parts.Names(CheckpointKind::kExact);
    EXPECT_THAT(names, Contains(HasSubstr("mine")));
  });
}

// Opening makes anchors for a commit, which are not those of the run.
TEST(EditState, OpenedBeforeTheFirstAnchorsItLeavesNone) {
  WithParts(Averaging(), [](Parts& parts) {
    ASSERT_TRUE(parts.state.Open(CheckpointKind::kExact).ok());
    EXPECT_FALSE(parts.exchange.anchors().exist());
  });
}

// Sets all arrays of an opened state to their present values, but the anchor of layer 0, which is
// set to `value`, and the steps, which are set to `steps`.
void SetAll(OpenState& open, float value, int64_t steps) {
  for (size_t i = 0; i < open.entries().size(); ++i) {
    const SavedArray& array = open.entries()[i].array;
    std::vector<std::byte> bytes(static_cast<size_t>(array.bytes()));
    ASSERT_EQ(open.Get(i, bytes.data(), array.count, array.dtype), absl::OkStatus());
    if (array.name == "anchor" && array.layer == 0) {
      std::fill_n(reinterpret_cast<float*>(bytes.data()), array.count, value);
    }
    if (array.name == "steps" || array.name == "last_sync_step" || array.name == "base_step") {
      std::fill_n(reinterpret_cast<int64_t*>(bytes.data()), array.count, steps);
    }
    ASSERT_EQ(open.Set(i, bytes.data(), array.count, array.dtype), absl::OkStatus());
  }
}

TEST(EditState, AllPartsGoOnFromWhatWasSet) {
  WithParts(Averaging(), [](Parts& parts) {
    parts.Begin();
    auto open = parts.state.Open(CheckpointKind::kPortable);
    ASSERT_TRUE(open.ok()) << open.status();
    SetAll(**open, 3.5F, 40);
    const int64_t moves = parts.state.moves();
    ASSERT_EQ((*open)->Commit(0), absl::OkStatus());
    EXPECT_EQ(parts.state.moves(), moves + 1);
    EXPECT_EQ(parts.counter.step(), 40);
    EXPECT_EQ(parts.counter.base_step(), 40);
    EXPECT_EQ(parts.results.last_sync_step(), 40);
    EXPECT_EQ(parts.trigger.met, 1);
    EXPECT_EQ(parts.exchange.anchors().anchor(0)[0], 3.5F);
    EXPECT_EQ(parts.r.params()[0], 3.5F) << "a portable state is that after an exchange";
    EditInfo info;
    parts.results.Fill(&info);
    EXPECT_EQ(info.anchor_checksum, parts.exchange.anchors().checksum());
    EXPECT_EQ(parts.state.CheckSavable(CheckpointKind::kPortable), absl::OkStatus());
  });
}

TEST(EditState, WhatIsRefusedChangesNothing) {
  WithParts(Averaging(), [](Parts& parts) {
    parts.Begin();
    const uint64_t checksum = parts.exchange.anchors().checksum();
    const int64_t moves = parts.state.moves();
    const auto unchanged = [&] {
      EXPECT_EQ(parts.exchange.anchors().checksum(), checksum);
      EXPECT_EQ(parts.counter.step(), 0);
      EXPECT_EQ(parts.state.moves(), moves);
      EXPECT_EQ(parts.trigger.met, 0);
      EXPECT_EQ(parts.error.status(), absl::OkStatus());
    };
    auto incomplete = parts.state.Open(CheckpointKind::kPortable);
    ASSERT_TRUE(incomplete.ok()) << incomplete.status();
    EXPECT_THAT(std::string((*incomplete)->Commit(0).message()),
                HasSubstr("arrays have not been set"));
    unchanged();
    auto wrong = parts.state.Open(CheckpointKind::kPortable);
    ASSERT_TRUE(wrong.ok()) << wrong.status();
    SetAll(**wrong, 3.5F, -1);
    EXPECT_THAT(std::string((*wrong)->Commit(0).message()),
                HasSubstr("edit: commit: rank 0: steps -1"));
    unchanged();
    parts.behind.Add(ExchangeRound::Arrived(parts.schedule.all(), 0));
    auto late = parts.state.Open(CheckpointKind::kExact);
    ASSERT_TRUE(late.ok()) << late.status();
    EXPECT_THAT(std::string((*late)->Commit(0).message()),
                HasSubstr("an exchange runs behind these steps"));
    unchanged();
  });
}

TEST(EditState, AfterTheFirstErrorEveryCallReturnsIt) {
  const Directory directory;
  WithParts(Averaging(), [&](Parts& parts) {
    parts.Begin();
    auto open = parts.state.Open(CheckpointKind::kExact);
    ASSERT_TRUE(open.ok()) << open.status();
    const absl::Status why = absl::InternalError("edit: broken");
    parts.error.Note(why);
    int64_t mine = 1;
    EXPECT_EQ(parts.state.AddState("mine", Holder::kRank, DType::kI64, &mine, 1), why);
    EXPECT_EQ(parts.state.Save(To(directory, CheckpointKind::kExact)), why);
    EXPECT_EQ(parts.state.Load(To(directory, CheckpointKind::kExact)), why);
    EXPECT_EQ(parts.state.Open(CheckpointKind::kExact).status(), why);
    EXPECT_EQ((*open)->Commit(0), why);
    EXPECT_TRUE(directory.Files().empty());
  });
}

TEST(EditState, IsSavedAndLoaded) {
  const Directory directory;
  WithParts(Averaging(), [&](Parts& parts) {
    parts.Begin();
    const uint64_t checksum = parts.exchange.anchors().checksum();
    ASSERT_EQ(parts.state.Save(To(directory, CheckpointKind::kExact)), absl::OkStatus());
    parts.Step();
    EXPECT_THAT(std::string(parts.state.Save(To(directory, CheckpointKind::kExact)).message()),
                HasSubstr("edit: save: rank 0: step 1 has had no exchange"));
    parts.exchange.DropAnchors();
    ASSERT_EQ(parts.state.Load(To(directory, CheckpointKind::kExact)), absl::OkStatus());
    EXPECT_EQ(parts.counter.step(), 0);
    EXPECT_TRUE(parts.exchange.anchors().exist());
    EXPECT_EQ(parts.exchange.anchors().checksum(), checksum);
    EXPECT_EQ(parts.trigger.met, 1);
  });
}

}  // namespace
}  // namespace entrain
