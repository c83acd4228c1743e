// The ranks of a communicator over played endpoints: names, ranks, control messages.
#include "lib/comm/peers.h"

#include <deque>

#include "gtest/gtest.h"

#include "tests/comm/played_peer.h"

namespace entrain {
namespace {

class PeersTest : public testing::Test {
 protected:
  PeersTest() {
    for (int r = 0; r < 3; ++r) {
      Member member;
      member.id[0] = static_cast<uint8_t>(r + 1);
      member.context = static_cast<Context>(20 + r);
      member.world_rank = 7 + r;
      member.endpoint = r == 1 ? nullptr : &endpoints[static_cast<size_t>(r)];
      members.push_back(member);
    }
  }
  std::deque<PlayedPeer> endpoints{3};
  std::vector<Member> members;
};

TEST_F(PeersTest, KnowsRanksByEndpointAndByProcess) {
  const Peers peers("part", "world", 1, members);
  PlayedPeer stranger;
  EXPECT_EQ(peers.RankOf(&endpoints[2]), 2);
  EXPECT_EQ(peers.RankOf(&stranger), -1);
  EXPECT_EQ(peers.RankOf(members[1].id), 1);
  EXPECT_EQ(peers.RankOf(PeerId{}), -1);
  EXPECT_EQ(peers.size(), 3);
}

TEST_F(PeersTest, NamesARankByItsAddressAndInItsWorld) {
  EXPECT_EQ(Peers("part", "world", 1, members).NameOf(2), "rank 2 (rank 9 of world, played)");
  EXPECT_EQ(Peers("world", "world", 1, members).NameOf(2), "rank 2 (played)");
  EXPECT_EQ(Peers("part", "world", 1, members).NameOf(1), "rank 1") << "itself";
}

TEST_F(PeersTest, TheSlowestRoundTripIsThatOfAnyPeer) {
  const Peers peers("c", "c", 1, members);
  EXPECT_EQ(peers.SlowestRoundTrip(), 0);
  endpoints[0].round_trip = 5;
  endpoints[2].round_trip = 3;
  EXPECT_EQ(peers.SlowestRoundTrip(), 5);
}

TEST_F(PeersTest, AMessageHasTheReceiversContextAndItsKind) {
  const Peers peers("c", "c", 1, members);
  peers.Send(2, ControlKind::kLeave, "body");
  ASSERT_EQ(endpoints[2].sent.size(), 1u);
  Reader reader(endpoints[2].sent[0]);
  EXPECT_EQ(reader.Get<Context>(), 22);
  EXPECT_EQ(reader.Get<ControlKind>(), ControlKind::kLeave);
  EXPECT_EQ(endpoints[2].sent[0].substr(3), "body");
}

TEST_F(PeersTest, AQuestionTakesTheQuickerWayWhereThereIsOne) {
  const Peers peers("c", "c", 1, members);
  peers.SendSoon(0, ControlKind::kQuery, "q");
  EXPECT_EQ(endpoints[0].urgent.size(), 1u);
  EXPECT_TRUE(endpoints[0].sent.empty());
  endpoints[2].has_urgent = false;
  peers.SendSoon(2, ControlKind::kQuery, "q");
  EXPECT_EQ(endpoints[2].sent.size(), 1u);
}

TEST_F(PeersTest, AnAbortTakesBothWays) {
  const Peers peers("c", "c", 1, members);
  peers.SendTwice(0, ControlKind::kAbort, "why");
  EXPECT_EQ(endpoints[0].urgent, endpoints[0].sent);
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
}

}  // namespace
}  // namespace entrain
