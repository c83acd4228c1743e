#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/shard/layer_shards.h"

namespace entrain {
namespace {

using testing::HasSubstr;

// Of three layers, the first and the last train.
ReductionStages Stages() {
  return {3, {0, 2}};
}

TEST(ReductionStages, WhereNoneWereHandedOutSomebodyElseReduces) {
  ReductionStages stages = Stages();
  EXPECT_EQ(stages.CheckReduced(), absl::OkStatus());
}

TEST(ReductionStages, NamesWhatWasNotReduced) {
  ReductionStages stages = Stages();
  stages.Lent(0);
  EXPECT_THAT(std::string(stages.CheckReduced().message()),
              HasSubstr("the gradients of layers 0, 2 were not reduced"));
  stages.Reduced(0);
  stages.Finished();
  EXPECT_THAT(std::string(stages.CheckReduced().message()), HasSubstr("layer 2 were not reduced"));
  stages.Lent(2);
  stages.Reduced(2);
  EXPECT_THAT(std::string(stages.CheckReduced().message()),
              HasSubstr("nobody has waited for the gradients of layer 2"));
  stages.Finished();
  EXPECT_EQ(stages.CheckReduced(), absl::OkStatus());
}

TEST(ReductionStages, AStepBeginsAnewAndTheCountGoesOn) {
  ReductionStages stages = Stages();
  stages.CountBegun();
  stages.Reduced(0);
  stages.BeginStep();
  EXPECT_EQ(stages.CheckReduced(), absl::OkStatus());
  stages.CountBegun();
  EXPECT_EQ(stages.begun(), 2u);
}

}  // namespace
}  // namespace entrain
