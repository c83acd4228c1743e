#include "lib/comm/create/applications.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/create/bootstrap.h"

namespace entrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PeerId Id(uint8_t number) {
  PeerId id{};
  id[0] = number;
  return id;
}

Stop Soon() {
  return {Deadline::After(20 * kSecond), nullptr};
}

Application ApplicationOf(uint8_t number) {
  return {Id(number), "settings", "the library's own values"};
}

Terms TermsOf() {
  return {.comm = "world", .members = {Id(1), Id(2)}, .own = ApplicationOf(1)};
}

TEST(Application, TravelsAsParts) {
  const auto read = Application::FromParts(ApplicationOf(7).ToParts());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, Id(7));
  EXPECT_EQ(read->settings, "settings");
  EXPECT_EQ(read->tuning, "the library's own values");
  for (const Parts& wrong : {Parts{}, Parts{"x", "y", "z"}, Parts{ApplicationOf(7).ToParts()[0]}}) {
    EXPECT_EQ(Application::FromParts(wrong).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(Roster, TravelsAsBytesAndGivesRanksBehindTheMembers) {
  const Roster roster{
      .generation = 3, .members = 4, .probe = true, .limit_ns = 5, .tickets = {11, 9}};
  const std::string bytes = roster.Encode();
  const auto read = Roster::Decode(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->generation, 3u);
  EXPECT_EQ(read->size(), 6);
  EXPECT_TRUE(read->probe);
  EXPECT_EQ(read->limit_ns, 5);
  EXPECT_EQ(read->RankOf(11), 4);
  EXPECT_EQ(read->RankOf(9), 5);
  EXPECT_EQ(read->RankOf(10), -1);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Roster::Decode(absl::string_view(bytes).substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(Roster::Decode(bytes + "x").ok());
}

TEST(Judge, RefusesMembersTwinsAndOtherSettings) {
  EXPECT_TRUE(Judge(ApplicationOf(3), TermsOf(), {Id(4)}).ok());
  const absl::Status member = Judge(ApplicationOf(2), TermsOf(), {});
  EXPECT_EQ(member.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(member.message()), HasSubstr("rank 1 of world already"));
  const absl::Status twin = Judge(ApplicationOf(3), TermsOf(), {Id(3)});
  EXPECT_EQ(twin.code(), absl::StatusCode::kFailedPrecondition);
  Application other = ApplicationOf(3);
  other.settings = "others";
  const absl::Status differs = Judge(other, TermsOf(), {});
  EXPECT_EQ(differs.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(differs.message()),
              AllOf(HasSubstr("\"settings\""), HasSubstr("\"others\"")));
  other = ApplicationOf(3);
  other.connect_only = true;
  const absl::Status replica = Judge(*Application::FromParts(other.ToParts()), TermsOf(), {});
  EXPECT_EQ(replica.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(replica.message()), HasSubstr("join by entrain_comm_join"));
  Terms training = TermsOf();
  training.own.connect_only = true;
  const absl::Status rank = Judge(ApplicationOf(3), training, {});
  EXPECT_THAT(std::string(rank.message()), HasSubstr("entrain_edit_join or entrain_acco_join"));
  for (const absl::Status& refusal : {member, twin, differs, replica, rank}) {
    EXPECT_TRUE(IsRefusal(refusal));
  }
  EXPECT_FALSE(IsRefusal(absl::UnavailableError("the member has ended")));
  EXPECT_FALSE(IsRefusal(absl::AbortedError("apply again")));
}

absl::Status BlameRank(const absl::Status& why, int rank, Phase phase) {
  Blame blame;
  blame.rank = rank;
  blame.phase = phase;
  return WithBlame(why, blame);
}

// The ranks from 2 on are newcomers.
TEST(ForOthers, ANewcomerBlamesItselfUnlessItKnowsBetter) {
  const auto told_of = [](const absl::Status& why, bool hurries = false) {
    return BlameOf(ForOthers(why, /*rank=*/3, /*members=*/2, hurries)).rank;
  };
  const absl::Status lost = absl::UnavailableError("cannot connect");
  const absl::Status absent = absl::DeadlineExceededError("has not come");
  EXPECT_EQ(told_of(BlameRank(lost, 1, Phase::kConnect)), 3) << "members reach each other";
  EXPECT_EQ(told_of(BlameRank(lost, 2, Phase::kConnect)), 2) << "another newcomer";
  EXPECT_EQ(told_of(BlameRank(absent, 1, Phase::kBootstrap)), 1) << "the store knows who has come";
  EXPECT_EQ(told_of(BlameRank(absent, 1, Phase::kBootstrap), /*hurries=*/true), 3);
  EXPECT_EQ(told_of(BlameRank(absent, -1, Phase::kBootstrap)), 3) << "the store was silent";
  EXPECT_EQ(told_of(absl::InternalError("no memory")), 3);
}

TEST(ForOthers, AMemberPassesTheGuiltyRankOn) {
  const absl::Status lost = BlameRank(absl::UnavailableError("cannot connect"), 3, Phase::kConnect);
  EXPECT_EQ(BlameOf(ForOthers(lost, /*rank=*/0, /*members=*/2)).rank, 3);
  EXPECT_EQ(BlameOf(ForOthers(absl::InternalError("no memory"), 0, 2)).rank, 0);
}

TEST(GrowKeys, OfTwoCallsAndTwoCommunicatorsDiffer) {
  const GrowKeys keys("world");
  EXPECT_NE(keys.Base(Id(1), 0), keys.Base(Id(1), 1));
  EXPECT_NE(keys.Base(Id(1), 0), keys.Base(Id(2), 0));
  EXPECT_NE(keys.Tickets(), GrowKeys("world/0").Tickets());
  EXPECT_LE(
      GrowKeys::Roster(GrowKeys(std::string(128, 'n')).Base(Id(1), ~uint64_t{0}), 1 << 30).size(),
      kMaxStoreKey);
}

// A newcomer that the test's thread plays step by step. No step blocks.
struct Played {
  int64_t ticket;
  std::unique_ptr<StoreMeeting> meeting;

  static Played Apply(Store& store, const Parts& parts) {
    Played played{*store.Add(GrowKeys("world").Tickets(), 1, Soon()), nullptr};
    played.meeting = *store.Join(GrowKeys("world").Application(played.ticket), 1, 2, parts, Soon());
    return played;
  }
  // Prepares the answer to an invitation that has not come yet.
  void Answer(Store& store) const {
    EXPECT_TRUE(store.Set(GrowKeys::Here("base", ticket), "", Soon()).ok());
  }
};

class IntakeTest : public testing::Test {
 protected:
  const std::shared_ptr<Store> store_ = *OpenStore("mem:applications", "", Soon());
  Intake intake_{store_, TermsOf(), "base"};
};

TEST_F(IntakeTest, TakesThoseThatAnswerInTheOrderOfTickets) {
  const Played first = Played::Apply(*store_, ApplicationOf(3).ToParts());
  const Played second = Played::Apply(*store_, ApplicationOf(4).ToParts());
  second.Answer(*store_);
  first.Answer(*store_);
  ASSERT_TRUE(intake_.Collect(0, 10, {0}, Soon()).ok());
  EXPECT_EQ(intake_.size(), 2);
  ASSERT_TRUE(intake_.Announce(1, {.generation = 1, .members = 2, .limit_ns = 1}, Soon()).ok());
  const auto roster = Roster::Decode(*store_->TryGet(GrowKeys::Roster("base", 1), Soon()));
  ASSERT_TRUE(roster.ok());
  EXPECT_THAT(roster->tickets, ElementsAre(first.ticket, second.ticket));
  const auto invitation = first.meeting->Wait(Soon());
  ASSERT_TRUE(invitation.ok());
  EXPECT_THAT((*invitation)[0], ElementsAre("base"));
  intake_.Finish(Soon());
  EXPECT_EQ(intake_.size(), 0);
  EXPECT_FALSE(store_->TryGet(GrowKeys::Roster("base", 1), Soon()).ok());
  EXPECT_FALSE(store_->TryGet(GrowKeys::Here("base", first.ticket), Soon()).ok());
  EXPECT_TRUE(first.meeting->Check().ok());
}

TEST_F(IntakeTest, LeavesOutTheDeadTheSilentAndTheUnfit) {
  Played dead = Played::Apply(*store_, ApplicationOf(3).ToParts());
  dead.meeting.reset();
  const Played silent = Played::Apply(*store_, ApplicationOf(4).ToParts());
  const Played unfit = Played::Apply(*store_, ApplicationOf(1).ToParts());
  const Played strange = Played::Apply(*store_, {"what?"});
  const Played fit = Played::Apply(*store_, ApplicationOf(5).ToParts());
  fit.Answer(*store_);
  const int64_t begin = Clock::Real().Now();
  ASSERT_TRUE(intake_.Collect(0, 10, {0}, Soon()).ok());
  EXPECT_EQ(intake_.size(), 1);
  EXPECT_LT(Clock::Real().Now() - begin, 2 * kAnswerInvitationNs);
  EXPECT_EQ(silent.meeting->Check().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(unfit.meeting->Check().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(strange.meeting->Check().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(fit.meeting->Check().ok());
  // The next call finds none of these applications.
  ASSERT_TRUE(intake_.Collect(0, 10, {0}, Soon()).ok());
  EXPECT_EQ(intake_.size(), 1);
}

TEST_F(IntakeTest, InvitesNobodyIfThereAreTooFewAndNotMoreThanTheMost) {
  const Played first = Played::Apply(*store_, ApplicationOf(3).ToParts());
  first.Answer(*store_);
  ASSERT_TRUE(intake_.Collect(2, 10, Deadline::After(kMillisecond), Soon()).ok());
  EXPECT_EQ(intake_.size(), 0);
  const Played second = Played::Apply(*store_, ApplicationOf(4).ToParts());
  second.Answer(*store_);
  const Played third = Played::Apply(*store_, ApplicationOf(5).ToParts());
  third.Answer(*store_);
  ASSERT_TRUE(intake_.Collect(2, 2, {0}, Soon()).ok());
  EXPECT_EQ(intake_.size(), 2);
  ASSERT_TRUE(intake_.Collect(3, 3, {0}, Soon()).ok());
  EXPECT_EQ(intake_.size(), 3);
}

TEST_F(IntakeTest, BlamesTheRankThatHasDied) {
  const Played first = Played::Apply(*store_, ApplicationOf(3).ToParts());
  first.Answer(*store_);
  Played second = Played::Apply(*store_, ApplicationOf(4).ToParts());
  second.Answer(*store_);
  ASSERT_TRUE(intake_.Collect(0, 10, {0}, Soon()).ok());
  EXPECT_TRUE(intake_.Check().ok());
  second.meeting.reset();
  const absl::Status died = intake_.Check();
  EXPECT_EQ(died.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(BlameOf(died).rank, 3);
  intake_.Refuse(3, absl::FailedPreconditionError("it has died"));
  EXPECT_EQ(intake_.size(), 1);
  EXPECT_TRUE(intake_.Check().ok());
}

TEST_F(IntakeTest, ThoseThatAreNotTakenInLearnIt) {
  const Played first = Played::Apply(*store_, ApplicationOf(3).ToParts());
  first.Answer(*store_);
  {
    Intake brief(store_, TermsOf(), "base");
    ASSERT_TRUE(brief.Collect(0, 10, {0}, Soon()).ok());
    EXPECT_EQ(brief.size(), 1);
  }
  EXPECT_FALSE(first.meeting->Check().ok());
  EXPECT_FALSE(IsRefusal(first.meeting->Check()));  // it applies again
}

}  // namespace
}  // namespace entrain
