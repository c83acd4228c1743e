// Replicas join others that train (option admit).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/train/joining.h"

namespace entrain::joining {
namespace {

using testing::HasSubstr;

// A replica is killed, and another one takes its place. All have the same bits, and the result is
// that of a reference with the replicas that took part in each exchange. Over tcp the weight of the
// newcomer grows.
TEST(Join, AReplacement) {
  for (const char* transports : {"shm", "tcp"}) {
    SCOPED_TRACE(transports);
    SharedMemory shared;
    Job job;
    job.transports = transports;
    job.options.newcomer_warmup = job.options_of_newcomers.newcomer_warmup =
        transports == std::string("tcp") ? 2 : 0;
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 1 && seen == 2) {
        Die(shared);
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    EXPECT_TRUE(WIFSIGNALED(ends[1]));
    ExpectAlike(job, shared, {0, 2, 3});
    ExpectReference(job, shared, 0);
    EXPECT_EQ(shared[3].replica, 1) << "the number of the replica that was lost";
    EXPECT_EQ(shared[0].joins, 1);
    EXPECT_EQ(shared[0].losses, 1);
    EXPECT_EQ(shared[3].losses, 0);
    EXPECT_EQ(shared[3].rounds, shared[0].rounds);
    EXPECT_GT(shared[3].first_round, 2);
  }
}

// Prints the times of docs/lab/elastic.md (--gtest_also_run_disabled_tests).
TEST(Join, DISABLED_IsSoonOver) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const int members : {3, 7}) {
      std::vector<double> taken_in, counted;
      for (int repetition = 0; repetition < 3; ++repetition) {
        SharedMemory shared;
        Job job;
        job.transports = transports;
        job.members = members;
        job.ends = members + 1;
        job.options.most_replicas = job.options_of_newcomers.most_replicas = members + 1;
        job.expected.resize(static_cast<size_t>(members) + 1);
        std::iota(job.expected.begin(), job.expected.end(), 0);
        RunJob(job, shared);
        const Shown& newcomer = shared[members];
        EXPECT_STREQ(newcomer.error, "OK");
        const auto ms = [&](int64_t at) {
          return static_cast<double>(at - newcomer.began_joining_at) / kMillisecond;
        };
        taken_in.push_back(ms(newcomer.joined_at));
        counted.push_back(ms(newcomer.counted_at));
      }
      std::sort(taken_in.begin(), taken_in.end());
      std::sort(counted.begin(), counted.end());
      absl::PrintF(
          "%s, %d members: taken in after %.0f ms, first counted round over after %.0f ms\n",
          transports, members, taken_in[1], counted[1]);
      std::fflush(stdout);  // before the next fork
    }
  }
}

// Two newcomers come at the same time, and the job is larger than it was.
TEST(Join, TwoMoreThanThereWere) {
  SharedMemory shared;
  Job job;
  job.members = 2;
  job.newcomers = 2;
  job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
  job.expected = {0, 1, 2, 3};
  job.ends = 4;
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 2, 3});
  ExpectReference(job, shared, 0);
  EXPECT_EQ(shared[0].losses, 0);
  EXPECT_EQ(shared[2].replica + shared[3].replica, 2 + 3);
}

// The members save after each exchange, also after those at which newcomers have applied.
TEST(Join, WhileTheMembersSave) {
  for (const int shards : {1, 2}) {
    SharedMemory shared;
    const TempDirectory directory;
    Job job;
    job.members = 2;
    job.newcomers = 2;
    job.shards = shards;
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
    job.expected = {0, 1, 2, 3};
    job.ends = 4 * shards;
    job.saves_to = directory.path();
    RunJob(job, shared);
    std::vector<int> all(static_cast<size_t>(job.processes()));
    std::iota(all.begin(), all.end(), 0);
    ExpectAlike(job, shared, all);
    ExpectReference(job, shared, 0);
  }
}

