// Many communicators and many calls under way, in any legal order. Every rank draws its own order.
// All random choices come from one seed, so a failure can be repeated.
//
//   stress_test                                  a fixed seed, a few seconds: as CTest runs it
//   stress_test --seed=17 --seconds=3600         longer; tests/stress.sh
//
// All ranks draw the same communicators, and the same rounds of calls on them. Each rank draws its
// own order of starting the calls (untagged calls of one communicator keep their order), its
// batches, its actions meanwhile, the form of waiting, and its pauses. Every element of every
// result is checked.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"
#include "tests/support/trial.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;

uint32_t base_seed = 20261121;
double seconds_each = 1.5;  // for each test in this file

constexpr CallKind kKinds[] = {
    CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather, CallKind::kBroadcast,
    CallKind::kReduce,    CallKind::kGather,        CallKind::kScatter,   CallKind::kAllToAll,
    CallKind::kScan,      CallKind::kExclusiveScan, CallKind::kBarrier,   CallKind::kSend};

// A call as drawn, equal on all ranks of its communicator.
struct Draft {
  size_t comm = 0;
  int64_t user_tag = -1;  // unique in the round, or none
  TrialSpec trial;
};

class Rank {
 public:
  Rank(const Comm& world, uint32_t seed)
      : world_(world), common_(seed), own_(seed * 31 + static_cast<uint32_t>(world->rank())) {}

  // Runs one rank's part. All ranks agree on when it ends.
  void Run(double seconds) {
    ASSERT_NO_FATAL_FAILURE(Divide());
    const Deadline end = Deadline::After(static_cast<int64_t>(seconds * 1e9));
    for (uint32_t round = 0;; ++round) {
      ASSERT_NO_FATAL_FAILURE(Round()) << "in round " << round;
      int64_t over = end.Passed(Clock::Real().Now()) ? 1 : 0, any = 0;
      ASSERT_EQ(world_->AllReduce(&over, &any, 1, DType::kI64, ReduceOp::kMax), absl::OkStatus());
      if (any != 0) {
        return;
      }
    }
  }
  int64_t calls() const { return calls_; }

 private:
  // Makes the communicators: the world, its duplicate, halves, and pairs of neighbours in reversed
  // order.
  void Divide() {
    comms_.push_back(world_);
    for (const auto& [color, key] : std::vector<std::pair<int, int>>{
             {0, 0}, {world_->rank() % 2, 0}, {world_->rank() / 2, -world_->rank()}}) {
      auto part = world_->Split(color, key);
      ASSERT_TRUE(part.ok()) << part.status();
      comms_.push_back(*part);
    }
  }

  uint32_t Common(uint32_t below) { return static_cast<uint32_t>(common_()) % below; }
  uint32_t Own(uint32_t below) { return static_cast<uint32_t>(own_()) % below; }

  void Round() {
    std::vector<Draft> drafts(1 + Common(24));
    for (size_t i = 0; i < drafts.size(); ++i) {
      Draft& draft = drafts[i];
      draft.comm = Common(static_cast<uint32_t>(comms_.size()));
      draft.user_tag = Common(3) == 0 ? static_cast<int64_t>(i) : -1;
      draft.trial.kind = kKinds[Common(std::size(kKinds))];
      draft.trial.count = Common(8) == 0 ? Common(60000) : Common(300);
      draft.trial.root = static_cast<int>(Common(64)) % comms_[draft.comm]->size();
      draft.trial.in_place = Common(2) == 0;
      draft.trial.uneven = Common(3) == 0;
      draft.trial.number = next_number_++;
    }
    calls_ += static_cast<int64_t>(drafts.size());
    Common(3) == 0 ? InOrder(drafts) : AllAtOnce(drafts);
  }

  Trial TrialOf(const Draft& draft) {
    const Comm& comm = comms_[draft.comm];
    Trial trial(draft.trial, comm->rank(), comm->size());
    trial.call.options.user_tag = draft.user_tag;
    return trial;
  }

  void Dawdle() {
    if (Own(40) == 0) {  // ranks come at different times
      std::this_thread::sleep_for(std::chrono::microseconds(Own(900)));
    }
  }

  // Runs blocking calls in the order of the drafts.
  void InOrder(const std::vector<Draft>& drafts) {
    for (const Draft& draft : drafts) {
      Dawdle();
      Trial trial = TrialOf(draft);
      if (!trial.takes_part()) {
        continue;
      }
      trial.call.options.background = Own(20) == 0;
      ASSERT_EQ(comms_[draft.comm]->Run(trial.call), absl::OkStatus());
      ASSERT_NO_FATAL_FAILURE(trial.Check());
    }
  }

