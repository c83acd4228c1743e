// Numbers of calls, and their order when only some of the bits are known.
#include "lib/comm/call_numbers.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

using Numbers = CallNumbers;

TEST(CallNumbers, EverySeriesIsCountedForItself) {
  Numbers numbers(3);
  const std::vector<Numbers::Series> all = {
      Numbers::Collectives(Tag::kUntagged),
      Numbers::Collectives(7),
      Numbers::Collectives(0),
      Numbers::Messages(Tag::kUntagged, CallKind::kSend, 0),
      Numbers::Messages(Tag::kUntagged, CallKind::kRecv, 0),
      Numbers::Messages(Tag::kUntagged, CallKind::kSend, 2),
      Numbers::Messages(Tag::kUntagged, CallKind::kRecv, 2),
      Numbers::Messages(7, CallKind::kSend, 2),
      Numbers::Messages(7, CallKind::kRecv, 2),
  };
  uint64_t count = 0;
  for (const auto& series : all) {
    ++count;
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_EQ(numbers.Next(series), i);
      EXPECT_EQ(numbers.Take(series), i);
    }
  }
  count = 0;
  for (const auto& series : all) {
    EXPECT_EQ(numbers.Next(series), ++count);
  }
}

TEST(CallNumbers, ACallIsOfTheSeriesOfItsTagAndPeer) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.root = 1;
  EXPECT_EQ(Numbers::Of(call), Numbers::Collectives(Tag::kUntagged));
  call.options.user_tag = 5;
  EXPECT_EQ(Numbers::Of(call), Numbers::Collectives(5));
  call.kind = CallKind::kSend;
  EXPECT_EQ(Numbers::Of(call), Numbers::Messages(5, CallKind::kSend, 1));
  call.kind = CallKind::kRecv;
  EXPECT_EQ(Numbers::Of(call), Numbers::Messages(5, CallKind::kRecv, 1));
  EXPECT_FALSE(Numbers::Of(call) == Numbers::Messages(5, CallKind::kSend, 1));
}

TEST(CallNumbers, OrderIsKnownFromTheLowBitsAlone) {
  constexpr uint64_t kAll = uint64_t{Tag::kCallMask} + 1;
  EXPECT_FALSE(Numbers::IsBefore(0, 0)) << "none was given out";
  for (const uint64_t base : {uint64_t{0}, kAll - 2, 5 * kAll - 1, 5 * kAll}) {
    for (const uint64_t next : {base + 1, base + 2, base + kAll / 4}) {
      EXPECT_TRUE(Numbers::IsBefore(Numbers::OnWire(base), next)) << base << " " << next;
      EXPECT_FALSE(Numbers::IsBefore(Numbers::OnWire(next), next)) << base << " " << next;
      EXPECT_FALSE(Numbers::IsBefore(Numbers::OnWire(next + 3), next)) << base << " " << next;
    }
  }
}

TEST(CallNumbers, ThreadsNeverGetTheSameNumber) {
  Numbers numbers(2);
  constexpr int kEach = 2000;
  for (const uint32_t tag : {Tag::kUntagged, uint32_t{3}}) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, tag] {
        uint64_t last = 0;
        for (int k = 0; k < kEach; ++k) {
          const uint64_t number = numbers.Take(Numbers::Collectives(tag));
          EXPECT_TRUE(k == 0 || number > last);
          last = number;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(numbers.Next(Numbers::Collectives(tag)), uint64_t{3 * kEach});
  }
}

}  // namespace
}  // namespace entrain
