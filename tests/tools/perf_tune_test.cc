// Recovers figures and ranges from times that were computed from known figures.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "tools/perf/tune.h"

namespace entrain::perf {
namespace {

constexpr int kRanks = 4, kCores = 4;
constexpr TunedFor kWhere{Link::kShm, kRanks, false};

LinkFigures Truth() {
  LinkFigures figures;
  figures.where = kWhere;
  figures.call_us = 2;
  figures.latency_us = 5;
  figures.message_us = 0.5;
  figures.switch_us = 0.5;
  figures.gbs = 5;
  figures.host_gbs = 18;
  figures.reduce_gbs = 4;
  return figures;
}

// Returns the true times of every algorithm, and of a message.
std::vector<Observation> Observe() {
  const std::vector<int> hosts(kRanks, 0);
  const LinkFigures truth = Truth();
  const CostModel model(Crowd::Of(hosts), {Link::kShm, kCores}, truth, truth);
  std::vector<Observation> observations;
  for (const CallKind collective :
       {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather, CallKind::kBroadcast,
        CallKind::kGather, CallKind::kSend}) {
    for (int64_t bytes = 16; bytes <= 16 << 20; bytes *= 16) {
      Case like;
      like.collective = collective;
      like.ranks = kRanks;
      const Case measured = Case::OfSize(like, bytes);
      if (collective == CallKind::kSend) {
        const double us = truth.call_us + truth.latency_us + 2 * truth.message_us +
                          static_cast<double>(measured.bytes) * 1e-3 / truth.gbs;
        observations.push_back({measured, nullptr, us});
      }
      for (const Algorithm& algorithm : Catalog()) {
        const Spec spec{collective, 0, kRanks, 0, 1};
        if (algorithm.kind == collective && algorithm.fits(spec, hosts)) {
          const int64_t time = model.Picoseconds(algorithm, spec, hosts, measured.bytes);
          observations.push_back({measured, &algorithm, static_cast<double>(time) * 1e-6});
        }
      }
    }
  }
  return observations;
}

LinkFigures Guess() {
  LinkFigures figures = Truth();
  for (double* figure :
       {&figures.call_us, &figures.message_us, &figures.gbs, &figures.reduce_gbs}) {
    *figure *= 3;
  }
  for (double* figure : {&figures.latency_us, &figures.host_gbs}) {
    *figure /= 4;
  }
  return figures;
}

TEST(Tune, TakesTheFiguresFromTheTimes) {
  const TuneResult result = Tune(Observe(), kWhere, kCores, Guess());
  EXPECT_THAT(result.choices, testing::IsEmpty()) << result.report;
  EXPECT_EQ(result.figures.where, kWhere);
  const LinkFigures truth = Truth();
  const auto near = [](double figure, double times = 1.35) {
    return testing::AllOf(testing::Gt(figure / times), testing::Lt(figure * times));
  };
  EXPECT_THAT(result.figures.call_us, near(truth.call_us));
  EXPECT_THAT(result.figures.latency_us, near(truth.latency_us));
  EXPECT_THAT(result.figures.message_us, near(truth.message_us));
  EXPECT_THAT(result.figures.gbs, near(truth.gbs));
  EXPECT_THAT(result.figures.host_gbs, near(truth.host_gbs));
  // A part of the combining overlaps with the transfers.
  EXPECT_THAT(result.figures.reduce_gbs, near(truth.reduce_gbs, 1.75));
}

TEST(Tune, KeepsWhatNoCallShows) {
  Case like;
  like.collective = CallKind::kSend;
  like.ranks = kRanks;
  const TuneResult result = Tune({{Case::OfSize(like, 8), nullptr, 7}}, kWhere, kCores, Guess());
  EXPECT_EQ(result.figures.gbs, Guess().gbs);
  EXPECT_EQ(result.figures.host_gbs, Guess().host_gbs);
  EXPECT_EQ(result.figures.reduce_gbs, Guess().reduce_gbs);
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

TEST(Tune, WritesDownWhereTheEstimatesAreWrong) {
  std::vector<Observation> observations = Observe();
  for (Observation& one : observations) {
    // Contrary to the model, ring is faster by a tenth at 4 KiB and 64 KiB.
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
