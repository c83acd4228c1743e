// Rounds over an exchange that only records its calls.
#include "lib/train/exchange_round.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using State = ExchangeRound::State;
using testing::ElementsAre;

class NotedExchange final : public LayerExchange {
 public:
  absl::StatusOr<bool> Judge(const std::vector<int>& layers, Standing mine,
                             int64_t extra_ns) override {
    Note(absl::StrCat("judge at ", mine.steps, " within ", extra_ns), layers);
    return fails == "judge" ? absl::StatusOr<bool>(absl::DataLossError("apart")) : exchanges;
  }
  int64_t DeltaBytes(int layer) const override { return 100 * layer; }
  absl::Status Begin(int layer) override { return Take(absl::StrCat("begin ", layer)); }
  absl::Status Finish(int layer) override { return Take(absl::StrCat("finish ", layer)); }
  void UseSnapshot(const std::vector<int>& layers) override { Note("snapshot", layers); }
  void Merge(const std::vector<int>& layers) override { Note("merge", layers); }
  void DropSnapshot(const std::vector<int>& layers) override { Note("drop", layers); }

  // Returns the calls since the last query.
  std::vector<std::string> Calls() { return std::exchange(calls_, {}); }

  bool exchanges = true;
  std::string fails;  // the call that fails

 private:
  void Note(const std::string& what, const std::vector<int>& layers) {
    calls_.push_back(absl::StrCat(what, ": ", absl::StrJoin(layers, " ")));
  }
  absl::Status Take(const std::string& call) {
    calls_.push_back(call);
    return call == fails ? absl::InternalError("no way") : absl::OkStatus();
  }
  std::vector<std::string> calls_;
};

const std::vector<int> kOrder = {1, 2, 5};

std::unique_ptr<ExchangeRound> NewRound(bool behind = false,
                                        ExchangeRound::InFlight in_flight = {.layers = 2}) {
  return std::make_unique<ExchangeRound>(kOrder, Standing{.steps = 7}, behind, in_flight);
}

TEST(ExchangeRound, RunsItsTurnsInOrderWithTheNextLayerAhead) {
  NotedExchange exchange;
  const auto round = NewRound();
  EXPECT_EQ(round->begun(), 7);
  EXPECT_EQ(round->state(), State::kBegun);
  ASSERT_EQ(round->Judge(exchange, 3), absl::OkStatus());
  EXPECT_THAT(exchange.Calls(), ElementsAre("judge at 7 within 3: 1 2 5"));
  EXPECT_EQ(round->state(), State::kJudged);
  EXPECT_TRUE(round->exchanges());
  round->Allow(round->last_turn());
  EXPECT_EQ(*round->RunTurn(exchange), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "begin 2", "finish 1"));
  EXPECT_EQ(round->state(), State::kUnderWay);
  EXPECT_EQ(*round->RunTurn(exchange), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 2"));
  EXPECT_FALSE(round->arrived());
  EXPECT_EQ(*round->RunTurn(exchange), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("finish 5"));
  EXPECT_TRUE(round->arrived());
}