// A replica of two ranks joins as a whole.
TEST(Join, AReplicaOfTwoRanks) {
  SharedMemory shared;
  Job job;
  job.shards = 2;
  job.options.newcomer_warmup = job.options_of_newcomers.newcomer_warmup = 5;
  job.ends = 6;
  job.comes_after = [](int) { return 1; };
  job.at = [&](int process, int64_t seen) {
    if (process == 3 && seen == 2) {
      Die(shared);
    }
  };
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 4, 5, 6, 7});
  ExpectReference(job, shared, 0);
  EXPECT_EQ(shared[6].replica, 1);
  EXPECT_EQ(shared[7].replica, 1);
  EXPECT_THAT(shared[2].error, HasSubstr("replica 1 has left"));
}

// All methods for which a loss is not the end.
TEST(Join, WithOtherMethods) {
  std::vector<NamedOptions> methods = OtherMethods();
  methods.push_back({"judged", Judged()});
  for (const NamedOptions& method : methods) {
    SCOPED_TRACE(method.name);
    SharedMemory shared;
    Job job;
    job.options = job.options_of_newcomers = Open(method.options);
    job.leaves = true;
    job.expected = {0, 1, 3};
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 2 && seen == 2) {
        Die(shared);
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 1, 3});
    EXPECT_EQ(shared[3].replica, 2);
  }
}

TEST(Join, ByTime) {
  SharedMemory shared;
  Job job;
  job.options.use_async = true;
  job.options.local_sgd_sync_interval = 1;
  job.options.local_sgd_sync_time = 5e-3;
  job.options.min_total_global_steps = 1;
  job.options_of_newcomers = job.options;
  job.leaves = true;
  job.comes_after = [](int) { return 1; };
  job.at = [&](int process, int64_t seen) {
    if (process == 1 && seen == 2) {
      Die(shared);
    }
  };
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 2, 3});
  EXPECT_EQ(shared[3].replica, 1);
}

// The workers of late replicas take newcomers in too.
TEST(Join, WhileRoundsAreClosedEarly) {
  for (const Late late : {Late::kDrop, Late::kWeighted}) {
    SharedMemory shared;
    Job job;
    job.options.round_deadline = 0.2;
    job.options.late = late;
    job.options_of_newcomers = job.options;
    job.leaves = true;
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 1 && seen == 2) {
        Die(shared);
      }
      if (process == 2 && seen <= 4) {
        usleep(400'000);  // comes late to the next round
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 2, 3});
    EXPECT_EQ(shared[3].replica, 1);
  }
}

// Kills this process after a random time.
void DieWithin(const SharedMemory& shared, int64_t most_us, uint64_t seed) {
  const auto us = static_cast<int64_t>((Noise(static_cast<int64_t>(seed), 77) + 1) / 2 *
                                       static_cast<float>(most_us));
  After(us, [&shared] { Die(shared); });
}

