// Rounds whose calls are only recorded.
#include "lib/train/edit/exchange_round.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using State = ExchangeRound::State;
using testing::ElementsAre;

// Makes turns in the order of RoundRunner::RunTurn.
class Noted {
 public:
  absl::StatusOr<int> RunTurn(ExchangeRound& round) {
    const int layer = round.BeginTurn();
    if (layer == ExchangeRound::kNoLayer) {
      return layer;
    }
    if (!round.has_result()) {
      const auto bytes = [](int l) { return int64_t{100} * l; };
      for (int next = round.NextToBegin(bytes); next != ExchangeRound::kNoLayer;
           next = round.NextToBegin(bytes)) {
        if (!Take(absl::StrCat("begin ", next))) {
          return absl::InternalError("no way");
        }
        round.Begun();
      }
      if (!Take(absl::StrCat("finish ", layer))) {
        return absl::InternalError("no way");
      }
      round.Finished();
    }
    round.EndTurn();
    return layer;
  }
  // Returns the calls since the last query.
  std::vector<std::string> Calls() { return std::exchange(calls_, {}); }

  std::string fails;  // the call that fails

 private:
  bool Take(const std::string& call) {
    calls_.push_back(call);
    return call != fails;
  }
  std::vector<std::string> calls_;
};

const std::vector<int> kOrder = {1, 2, 5};

std::unique_ptr<ExchangeRound> NewRound(bool behind = false,
                                        ExchangeRound::InFlight in_flight = {.layers = 2}) {
  return std::make_unique<ExchangeRound>(kOrder, Standing{.steps = 7}, behind, in_flight);
}

TEST(ExchangeRound, RunsItsTurnsInOrderWithTheNextLayerAhead) {
  Noted exchange;
  const auto round = NewRound();
  EXPECT_EQ(round->begun(), 7);
  EXPECT_EQ(round->state(), State::kBegun);
  round->SetJudged(true);
  EXPECT_EQ(round->state(), State::kJudged);
  EXPECT_TRUE(round->exchanges());
  round->Allow(round->last_turn());
  EXPECT_EQ(*exchange.RunTurn(*round), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "begin 2", "finish 1"));
  EXPECT_EQ(round->state(), State::kUnderWay);
  EXPECT_EQ(*exchange.RunTurn(*round), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 2"));
  EXPECT_FALSE(round->arrived());
  EXPECT_EQ(*exchange.RunTurn(*round), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("finish 5"));
  EXPECT_TRUE(round->arrived());
}

