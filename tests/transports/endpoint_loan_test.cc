// Receives that may be lent their bytes (RecvHint::loan), from memory that the sender has allocated
// for its peers to read. The transport decides what is lent and what is copied. The receiver reads
// the same bytes.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/mappings.h"
#include "tests/transports/endpoint_contract.h"

namespace entrain {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr Context kUnused = 77;

class EndpointLoan : public EndpointContract {
 protected:
  bool lends() const { return Beneath(GetParam()) == "shm"; }
  // Memory of node a.
  std::shared_ptr<const SharedRegion> Allocate(int64_t bytes) {
    auto region = a->regions->Allocate(bytes, SealedMemory::Pages::kUsual);
    EXPECT_TRUE(region.ok()) << region.status();
    return *region;
  }
  static Bytes In(const SharedRegion& region, int64_t offset, int64_t bytes) {
    return {const_cast<std::byte*>(region.whole.data()) + offset, static_cast<size_t>(bytes)};
  }
  static void Fill(Bytes bytes, uint32_t seed) {
    const Buffer pattern = Pattern(static_cast<int64_t>(bytes.size()), seed);
    std::copy(pattern.begin(), pattern.end(), reinterpret_cast<uint8_t*>(bytes.data()));
  }
  // Memory of node a that begins and ends in the middle of pages. It is on the heap, so that these
  // pages hold other objects too.
  std::shared_ptr<const SharedRegion> Register(int64_t bytes) {
    heap.assign(static_cast<size_t>(bytes) + 200, std::byte{0});
    auto region = a->regions->Register({heap.data() + 100, static_cast<size_t>(bytes)});
    EXPECT_TRUE(region.ok()) << region.status();
    registered = *region;
    return *region;
  }
  // Registered memory must become private again before it is freed.
  void GiveBack() {
    EXPECT_EQ(a->regions->Remove(*registered)->memory.GiveBack(), absl::OkStatus());
    registered = nullptr;
  }
  void TearDown() override {
    if (registered != nullptr) {
      GiveBack();
    }
    EndpointContract::TearDown();
  }
  void Retire(const std::shared_ptr<const SharedRegion>& region) {
    a->transport->Retire(*region);
    a->regions->Remove(*region);
  }
  // Posts one message of a, and polls until it is received.
  void SendOne(Bytes from, uint32_t tag) {
    to_a->PostRecv(Message(tag), Of(in), &received, {.loan = &loan});
    to_b->PostSend(Message(tag), from, &sent);
    ASSERT_TRUE(PollUntil([&] { return received.times > 0; }));
    ASSERT_EQ(received.status, absl::OkStatus());
  }
  // Returns the bytes that the receive got.
  Buffer Received() const {
    const auto* const data = reinterpret_cast<const uint8_t*>(loan.lent);
    return loan.lent == nullptr ? in : Buffer(data, data + in.size());
  }

  std::vector<std::byte> heap;
  std::shared_ptr<const SharedRegion> registered;  // a part of `heap`
  Buffer in;
  Transfer received, sent;
  Loan loan;
};
INSTANTIATE_TEST_SUITE_P(Every, EndpointLoan,
                         testing::Values("inproc", "shm", "tcp", "fault_inproc", "fault_shm",
                                         "fault_tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(EndpointLoan, GivesTheBytesAndCompletesTheSendWhenItEnds) {
  Connect();
  constexpr int64_t kAll = 2 * kMiB;
  for (const auto& region : {Allocate(kAll), Register(kAll)}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, 4 * kKiB, 100 * kKiB + 3, kMiB, kAll}) {
      for (const int64_t offset : {int64_t{0}, int64_t{8}, 5 * kKiB + 1, kAll - bytes}) {
        if (offset + bytes > kAll) {
          continue;
        }
        in.assign(static_cast<size_t>(bytes), 0);
        received = {};
        sent = {};
        Fill(In(*region, offset, bytes), static_cast<uint32_t>(bytes + offset));
        ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, offset, bytes), next_tag++));
        EXPECT_EQ(received.bytes, bytes);
        EXPECT_EQ(Received(), Pattern(bytes, static_cast<uint32_t>(bytes + offset)));
        EXPECT_EQ(loan.lent != nullptr, lends() && bytes > 32 * kKiB) << bytes;
        if (loan.lent != nullptr) {
          Settle();
          EXPECT_EQ(sent.times, 0) << "it is still read";
          EXPECT_EQ(to_a->Release(&loan), absl::OkStatus());
          EXPECT_EQ(loan.lent, nullptr);
        }
        ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
        EXPECT_EQ(sent.status, absl::OkStatus());
      }
    }
  }
}

