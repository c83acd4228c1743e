// The page of merged flight dumps: the rank that it names, and the reason. The library's own
// function writes the dumps.
#include "tools/perf/flight_page.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/flight/flight_dump.h"
#include "nlohmann/json.hpp"

namespace entrain::perf {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t kNow = 100 * kSecond;

// A job of one or more communicators. A test records the calls of each rank.
class PlayedJob {
 public:
  explicit PlayedJob(int ranks) : dumps_(static_cast<size_t>(ranks)) {
    for (size_t r = 0; r < dumps_.size(); ++r) {
      dumps_[r].why = "test";
      dumps_[r].host = absl::StrCat("host", r / 2);
      dumps_[r].pid = static_cast<int64_t>(100 + r);
      dumps_[r].now_ns = kNow;
      dumps_[r].unix_ms = 1;
    }
  }

  // A communicator of these processes. Each has made the call that creates it.
  void Create(const std::string& name, const std::vector<int>& processes) {
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      FlightComm comm;
      comm.id = absl::StrCat(name, "-1");
      comm.name = name;
      comm.world = "world";
      comm.rank = static_cast<int>(rank);
      for (const int process : processes) {
        comm.members.push_back({absl::StrCat("aaaaaaaa", process), process,
                                absl::StrCat("host", process / 2), "tcp",
                                absl::StrCat("tcp 10.0.0.", process, ":7")});
      }
      comm.members[rank].address = "";
      dumps_[static_cast<size_t>(processes[rank])].comms.push_back(comm);
      Add(name, processes[rank], CallKind::kCreate, FlightState::kDone, 50);
    }
  }

  FlightComm& Of(const std::string& name, int process) {
    auto& comms = dumps_[static_cast<size_t>(process)].comms;
    return *std::find_if(comms.begin(), comms.end(),
                         [&](const FlightComm& comm) { return comm.name == name; });
  }

  // The process makes its next call.
  FlightComm::Recorded& Add(const std::string& name, int process, CallKind kind, FlightState state,
                            int age_s, std::vector<int> receives_from = {},
                            std::vector<int> sends_to = {}) {
    FlightComm& comm = Of(name, process);
    FlightEntry entry;
    entry.call.kind = entry.call.descriptor.kind = kind;
    entry.call.descriptor.dtype = static_cast<uint8_t>(DType::kF32);
    entry.call.descriptor.count = kind == CallKind::kBarrier ? 0 : 1000;
    entry.call.number = ++started_[{name, process}];
    entry.call.algorithm = kind == CallKind::kAllReduce ? "ring" : "";
    entry.call.started_ns = entry.since_ns = kNow - age_s * kSecond;
    entry.mark = comm.calls.size() + 1;
    entry.state = state;
    comm.started = {{-1, -1, false, entry.call.number}};
    comm.calls.push_back({entry, std::move(receives_from), std::move(sends_to)});
    return comm.calls.back();
  }

  void Message(const std::string& name, int process, CallKind kind, FlightState state, int peer,
               int age_s) {
    FlightComm& comm = Of(name, process);
    const auto collectives = comm.started;
    FlightComm::Recorded& recorded = Add(name, process, kind, state, age_s);
    --started_[{name, process}];
    recorded.entry.call.descriptor.kind = CallKind::kSend;
    recorded.entry.call.number = 1;
    recorded.entry.call.peer = peer;
    (kind == CallKind::kSend ? recorded.sends_to : recorded.receives_from) = {peer};
    comm.started = collectives;
    comm.started.push_back({-1, peer, kind == CallKind::kSend, 1});
  }

  // Returns the files of these processes.
  std::vector<FlightFile> Files(const std::vector<int>& processes) const {
    std::vector<FlightFile> files;
    for (const int process : processes) {
      files.push_back(
          {absl::StrCat(process, ".json"), ToJson(dumps_[static_cast<size_t>(process)])});
    }
    return files;
  }
  std::string Page(const std::vector<int>& processes) const {
    const auto page = MergeFlights(Files(processes));
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->text : "";
  }