TEST(ExchangeRound, ALayerBeginsNoSoonerThanItsTurnIsAllowed) {
  Noted exchange;
  const auto round = NewRound();
  round->SetJudged(true);
  EXPECT_EQ(round->allowed(), -1);
  round->Allow(0);
  EXPECT_EQ(*exchange.RunTurn(*round), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "finish 1"));
  round->Allow(1);
  round->Allow(0);  // the number cannot decrease
  EXPECT_EQ(*exchange.RunTurn(*round), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 2", "finish 2"));
  round->Allow(100);
  EXPECT_EQ(round->allowed(), 2);
  EXPECT_EQ(*exchange.RunTurn(*round), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 5"));
}

TEST(ExchangeRound, OneInFlightIsFinishedBeforeTheNextBegins) {
  Noted exchange;
  const auto round = NewRound(false, {.layers = 1});
  round->SetJudged(true);
  round->Allow(2);
  while (!round->arrived()) {
    ASSERT_TRUE(exchange.RunTurn(*round).ok());
  }
  EXPECT_THAT(exchange.Calls(),
              ElementsAre("begin 1", "finish 1", "begin 2", "finish 2", "begin 5", "finish 5"));
}

TEST(ExchangeRound, BetweenSitesAsManyBeginAsTheMemoryHolds) {
  struct Case {
    ExchangeRound::InFlight in_flight;
    std::vector<std::string> first;
  };
  // Layer l has 100 l bytes.
  for (const Case& one :
       {Case{{.layers = 2, .bytes = 800, .ahead = true}, {"begin 1", "begin 2", "begin 5"}},
        Case{{.layers = 2, .bytes = 799, .ahead = true}, {"begin 1", "begin 2"}},
        Case{{.layers = 1, .bytes = 300, .ahead = true}, {"begin 1", "begin 2"}},
        Case{{.layers = 1, .bytes = 0, .ahead = true}, {"begin 1"}},
        Case{{.layers = 2, .bytes = 800, .ahead = false}, {"begin 1"}}}) {
    Noted exchange;
    const auto round = NewRound(false, one.in_flight);
    round->SetJudged(true);
    round->Allow(0);
    EXPECT_EQ(*exchange.RunTurn(*round), 1);
    std::vector<std::string> expected = one.first;
    expected.push_back("finish 1");
    EXPECT_EQ(exchange.Calls(), expected);
    round->Allow(2);
    while (!round->arrived()) {
      ASSERT_TRUE(exchange.RunTurn(*round).ok());
    }
    EXPECT_EQ(exchange.Calls().back(), "finish 5");
  }
}

TEST(ExchangeRound, AfterAFailureItHasArrivedNowhere) {
  for (const std::string call : {"begin 2", "finish 2"}) {
    Noted exchange;
    exchange.fails = call;
    const auto round = NewRound(false, {.layers = 1});
    round->SetJudged(true);
    round->Allow(2);
    ASSERT_TRUE(exchange.RunTurn(*round).ok());
    EXPECT_FALSE(exchange.RunTurn(*round).ok()) << call;
    EXPECT_EQ(round->state(), State::kUnderWay) << call;
    EXPECT_EQ(round->finished(), 1) << call;
  }
}

TEST(ExchangeRound, AfterALossItGoesOnWhereTheOthersAre) {
  Noted exchange;
  const auto round = NewRound();
  EXPECT_EQ(round->finished(), -1);
  round->SetJudged(true);
  round->Allow(2);
  exchange.fails = "finish 1";
  EXPECT_FALSE(exchange.RunTurn(*round).ok());
  EXPECT_EQ(round->finished(), 0);
  round->Restart(2);  // others had finished two layers, and sent them
  exchange.Calls();
  EXPECT_EQ(*exchange.RunTurn(*round), 1);
  EXPECT_EQ(*exchange.RunTurn(*round), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre());
  EXPECT_FALSE(round->arrived());
  EXPECT_EQ(*exchange.RunTurn(*round), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 5"));
  EXPECT_TRUE(round->arrived());
}

TEST(ExchangeRound, LayersThatHadBegunBeginAgain) {
  Noted exchange;
  const auto round = NewRound();
  round->SetJudged(true);
  round->Allow(2);
  exchange.fails = "finish 1";
  EXPECT_FALSE(exchange.RunTurn(*round).ok());
  exchange.fails = "";
  round->Restart(0);
  exchange.Calls();
  EXPECT_EQ(*exchange.RunTurn(*round), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "begin 2", "finish 1"));
}

TEST(ExchangeRound, WithNothingToExchangeEveryTurnIsOver) {
  Noted exchange;
  const auto round = NewRound(true);
  round->SetJudged(false);
  EXPECT_FALSE(round->exchanges());
  round->Allow(2);
  for (int turn = 0; turn <= round->last_turn(); ++turn) {
    EXPECT_EQ(*exchange.RunTurn(*round), ExchangeRound::kNoLayer);
    EXPECT_TRUE(round->arrived());
  }
  EXPECT_THAT(exchange.Calls(), ElementsAre());
}

TEST(ExchangeRound, OneThatWasSavedHasArrived) {
  const auto round = ExchangeRound::Arrived(kOrder, 4);
  EXPECT_TRUE(round->arrived() && round->exchanges());
  EXPECT_EQ(round->begun(), 4);
  EXPECT_EQ(round->last_job(), 0u);
  round->SetMerged();
  EXPECT_EQ(round->state(), State::kMerged);
}

TEST(ExchangeRound, ALayerWithoutATurnHasThatOfTheOneBefore) {
  const auto round = NewRound();
  EXPECT_EQ(round->TurnOf(0), -1);
  EXPECT_EQ(round->TurnOf(1), 0);
  EXPECT_EQ(round->TurnOf(4), 1);
  EXPECT_EQ(round->TurnOf(9), 2);
}

}  // namespace
}  // namespace entrain
