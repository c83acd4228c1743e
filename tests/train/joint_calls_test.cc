// Calls that all replicas make together: who lacks an outcome, and gets it.
#include "lib/train/state/joint_calls.h"

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"

namespace entrain {
namespace {

constexpr int64_t kRound = 5;

// Makes a call that only this rank knows of. It ends with `status`, or has lost a rank.
JointCalls::Outcome Make(JointCalls& calls, const std::string& result, const absl::Status& status,
                         const std::function<absl::Status()>& recovery = {}) {
  bool recovered = false;
  const auto everybody = [] { return AllRanks(nullptr, nullptr, 0); };
  const auto attempt = [&](AllRanks& all, std::string* made) -> absl::Status {
    *made = result;
    return recovery && !recovered ? all.GiveUp(absl::UnavailableError("a rank is lost")) : status;
  };
  const auto lost = [&]() -> absl::Status {
    return recovered ? absl::OkStatus() : absl::UnavailableError("a rank is lost");
  };
  const auto recover = [&] {
    recovered = true;
    return recovery();
  };
  return calls.Make(kRound, {everybody, attempt, lost, recover});
}

TEST(JointCalls, GiveTheLastOutcomeToRanksThatLackIt) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    JointCalls calls;
    Make(calls, "first", absl::OkStatus());
    const absl::Status full = absl::ResourceExhaustedError("the disk is full");
    const auto settle = [&] { return calls.Settle(*comm, kRound, 0); };
    if (comm->rank() == 1) {  // it has the outcome, and takes part in the recovery later
      EXPECT_EQ(Make(calls, "second of 1", full).status, full);
      EXPECT_EQ(settle(), absl::OkStatus());
    } else {
      const JointCalls::Outcome outcome = Make(calls, "mine", absl::OkStatus(), settle);
      EXPECT_EQ(outcome.status, full);
      EXPECT_EQ(outcome.result, "second of 1");
      EXPECT_FALSE(outcome.broken);
    }
  });
}

TEST(JointCalls, AreRepeatedIfNobodyHasTheOutcome) {
  RunRanks(3, [](const std::shared_ptr<Communicator>& comm) {
    JointCalls calls;
    const auto settle = [&] { return calls.Settle(*comm, kRound, 0); };
    const JointCalls::Outcome outcome = Make(calls, "again", absl::OkStatus(), settle);
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.result, "again");
  });
}

// A newcomer has made none of the calls behind which it was admitted, in this round or another.
TEST(JointCalls, ANewcomerLacksNothing) {
  for (const int64_t its_round : {kRound, kRound + 1, kRound - 1}) {
    RunRanks(3, [its_round](const std::shared_ptr<Communicator>& comm) {
      JointCalls calls;
      for (int i = 0; i < 3 && comm->rank() != 2; ++i) {
        Make(calls, "", absl::OkStatus());
      }
      EXPECT_EQ(calls.Settle(*comm, comm->rank() == 2 ? its_round : kRound, 0), absl::OkStatus());
    });
  }
}

TEST(JointCalls, RefusesRanksThatDifferByTwoCalls) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    JointCalls calls;
    for (int i = 0; i < (comm->rank() == 0 ? 3 : 1); ++i) {
      Make(calls, "", absl::OkStatus());
    }
    EXPECT_EQ(calls.Settle(*comm, kRound, 0),
              absl::DataLossError("after a loss rank 1 has made 1 calls since round 5, and rank 0 "
                                  "has made 3"));
  });
}

}  // namespace
}  // namespace entrain
