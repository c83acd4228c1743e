#include "lib/comm/failure/call_notes.h"

#include "gtest/gtest.h"

namespace entrain {
namespace {

Descriptor Of(int64_t count) {
  Descriptor descriptor;
  descriptor.kind = CallKind::kAllReduce;
  descriptor.count = count;
  return descriptor;
}

// Never used as an endpoint: notes only compare the address.
const Endpoint& Someone(int n) {
  alignas(Endpoint) static const char someone[4][sizeof(Endpoint)] = {};
  return *reinterpret_cast<const Endpoint*>(someone[n]);
}

TEST(CallNotes, EqualCallsDoNotDisagree) {
  CallNotes notes;
  EXPECT_EQ(notes.Hear(Someone(0), {1, 5}, Of(8)), nullptr);
  EXPECT_FALSE(notes.Meet({1, 5}, Of(8)));
  EXPECT_FALSE(notes.Meet({1, 6}, Of(9)));
}

TEST(CallNotes, WhoeverCalledSomethingElseFirstOrLaterIsFound) {
  for (const int odd : {0, 1, 2}) {
    CallNotes notes;
    for (const int rank : {0, 1, 2}) {
      notes.Hear(Someone(rank), {1, 5}, Of(rank == odd ? 9 : 8));
    }
    const auto heard = notes.Meet({1, 5}, Of(8));
    ASSERT_TRUE(heard) << odd;
    EXPECT_EQ(heard->from, &Someone(odd));
    EXPECT_EQ(heard->descriptor, Of(9));
    EXPECT_FALSE(notes.Meet({1, 5}, Of(8))) << "forgotten";
  }
}

TEST(CallNotes, ACallThatIsOverIsCompared) {
  CallNotes notes;
  notes.Over({{2, 7}, 7, Of(8)});
  EXPECT_EQ(notes.Hear(Someone(0), {2, 7}, Of(8)), nullptr);
  const OwnCall* const ours = notes.Hear(Someone(0), {2, 7}, Of(9));
  ASSERT_NE(ours, nullptr);
  EXPECT_EQ(ours->descriptor, Of(8));
  EXPECT_FALSE(notes.Meet({2, 7}, Of(8))) << "nothing was noted";
}

TEST(CallNotes, OldCallsGiveWayAndNothingIsKeptForThem) {
  CallNotes notes;
  const auto id = [](uint32_t i) { return CallId{2, i & Tag::kCallMask}; };
  constexpr uint32_t kFirst = Tag::kCallMask - 500;  // numbers wrap around on the way
  for (uint32_t i = kFirst; i < kFirst + 1000; ++i) {
    notes.Over({id(i), i, Of(8)});
  }
  EXPECT_NE(notes.Hear(Someone(0), id(kFirst + 999), Of(9)), nullptr);
  EXPECT_EQ(notes.Hear(Someone(0), id(kFirst + 1), Of(9)), nullptr);
  EXPECT_FALSE(notes.Meet(id(kFirst + 1), Of(8))) << "of the call that has its number again";
  EXPECT_EQ(notes.Hear(Someone(0), id(kFirst + 1000), Of(9)), nullptr);
  EXPECT_TRUE(notes.Meet(id(kFirst + 1000), Of(8))) << "which is to come";
  EXPECT_TRUE(notes.HasForgotten(id(kFirst + 1)));
  EXPECT_FALSE(notes.HasForgotten(id(kFirst + 999))) << "remembered";
  EXPECT_FALSE(notes.HasForgotten(id(kFirst + 1000))) << "not over";
}

TEST(CallNotes, ClearForgetsWhatWasHeard) {
  CallNotes notes;
  EXPECT_EQ(notes.Hear(Someone(0), {1, 5}, Of(9)), nullptr);
  notes.Clear();
  EXPECT_FALSE(notes.Meet({1, 5}, Of(8)));
}

}  // namespace
}  // namespace entrain
