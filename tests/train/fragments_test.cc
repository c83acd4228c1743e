#include "lib/train/edit/fragments.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Seven layers. Layers 1 and 4 do not train.
Slab Model() {
  const std::vector<int64_t> counts = {5, 5, 5, 5, 5, 5, 5};
  const std::vector<uint8_t> frozen = {0, 1, 0, 0, 1, 0, 0};
  return *Slab::Make(counts, 1, 0, frozen);
}

EditOptions Of(int64_t interval, int32_t fragments) {
  EditOptions options;
  options.local_sgd_sync_interval = interval;
  options.fragments = fragments;
  return options;
}

TEST(Fragments, OneIsEverythingAtEveryInterval) {
  const FragmentSchedule schedule(Of(4, 1), Model());
  EXPECT_THAT(schedule.Due(0), IsEmpty());
  EXPECT_THAT(schedule.Due(3), IsEmpty());
  EXPECT_THAT(schedule.Due(4), ElementsAre(0, 2, 3, 5, 6));
  EXPECT_THAT(schedule.Due(5), IsEmpty());
  EXPECT_EQ(schedule.Due(8), schedule.all());
}

TEST(Fragments, AreSpreadEvenlyOverTheInterval) {
  EditOptions options = Of(10, 3);
  const FragmentSchedule sequential(options, Model());
  EXPECT_THAT(sequential.Due(3), ElementsAre(0, 2));
  EXPECT_THAT(sequential.Due(6), ElementsAre(3, 5));
  EXPECT_THAT(sequential.Due(10), ElementsAre(6));
  EXPECT_THAT(sequential.Due(13), ElementsAre(0, 2));
  EXPECT_THAT(sequential.Due(20), ElementsAre(6));
  options.fragment_pattern = FragmentPattern::kStrided;
  const FragmentSchedule strided(options, Model());
  EXPECT_THAT(strided.Due(3), ElementsAre(0, 5));
  EXPECT_THAT(strided.Due(6), ElementsAre(2, 6));
  EXPECT_THAT(strided.Due(10), ElementsAre(3));
}

// H is 1, 2, 3, ..., so exchanges are at steps 1, 3, 6, 10, ...; asked in any order, also after a load.
TEST(Fragments, TheCallersIntervalsFollowEachOther) {
  EditOptions options = Of(1, 1);
  std::vector<std::pair<int64_t, int64_t>> asked;
  options.interval_schedule_user = &asked;
  options.interval_schedule = [](void* user, int64_t exchanges, int64_t steps) {
    static_cast<std::vector<std::pair<int64_t, int64_t>>*>(user)->emplace_back(exchanges, steps);
    return exchanges == 5 ? 2.5 : static_cast<double>(exchanges + 1);
  };
  const FragmentSchedule schedule(options, Model());
  std::vector<int64_t> due;
  for (int64_t step = 0; step <= 12; ++step) {
    if (!schedule.Due(step).empty()) {
      due.push_back(step);
    }
  }
  EXPECT_THAT(due, ElementsAre(1, 3, 6, 10));
  EXPECT_THAT(asked, ElementsAre(std::pair(0, 0), std::pair(1, 1), std::pair(2, 3), std::pair(3, 6),
                                 std::pair(4, 10)));
  EXPECT_EQ(schedule.Due(3), schedule.all());
  EXPECT_THAT(schedule.Due(4), IsEmpty());
  EXPECT_EQ(schedule.Due(10), schedule.all());
  EXPECT_EQ(schedule.status(), absl::OkStatus());
  EXPECT_THAT(schedule.Due(16), ElementsAre(0, 2, 3, 5, 6));
  EXPECT_THAT(std::string(schedule.status().message()),
              HasSubstr("interval_schedule: 2.5 steps after 5 exchanges; expected an integer of at "
                        "least 1"));
}

// For every H and P, a round of the schedule exchanges each layer once.
TEST(Fragments, EveryIntervalHasEachLayerOnce) {
  for (const int64_t interval : {1, 2, 3, 7, 64}) {
    for (const int32_t fragments : {1, 2, 3, 5}) {
      const FragmentSchedule schedule(Of(interval, fragments), Model());
      std::vector<int> times(7, 0);
      for (int64_t step = 0; step <= 3 * interval; ++step) {
        for (const int layer : schedule.Due(step)) {
          ++times[static_cast<size_t>(layer)];
        }
      }
      EXPECT_THAT(times, ElementsAre(3, 0, 3, 3, 0, 3, 3)) << interval << " " << fragments;
    }
  }
}

TEST(Fragments, SchedulesOfTheirOwn) {
  EditOptions options = Of(1, 2);
  options.fragment_of_layer = {1, 0, 0, 1, 0, 0, 0};
  options.fragment_intervals = {2, 5};
  options.fragment_offsets = {0, 3};
  const Slab model = Model();
  ASSERT_EQ(CheckFragments(options, model), absl::OkStatus());
  const FragmentSchedule schedule(options, model);
  EXPECT_THAT(schedule.Due(0), IsEmpty());  // the replicas are equal
  EXPECT_THAT(schedule.Due(2), ElementsAre(2, 5, 6));
  EXPECT_THAT(schedule.Due(3), ElementsAre(0, 3));
  EXPECT_THAT(schedule.Due(8), ElementsAre(0, 2, 3, 5, 6));
}

TEST(Fragments, RefusesFragmentsWithoutLayersAndLayersWithoutFragments) {
  const Slab model = Model();
  const auto why = [&](const EditOptions& options) {
    return std::string(CheckFragments(options, model).message());
  };
  EXPECT_THAT(why(Of(10, 6)), HasSubstr("fragments: 6 of 5 layers that train"));
  EditOptions options = Of(10, 2);
  options.fragment_of_layer = {0, 0, 0, 0, 1, 0, 0};  // layer 4 does not train
  EXPECT_THAT(why(options), HasSubstr("leave fragment 1 without any"));
  options.fragment_of_layer = {0, 0, 2, 1, 0, 0, 0};
  EXPECT_THAT(why(options), HasSubstr("fragment_of_layer: 2 of layer 2 is not one of 2"));
  options.fragment_of_layer = {0, 1};
  EXPECT_THAT(why(options), HasSubstr("fragment_of_layer: 2 numbers for 7 layers"));
}

}  // namespace
}  // namespace entrain
