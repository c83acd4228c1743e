// The ring of calls, and the text of a dump.
#include "lib/comm/flight/flight_recorder.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/flight/flight_dump.h"
#include "nlohmann/json.hpp"
#include "transports/transport.h"

namespace entrain {
namespace {

using nlohmann::json;
using testing::ElementsAre;

constexpr int64_t kBase = 5 * kSecond;

FlightCall AllReduce(uint64_t number, int64_t started_ns = kBase) {
  FlightCall call;
  call.kind = call.descriptor.kind = CallKind::kAllReduce;
  call.descriptor.count = static_cast<int64_t>(number) * 7;
  call.descriptor.root = static_cast<uint32_t>(number);
  call.number = number;
  call.algorithm = "ring";
  call.started_ns = started_ns;
  return call;
}

std::vector<uint64_t> Numbers(const std::vector<FlightEntry>& entries) {
  std::vector<uint64_t> numbers;
  for (const FlightEntry& entry : entries) {
    numbers.push_back(entry.call.number);
  }
  return numbers;
}

TEST(FlightRecorderTest, ACallIsReadAsItWasWritten) {
  FlightRecorder recorder(8, kBase);
  FlightCall call;
  call.kind = CallKind::kRecv;
  call.descriptor = {CallKind::kSend, 3, 2, 1, 9, 1 << 20};
  call.number = uint64_t{1} << 40;
  call.peer = 6;
  call.tag = 77;
  call.algorithm = "point_to_point";
  call.started_ns = kBase + 3 * kMillisecond;
  const uint64_t mark = recorder.Begin(call);
  const auto entries = recorder.Read();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].mark, mark);
  EXPECT_EQ(entries[0].state, FlightState::kPlanned);
  EXPECT_EQ(entries[0].since_ns, call.started_ns);
  EXPECT_FALSE(entries[0].torn);
  const FlightCall& read = entries[0].call;
  EXPECT_EQ(read.kind, call.kind);
  EXPECT_EQ(read.descriptor, call.descriptor);
  EXPECT_EQ(read.number, call.number);
  EXPECT_EQ(read.peer, call.peer);
  EXPECT_EQ(read.tag, call.tag);
  EXPECT_STREQ(read.algorithm, "point_to_point");
  EXPECT_EQ(read.started_ns, call.started_ns);
}

TEST(FlightRecorderTest, StatesHaveTheTimeWhenTheyBegan) {
  FlightRecorder recorder(8, kBase);
  const uint64_t mark = recorder.Begin(AllReduce(1));
  recorder.Enter(mark, FlightState::kReceiving, kBase + 2 * kSecond);
  EXPECT_EQ(recorder.Read()[0].state, FlightState::kReceiving);
  EXPECT_EQ(recorder.Read()[0].since_ns, kBase + 2 * kSecond);
  recorder.Enter(mark, FlightState::kDone, kBase + 90 * 86400 * kSecond);
  EXPECT_EQ(recorder.Read()[0].state, FlightState::kDone);
  EXPECT_EQ(recorder.Read()[0].since_ns, kBase + 90 * 86400 * kSecond);
}