// At whatever point of its admission a newcomer dies, the others go on, and the next newcomer is
// taken in.
TEST(Join, ANewcomerThatDies) {
  for (int seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.members = 2;
    job.newcomers = 2;
    job.ends = 3;
    job.expected = {0, 1, 3};
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 3;
    job.comes_after = [](int process) { return process == 3 ? 1 : 0; };
    job.at_joining = [&](int process) {
      if (process == 2) {
        DieWithin(shared, 60'000, static_cast<uint64_t>(seed));
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 1, 3});
    if (shared[0].short_rounds == 0) {  // else it has died in the middle of a round
      ExpectReference(job, shared, 0);
    }
    if (HasFailure()) {
      break;
    }
  }
}

// At whatever point of the admission a member dies, the others agree on the members, and the
// newcomer is taken in.
TEST(Join, AMemberThatDiesMeanwhile) {
  for (int seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.members = 3;
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
    const int victim = seed % 3;
    std::vector<int> left = {0, 1, 2, 3};
    left.erase(left.begin() + victim);
    job.expected = left;
    job.at_joining = [&](int) { shared->joining = 1; };
    job.at = [&, dying = false](int process, int64_t) mutable {
      if (process == victim && shared->joining > 0 && !std::exchange(dying, true)) {
        DieWithin(shared, 40'000, static_cast<uint64_t>(seed));
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, left);
    if (shared[left[0]].short_rounds == 0) {  // else some layers have counted it, and others not
      ExpectReference(job, shared, left[0]);
    }
    if (HasFailure()) {
      break;
    }
  }
}

// If options differ, the newcomer's error names them, and the others go on.
TEST(Join, OtherOptionsAreRefused) {
  SharedMemory shared;
  Job job;
  job.members = 2;
  job.newcomers = 2;
  job.expected = {0, 1, 3};
  job.options.most_replicas = job.options_of_newcomers.most_replicas = 3;
  job.tweak = [](int process, EditOptions* options) {
    if (process == 2) {
      options->outer_lr = 0.25;
    }
  };
  job.at_joining = [&](int process) {
    if (process == 3) {
      while (shared[2].error[0] == 0) {
        usleep(1000);
      }
    }
  };
  RunJob(job, shared);
  EXPECT_THAT(shared[2].error, HasSubstr("outer_lr: 0.7 on rank 0, 0.25 on rank 2"));
  ExpectAlike(job, shared, {0, 1, 3});
}

// Fewer ranks than those of a member's replica would wait for others that never come. More ranks
// would be connected again and again. Both would keep newcomers out that fit.
TEST(Join, AnotherNumberOfRanksIsRefused) {
  for (const auto& [of_members, of_newcomers] : {std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(absl::StrCat(of_newcomers, " instead of ", of_members));
    SharedMemory shared;
    Job job;
    job.members = 2;
    job.newcomers = of_members == 1 ? 2 : 1;
    job.shards = of_members;
    job.shards_of_newcomers = of_newcomers;
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
    job.expected = {0, 1};
    job.ends = 2 * of_members;
    const std::vector<int> refused = {job.ends, job.ends + 1};
    job.at = [&](int, int64_t seen) {
      const Deadline give_up = Deadline::After(20 * kSecond);
      while (seen == 2 && (shared[refused[0]].error[0] == 0 || shared[refused[1]].error[0] == 0) &&
             !give_up.Passed(Clock::Real().Now())) {
        usleep(1000);
      }
    };
    RunJob(job, shared);
    for (const int process : refused) {
      EXPECT_THAT(shared[process].error,
                  HasSubstr(absl::StrCat("DATA_LOSS: edit: joining: this replica has ",
                                         of_newcomers, of_newcomers == 1 ? " rank" : " ranks",
                                         ", those of the run have ", of_members)));
    }
    std::vector<int> members(static_cast<size_t>(job.ends));
    std::iota(members.begin(), members.end(), 0);
    ExpectAlike(job, shared, members);
  }
}

TEST(Join, ARunBeginsWithTwoReplicas) {
  ShardConfig layers;
  layers.layer_counts.assign(1, kElements);
  RunReplicas({1, 1}, layers, [](Replica& r) {
    EXPECT_THAT(
        std::string(
            LayerSync::Create(r.mesh(), r.shared_shards(), Job().options).status().message()),
        HasSubstr("admit: 1 (exchange) needs a mesh of at least 2 replicas"));
  });
}

// A newcomer for which there is no room waits, and its error has the reason.
TEST(Join, WithoutRoom) {
  SharedMemory shared;
  Job job;
  job.expected = {0, 1, 2};
  job.rounds_after = 100;
  job.wait_ns = kSecond / 10;
  RunJob(job, shared);
  EXPECT_THAT(shared[3].error, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(shared[3].error, HasSubstr("entrain_comm_grow"));
  ExpectAlike(job, shared, {0, 1, 2});
}

}  // namespace
}  // namespace entrain::joining
