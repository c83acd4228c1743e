#include "lib/store/request.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

StoreRequest Example() {
  StoreRequest request;
  request.op = StoreOp::kCompareAndSet;
  request.key = "key";
  request.value = std::string("new\0", 4);
  request.expected = "old";
  request.delta = -7;
  return request;
}

TEST(StoreRequest, DecodesToWhatWasEncoded) {
  const auto request = DecodeRequest(EncodeRequest(Example()));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->op, Example().op);
  EXPECT_EQ(request->key, Example().key);
  EXPECT_EQ(request->value, Example().value);
  EXPECT_EQ(request->expected, Example().expected);
  EXPECT_EQ(request->delta, Example().delta);
}

TEST(StoreRequest, LargestFitsTheLimit) {
  StoreRequest request = Example();
  request.key.assign(kMaxStoreKey, 'k');
  request.value.assign(kMaxStoreValue, 'v');
  request.expected.assign(kMaxStoreValue, 'e');
  EXPECT_LE(EncodeRequest(request).size(), kMaxRequestBytes);
  EXPECT_TRUE(DecodeRequest(EncodeRequest(request)).ok());
  EXPECT_LE(EncodeReply(request.value).size(), kMaxReplyBytes);
}

TEST(StoreRequest, EveryCutAndEveryExtensionIsRefused) {
  const std::string bytes = EncodeRequest(Example());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeRequest(bytes.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(DecodeRequest(bytes + "x").ok());
}

TEST(StoreRequest, UnknownOperationIsRefused) {
  std::string bytes = EncodeRequest(Example());
  for (const char op : {'\0', '\13', '\xff'}) {
    bytes[0] = op;
    EXPECT_FALSE(DecodeRequest(bytes).ok());
  }
}

TEST(StoreReply, DecodesToWhatWasEncoded) {
  EXPECT_EQ(*DecodeReply(EncodeReply(std::string("value"))), "value");
  EXPECT_EQ(*DecodeReply(EncodeReply(std::string())), "");
  const auto error = DecodeReply(EncodeReply(absl::NotFoundError("no such key")));
  EXPECT_EQ(error.status(), absl::NotFoundError("no such key"));
}

TEST(StoreReply, MalformedIsDataLoss) {
  for (const std::string& bytes :
       {std::string(), std::string("\xff\0\0\0\0", 5), std::string("\0\5\0\0\0abc", 8),
        std::string("\0\0\0\0\0x", 6)}) {
    EXPECT_EQ(DecodeReply(bytes).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(StoreTable, SaysWhenSomebodyShouldLookAgain) {
  StoreTable table;
  StoreRequest request = Example();
  bool changed = true;
  EXPECT_EQ(*table.Apply(request, "me", &changed), "");  // refused: absent, not "old"
  EXPECT_FALSE(changed);
  request.expected = "";
  EXPECT_EQ(*table.Apply(request, "me", &changed), request.value);
  EXPECT_TRUE(changed);
}

// Sets `key` to `bytes` bytes.
absl::Status SetIn(StoreTable& table, const std::string& key, size_t bytes,
                   const std::string& client) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.key = key;
  request.value.assign(bytes, 'v');
  bool changed = false;
  return table.Apply(request, client, &changed).status();
}

TEST(StoreTable, OneClientFillsItsShareAndNoMore) {
  StoreTable table;
  size_t taken = 0;
  absl::Status full;
  for (int i = 0; full.ok(); ++i) {
    full = SetIn(table, "k" + std::to_string(i), kMaxStoreValue, "greedy");
    taken += full.ok() ? kMaxStoreValue : 0;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::HasSubstr("those of one client together may have 67108864 bytes"));
  EXPECT_LE(taken, kMaxClientBytes);
  EXPECT_GT(taken, kMaxClientBytes - 2 * kMaxStoreValue);
  // Other clients have room. A value that is overwritten is charged to the client that writes. A
  // shorter value frees room.
  EXPECT_TRUE(SetIn(table, "other", kMaxStoreValue, "modest").ok());
  EXPECT_TRUE(SetIn(table, "k0", kMaxStoreValue, "modest").ok());
  EXPECT_TRUE(SetIn(table, "again", kMaxStoreValue / 2, "greedy").ok());
  EXPECT_TRUE(SetIn(table, "k1", 0, "greedy").ok());
  EXPECT_TRUE(SetIn(table, "more", kMaxStoreValue, "greedy").ok());
  EXPECT_TRUE(SetIn(table, "most", kMaxStoreValue, "greedy").ok());
  EXPECT_FALSE(SetIn(table, "too much", kMaxStoreValue, "greedy").ok());
}

TEST(StoreTable, WhatIsDeletedGivesRoomToWhoPaidForIt) {
  StoreTable table;
  for (int i = 0; SetIn(table, "k" + std::to_string(i), kMaxStoreValue, "greedy").ok(); ++i) {
  }
  StoreRequest remove;
  remove.op = StoreOp::kDelete;
  remove.key = "k0";
  bool changed = true;
  EXPECT_TRUE(table.Apply(remove, "modest", &changed).ok());
  EXPECT_FALSE(changed) << "nobody who waits finds it";
  EXPECT_TRUE(table.Apply(remove, "modest", &changed).ok()) << "there is none";
  EXPECT_TRUE(SetIn(table, "again", kMaxStoreValue, "greedy").ok());
  EXPECT_FALSE(SetIn(table, "too much", kMaxStoreValue, "greedy").ok());
}

TEST(StoreTable, AllClientsTogetherHaveALimit) {
  StoreTable table;
  absl::Status full;
  for (int i = 0; full.ok() && i < 1000; ++i) {
    full = SetIn(table, "k" + std::to_string(i), kMaxStoreValue, std::to_string(i));
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::HasSubstr("all values together may have 268435456 bytes"));
}

}  // namespace
}  // namespace entrain
