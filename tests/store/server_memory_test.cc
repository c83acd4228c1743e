// The memory that clients cost a store's server. The server is in this process.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/base/bytes.h"
#include "lib/net/handshake.h"
#include "lib/net/socket.h"
#include "lib/store/gathering.h"
#include "lib/store/request.h"
#include "lib/store/store.h"
#include "tests/store/store_source.h"
#include "tests/support/allocations.h"
#include "tests/support/plain_handshake.h"

namespace entrain {
namespace {

TEST(ServerMemory, AnnouncedBytesCostNothingUntilTheyCome) {
  constexpr int kClients = 300;
  const auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const Address address = *Address::Parse(served->url().substr(6));
  std::vector<Fd> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(*Connect(address, Soon()));
    Handshake handshake(true, Purpose::kStore, {7}, "");
    ASSERT_TRUE(RunHandshake(clients.back().get(), handshake, Soon()).ok());
  }
  ASSERT_TRUE(served->Set("key", "value", Soon()).ok());
  const int64_t before = AllocatedBytes();
  const std::string header = Writer().Put(static_cast<uint32_t>(kMaxRequestBytes)).Take();
  for (const Fd& client : clients) {
    ASSERT_TRUE(WriteFull(client.get(), header.data(), header.size(), Soon()).ok());
  }
  ASSERT_TRUE(served->Set("key", "value", Soon()).ok());  // handled after the clients' requests
  EXPECT_LT(AllocatedBytes() - before, kClients * 1024);
}

// Ranks that leave when all have met need no answer, so the server makes no table for them.
TEST(ServerMemory, LeavingMakesNoTable) {
  constexpr int kRanks = 40;
  const auto served = *ServeStore("tcp://127.0.0.1:0", "");
  const auto store = *OpenStore(served->url(), "", Soon());
  const Parts brings(kMaxParts, std::string(900, 'a'));
  std::vector<std::unique_ptr<StoreMeeting>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    all.push_back(*store->Join("world", rank, kRanks, brings, Soon()));
  }
  for (const auto& one : all) {
    ASSERT_TRUE(one->Wait(Soon()).ok());
  }
  ASSERT_TRUE(store->Set("key", "value", Soon()).ok());
  ForgetMost();
  const int64_t before = AllocatedBytes();
  for (size_t rank = 1; rank < all.size(); ++rank) {  // rank 0 keeps the meeting
    all[rank]->Finish();
    all[rank].reset();
  }
  ASSERT_TRUE(store->Set("key", "value", Soon()).ok());  // handled after the ranks' requests
  EXPECT_LT(MostAllocatedBytes() - before, 1 << 20);     // a table has more than twice that
}

}  // namespace
}  // namespace entrain
