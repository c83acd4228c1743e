#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/edit/exchange_round.h"
#include "tests/train/visited.h"

namespace entrain {
namespace {

using testing::ElementsAre;

std::shared_ptr<ExchangeRound> Round(std::vector<int> order, uint64_t steps) {
  return std::make_shared<ExchangeRound>(std::move(order), Standing{.steps = steps}, true,
                                         ExchangeRound::InFlight{.layers = 2});
}

TEST(RoundsBehind, AreTakenInTheOrderInWhichTheyBegan) {
  RoundsBehind behind(4);
  EXPECT_TRUE(behind.empty() && behind.AllArrived());
  behind.Add(Round({1}, 5));
  behind.Add(Round({0}, 6));
  EXPECT_FALSE(behind.AllArrived());
  EXPECT_EQ(behind.first()->begun(), 5);
  behind.RemoveFirst();
  EXPECT_EQ(behind.first()->begun(), 6);
  behind.RemoveFirst();
  EXPECT_TRUE(behind.empty());
}

TEST(RoundsBehind, GoOnAsTheyWereSaved) {
  RoundsBehind saved(4);
  saved.Add(Round({1, 3}, 5));
  saved.Add(Round({0}, 6));
  Visited from;
  saved.VisitState(from);
  saved.Prepare();
  EXPECT_THAT(from.Values("behind/begun"), ElementsAre(6, 5, -1, 5));
  saved.RemoveFirst();
  saved.Prepare();
  EXPECT_THAT(from.Values("behind/begun"), ElementsAre(6, -1, -1, -1));

  RoundsBehind loaded(4);
  Visited to;
  loaded.VisitState(to);
  auto* const begun = static_cast<int64_t*>(to.arrays.at("behind/begun").first);
  begun[0] = 6;
  begun[1] = begun[3] = 5;
  std::vector<int> resumed;
  loaded.GoOn({0, 1, 3}, [&](int layer) { resumed.push_back(layer); });
  EXPECT_THAT(resumed, ElementsAre(0, 1, 3));
  EXPECT_TRUE(loaded.AllArrived());
  EXPECT_EQ(loaded.first()->begun(), 5);
  EXPECT_THAT(loaded.first()->order(), ElementsAre(1, 3));
  loaded.RemoveFirst();
  EXPECT_THAT(loaded.first()->order(), ElementsAre(0));
}

}  // namespace
}  // namespace entrain