TEST(ExchangeRound, ALayerBeginsNoSoonerThanItsTurnIsAllowed) {
  NotedExchange exchange;
  const auto round = NewRound();
  ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
  exchange.Calls();
  EXPECT_EQ(round->allowed(), -1);
  round->Allow(0);
  EXPECT_EQ(*round->RunTurn(exchange), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "finish 1"));
  round->Allow(1);
  round->Allow(0);  // the number cannot decrease
  EXPECT_EQ(*round->RunTurn(exchange), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 2", "finish 2"));
  round->Allow(100);
  EXPECT_EQ(round->allowed(), 2);
  EXPECT_EQ(*round->RunTurn(exchange), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 5"));
}

TEST(ExchangeRound, OneInFlightIsFinishedBeforeTheNextBegins) {
  NotedExchange exchange;
  const auto round = NewRound(false, {.layers = 1});
  ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
  exchange.Calls();
  round->Allow(2);
  while (!round->arrived()) {
    ASSERT_TRUE(round->RunTurn(exchange).ok());
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
    NotedExchange exchange;
    const auto round = NewRound(false, one.in_flight);
    ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
    exchange.Calls();
    round->Allow(0);
    EXPECT_EQ(*round->RunTurn(exchange), 1);
    std::vector<std::string> expected = one.first;
    expected.push_back("finish 1");
    EXPECT_EQ(exchange.Calls(), expected);
    round->Allow(2);
    while (!round->arrived()) {
      ASSERT_TRUE(round->RunTurn(exchange).ok());
    }
    EXPECT_EQ(exchange.Calls().back(), "finish 5");
  }
}

TEST(ExchangeRound, AFailureNamesItsLayerAndArrivesNowhere) {
  for (const std::string call : {"begin 2", "finish 2"}) {
    NotedExchange exchange;
    exchange.fails = call;
    const auto round = NewRound(false, {.layers = 1});
    ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
    round->Allow(2);
    ASSERT_TRUE(round->RunTurn(exchange).ok());
    EXPECT_EQ(round->RunTurn(exchange).status(), absl::InternalError("layer 2: no way")) << call;
    EXPECT_EQ(round->state(), State::kUnderWay) << call;
  }
  NotedExchange exchange;
  exchange.fails = "judge";
  const auto round = NewRound();
  EXPECT_EQ(round->Judge(exchange, 0), absl::DataLossError("apart"));
  EXPECT_EQ(round->state(), State::kBegun);
}

TEST(ExchangeRound, AfterALossItGoesOnWhereTheOthersAre) {
  NotedExchange exchange;
  const auto round = NewRound();
  EXPECT_EQ(round->finished(), -1);
  round->SetJudged(true);
  round->Allow(2);
  exchange.fails = "finish 1";
  EXPECT_FALSE(round->RunTurn(exchange).ok());
  EXPECT_EQ(round->finished(), 0);
  round->Restart(2);  // others had finished two layers, and sent them
  exchange.Calls();
  EXPECT_EQ(*round->RunTurn(exchange), 1);
  EXPECT_EQ(*round->RunTurn(exchange), 2);
  EXPECT_THAT(exchange.Calls(), ElementsAre());
  EXPECT_FALSE(round->arrived());
  EXPECT_EQ(*round->RunTurn(exchange), 5);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 5", "finish 5"));
  EXPECT_TRUE(round->arrived());
}

TEST(ExchangeRound, LayersThatHadBegunBeginAgain) {
  NotedExchange exchange;
  const auto round = NewRound();
  round->SetJudged(true);
  round->Allow(2);
  exchange.fails = "finish 1";
  EXPECT_FALSE(round->RunTurn(exchange).ok());
  exchange.fails = "";
  round->Restart(0);
  exchange.Calls();
  EXPECT_EQ(*round->RunTurn(exchange), 1);
  EXPECT_THAT(exchange.Calls(), ElementsAre("begin 1", "begin 2", "finish 1"));
}

TEST(ExchangeRound, BehindFurtherStepsItExchangesTheSnapshotAndMerges) {
  NotedExchange exchange;
  const auto round = NewRound(true);
  ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
  EXPECT_THAT(exchange.Calls(), ElementsAre("snapshot: 1 2 5", "judge at 7 within 0: 1 2 5"));
  round->Allow(2);
  while (!round->arrived()) {
    ASSERT_TRUE(round->RunTurn(exchange).ok());
  }
  exchange.Calls();
  round->Merge(exchange);
  EXPECT_THAT(exchange.Calls(), ElementsAre("merge: 1 2 5"));
  EXPECT_EQ(round->state(), State::kMerged);
}

TEST(ExchangeRound, WithNothingToExchangeEveryTurnIsOverAndTheSnapshotIsDropped) {
  NotedExchange exchange;
  exchange.exchanges = false;
  const auto round = NewRound(true);
  ASSERT_EQ(round->Judge(exchange, 0), absl::OkStatus());
  EXPECT_FALSE(round->exchanges());
  exchange.Calls();
  round->Allow(2);
  for (int turn = 0; turn <= round->last_turn(); ++turn) {
    EXPECT_EQ(*round->RunTurn(exchange), ExchangeRound::kNoLayer);
    EXPECT_TRUE(round->arrived());
  }
  EXPECT_THAT(exchange.Calls(), ElementsAre());
  round->Merge(exchange);
  EXPECT_THAT(exchange.Calls(), ElementsAre("drop: 1 2 5"));
}

TEST(ExchangeRound, OneThatWasSavedHasArrived) {
  NotedExchange exchange;
  const auto round = ExchangeRound::Arrived(kOrder, 4);
  EXPECT_TRUE(round->arrived() && round->exchanges());
  EXPECT_EQ(round->begun(), 4);
  EXPECT_EQ(round->last_job(), 0u);
  round->Merge(exchange);
  EXPECT_THAT(exchange.Calls(), ElementsAre("merge: 1 2 5"));
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