TEST(FlightRecorderTest, KeepsTheLastCalls) {
  FlightRecorder recorder(3, kBase);  // rounded up to 4
  for (uint64_t i = 1; i <= 10; ++i) {
    recorder.Begin(AllReduce(i));
  }
  EXPECT_THAT(Numbers(recorder.Read()), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(recorder.submitted(), 10u);
}

TEST(FlightRecorderTest, ACallWhoseEntryIsTakenLeavesTheLaterCallAlone) {
  FlightRecorder recorder(2, kBase);
  const uint64_t old = recorder.Begin(AllReduce(1));
  recorder.Begin(AllReduce(2));
  recorder.Begin(AllReduce(3));
  recorder.Enter(old, FlightState::kFailed, kBase + kSecond);
  recorder.Number(old, 99, 5);
  const auto entries = recorder.Read();
  EXPECT_THAT(Numbers(entries), ElementsAre(2, 3));
  EXPECT_EQ(entries[1].state, FlightState::kPlanned);
}

TEST(FlightRecorderTest, AReceiveInLineGetsItsNumber) {
  FlightRecorder recorder(2, kBase);
  FlightCall call = AllReduce(0);
  call.kind = CallKind::kRecvAny;
  call.peer = -1;
  call.tag = 4;
  const uint64_t mark = recorder.Begin(call);
  EXPECT_EQ(recorder.Read()[0].call.peer, -1);
  recorder.Number(mark, 12, 3);
  const FlightCall read = recorder.Read()[0].call;
  EXPECT_EQ(read.number, 12u);
  EXPECT_EQ(read.peer, 3);
  EXPECT_EQ(read.tag, 4);
  EXPECT_EQ(read.kind, CallKind::kRecvAny);
}

TEST(FlightRecorderTest, CallsOfTheInlinePathStandBetweenTheOthers) {
  FlightRecorder recorder(8, kBase);
  const auto inlined = [&](uint64_t number) {
    const FlightCall call = AllReduce(number);
    recorder.Inline(call.kind, call.descriptor, number, 0, Tag::kUntagged, "direct");
  };
  inlined(1);
  inlined(2);
  recorder.Begin(AllReduce(3));
  inlined(4);
  recorder.Begin(AllReduce(5));
  recorder.Begin(AllReduce(6));
  inlined(7);
  const auto entries = recorder.Read();
  EXPECT_THAT(Numbers(entries), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(entries[0].mark, 0u);
  EXPECT_EQ(entries[0].state, FlightState::kDone);
  EXPECT_EQ(entries[0].call.tag, -1);
  EXPECT_STREQ(entries[0].call.algorithm, "direct");
  EXPECT_EQ(recorder.inlined(), 4u);
}

TEST(FlightRecorderTest, TheOldestCallOfAFullInlineRingIsLeftOut) {
  FlightRecorder recorder(4, kBase);
  for (uint64_t i = 1; i <= 9; ++i) {
    recorder.Inline(CallKind::kBarrier, {}, i, 0, Tag::kUntagged, "x");
  }
  EXPECT_THAT(Numbers(recorder.Read()), ElementsAre(7, 8, 9));
}

TEST(FlightRecorderTest, ZeroCallsKeepNothing) {
  FlightRecorder recorder(0, kBase);
  EXPECT_FALSE(recorder.on());
  const uint64_t mark = recorder.Begin(AllReduce(1));
  EXPECT_EQ(mark, 0u);
  recorder.Enter(mark, FlightState::kDone, kBase);
  recorder.Number(mark, 1, 1);
  recorder.Inline(CallKind::kBarrier, {}, 1, 0, Tag::kUntagged, "x");
  EXPECT_TRUE(recorder.Read().empty());
}

// Each call's descriptor, tag and peer follow from its number, so a mixture of two calls is
// noticed.
TEST(FlightRecorderTest, ReadersNeverSeeAMixtureOfCalls) {
  constexpr int kWriters = 3, kCalls = 40000;
  FlightRecorder recorder(16, kBase);
  std::atomic<int> writing{kWriters + 1};
  std::atomic<uint64_t> next{1};
  const auto make = [](uint64_t number) {
    FlightCall call = AllReduce(number, kBase + static_cast<int64_t>(number));
    call.peer = static_cast<int>(number % 1000);
    call.tag = static_cast<int64_t>(number % 5000);
    return call;
  };
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        const uint64_t mark = recorder.Begin(make(next.fetch_add(1)));
        recorder.Enter(mark, FlightState::kReceiving, kBase + kSecond);
        recorder.Enter(mark, FlightState::kDone, kBase + 2 * kSecond);
      }
      writing.fetch_sub(1);
    });
  }
  threads.emplace_back([&] {  // the driver of the inline path
    for (int i = 0; i < kCalls; ++i) {
      const FlightCall call = make(next.fetch_add(1));
      recorder.Inline(call.kind, call.descriptor, call.number, call.peer,
                      static_cast<uint32_t>(call.tag), call.algorithm);
    }
    writing.fetch_sub(1);
  });
  std::vector<std::thread> readers;
  std::atomic<uint64_t> whole{0};
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      do {
        for (const FlightEntry& entry : recorder.Read()) {
          if (entry.torn) {
            continue;
          }
          const FlightCall& call = entry.call;
          const FlightCall right = make(call.number);
          ASSERT_EQ(call.descriptor, right.descriptor) << call.number;
          ASSERT_EQ(call.peer, right.peer);
          ASSERT_EQ(call.tag, right.tag);
          ASSERT_EQ(call.kind, CallKind::kAllReduce);
          ASSERT_TRUE(entry.mark == 0 || call.started_ns == right.started_ns);
          whole.fetch_add(1);
        }
      } while (writing.load() > 0);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::thread& thread : readers) {
    thread.join();
  }
  EXPECT_GT(whole.load(), 0u);
  // When no thread writes, no entry is torn, except entries that a stopped writer has lost.
  EXPECT_EQ(recorder.inlined(), uint64_t{kCalls});
  const auto entries = recorder.Read();
  EXPECT_EQ(entries.size(), 16u + 15u);
}