 private:
  std::vector<FlightDump> dumps_;
  std::map<std::pair<std::string, int>, uint64_t> started_;
};

constexpr auto kReceiving = FlightState::kReceiving;
constexpr auto kDone = FlightState::kDone;

TEST(FlightPageTest, ARankWithoutADumpIsNamed) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 12, {2});
  job.Add("world", 1, CallKind::kAllReduce, kReceiving, 11, {2});
  job.Add("world", 3, CallKind::kAllReduce, kReceiving, 9, {1});
  EXPECT_EQ(job.Page({0, 1, 3}),
            R"(flight dumps of 3 processes in 3 files, 1 communicators
culprit: rank 2 of world (host host1, tcp 10.0.0.2:7, process aaaaaaaa): it has left no dump, and others wait for it: it is dead, stopped, or was not asked

world: 4 ranks, no dump of rank 2
  all_reduce #2: all_reduce sum of 1000 f32, ring
    receiving for 12.0 s: ranks 0, 1; receives from rank 2
    no dump: rank 2
    receiving for 9.0 s: rank 3; receives from rank 1
  culprit: rank 2 of world (host host1, tcp 10.0.0.2:7, process aaaaaaaa): it has left no dump, and others wait for it: it is dead, stopped, or was not asked
)");
}

TEST(FlightPageTest, ADeadRankThatAnErrorBlamesIsNamedBeforeOthersWithoutADump) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  Blame blame;
  blame.rank = 3;
  job.Of("world", 0).ended = WithBlame(absl::UnavailableError("world: rank 3 is lost"), blame);
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 12, {1});
  const std::string page = job.Page({0});
  EXPECT_THAT(page,
              HasSubstr("culprit: rank 3 of world (host host1, tcp 10.0.0.3:7, process aaaaaaaa): "
                        "it has left no dump, and the error of rank 0 blames it: "
                        "ENTRAIN_PEER_LOST: world: rank 3 is lost"));
  EXPECT_THAT(page, HasSubstr("  ended on rank 0: ENTRAIN_PEER_LOST: world: rank 3 is lost\n"));
}

TEST(FlightPageTest, ARankThatHasNotCalledIsNamed) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  for (const int r : {0, 1, 2}) {
    job.Add("world", r, CallKind::kBarrier, kReceiving, 5, {3});
  }
  EXPECT_EQ(job.Page({0, 1, 2, 3}),
            R"(flight dumps of 4 processes in 4 files, 1 communicators
culprit: rank 3 of world (host host1, pid 103, tcp 10.0.0.3:7, process aaaaaaaa): it has not called barrier #2, and no other call is under way there; its last call here, create #1, is done

world: 4 ranks
  barrier #2: barrier
    receiving for 5.0 s: ranks 0-2; receives from rank 3
    not started: rank 3; last call create #1, done
  culprit: rank 3 of world (host host1, pid 103, tcp 10.0.0.3:7, process aaaaaaaa): it has not called barrier #2, and no other call is under way there; its last call here, create #1, is done
)");
}

TEST(FlightPageTest, ARankThatCalledSomethingElseIsNamed) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 5, {1});
  job.Add("world", 1, CallKind::kBarrier, kReceiving, 6, {0, 3});
  job.Add("world", 2, CallKind::kAllReduce, kReceiving, 5, {1});
  job.Add("world", 3, CallKind::kAllReduce, kReceiving, 5, {1});
  EXPECT_EQ(job.Page({0, 1, 2, 3}),
            R"(flight dumps of 4 processes in 4 files, 1 communicators
culprit: rank 1 of world (host host0, pid 101, tcp 10.0.0.1:7, process aaaaaaaa): it called barrier where ranks 0, 2, 3 called all_reduce sum of 1000 f32

world: 4 ranks
  all_reduce #2
    called all_reduce sum of 1000 f32, ring: ranks 0, 2, 3
    called barrier: rank 1
    receiving for 5.0 s: ranks 0, 2, 3; receives from rank 1
    receiving for 6.0 s: rank 1; receives from ranks 0, 3
  culprit: rank 1 of world (host host0, pid 101, tcp 10.0.0.1:7, process aaaaaaaa): it called barrier where ranks 0, 2, 3 called all_reduce sum of 1000 f32
)");
}