TEST_P(EndpointLoan, IsEmptyWhereTheBytesAreInTheReceive) {
  Connect();
  const auto region = Allocate(kMiB);
  for (const int64_t bytes : {int64_t{0}, int64_t{100}}) {  // too small to be lent
    in.assign(static_cast<size_t>(bytes), 0);
    received = sent = {};
    loan = {reinterpret_cast<const std::byte*>(this), 7};  // left by an earlier receive
    Fill(In(*region, 0, bytes), 1);
    ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, bytes), next_tag++));
    EXPECT_EQ(loan.lent, nullptr);
    EXPECT_EQ(Received(), Pattern(bytes, 1));
    ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
  }
}

TEST_P(EndpointLoan, ReceivesThatAskForACopyGetOne) {
  Connect();
  for (const auto& region : {Allocate(3 * kMiB), Register(3 * kMiB)}) {
    for (const int64_t bytes : {40 * kKiB, 3 * kMiB}) {
      Fill(In(*region, 0, bytes), 1);
      Buffer copy(static_cast<size_t>(bytes));
      const uint32_t tag = next_tag++;
      sent = received = {};
      // The message comes before its receive.
      to_b->PostSend(Message(tag), In(*region, 0, bytes), &sent);
      Settle();
      to_a->PostRecv(Message(tag), Of(copy), &received);
      ASSERT_TRUE(PollBoth(received, sent));
      EXPECT_EQ(copy, Pattern(bytes, 1));
    }
  }
}

// The first and the last page hold other objects, which change.
TEST_P(EndpointLoan, RegisteredMemoryIsReadAnewWithEachMessage) {
  Connect();
  constexpr int64_t kAll = 100 * kKiB;
  const auto region = Register(kAll);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    in.assign(kAll, 0);
    received = sent = {};
    Fill(In(*region, 0, kAll), seed);
    std::fill(heap.begin(), heap.begin() + 100, static_cast<std::byte>(seed));
    ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kAll), next_tag++));
    EXPECT_EQ(Received(), Pattern(kAll, seed));
    if (loan.lent != nullptr) {
      EXPECT_EQ(to_a->Release(&loan), absl::OkStatus());
    }
    ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
  }
  a->transport->Retire(*region);
  GiveBack();
  in.assign(kAll, 0);
  received = sent = {};
  Fill(In(*region, 0, kAll), 9);
  ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kAll), next_tag++));
  EXPECT_EQ(loan.lent, nullptr) << "it is private again";
  EXPECT_EQ(in, Pattern(kAll, 9));
}

TEST_P(EndpointLoan, PrivateMemoryIsCopied) {
  Connect();
  Buffer out = Pattern(kMiB, 3);
  in.assign(kMiB, 0);
  ASSERT_NO_FATAL_FAILURE(SendOne(Of(out), 1));
  EXPECT_EQ(loan.lent, nullptr);
  EXPECT_EQ(in, out);
}

TEST_P(EndpointLoan, Invariant7_TheSenderTakesItBackWhileItIsRead) {
  Connect();
  const auto region = Allocate(kMiB);
  in.assign(kMiB, 0);
  ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kMiB), 1));
  const bool lent = loan.lent != nullptr;
  to_b->Revoke(kUnused, kContext, absl::AbortedError("enough"));
  Fill(In(*region, 0, kMiB), 9);  // the memory is the sender's again
  ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
  if (lent) {
    EXPECT_EQ(sent.status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(to_a->Release(&loan).code(), absl::StatusCode::kAborted);
  }
  ExpectGood();
}