// ---- Dumps

FlightComm Comm() {
  FlightComm comm;
  comm.id = "00ff-1";
  comm.name = "wor\"ld\\";
  comm.world = comm.name;
  comm.generation = 3;
  comm.rank = 1;
  comm.members = {{"00ff", 0, "a host", "tcp", "1.2.3.4:5"}, {"11ee", 1, "h", "self", ""}};
  comm.started = {{-1, -1, false, 3}, {7, 0, true, 2}};
  comm.submitted = 2;
  return comm;
}

TEST(FlightDumpTest, IsJsonWithEverythingThatIsKnown) {
  FlightComm comm = Comm();
  Blame blame;
  blame.rank = 0;
  blame.operation = "barrier";
  blame.sequence = 3;
  comm.ended = WithBlame(absl::UnavailableError("lost \"it\"\n\x01 \xff"), blame);
  FlightEntry entry;
  entry.call = AllReduce(3, kBase);
  entry.call.descriptor.dtype = static_cast<uint8_t>(DType::kF32);
  entry.mark = 2;
  entry.state = FlightState::kReceiving;
  entry.since_ns = kBase + kSecond;
  FlightEntry torn;
  torn.torn = true;
  comm.calls = {{entry, {0}, {}}, {torn, {}, {}}};
  const json dump = json::parse(
      ToJson(FlightDump{"signal 12", "host", 42, kBase + 3 * kSecond, 1700000000000, {comm}}));
  EXPECT_EQ(dump["entrain_flight"], 1);
  EXPECT_EQ(dump["why"], "signal 12");
  EXPECT_EQ(dump["pid"], 42);
  const json& read = dump["communicators"][0];
  EXPECT_EQ(read["name"], comm.name);
  EXPECT_EQ(read["generation"], 3);
  EXPECT_EQ(read["size"], 2);
  EXPECT_EQ(read["ended"]["code"], "ENTRAIN_PEER_LOST");
  EXPECT_EQ(read["ended"]["message"], "lost \"it\" ? ?");
  EXPECT_EQ(read["ended"]["rank"], 0);
  EXPECT_EQ(read["members"][0]["address"], "1.2.3.4:5");
  EXPECT_EQ(read["started"][0], json({{"tag", nullptr}, {"collectives", 3}}));
  EXPECT_EQ(read["started"][1], json({{"tag", 7}, {"sends_to", 0}, {"messages", 2}}));
  const json& call = read["calls"][0];
  EXPECT_EQ(call["number"], 3);
  EXPECT_EQ(call["operation"], "all_reduce");
  EXPECT_EQ(call["arguments"], "all_reduce sum of 21 f32");
  EXPECT_EQ(call["bytes"], 84);
  EXPECT_EQ(call["algorithm"], "ring");
  EXPECT_EQ(call["state"], "receiving");
  EXPECT_EQ(call["started_s_ago"], 3.0);
  EXPECT_EQ(call["state_s"], 2.0);
  EXPECT_EQ(call["receives_from"], json({0}));
  EXPECT_EQ(call["tag"], nullptr);
  EXPECT_EQ(read["calls"][1], json({{"torn", true}}));
}

TEST(FlightDumpTest, TheDriverKnowsWhatCallsWaitFor) {
  FlightEntry failed, done;
  failed.mark = 5;
  failed.state = FlightState::kFailed;
  done.mark = 6;
  done.state = FlightState::kDone;
  std::vector<FlightComm::Recorded> calls{{failed, {}, {}}, {done, {}, {}}};
  FlightLook look{true, {}};
  look.open.push_back({5, AllReduce(1, kBase), FlightState::kReceiving, {2, 3}, {}});
  look.open.push_back({6, AllReduce(2), FlightState::kSending, {}, {2}});
  look.open.push_back({1, AllReduce(9), FlightState::kSending, {}, {4}});
  AddOpen(look, &calls);
  ASSERT_EQ(calls.size(), 3u);
  // Its entry was overwritten, so it is older than the others.
  EXPECT_EQ(calls[0].entry.call.number, 9u);
  EXPECT_THAT(calls[0].sends_to, ElementsAre(4));
  // The call has failed since.
  EXPECT_EQ(calls[1].entry.state, FlightState::kReceiving);
  EXPECT_THAT(calls[1].receives_from, ElementsAre(2, 3));
  // The call was over when its entry was read.
  EXPECT_EQ(calls[2].entry.state, FlightState::kDone);
  EXPECT_TRUE(calls[2].sends_to.empty());
}

}  // namespace
}  // namespace entrain