TEST(FlightPageTest, TwoAgainstTwoIsATie) {
  PlayedJob job(2);
  job.Create("world", {0, 1});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 5, {1});
  job.Add("world", 1, CallKind::kBarrier, kReceiving, 6, {0});
  EXPECT_THAT(job.Page({0, 1}), HasSubstr("a tie, so either may be wrong"));
}

// Ranks 0 and 1 of world wait for rank 2. Rank 2 waits for rank 3 in a part. Rank 3 does nothing.
TEST(FlightPageTest, AChainOverTwoCommunicatorsLeadsToItsEnd) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  job.Create("world/1", {2, 3});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 30, {2});
  job.Add("world", 1, CallKind::kAllReduce, kReceiving, 20, {2});
  job.Add("world", 3, CallKind::kAllReduce, kDone, 20);
  job.Add("world/1", 2, CallKind::kBarrier, kReceiving, 40, {1});
  EXPECT_EQ(job.Page({0, 1, 2, 3}),
            R"(flight dumps of 4 processes in 4 files, 2 communicators
culprit: rank 1 of world/1 (host host1, pid 103, tcp 10.0.0.3:7, process aaaaaaaa): it has not called barrier #2, and no other call is under way there; its last call here, create #1, is done

world: 4 ranks
  all_reduce #2: all_reduce sum of 1000 f32, ring
    receiving for 30.0 s: ranks 0, 1; receives from rank 2
    not started: rank 2; last call create #1, done
    done: rank 3
  culprit: rank 1 of world/1 (host host1, pid 103, tcp 10.0.0.3:7, process aaaaaaaa): it has not called barrier #2, and no other call is under way there; its last call here, create #1, is done
    rank 2 of world has not called all_reduce #2: it is in barrier #2 of world/1 as rank 0

world/1: 2 ranks
  barrier #2: barrier
    receiving for 40.0 s: rank 0; receives from rank 1
    not started: rank 1; last call create #1, done
  culprit: rank 1 of world/1 (host host1, pid 103, tcp 10.0.0.3:7, process aaaaaaaa): it has not called barrier #2, and no other call is under way there; its last call here, create #1, is done
)");
}

// Rank 1 is done with the gather and waits in the barrier for longer than rank 0 in the gather.
TEST(FlightPageTest, TheEarlierCollectiveComesFirst) {
  PlayedJob job(3);
  job.Create("world", {0, 1, 2});
  job.Add("world", 0, CallKind::kGather, kReceiving, 1, {2});
  job.Add("world", 1, CallKind::kGather, kDone, 9);
  job.Add("world", 1, CallKind::kBarrier, kReceiving, 8, {0, 2});
  const std::string page = job.Page({0, 1, 2});
  EXPECT_THAT(page, HasSubstr("culprit: rank 2 of world")) << page;
  EXPECT_THAT(page, HasSubstr("it has not called gather #2"));
  EXPECT_LT(page.find("  gather #2"), page.find("  barrier #3"));
}

