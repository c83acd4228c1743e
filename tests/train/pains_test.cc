// Repeats with EDiT the problems that users of other libraries for elastic training have reported.
// Two more cases are in other files: a replacement that takes minutes to join (Join.IsSoonOver
// measures the time), and a replica of which one rank is lost (Loss.OfARankOfAReplicaOfTwo).
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/store/store.h"
#include "tests/support/passing_store.h"
#include "tests/train/joining.h"
#include "tests/train/rounds.h"

namespace entrain::joining {
namespace {

using testing::HasSubstr;

// Three fragments with intervals of their own: up to three exchanges are under way behind further
// steps.
EditOptions Fragmented() {
  EditOptions options = Open(Averaging());
  options.outer_momentum = 0.9;
  options.local_sgd_sync_interval = 1;
  options.fragments = 3;
  options.fragment_intervals = {2, 3, 4};
  options.fragment_offsets = {0, 1, 1};
  options.overlap_steps = 2;
  options.overlap_merge = OverlapMerge::kMix;
  return options;
}

// When the replica is lost, the others are at exchanges of different fragments, because their steps
// take different times. The newcomer comes between two of them.
TEST(Pains, FragmentsInDifferentOrdersDoNotDeadlockARecovery) {
  for (int64_t lost_after = 2; lost_after < 5; ++lost_after) {
    SCOPED_TRACE(absl::StrCat("lost after exchange ", lost_after));
    SharedMemory shared;
    Job job;
    job.transports = lost_after == 3 ? "tcp" : "shm";
    job.options = job.options_of_newcomers = Fragmented();
    job.step_us = [](int process) { return 200 + 400 * process; };
    job.leaves = true;
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 1 && seen == lost_after) {
        Die(shared);
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 2, 3});
    EXPECT_EQ(shared[3].replica, 1);
  }
}

// Replicas cannot have different orders of fragments in the first place.
TEST(Pains, FragmentOrdersThatDifferAreRefused) {
  RunReplicas({1, 2}, FourLayers(), [](Replica& r) {
    EditOptions options = Fragmented();
    std::swap(options.fragment_offsets[0], options.fragment_offsets[r.replica() == 1 ? 2 : 0]);
    const absl::Status status = LayerSync::Create(r.mesh(), r.shared_shards(), options).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("fragment_offsets[0]: 0 on rank 0, 1 on rank 1 of the sync group"));
  });
}

// No timer runs between exchanges, so the time between them changes no membership: it is longer here
// than the time limit of every call, as 40 minutes of steps would be. Afterwards the halves of the
// job, on two hosts, are late in turn.
TEST(Pains, LongStepsDoNotMakeMembershipFlipBetweenHalves) {
  SharedMemory shared;
  Job job;
  job.transports = "tcp";
  job.members = job.ends = 4;
  job.newcomers = 0;
  job.expected = {0, 1, 2, 3};
  job.rounds_after = 6;
  job.options.timeout_ns = 2 * kSecond;
  job.host = [](int process) { return absl::StrCat("host ", process / 2); };
  job.at = [](int process, int64_t seen) {
    if (seen == 1) {
      usleep(2'500'000);  // a long step: no call is under way
    } else if (process / 2 == seen % 2) {
      usleep(100'000);  // this half is late
    }
  };
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 2, 3});
  ExpectReference(job, shared, 0);
  for (int process = 0; process < job.members; ++process) {
    EXPECT_EQ(shared[process].losses, 0);
    EXPECT_EQ(shared[process].joins, 0);
    EXPECT_EQ(shared[process].rounds, job.rounds_after);
  }
}

// Counts the requests to a store.
class CountingStore final : public PassingStore {
 public:
  CountingStore(std::shared_ptr<Store> base, std::atomic<int>* requests)
      : PassingStore(std::move(base)), requests_(*requests) {}
  absl::StatusOr<std::string> Get(absl::string_view key, const Stop& stop) override {
    ++requests_;
    return PassingStore::Get(key, stop);
  }
  absl::StatusOr<std::string> TryGet(absl::string_view key, const Stop& stop) override {
    ++requests_;
    return PassingStore::TryGet(key, stop);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, const Stop& stop) override {
    ++requests_;
    return PassingStore::Add(key, delta, stop);
  }
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, const Stop& stop) override {
    ++requests_;
    return PassingStore::CompareAndSet(key, expected, desired, stop);
  }

 private:
  std::atomic<int>& requests_;
};

// A forward pass without a due exchange sends no message. One rank asks the store, once for each
// exchange.
TEST(Pains, NobodyIsAskedAtAForwardAtWhichNoExchangeIsDue) {
  constexpr int kSteps = 64, kExchanges = 4;
  const auto store = *OpenStore("mem:pains", "", {Deadline::After(kSecond)});
  std::vector<std::atomic<int>> requests(3);
  RunReplicas({1, 3}, FourLayers(), [&](Replica& r) {
    std::atomic<int>& asked = requests[static_cast<size_t>(r.replica())];
    EditOptions options = Open(Weighed());
    options.local_sgd_sync_interval = kSteps / kExchanges;
    options.most_replicas = 4;
    options.admit_store = [&](const Stop&) {
      return std::make_shared<CountingStore>(store, &asked);
    };
    r.Edit(options);
    int exchanges = 0;
    for (int step = 0; step <= kSteps; ++step) {
      const int asked_before = asked;
      const uint64_t sent_before = r.edit().info().bytes_sent_sync;
      if (r.Forward()) {
        ++exchanges;
        EXPECT_GT(r.edit().info().bytes_sent_sync, sent_before);
        EXPECT_LE(asked - asked_before, 2);
      } else {
        EXPECT_EQ(r.edit().info().bytes_sent_sync, sent_before) << "step " << step;
        EXPECT_EQ(asked, asked_before) << "step " << step;
      }
      r.EndStep();
    }
    EXPECT_EQ(exchanges, kExchanges);
  });
  EXPECT_GE(requests[0], kExchanges);
  EXPECT_EQ(requests[1] + requests[2], 0);
}

// Each replica has its ranks on two hosts. One of them is lost with one rank, and the other rank of
// the replica leaves in order. A replica of two ranks takes its place.
TEST(Pains, AReplicaOfSeveralHostsIsReplacedWhole) {
  SharedMemory shared;
  Job job;
  job.transports = "tcp";
  job.shards = 2;
  job.ends = 6;
  job.host = [](int process) { return absl::StrCat("host ", process); };
  job.comes_after = [](int) { return 1; };
  job.at = [&](int process, int64_t seen) {
    if (process == 2 && seen == 2) {
      Die(shared);
    }
  };
  const std::vector<int> ends = RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 4, 5, 6, 7});
  EXPECT_EQ(shared[6].replica, 1);
  EXPECT_EQ(ends[3], 0);
  EXPECT_THAT(shared[3].error, HasSubstr("replica 1 has left"));
}

}  // namespace
}  // namespace entrain::joining
