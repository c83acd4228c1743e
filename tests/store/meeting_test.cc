// The contract of meetings of ranks, tested with every store.
#include <csignal>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/store/gathering.h"
#include "lib/store/store.h"
#include "tests/store/store_source.h"

namespace entrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Joined = absl::StatusOr<std::unique_ptr<StoreMeeting>>;

class MeetingContract : public ::testing::TestWithParam<const char*> {
 protected:
  // Joins with a separate handle.
  std::unique_ptr<StoreMeeting> Join(int rank, int size, const absl::StatusOr<Parts>& mine) {
    Joined joined = source_.Open()->Join("meeting", rank, size, mine, Soon());
    EXPECT_TRUE(joined.ok()) << joined.status();
    return *std::move(joined);
  }
  std::unique_ptr<StoreMeeting> Join(int rank, int size) {
    return Join(rank, size, Parts{"same", std::to_string(rank)});
  }
  // Waits until the failure is known, and returns it.
  static absl::Status Failure(StoreMeeting& meeting) {
    const Stop stop = Soon();
    while (meeting.Check().ok() && !stop.deadline.Passed(Clock::Real().Now())) {
      poll(nullptr, 0, 1);
    }
    return meeting.Check();
  }
  static void ExpectFailed(StoreMeeting& meeting, absl::StatusCode code, int rank,
                           const std::string& text) {
    const absl::Status status = Failure(meeting);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(BlameOf(status).rank, rank) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  StoreSource source_{GetParam()};
};

TEST_P(MeetingContract, EachGetsWhatAllBring) {
  const auto one = Join(1, 3), zero = Join(0, 3, Parts{"same", "", std::string("\0\xff", 2)});
  auto waiting = std::async(std::launch::async, [&] { return one->Wait(Soon()); });
  const auto two = Join(2, 3);
  const std::vector<Parts> expected = {
      {"same", "", std::string("\0\xff", 2)}, {"same", "1"}, {"same", "2"}};
  EXPECT_EQ(*waiting.get(), expected);
  EXPECT_EQ(*zero->Wait(Soon()), expected);
  EXPECT_EQ(*two->Wait(Soon()), expected);
  for (StoreMeeting* meeting : {zero.get(), one.get(), two.get()}) {
    EXPECT_TRUE(meeting->Check().ok());
    meeting->Finish();
  }
}

TEST_P(MeetingContract, OneMeetsItself) {
  const auto alone = Join(0, 1);
  EXPECT_EQ(alone->Wait(Soon())->size(), 1u);
  alone->Finish();
}

TEST_P(MeetingContract, MeetingsDoNotSeeEachOther) {
  const auto store = source_.Open();
  const auto mine = *store->Join("one", 0, 2, Parts{"1"}, Soon());
  const auto other = *store->Join("two", 1, 2, Parts{"2"}, Soon());
  EXPECT_THAT(*mine->Absent(Soon()), ElementsAre(1));
  EXPECT_THAT(*other->Absent(Soon()), ElementsAre(0));
}

TEST_P(MeetingContract, TimeThatIsUpLeavesTheRankInTheMeeting) {
  const auto one = Join(1, 4);
  EXPECT_EQ(one->Wait({Deadline::After(30 * kMillisecond)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const auto three = Join(3, 4);
  while (one->Absent(Soon())->size() > 2) {
    poll(nullptr, 0, 1);
  }
  EXPECT_THAT(*one->Absent(Soon()), ElementsAre(0, 2));
  const auto zero = Join(0, 4), two = Join(2, 4);
  EXPECT_EQ(one->Wait(Soon())->size(), 4u);
  for (StoreMeeting* meeting : {zero.get(), one.get(), two.get(), three.get()}) {
    meeting->Finish();
  }
}

TEST_P(MeetingContract, CancelledWaitIsAborted) {
  const auto zero = Join(0, 2);
  std::atomic<bool> cancelled{true};
  EXPECT_EQ(zero->Wait({Deadline::Never(), &cancelled}).status().code(),
            absl::StatusCode::kAborted);
}

TEST_P(MeetingContract, PlaceThatIsTakenFailsTheMeeting) {
  const auto zero = Join(0, 3), one = Join(1, 3);
  EXPECT_TRUE(one->Check().ok());
  const auto again = Join(1, 3);
  for (StoreMeeting* meeting : {again.get(), zero.get(), one.get()}) {
    ExpectFailed(*meeting, absl::StatusCode::kFailedPrecondition, 1,
                 "rank 1 was claimed by 2 processes");
  }
}

TEST_P(MeetingContract, SizesThatDifferFailTheMeeting) {
  const auto zero = Join(0, 3);
  EXPECT_TRUE(zero->Check().ok());
  const auto one = Join(1, 2);
  ExpectFailed(*one, absl::StatusCode::kDataLoss, 1, "rank 0 says 3, rank 1 says 2");
  ExpectFailed(*zero, absl::StatusCode::kDataLoss, 1, "rank 0 says 3, rank 1 says 2");
}

TEST_P(MeetingContract, RankThatCannotTakePartFailsTheMeeting) {
  const auto zero = Join(0, 2);
  Blame blame;
  blame.rank = 1;
  const auto one = Join(1, 2, WithBlame(absl::AbortedError("out of luck"), blame));
  ExpectFailed(*zero, absl::StatusCode::kAborted, 1, "out of luck");
  ExpectFailed(*one, absl::StatusCode::kAborted, 1, "out of luck");
}

TEST_P(MeetingContract, FirstFailureCountsForAll) {
  const auto zero = Join(0, 2), one = Join(1, 2);
  ASSERT_TRUE(zero->Wait(Soon()).ok());
  ASSERT_TRUE(one->Wait(Soon()).ok());
  zero->Fail(absl::DataLossError("the first"));
  ExpectFailed(*one, absl::StatusCode::kDataLoss, -1, "the first");
  one->Fail(absl::DataLossError("the second"));
  ExpectFailed(*zero, absl::StatusCode::kDataLoss, -1, "the first");
  EXPECT_EQ(Join(0, 2)->Wait(Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(MeetingContract, RankThatLeavesFailsTheMeeting) {
  for (const bool met : {false, true}) {
    SCOPED_TRACE(met);
    const auto store = source_.Open();
    const std::string key = met ? "met" : "meeting";
    auto zero = *store->Join(key, 0, 2, Parts(), Soon());
    std::unique_ptr<StoreMeeting> one;
    if (met) {
      one = *store->Join(key, 1, 2, Parts(), Soon());
      ASSERT_TRUE(one->Wait(Soon()).ok());
    }
    zero.reset();
    one = met ? std::move(one) : *store->Join(key, 1, 2, Parts(), Soon());
    ExpectFailed(*one, absl::StatusCode::kUnavailable, 0, "rank 0");
  }
}

TEST_P(MeetingContract, RankThatHasFinishedMayEnd) {
  auto zero = Join(0, 2), one = Join(1, 2);
  ASSERT_TRUE(zero->Wait(Soon()).ok());
  zero->Finish();
  zero.reset();
  EXPECT_TRUE(one->Wait(Soon()).ok());
  for (int i = 0; i < 50; ++i) {  // long enough to notice an end
    ASSERT_TRUE(one->Check().ok());
    poll(nullptr, 0, 10);
  }
  one->Finish();
}

// Every store except etcd, which keeps nothing of a meeting that is over (etcd_store_test).
class KeptMeetingContract : public MeetingContract {};

TEST_P(KeptMeetingContract, SecondMeetingInOnePlaceIsToldSo) {
  {
    const auto zero = Join(0, 2), one = Join(1, 2);
    for (StoreMeeting* meeting : {zero.get(), one.get()}) {
      ASSERT_TRUE(meeting->Wait(Soon()).ok());
    }
    zero->Finish();
    one->Finish();
  }
  // The server notices the end after some time.
  absl::Status status;
  for (const Stop stop = Soon(); !stop.deadline.Passed(Clock::Real().Now());) {
    status = Join(2, 3)->Wait({Deadline::After(kSecond)}).status();
    if (absl::IsFailedPrecondition(status)) {
      break;
    }
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("has been used before"));
  EXPECT_THAT(std::string(Join(0, 2)->Wait(Soon()).status().message()),
              HasSubstr("has been used before"));
}

TEST_P(MeetingContract, LimitsAreNamed) {
  const auto store = source_.Open();
  const auto text = [&](int rank, int size, const Parts& parts) {
    const Joined joined = store->Join("meeting", rank, size, parts, Soon());
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(joined.status().message());
  };
  EXPECT_THAT(text(2, 2, {}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(text(-1, 2, {}), HasSubstr("rank -1"));
  EXPECT_THAT(text(0, 0, {}), HasSubstr("of 0"));
  EXPECT_THAT(text(0, kMaxMeetingSize + 1, {}), HasSubstr("1048576"));
  EXPECT_THAT(text(0, 2, Parts(kMaxParts + 1)), HasSubstr("at most 64"));
  EXPECT_THAT(text(0, 2, {std::string(kMaxEntryBytes, 'x')}), HasSubstr("65536"));
}

INSTANTIATE_TEST_SUITE_P(Every, MeetingContract,
                         ::testing::ValuesIn(KindsHere({"mem", "file", "local", "tcp", "tcp_tls",
                                                        "prefix", "functions"})),
                         [](const auto& kind) { return std::string(kind.param); });

INSTANTIATE_TEST_SUITE_P(Every, KeptMeetingContract,
                         ::testing::Values("mem", "file", "local", "tcp", "tcp_tls", "prefix",
                                           "functions"),
                         [](const auto& kind) { return std::string(kind.param); });

// ---- Processes

class MeetingOfProcesses : public MeetingContract {
 protected:
  // Forks a process that joins as `rank`, waits for the others if `met`, reports this, and then
  // does nothing more.
  pid_t Child(const std::string& key, int rank, int size, bool met) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const Joined joined = source_.Open()->Join(key, rank, size, Parts(), Soon());
      const bool fine = joined.ok() && (!met || (*joined)->Wait(Soon()).ok());
      (void)!write(ready[1], fine ? "y" : "n", 1);
      pause();
      _exit(0);
    }
    close(ready[1]);
    ready_ = ready[0];
    return child;
  }
  void AwaitReady() {
    char said = 'n';
    EXPECT_EQ(read(ready_, &said, 1), 1);
    EXPECT_EQ(said, 'y');
    close(ready_);
  }
  int ready_ = -1;
};

TEST_P(MeetingOfProcesses, KilledRankIsNamedWithinTwoSeconds) {
  for (const bool met : {false, true}) {
    SCOPED_TRACE(met);
    const std::string key = met ? "met" : "meeting";
    const int size = met ? 2 : 3;
    const pid_t child = Child(key, 1, size, met);
    const auto zero = *source_.Open()->Join(key, 0, size, Parts(), Soon());
    AwaitReady();
    EXPECT_TRUE(zero->Check().ok());
    kill(child, SIGKILL);
    const int64_t killed = Clock::Real().Now();
    ExpectFailed(*zero, absl::StatusCode::kUnavailable, 1, "rank 1 has ended");
    const int64_t took = Clock::Real().Now() - killed;
    EXPECT_LT(took, 2 * kSecond);
    std::cout << "noticed after " << took / kMillisecond << " ms\n";
    waitpid(child, nullptr, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MeetingOfProcesses,
                         ::testing::ValuesIn(KindsHere({"file", "local", "tcp", "tcp_tls",
                                                        "functions_file"})),
                         [](const auto& kind) { return std::string(kind.param); });

// ---- Ranks of the serving process

TEST(ServedMeeting, ServingRankThatFinishesMayCloseTheStore) {
  auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const auto store = *OpenStore(served->url(), "", Soon());
  auto zero = *served->Join("meeting", 0, 2, Parts(), Soon());
  const auto one = *store->Join("meeting", 1, 2, Parts(), Soon());
  ASSERT_TRUE(zero->Wait(Soon()).ok());
  zero->Finish();
  zero.reset();
  served.reset();
  EXPECT_TRUE(one->Wait(Soon()).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(one->Check().ok());
    poll(nullptr, 0, 10);
  }
}

TEST(ServedMeeting, ServingRankThatIsKilledIsNamed) {
  int url_pipe[2];
  ASSERT_EQ(pipe(url_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto served = ServeStore("tcp://127.0.0.1:0", "");
    const Joined zero = (*served)->Join("meeting", 0, 3, Parts(), Soon());
    const std::string url = (*served)->url();
    (void)!write(url_pipe[1], url.data(), url.size());
    pause();
    _exit(zero.ok() ? 0 : 1);
  }
  char url[128] = {};
  ASSERT_GT(read(url_pipe[0], url, sizeof(url) - 1), 0);
  const auto store = *OpenStore(url, "", Soon());
  const auto one = *store->Join("meeting", 1, 3, Parts(), Soon());
  while (one->Absent(Soon())->size() > 1) {
    poll(nullptr, 0, 1);
  }
  kill(child, SIGKILL);
  const auto table = one->Wait(Soon());
  EXPECT_EQ(table.status().code(), absl::StatusCode::kUnavailable) << table.status();
  EXPECT_EQ(BlameOf(table.status()).rank, 0) << table.status();
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("rank 0 has ended"));
  waitpid(child, nullptr, 0);
}

TEST(ServedMeeting, ClosedServerIsSaidWhereRanksStillWait) {
  auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const auto store = *OpenStore(served->url(), "", Soon());
  const auto one = *store->Join("meeting", 1, 2, Parts(), Soon());
  EXPECT_THAT(*one->Absent(Soon()), ElementsAre(0));
  served.reset();
  const auto table = one->Wait(Soon());
  EXPECT_EQ(table.status().code(), absl::StatusCode::kUnavailable) << table.status();
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("closed"));
}

// ---- Many

// Returns parts like those of a rank: some equal on its host, some in the job, some unique.
Parts PartsLike(int rank) {
  const std::string host = std::to_string(rank / 8);
  return {"own" + std::string(24, static_cast<char>(rank % 251)) + std::to_string(rank),
          std::string(150, 's'),
          "host-" + host + std::string(60, 'h'),
          std::string(40, 'c'),
          "tcp",
          "10.0.0." + host + ":" + std::to_string(20000 + rank)};
}

TEST(ManyRanks, TableOfTenThousandFitsAndComesBack) {
  constexpr int kRanks = 10000;
  Gatherings meetings;
  for (int rank = 0; rank < kRanks; ++rank) {
    Entry entry;
    entry.rank = rank;
    entry.size = kRanks;
    entry.parts = PartsLike(rank);
    ASSERT_TRUE(meetings.Join("world", entry, 0, "mem:").ok()) << rank;
  }
  const Gathering& world = *meetings.Find("world");
  ASSERT_TRUE(world.complete());
  const std::vector<Parts> table = world.Table();
  const std::string bytes = EncodeTable(table);
  const auto news = DecodeNews(bytes);
  ASSERT_TRUE(news.ok()) << news.status();
  EXPECT_EQ(news->table, table);
  size_t whole = 0;
  for (const Parts& parts : table) {
    for (const std::string& part : parts) {
      whole += part.size() + 4;
    }
  }
  std::cout << "table of " << bytes.size() << " bytes, of " << whole << " written out\n";
  EXPECT_LT(bytes.size(), whole / 2);
  for (int rank = 0; rank < kRanks; ++rank) {
    meetings.Finish("world", rank);
  }
  EXPECT_TRUE(world.over);
  EXPECT_LT(meetings.bytes(), 1000u);
}

// If every rank's common part were written out, this would be more than one value of the map could
// hold.
TEST(ManyRanks, ThousandsMeetOverTcp) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  // Two descriptors per rank, because both ends are here.
  const int ranks = static_cast<int>(std::min<rlim_t>(2600, (files.rlim_cur - 200) / 2));
  const auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const auto store = *OpenStore(served->url(), "", Soon());
  const auto brings = [](int rank) { return Parts{std::to_string(rank), std::string(500, 's')}; };
  std::vector<std::unique_ptr<StoreMeeting>> all;
  const int64_t start = Clock::Real().Now();
  for (int rank = 0; rank < ranks; ++rank) {
    auto joined = store->Join("world", rank, ranks, brings(rank), Soon());
    ASSERT_TRUE(joined.ok()) << joined.status();
    all.push_back(*std::move(joined));
  }
  const int64_t joined_ns = Clock::Real().Now();
  for (size_t rank = 0; rank < all.size(); rank += 500) {  // each table is thousands of entries
    const auto table = all[rank]->Wait(Soon());
    ASSERT_TRUE(table.ok()) << table.status();
    ASSERT_EQ(table->size(), static_cast<size_t>(ranks));
    EXPECT_EQ(table->back(), brings(ranks - 1));
  }
  std::cout << ranks << " ranks joined in " << (joined_ns - start) / kMillisecond << " ms\n";
}

TEST(Gatherings, MemoryOfAllMeetingsHasALimit) {
  Gatherings meetings;
  Entry entry;
  entry.size = 2;
  entry.parts = {std::string(60000, 'x')};
  absl::Status full;
  int count = 0;
  while (full.ok()) {
    full = meetings.Join("m" + std::to_string(count++), entry, 0, "this store");
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("at most 268435456"));
  EXPECT_LE(meetings.bytes(), kMaxGatheringBytes);
  meetings.Fail("m0", absl::AbortedError("x"));  // frees its bytes
  EXPECT_TRUE(meetings.Join("again", entry, 0, "this store").ok());
}

// A failure is kept as long as its meeting, so its reason counts.
TEST(Gatherings, FailedMeetingsCountWithTheirReasons) {
  Gatherings meetings;
  Entry entry;
  entry.size = 2;
  entry.unable = absl::AbortedError(std::string(2000, 'x'));
  size_t count = 0;
  while (!absl::IsResourceExhausted(
      meetings.Join("m" + std::to_string(count), entry, 0, "this store"))) {
    ASSERT_LT(++count, kMaxGatheringBytes / 2000);
  }
  EXPECT_LE(meetings.bytes(), kMaxGatheringBytes);
}

// A rank for which the store has no room leaves no meeting behind.
TEST(MemMeeting, RefusedRankHearsWhyWhateverItAsks) {
  const auto store = *OpenStore("mem:full", "", Soon());
  const absl::Status unable = absl::AbortedError(std::string(2000, 'x'));
  absl::Status full;
  std::unique_ptr<StoreMeeting> refused;
  for (int i = 0; !absl::IsResourceExhausted(full); ++i) {
    ASSERT_LT(i, 200'000);
    refused = *store->Join("m" + std::to_string(i), 0, 2, unable, Soon());
    full = refused->Check();
  }
  EXPECT_EQ(refused->Wait(Soon()).status(), full);
  EXPECT_EQ(refused->Absent(Soon()).status(), full);
  refused->Fail(absl::AbortedError("x"));
  refused->Finish();
  EXPECT_EQ(refused->Check(), full);
}

TEST(MeetingWire, EveryCutIsRefused) {
  Entry entry;
  entry.rank = 1;
  entry.size = 3;
  entry.parts = {"a", "bc"};
  entry.unable = absl::AbortedError("why");
  const std::string bytes = EncodeEntry(entry);
  EXPECT_TRUE(DecodeEntry(bytes).ok());
  const std::string table = EncodeTable({{"a", "b"}, {"a", "c"}, {}});
  EXPECT_TRUE(DecodeNews(table).ok());
  for (size_t cut = 0; cut < std::max(bytes.size(), table.size()); ++cut) {
    EXPECT_TRUE(cut >= bytes.size() || !DecodeEntry(bytes.substr(0, cut)).ok()) << cut;
    EXPECT_TRUE(cut >= table.size() || !DecodeNews(table.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(DecodeEntry(bytes + "x").ok());
  EXPECT_FALSE(DecodeNews(table + "x").ok());
}

}  // namespace
}  // namespace entrain