TEST(FlightPageTest, RanksThatWaitForEachOtherInTwoCommunicatorsAreACircle) {
  PlayedJob job(2);
  job.Create("a", {0, 1});
  job.Create("b", {0, 1});
  job.Add("a", 0, CallKind::kBarrier, kReceiving, 9, {1});
  job.Add("b", 1, CallKind::kBarrier, kReceiving, 8, {0});
  const std::string page = job.Page({0, 1});
  EXPECT_THAT(page, HasSubstr("culprit: rank 1 of a (host host0, pid 101, tcp 10.0.0.1:7, process "
                              "aaaaaaaa): ranks wait for each other in a circle, which comes back "
                              "to barrier #2 of a"));
  EXPECT_THAT(page, HasSubstr("rank 1 of a has not called barrier #2: it is in barrier #2 of b"));
  EXPECT_THAT(page, HasSubstr("rank 0 of b has not called barrier #2: it is in barrier #2 of a"));
}

TEST(FlightPageTest, ASlowLinkIsNamed) {
  PlayedJob job(3);
  job.Create("world", {0, 1, 2});
  // A ring: 0 sends to 1, 1 to 2, 2 to 0. Only the message from 1 to 2 has left its sender and has
  // not come.
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 5, {2});
  job.Add("world", 1, CallKind::kAllReduce, FlightState::kSending, 5, {}, {2});
  job.Add("world", 2, CallKind::kAllReduce, kReceiving, 5, {1});
  EXPECT_EQ(job.Page({0, 1, 2}),
            R"(flight dumps of 3 processes in 3 files, 1 communicators
culprit: rank 1 of world (host host0, pid 101, tcp 10.0.0.1:7, process aaaaaaaa): its message to rank 2 has not come, and both have made the call: the link from rank 1 (host0) to rank 2 (host1) is slow or broken

world: 3 ranks
  all_reduce #2: all_reduce sum of 1000 f32, ring
    receiving for 5.0 s: rank 0; receives from rank 2
    sending for 5.0 s: rank 1; sends to rank 2
    receiving for 5.0 s: rank 2; receives from rank 1
  culprit: rank 1 of world (host host0, pid 101, tcp 10.0.0.1:7, process aaaaaaaa): its message to rank 2 has not come, and both have made the call: the link from rank 1 (host0) to rank 2 (host1) is slow or broken
)");
}

TEST(FlightPageTest, AMessageOfARankThatIsDoneWithTheCallIsOnALink) {
  PlayedJob job(2);
  job.Create("world", {0, 1});
  job.Add("world", 0, CallKind::kBroadcast, kDone, 5);
  job.Add("world", 1, CallKind::kBroadcast, kReceiving, 5, {0});
  EXPECT_THAT(job.Page({0, 1}),
              HasSubstr("culprit: rank 0 of world (host host0, pid 100, tcp 10.0.0.0:7, "
                        "process aaaaaaaa): its message to rank 1 has not come"));
}

TEST(FlightPageTest, AStuckEngineIsNamed) {
  PlayedJob job(3);
  job.Create("world", {0, 1, 2});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 5, {1});
  job.Add("world", 1, CallKind::kAllReduce, FlightState::kPlanned, 5);
  job.Of("world", 1).driver_answers = false;
  EXPECT_THAT(
      job.Page({0, 1, 2}),
      HasSubstr(
          "culprit: rank 1 of world (host host0, pid 101, tcp 10.0.0.1:7, process aaaaaaaa): its "
          "engine did not answer"));
}

TEST(FlightPageTest, AReductionOfTheCallersThatDoesNotReturnIsNamed) {
  PlayedJob job(2);
  job.Create("world", {0, 1});
  job.Add("world", 0, CallKind::kAllReduce, kReceiving, 5, {1});
  job.Add("world", 1, CallKind::kAllReduce, FlightState::kReducing, 5);
  EXPECT_THAT(job.Page({0, 1}), HasSubstr("its own reduction function has not returned"));
}

