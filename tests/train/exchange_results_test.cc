#include "lib/train/edit/exchange_results.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/train/visited.h"

namespace entrain {
namespace {

EditInfo InfoOf(const ExchangeResults& results) {
  EditInfo info;
  results.Fill(&info);
  return info;
}

TEST(ExchangeResults, ShowAnExchangeWhenItsLastLayerIsOver) {
  ExchangeResults results(3);
  EXPECT_EQ(results.last_sync_step(), -1);
  results.Begin(2);
  results.SetAnchorChecksum(11);
  EXPECT_EQ(InfoOf(results).last_sync_step, 2);
  EXPECT_EQ(InfoOf(results).anchor_checksum, 11u);
  results.LayerOver(/*accepted=*/false, /*rolled_back=*/false);
  results.LayerOver(/*accepted=*/false, /*rolled_back=*/true);
  EXPECT_EQ(InfoOf(results).rejections, 0);
  results.ExchangeOver(5, 12);
  const EditInfo info = InfoOf(results);
  EXPECT_EQ(info.syncs, 1);
  EXPECT_EQ(info.rejections, 2);
  EXPECT_EQ(info.rollbacks, 1);
  EXPECT_EQ(info.anchor_checksum, 12u);
  EXPECT_EQ(results.last_sync_step(), 5);
}

TEST(ExchangeResults, ShowTheMeanMetricAndAnybodysWish) {
  ExchangeResults results(3);
  EXPECT_TRUE(std::isnan(InfoOf(results).metric));
  NormTable table;
  table.replicas = {0, 2};
  table.standings = {{.flags = kWantStop | kLeaving, .metric_sum = 6, .metric_weight = 2},
                     {.metric_sum = 2, .metric_weight = 2}};
  results.Met(table, 3);
  const EditInfo info = InfoOf(results);
  EXPECT_EQ(info.rendezvous, 4);
  EXPECT_EQ(info.wishes, kWantStop);
  EXPECT_EQ(info.metric, 2);
  EXPECT_EQ(results.standings().size(), 2u);
  EXPECT_EQ(results.StandingOf(2)->metric_sum, 2);
  EXPECT_EQ(results.StandingOf(1).status(), absl::FailedPreconditionError("replica 1 is lost"));
  EXPECT_EQ(results.StandingOf(3).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ExchangeResults, CountLossesAndTheRoundsThatTheyShorten) {
  ExchangeResults results(3);
  EXPECT_EQ(InfoOf(results).replicas, 3);
  results.Lost({.replica = 1, .rendezvous = 4, .why = "gone"});
  EXPECT_EQ(InfoOf(results).replicas, 2);
  EXPECT_EQ(InfoOf(results).losses, 1);
  EXPECT_EQ(results.losses()[0].rendezvous, 4);
  results.RoundShort(4);
  results.RoundShort(4);  // the round lost another replica
  results.RoundShort(5);
  EXPECT_EQ(InfoOf(results).short_rounds, 2);
}

TEST(ExchangeResults, GoOnFromWhatWasLoaded) {
  ExchangeResults results(3);
  Visited visited;
  results.VisitState(visited);
  EXPECT_THAT(visited.names, testing::ElementsAre("rejections", "rollbacks", "syncs"));
  visited.Value("syncs") = 4;
  visited.Value("rejections") = 3;
  NormTable table;
  table.replicas = {0};
  table.standings = {Standing()};
  results.Met(table, 0);
  results.GoOn(8, 13, 6);
  const EditInfo info = InfoOf(results);
  EXPECT_EQ(info.syncs, 4);
  EXPECT_EQ(info.rejections, 3);
  EXPECT_EQ(info.last_sync_step, 8);
  EXPECT_EQ(info.rendezvous, 6);
  EXPECT_TRUE(results.standings().empty());
  EXPECT_EQ(results.syncs(), 4);
}

}  // namespace
}  // namespace entrain
