#include "lib/memory/buffer.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/memory/best_fit.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

OwnedBuffer Make(int64_t bytes) {
  auto buffer = OwnedBuffer::Allocate(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

TEST(OwnedBuffer, IsAlignedAndWritable) {
  for (const int64_t bytes : {1, 63, 64, 65, 4096, 65535, 65536, 65537, 1 << 20, (2 << 20) - 1,
                              2 << 20, (2 << 20) + 1, 3 << 20, (4 << 20) - 5}) {
    const OwnedBuffer buffer = Make(bytes);
    const uintptr_t alignment = bytes >= 2 << 20 ? 2 << 20 : bytes >= 65536 ? 4096 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0u) << bytes;
    EXPECT_EQ(buffer.size(), bytes);
    std::memset(buffer.data(), 0x5a, static_cast<size_t>(bytes));
    EXPECT_EQ(buffer.view().data, buffer.data());
    EXPECT_EQ(buffer.view().bytes, bytes);
  }
}

TEST(OwnedBuffer, OfNoBytesIsFine) {
  const OwnedBuffer buffer = Make(0);
  EXPECT_EQ(buffer.size(), 0);
}

TEST(OwnedBuffer, MovesWithItsMemory) {
  OwnedBuffer first = Make(100);
  std::byte* const data = first.data();
  OwnedBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 100);
  OwnedBuffer third = Make(7);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 100);
}

TEST(OwnedBuffer, SizesThatCannotBeHadAreNamed) {
  const auto huge = OwnedBuffer::Allocate(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("9223372036854775807"));
  const auto negative = OwnedBuffer::Allocate(-5);
  EXPECT_EQ(negative.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(negative.status().message()), HasSubstr("-5"));
}

TEST(BufferPool, GivesTheSmallestThatFits) {
  BufferPool pool(1 << 20);
  OwnedBuffer small = Make(1000), middle = Make(1500), large = Make(1900);
  std::byte* const expected = middle.data();
  pool.Give(std::move(large));
  pool.Give(std::move(small));
  pool.Give(std::move(middle));
  EXPECT_EQ(pool.idle_bytes(), 4400);
  const OwnedBuffer taken = pool.Take(1200).value();
  EXPECT_EQ(taken.data(), expected);
  EXPECT_EQ(taken.size(), 1500);
  EXPECT_EQ(pool.idle_bytes(), 2900);
}

TEST(BufferPool, DoesNotSpendALargeBufferOnASmallRequest) {
  BufferPool pool(1 << 20);
  pool.Give(Make(10000));
  const OwnedBuffer taken = pool.Take(4000).value();
  EXPECT_EQ(taken.size(), 4000);
  EXPECT_EQ(pool.idle_bytes(), 10000);
}

TEST(BufferPool, KeepsNoMoreThanItsCap) {
  BufferPool pool(1000);
  pool.Give(Make(600));
  pool.Give(Make(600));  // freed
  EXPECT_EQ(pool.idle_bytes(), 600);
  pool.Give(Make(400));
  EXPECT_EQ(pool.idle_bytes(), 1000);
}

TEST(BufferPool, IsEmptyWhenCleared) {
  BufferPool pool(1 << 20);
  pool.Give(*pool.Take(600));
  pool.Clear();
  EXPECT_EQ(pool.idle_bytes(), 0);
  pool.Give(*pool.Take(400));
  EXPECT_EQ(pool.idle_bytes(), 400);
}

TEST(BufferPool, ServesManyThreads) {
  BufferPool pool(1 << 20);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, &bad = wrong[t], t] {
      for (int i = 0; i < 500; ++i) {
        OwnedBuffer buffer = pool.Take(64 + i % 64).value();
        std::memset(buffer.data(), static_cast<int>(t), static_cast<size_t>(buffer.size()));
        for (int64_t b = 0; b < buffer.size(); ++b) {
          bad += buffer.data()[b] != static_cast<std::byte>(t) ? 1 : 0;
        }
        pool.Give(std::move(buffer));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TakeBestFit, TakesTheSmallestThatFits) {
  struct Block {
    int64_t bytes;
    int64_t size() const { return bytes; }
  };
  std::vector<Block> idle = {{30}, {10}, {20}, {40}};
  const auto fits = [](const Block& block) { return block.bytes >= 15; };
  for (const int64_t expected : {20, 30, 40}) {
    const auto taken = TakeBestFit(&idle, fits);
    ASSERT_TRUE(taken.has_value());
    EXPECT_EQ(taken->bytes, expected);
  }
  EXPECT_FALSE(TakeBestFit(&idle, fits).has_value());
  ASSERT_EQ(idle.size(), 1u);
  EXPECT_EQ(idle[0].bytes, 10);
}

}  // namespace
}  // namespace entrain