TEST(FlightPageTest, AMessageWithoutItsSendNamesTheSender) {
  PlayedJob job(3);
  job.Create("world", {0, 1, 2});
  job.Message("world", 0, CallKind::kRecv, kReceiving, 2, 7);
  EXPECT_THAT(
      job.Page({0, 1, 2}),
      HasSubstr(
          "culprit: rank 2 of world (host host1, pid 102, tcp 10.0.0.2:7, process aaaaaaaa): it "
          "has not made the send that matches recv #1 of rank 0"));
  EXPECT_THAT(job.Page({0, 1}), HasSubstr("culprit: rank 2 of world"));
  job.Message("world", 2, CallKind::kSend, FlightState::kDone, 0, 7);
  EXPECT_THAT(job.Page({0, 1, 2}), HasSubstr("the link from rank 2 (host1) to rank 0 (host0)"));
}

TEST(FlightPageTest, AJobWithoutCallsUnderWayHasNoCulprit) {
  PlayedJob job(2);
  job.Create("world", {0, 1});
  EXPECT_EQ(job.Page({0, 1}),
            "flight dumps of 2 processes in 2 files, 1 communicators\n"
            "culprit: none: no call is under way\n\nworld: 2 ranks, no call is under way\n");
}

TEST(FlightPageTest, ACommunicatorAfterAShrinkHasItsGeneration) {
  PlayedJob job(2);
  job.Create("world", {0, 1});
  for (const int process : {0, 1}) {
    job.Of("world", process).generation = 2;
  }
  EXPECT_THAT(job.Page({0, 1}), HasSubstr("\nworld: 2 ranks, generation 2, no call is under way"));
}

TEST(FlightPageTest, TheJsonSaysTheSame) {
  PlayedJob job(4);
  job.Create("world", {0, 1, 2, 3});
  for (const int r : {0, 1, 2}) {
    job.Add("world", r, CallKind::kBarrier, kReceiving, 5, {3});
  }
  const json page = json::parse(MergeFlights(job.Files({0, 1, 2, 3}))->json);
  EXPECT_EQ(page["culprit"]["rank"], 3);
  EXPECT_EQ(page["culprit"]["communicator"], "world");
  EXPECT_EQ(page["culprit"]["host"], "host1");
  EXPECT_EQ(page["communicators"][0]["calls"][0]["call"], "barrier #2");
  EXPECT_EQ(page["communicators"][0]["calls"][0]["ranks"][3]["state"], "not started");
  EXPECT_EQ(page["communicators"][0]["calls"][0]["ranks"][0]["receives_from"], json({3}));
}

TEST(FlightPageTest, OfTwoDumpsOfAProcessTheOneWithCallsUnderWayCounts) {
  PlayedJob before(2), after(2);
  for (PlayedJob* job : {&before, &after}) {
    job->Create("world", {0, 1});
  }
  before.Add("world", 0, CallKind::kBarrier, kReceiving, 5, {1});
  after.Add("world", 0, CallKind::kBarrier, FlightState::kFailed, 5);
  auto files = before.Files({0, 1});
  files.push_back(after.Files({0})[0]);
  EXPECT_THAT(MergeFlights(files)->text, HasSubstr("receiving for 5.0 s: rank 0"));
  std::reverse(files.begin(), files.end());
  EXPECT_THAT(MergeFlights(files)->text, HasSubstr("receiving for 5.0 s: rank 0"));
}

TEST(FlightPageTest, AFileThatIsNoDumpIsNamed) {
  for (const std::string text : {"", "{", "[]", "{\"entrain_flight\":1}",
                                 "{\"entrain_flight\":1,\"unix_ms\":1,\"communicators\":[{}]}"}) {
    const absl::Status status = MergeFlights({{"x.json", text}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.json: not a flight dump")) << text;
  }
  EXPECT_THAT(std::string(MergeFlights({{"x.json", "{\"entrain_flight\":2}"}}).status().message()),
              HasSubstr("version 2"));
  // Numbers that are not ranks of the communicator.
  PlayedJob job(2);
  job.Create("world", {0, 1});
  job.Add("world", 0, CallKind::kBarrier, kReceiving, 5, {7});
  EXPECT_EQ(MergeFlights(job.Files({0})).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace entrain::perf