TEST_P(EndpointLoan, Invariant7_OrHasTakenItBackAndThePeerHasNotHeard) {
  Connect();
  const auto region = Allocate(kMiB);
  in.assign(kMiB, 0);
  ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kMiB), 1));
  to_b->Revoke(kUnused, kContext, absl::AbortedError("enough"));
  if (loan.lent != nullptr) {  // no node has polled since
    EXPECT_EQ(to_a->Release(&loan).code(), absl::StatusCode::kAborted);
  }
  ExpectGood();
}

// Several messages at a time, so that shm reads some of them and gets others through the ring. It
// copies messages from a region.
TEST_P(EndpointLoan, Invariant7_RevokeOfSeveralInEveryStage) {
  constexpr size_t kMessages = 4;
  constexpr size_t kBytes = 1200 * kKiB;
  for (int polls = 0; polls < 48; polls += 3) {
    const bool by_sender = polls % 2 == 0, in_region = polls % 4 < 2;
    SCOPED_TRACE(absl::StrCat(polls, " polls before the ", by_sender ? "sender" : "receiver",
                              " revokes", in_region ? ", in a region" : ""));
    Connect();
    const auto region = Allocate(int64_t{kMessages * kBytes});
    Buffer own(kMessages * kBytes), expected(kBytes);
    const Bytes out = in_region ? In(*region, 0, int64_t{kMessages * kBytes}) : Of(own);
    std::fill(out.begin(), out.end(), std::byte{0x11});
    std::fill(expected.begin(), expected.end(), uint8_t{0x11});
    Buffer into[kMessages];
    Transfer receives[kMessages], sends[kMessages];
    for (uint32_t i = 0; i < kMessages; ++i) {
      into[i].assign(kBytes, 0);
      to_a->PostRecv(Message(i), Of(into[i]), &receives[i]);
      to_b->PostSend(Message(i), out.subspan(i * kBytes, kBytes), &sends[i]);
    }
    for (int i = 0; i < polls; ++i) {
      (i % 2 == 0 ? a : b)->transport->Poll();
    }
    Buffer at_revocation[kMessages];
    (by_sender ? to_b : to_a)->Revoke(kContext, kContext, absl::AbortedError("enough"));
    if (by_sender) {
      std::fill(out.begin(), out.end(), std::byte{0xDD});
    } else {
      std::copy(std::begin(into), std::end(into), std::begin(at_revocation));
    }
    Settle();
    (by_sender ? to_a : to_b)->Revoke(kContext, kContext, absl::AbortedError("enough"));
    ASSERT_TRUE(PollUntil([&] {
      return std::all_of(std::begin(sends), std::end(sends), [](auto& t) { return t.times > 0; }) &&
             std::all_of(std::begin(receives), std::end(receives),
                         [](auto& t) { return t.times > 0; });
    }));
    for (size_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(sends[i].times, 1);
      EXPECT_EQ(receives[i].times, 1);
      if (receives[i].status.ok()) {
        EXPECT_TRUE(into[i] == expected) << "success, but not with what was sent";
      }
      if (!by_sender) {
        EXPECT_TRUE(into[i] == at_revocation[i]) << "written after Revoke had returned";
      }
    }
    ExpectGood();
    TearDown();
  }
}

TEST_P(EndpointLoan, TheReceiverRevokesWhatItIsLent) {
  Connect();
  const auto region = Allocate(kMiB);
  in.assign(kMiB, 0);
  ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kMiB), 1));
  to_a->Revoke(kContext, kUnused, absl::AbortedError("enough"));
  ASSERT_TRUE(PollUntil([&] { return sent.times == 1; })) << "the sender waits for nobody";
  if (loan.lent != nullptr) {
    EXPECT_EQ(to_a->Release(&loan).code(), absl::StatusCode::kAborted);
  }
  ExpectGood();
}

