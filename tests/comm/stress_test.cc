// Many communicators, many calls under way, in a random order that every rank chooses for itself:
// whatever is legal. Everything is drawn from one seed, so a failure can be repeated.
//
//   stress_test                                  a fixed seed, a few seconds: as CTest runs it
//   stress_test --seed=17 --seconds=3600         longer; tests/stress.sh
//
// What every rank draws alike: the communicators, and rounds of calls on them. What each draws by
// itself: which of the calls it starts first (those without a tag, of one communicator, keep their
// order), which as a batch, what it does meanwhile, how it learns that they are done, and when it
// sleeps. Every element of every result is checked.
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

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;

uint32_t base_seed = 20261121;
double seconds_each = 1.5;  // of every test here

constexpr CallKind kKinds[] = {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
                               CallKind::kBroadcast, CallKind::kReduce,        CallKind::kGather,
                               CallKind::kScatter,   CallKind::kAllToAll,      CallKind::kScan,
                               CallKind::kBarrier};

int64_t Value(uint32_t job, int rank, int64_t i) {
  return (static_cast<int64_t>(job) * 131 + rank * 17 + i) % 1009 - 300;
}

// One call as drawn: the same on all ranks of its communicator.
struct Draft {
  size_t comm = 0;
  CallKind kind = CallKind::kBarrier;
  int64_t count = 0;
  uint32_t root = 0;      // modulo the size
  int64_t user_tag = -1;  // of its own in the round, or none
  bool in_place = false;
  uint32_t number = 0;
};

// The same with buffers, on one rank.
class Job {
 public:
  Job(const Comm& comm, const Draft& draft)
      : draft_(draft), rank_(comm->rank()), size_(comm->size()) {
    call.kind = draft.kind;
    call.dtype = DType::kI64;
    call.reduction.op = draft.number % 3 == 0 ? ReduceOp::kMax : ReduceOp::kSum;
    call.root =
        HasRoot(draft.kind) ? static_cast<int>(draft.root % static_cast<uint32_t>(size_)) : 0;
    call.count = draft.kind == CallKind::kBarrier ? 0 : draft.count;
    call.options.user_tag = draft.user_tag;
    const bool at_root = rank_ == call.root;
    int64_t in_parts = 1, out_parts = 1;
    switch (draft.kind) {
      case CallKind::kReduceScatter:
        in_parts = size_;
        break;
      case CallKind::kAllToAll:
        in_parts = out_parts = size_;
        break;
      case CallKind::kAllGather:
        out_parts = size_;
        break;
      case CallKind::kGather:
        out_parts = at_root ? size_ : 0;
        break;
      case CallKind::kScatter:
        in_parts = at_root ? size_ : 0;
        break;
      case CallKind::kReduce:
        out_parts = at_root ? 1 : 0;
        break;
      default:
        break;
    }
    in_.resize(static_cast<size_t>(in_parts * call.count));
    for (size_t i = 0; i < in_.size(); ++i) {
      in_[i] = Value(draft.number, rank_, static_cast<int64_t>(i));
    }
    out_.assign(static_cast<size_t>(out_parts * call.count), -7777);
    if (draft.kind == CallKind::kBroadcast) {
      if (at_root) {
        out_ = in_;
      }
      call.in = call.out = View(out_);
    } else if (draft.in_place && in_parts == out_parts) {
      out_ = in_;
      call.in = call.out = View(out_);
    } else {
      call.in = View(in_);
      call.out = View(out_);
    }
  }

  void Check() const {
    for (size_t at = 0; at < out_.size(); ++at) {
      ASSERT_EQ(out_[at], Want(static_cast<int64_t>(at)))
          << NameOf(draft_.kind) << " " << draft_.number << " of " << call.count << ", rank "
          << rank_ << " of " << size_ << ", element " << at;
    }
  }

  Call call;

