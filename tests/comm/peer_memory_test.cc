// Memory for the peers of a runtime, with and without a call that uses it.
#include "lib/comm/create/peer_memory.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/comm/idle_context.h"

namespace entrain {
namespace {

using testing::HasSubstr;
using Pages = SealedMemory::Pages;

constexpr size_t kPage = 4096;

// A communicator one of whose calls uses all memory, or none.
class User final : public IdleContext {
 public:
  std::string UserOf(ConstBytes) const override { return uses ? "all_reduce #1 on c" : ""; }

  bool uses = false;
};

class PeerMemoryTest : public testing::Test {
 protected:
  PeerMemoryTest() {
    engine->seat().RunInDriver([&] { engine->OpenContext(engine->ReserveContext(), user); });
  }
  void TearDown() override { engine->Shutdown(); }

  std::shared_ptr<Engine> engine = std::make_shared<Engine>(SeatOptions{.own_thread = false});
  std::shared_ptr<User> user = std::make_shared<User>();
  SharedRegions regions;
  PeerMemory memory{*engine, regions};
};

TEST_F(PeerMemoryTest, AllocatedMemoryIsARegionUntilItIsFreed) {
  const auto data = memory.Allocate(100, Pages::kUsual);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_NE(regions.At(*data), nullptr);
  EXPECT_FALSE(regions.At(*data)->registered);
  EXPECT_TRUE(memory.Free(*data).ok());
  EXPECT_EQ(regions.At(*data), nullptr);
  const absl::Status twice = memory.Free(*data);
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(twice.message()), HasSubstr("was not allocated for communicators of"));
}

TEST_F(PeerMemoryTest, MemoryThatACallUsesStaysMappedAfterItIsFreed) {
  auto* const data = static_cast<char*>(memory.Allocate(100, Pages::kUsual).value());
  const std::weak_ptr<const SharedRegion> region = regions.At(data);
  user->uses = true;
  EXPECT_TRUE(memory.Free(data).ok());
  EXPECT_EQ(regions.At(data), nullptr);
  ASSERT_FALSE(region.expired()) << "the engine keeps it";
  data[0] = 1;
  user->uses = false;
  engine->seat().PollOnce();
  engine->seat().RunInDriver([] {});
}

TEST_F(PeerMemoryTest, RegisteredMemoryIsTheCallersAndKeepsItsContent) {
  alignas(kPage) static char data[2 * kPage];
  data[5] = 7;
  const auto mapped = memory.Register({reinterpret_cast<std::byte*>(data), sizeof(data)});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(data[5], 7);
  ASSERT_NE(regions.At(data), nullptr);
  EXPECT_TRUE(regions.At(data)->registered);
  EXPECT_EQ(memory.Free(data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory.Deregister(data).ok());
  EXPECT_EQ(data[5], 7);
  const absl::Status twice = memory.Deregister(data);
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(twice.message()), HasSubstr("is not registered for communicators of"));
}

TEST_F(PeerMemoryTest, MemoryThatACallUsesIsNeitherRegisteredNorDeregistered) {
  alignas(kPage) static char data[kPage];
  const Bytes bytes(reinterpret_cast<std::byte*>(data), sizeof(data));
  user->uses = true;
  const absl::Status busy = memory.Register(bytes).status();
  EXPECT_EQ(busy.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(busy.message()), HasSubstr("all_reduce #1 on c"));
  EXPECT_EQ(regions.At(data), nullptr);
  user->uses = false;
  ASSERT_TRUE(memory.Register(bytes).ok());
  user->uses = true;
  EXPECT_EQ(memory.Deregister(data).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(regions.At(data), nullptr);
  user->uses = false;
  EXPECT_TRUE(memory.Deregister(data).ok());
}

}  // namespace
}  // namespace entrain