TEST_P(EndpointLoan, ClosingWhileSomethingIsLent) {
  for (const bool by_sender : {true, false}) {
    const int none = SharedMappings();
    Connect();
    const int before = SharedMappings();
    auto region = Allocate(kMiB);
    in.assign(kMiB, 0);
    received = {};
    sent = {};
    ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, kMiB), 1));
    (by_sender ? to_b : to_a)->Close(absl::AbortedError("gone"));
    const auto& other = (by_sender ? b : a)->events;
    ASSERT_TRUE(PollUntil([&] { return !other.lost.empty() && sent.times == 1; }));
    a->transport->Poll();
    b->transport->Poll();
    // Both ends have given up their connection, but not while something is lent.
    const bool connected_by_memory = std::string(GetParam()).find("shm") != std::string::npos;
    int ends = connected_by_memory ? 2 : 0;
    if (loan.lent != nullptr) {
      ends = connected_by_memory ? 1 : 0;
      EXPECT_EQ(SharedMappings(), before + 2 - ends) << "kept for whoever still reads it";
      EXPECT_FALSE(to_a->Release(&loan).ok());
    }
    EXPECT_EQ(SharedMappings(), before + 1 - ends) << "the sender's own";
    TearDown();
    region.reset();
    a.reset();
    b.reset();
    EXPECT_EQ(SharedMappings(), none);
  }
}

TEST_P(EndpointLoan, ARegionThatIsRetiredIsUnmappedByThePeer) {
  Connect();
  const int before = SharedMappings();
  for (int i = 0; i < 300; ++i) {  // more than fit a socket at once, one after the other
    auto region = Allocate(64 * kKiB);
    Fill(In(*region, 0, 64 * kKiB), static_cast<uint32_t>(i));
    in.assign(64 * kKiB, 0);
    received = {};
    sent = {};
    ASSERT_NO_FATAL_FAILURE(SendOne(In(*region, 0, 64 * kKiB), next_tag++));
    EXPECT_EQ(Received(), Pattern(64 * kKiB, static_cast<uint32_t>(i)));
    EXPECT_EQ(SharedMappings(), before + (lends() ? 2 : 1));
    if (loan.lent != nullptr) {
      EXPECT_EQ(to_a->Release(&loan), absl::OkStatus());
    }
    ASSERT_TRUE(PollUntil([&] { return sent.times == 1; }));
    Retire(region);
    region.reset();
    ASSERT_TRUE(PollUntil([&] { return SharedMappings() == before; })) << i;
  }
}

TEST_P(EndpointLoan, ManyRegionsAtOnceSomeNeverOfferedInTime) {
  Connect();
  constexpr int kRegions = 600;
  std::vector<std::shared_ptr<const SharedRegion>> regions;
  std::vector<Buffer> buffers(kRegions, Buffer(64 * kKiB));
  std::vector<Transfer> receives(kRegions), sends(kRegions);
  for (size_t i = 0; i < kRegions; ++i) {  // b does not poll meanwhile
    regions.push_back(Allocate(64 * kKiB));
    Fill(In(*regions[i], 0, 64 * kKiB), static_cast<uint32_t>(i));
    to_b->PostSend(Message(static_cast<uint32_t>(i)), In(*regions[i], 0, 64 * kKiB), &sends[i]);
  }
  for (size_t i = 0; i < kRegions; ++i) {
    to_a->PostRecv(Message(static_cast<uint32_t>(i)), Of(buffers[i]), &receives[i]);
  }
  for (size_t i = 0; i < kRegions; ++i) {
    ASSERT_TRUE(PollBoth(receives[i], sends[i])) << i;
    EXPECT_EQ(buffers[i], Pattern(64 * kKiB, static_cast<uint32_t>(i)));
  }
  for (const auto& region : regions) {
    Retire(region);
  }
  ExpectGood();
}

}  // namespace
}  // namespace entrain