  // Starts all calls before it waits for one.
  void AllAtOnce(const std::vector<Draft>& drafts) {
    std::vector<std::unique_ptr<Trial>> trials;
    for (const Draft& draft : drafts) {
      trials.push_back(std::make_unique<Trial>(TrialOf(draft)));
    }
    std::vector<RefPtr<Work>> works;
    std::atomic<int> told{0};
    int to_tell = 0;
    for (const std::vector<size_t>& together : OwnOrder(drafts, trials)) {
      Dawdle();
      RefPtr<Work> work;
      if (together.size() == 1) {
        auto started = comms_[drafts[together[0]].comm]->Start(trials[together[0]]->call);
        ASSERT_TRUE(started.ok()) << started.status();
        work = *std::move(started);
      } else {
        std::vector<Call> calls;
        for (const size_t i : together) {
          calls.push_back(trials[i]->call);
        }
        work = comms_[drafts[together[0]].comm]->StartAll(calls);
      }
      if (Own(3) == 0) {
        ++to_tell;
        work->Then([&told](const absl::Status& status) { told += status.ok() ? 1 : 1000000; });
      }
      works.push_back(std::move(work));
      if (Own(4) == 0) {
        works[Own(static_cast<uint32_t>(works.size()))]->Test();
      }
    }
    std::shuffle(works.begin(), works.end(), own_);
    for (const RefPtr<Work>& work : works) {
      Dawdle();
      while (Own(3) == 0 && !work->Test()) {
      }
      ASSERT_TRUE(work->Wait(Deadline::After(60 * kSecond), Own(4) == 0));
      ASSERT_EQ(work->status(), absl::OkStatus());
    }
    // A continuation runs after the work is done, on the thread that finished it.
    const Deadline soon = Deadline::After(10 * kSecond);
    while (told.load() != to_tell && !soon.Passed(Clock::Real().Now())) {
      std::this_thread::yield();
    }
    ASSERT_EQ(told.load(), to_tell);
    for (const auto& trial : trials) {
      if (trial->takes_part()) {
        ASSERT_NO_FATAL_FAILURE(trial->Check());
      }
    }
  }

  // Draws a random merge. Untagged calls of one communicator keep their order. Neighbours of one
  // communicator sometimes form a batch.
  std::vector<std::vector<size_t>> OwnOrder(const std::vector<Draft>& drafts,
                                            const std::vector<std::unique_ptr<Trial>>& trials) {
    std::vector<std::vector<size_t>> lines(comms_.size());
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (!trials[i]->takes_part()) {
        continue;
      }
      if (drafts[i].user_tag >= 0) {
        lines.push_back({i});
      } else {
        lines[drafts[i].comm].push_back(i);
      }
    }
    for (auto& line : lines) {
      std::reverse(line.begin(), line.end());
    }
    std::vector<std::vector<size_t>> order;
    while (true) {
      std::erase_if(lines, [](const auto& line) { return line.empty(); });
      if (lines.empty()) {
        return order;
      }
      auto& line = lines[Own(static_cast<uint32_t>(lines.size()))];
      const size_t i = line.back();
      line.pop_back();
      if (!order.empty() && drafts[order.back()[0]].comm == drafts[i].comm && Own(2) == 0) {
        order.back().push_back(i);
      } else {
        order.push_back({i});
      }
    }
  }

  const Comm world_;
  std::mt19937 common_, own_;
  std::vector<Comm> comms_;
  uint32_t next_number_ = 0;
  int64_t calls_ = 0;
};

struct Setting {
  const char* name;
  int ranks;
  const char* transports;
  int hosts;
  bool own_thread;
};

class Stress : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Over, Stress,
                         testing::Values(Setting{"inproc5", 5, "inproc", 1, true},
                                         Setting{"shm2", 2, "shm", 1, true},
                                         Setting{"shm4", 4, "shm", 1, true},
                                         Setting{"tcp3", 3, "tcp", 1, true},
                                         Setting{"hosts6", 6, "shm,tcp", 2, true},
                                         Setting{"noThread4", 4, "shm", 1, false}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(Stress, EverythingInAnyOrder) {
  const Setting setting = GetParam();
  RanksOptions options;
  options.transports = setting.transports;
  options.own_thread = setting.own_thread;
  options.timeout_ns = 60 * kSecond;
  if (setting.hosts > 1) {
    options.host_id = [&](int rank) { return absl::StrCat("host", rank % setting.hosts); };
  }
  std::atomic<int64_t> calls{0};
  RunRanks(setting.ranks, options, [&](const Comm& comm) {
    Rank rank(comm, base_seed);
    rank.Run(seconds_each);
    calls += rank.calls();
  });
  RecordProperty("calls", std::to_string(calls.load()));
  std::cout << "seed " << base_seed << ": " << calls.load() << " calls of all ranks together\n";
  EXPECT_GT(calls.load(), 0);
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool good =
        absl::ConsumePrefix(&arg, "--seed=") ? absl::SimpleAtoi(arg, &entrain::base_seed)
        : absl::ConsumePrefix(&arg, "--seconds=")
            ? absl::SimpleAtod(arg, &entrain::seconds_each) && entrain::seconds_each > 0
            : false;
    if (!good) {
      std::cerr << "stress_test: \"" << argv[i] << "\" is not --seed=NUMBER or --seconds=SECONDS\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