 private:
  static BufferView View(std::vector<int64_t>& data) {
    return {data.data(), static_cast<int64_t>(data.size() * sizeof(int64_t)), MemoryKind::kHost};
  }
  int64_t Combined(int ranks, int64_t i) const {
    int64_t result = Value(draft_.number, 0, i);
    for (int r = 1; r < ranks; ++r) {
      const int64_t value = Value(draft_.number, r, i);
      result = call.reduction.op == ReduceOp::kMax ? std::max(result, value) : result + value;
    }
    return result;
  }
  int64_t Want(int64_t at) const {
    const int64_t count = call.count;
    switch (draft_.kind) {
      case CallKind::kAllReduce:
      case CallKind::kReduce:
        return Combined(size_, at);
      case CallKind::kReduceScatter:
        return Combined(size_, rank_ * count + at);
      case CallKind::kScan:
        return Combined(rank_ + 1, at);
      case CallKind::kBroadcast:
        return Value(draft_.number, call.root, at);
      case CallKind::kScatter:
        return Value(draft_.number, call.root, rank_ * count + at);
      case CallKind::kAllToAll:
        return Value(draft_.number, static_cast<int>(at / count), rank_ * count + at % count);
      default:  // kAllGather, kGather
        return Value(draft_.number, static_cast<int>(at / count), at % count);
    }
  }

  const Draft draft_;
  const int rank_, size_;
  std::vector<int64_t> in_, out_;
};

class Rank {
 public:
  Rank(const Comm& world, uint32_t seed)
      : world_(world), common_(seed), own_(seed * 31 + static_cast<uint32_t>(world->rank())) {}

  // One rank's part; all ranks agree on when it ends.
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
  // World, its duplicate, halves, pairs of neighbours with the order turned round.
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
      draft.kind = kKinds[Common(std::size(kKinds))];
      draft.count = Common(8) == 0 ? Common(60000) : Common(300);
      draft.root = Common(64);
      draft.user_tag = Common(3) == 0 ? static_cast<int64_t>(i) : -1;
      draft.in_place = Common(2) == 0;
      draft.number = next_number_++;
    }
    calls_ += static_cast<int64_t>(drafts.size());
    Common(3) == 0 ? InOrder(drafts) : AllAtOnce(drafts);
  }

  void Dawdle() {
    if (Own(40) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(Own(900)));
    }
  }

  // Blocking, in the order of the drafts.
  void InOrder(const std::vector<Draft>& drafts) {
    for (const Draft& draft : drafts) {
      Dawdle();
      Job job(comms_[draft.comm], draft);
      job.call.options.background = Own(20) == 0;
      ASSERT_EQ(comms_[draft.comm]->Run(job.call), absl::OkStatus());
      ASSERT_NO_FATAL_FAILURE(job.Check());
    }
  }

  // All started before any is waited for.
  void AllAtOnce(const std::vector<Draft>& drafts) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (const Draft& draft : drafts) {
      jobs.push_back(std::make_unique<Job>(comms_[draft.comm], draft));
    }
    std::vector<RefPtr<Work>> works;
    std::atomic<int> told{0};
    int to_tell = 0;
    for (const std::vector<size_t>& together : OwnOrder(drafts)) {
      Dawdle();
      RefPtr<Work> work;
      if (together.size() == 1) {
        auto started = comms_[drafts[together[0]].comm]->Start(jobs[together[0]]->call);
        ASSERT_TRUE(started.ok()) << started.status();
        work = *std::move(started);
      } else {
        std::vector<Call> calls;
        for (const size_t i : together) {
          calls.push_back(jobs[i]->call);
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
    // A continuation runs after the work is done, on the thread that did it.
    const Deadline soon = Deadline::After(10 * kSecond);
    while (told.load() != to_tell && !soon.Passed(Clock::Real().Now())) {
      std::this_thread::yield();
    }
    ASSERT_EQ(told.load(), to_tell);
    for (const auto& job : jobs) {
      ASSERT_NO_FATAL_FAILURE(job->Check());
    }
  }

  // A random merge: untagged calls of one communicator in their order, neighbours of one
  // communicator sometimes together as a batch.
  std::vector<std::vector<size_t>> OwnOrder(const std::vector<Draft>& drafts) {
    std::vector<std::vector<size_t>> lines(comms_.size());
    for (size_t i = 0; i < drafts.size(); ++i) {
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
