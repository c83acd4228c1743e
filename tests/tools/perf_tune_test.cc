// Fitting a model to times that a known model made.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "tools/perf/tune.h"

namespace entrain::perf {
namespace {

constexpr int kRanks = 4, kCores = 2;
constexpr TunedFor kWhere{Link::kShm, kRanks, true};

LinkFigures Truth() {
  LinkFigures figures;
  figures.where = kWhere;
  figures.call_us = 2;
  figures.latency_us = 5;
  figures.message_us = 1;
  figures.switch_us = 0.5;
  figures.large_us = 3;
  figures.eager_kb = 8;
  figures.send_gbs = 20;
  figures.receive_gbs = 5;
  figures.host_gbs = 8;
  figures.reduce_gbs = 4;
  figures.cache_mb = 16;
  figures.far_times = 2;
  return figures;
}

// What every algorithm takes by the truth.
std::vector<Observation> Observe() {
  const std::vector<int> hosts(kRanks, 0);
  const CostModel model(Crowd::Of(hosts), {Link::kShm, kCores}, Truth(), Truth());
  std::vector<Observation> observations;
  for (const CallKind collective :
       {CallKind::kAllReduce, CallKind::kAllGather, CallKind::kBroadcast}) {
    for (int64_t bytes = 16; bytes <= 16 << 20; bytes *= 16) {
      Case like;
      like.collective = collective;
      like.ranks = kRanks;
      const Case measured = Case::OfSize(like, bytes);
      for (const Algorithm& algorithm : Catalog()) {
        const Spec spec{collective, 0, kRanks, 0, 1};
        if (algorithm.kind == collective && algorithm.fits(spec, hosts)) {
          const Rehearsal rehearsal(algorithm, spec, hosts, bytes);
          observations.push_back(
              {measured, &algorithm, static_cast<double>(rehearsal.Picoseconds(model)) * 1e-6});
        }
      }
    }
  }
  return observations;
}

LinkFigures Guess() {
  LinkFigures figures = Truth();
  for (double* figure : {&figures.call_us, &figures.message_us, &figures.receive_gbs}) {
    *figure *= 3;
  }
  for (double* figure : {&figures.latency_us, &figures.host_gbs, &figures.reduce_gbs}) {
    *figure /= 4;
  }
  return figures;
}

TEST(Tune, FindsTheModelBehindTheTimes) {
  const TuneResult result = Tune(Observe(), kWhere, kCores, Guess());
  EXPECT_LT(result.off, 1.08);
  EXPECT_THAT(result.choices, testing::IsEmpty()) << result.report;
  EXPECT_EQ(result.figures.where, kWhere);
  EXPECT_LT(std::abs(std::log(result.figures.receive_gbs / Truth().receive_gbs)), std::log(1.5));
}

double LeastOf(const std::vector<Observation>& observations, const Case& measured) {
  double least = observations[0].us;
  bool found = false;
  for (const Observation& one : observations) {
    if (one.measured.collective == measured.collective && one.measured.bytes == measured.bytes) {
      least = found ? std::min(least, one.us) : one.us;
      found = true;
    }
  }
  return least;
}

TEST(Tune, WritesDownWhereTheModelIsWrong) {
  std::vector<Observation> observations = Observe();
  for (Observation& one : observations) {
    // Against all reason, ring is best at 4 KiB and 64 KiB: by a tenth.
    if (one.measured.collective == CallKind::kAllGather &&
        one.algorithm->name == std::string("ring") &&
        (one.measured.bytes == 4096 || one.measured.bytes == 65536)) {
      one.us = 0.9 * LeastOf(observations, one.measured);
    }
  }
  const TuneResult result = Tune(observations, kWhere, kCores, Truth());
  ASSERT_THAT(result.choices, testing::SizeIs(1)) << result.report;
  const MeasuredChoice& choice = result.choices[0];
  EXPECT_EQ(choice.where, kWhere);
  EXPECT_EQ(choice.choice.kind, CallKind::kAllGather);
  EXPECT_EQ(choice.choice.algorithm, "ring");
  EXPECT_EQ(choice.choice.low, 1024);             // between 256 and 4 KiB
  EXPECT_EQ(choice.choice.high, 256 * 1024 - 1);  // between 64 KiB and 1 MiB
  EXPECT_THAT(result.report, testing::HasSubstr("*ring "));
}

TEST(Tune, TakesThePlaceOfOlderLinesOnly) {
  Tuning tuning = *BuiltinTuning();
  const size_t before = tuning.links.size();
  TuneResult result;
  result.figures = Truth();
  result.where = kWhere;
  result.choices = {{kWhere, {CallKind::kBroadcast, "tree", 0, 99}}};
  Merge(result, &tuning);
  Merge(result, &tuning);
  int same = 0;
  for (const MeasuredChoice& one : tuning.choices) {
    same += one.where == kWhere ? 1 : 0;
  }
  EXPECT_EQ(same, 1);
  EXPECT_LE(tuning.links.size(), before + 1);
  EXPECT_EQ(ToText(tuning.FiguresFor(kWhere)), ToText(Truth()));
  EXPECT_TRUE(ParseTuning(tuning.ToText(), "merged").ok());
}

}  // namespace
}  // namespace entrain::perf
