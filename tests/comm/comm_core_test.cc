// The events of a communicator whose members the test plays.
#include "lib/comm/comm_core.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/comm/idle_context.h"
#include "tests/comm/played_comm.h"

namespace entrain {
namespace {

// Another communicator of the process.
class PlayedContext final : public IdleContext {
 public:
  std::optional<int64_t> waits_since() const override { return since; }
  Deadline FindOut(HeldUpBy then) override {
    asked.push_back(std::move(then));
    return until;
  }

  std::optional<int64_t> since;
  Deadline until;
  std::vector<HeldUpBy> asked;
};

class CommCoreTest : public PlayedComm {
 protected:
  CommCoreTest() {
    engine = std::make_shared<Engine>(SeatOptions{.clock = &clock, .own_thread = false});
    config.context = engine->ReserveContext();
    core = CommCore::Make(engine, pool, config);
    InDriver([&] { core->Open(); });
  }
  void TearDown() override {
    for (PlayedPeer& endpoint : endpoints) {
      endpoint.Complete(absl::AbortedError("the test is over"));
    }
    InDriver([&] { core->Attend(); });
    PlayedComm::TearDown();
  }

  template <typename F>
  void InDriver(F job) {
    engine->seat().RunInDriver(job);
  }
  // The member sends a control message.
  void Tell(int from, ControlKind kind, const std::string& body = "") {
    Writer message;
    message.Put(kind).PutRaw(body.data(), body.size());
    InDriver([&] { core->OnControl(endpoints[static_cast<size_t>(from)], message.text()); });
  }
  // Starts a call, which the driver begins at once.
  RefPtr<Work> Begin(const Call& call) {
    auto work = core->Start(call, true);
    engine->seat().PollOnce();
    return std::move(work).value();
  }
  void Tick() {
    InDriver([&] {
      if (core->next_tick().Passed(clock.Now())) {
        core->OnTick(clock.Now());
      }
    });
  }
  MemberReport::State StateOf(int rank) {
    std::vector<MemberReport> reports;
    InDriver([&] { reports = core->Members(); });
    return reports[static_cast<size_t>(rank)].state;
  }
  std::string Message() const { return std::string(core->end().status().message()); }
  // Returns the kinds of the messages that the member got.
  static std::vector<ControlKind> KindsOf(const std::vector<std::string>& messages) {
    std::vector<ControlKind> kinds;
    for (const std::string& message : messages) {
      Reader reader(message);
      reader.Get<Context>();
      kinds.push_back(reader.Get<ControlKind>());
    }
    return kinds;
  }

  FakeClock clock;
  std::shared_ptr<CommCore> core;
};

TEST_F(CommCoreTest, TheEngineReportsToTheEventsAndKeepsTheCommunicator) {
  const long users = core.use_count();
  EXPECT_GT(users, 1) << "the engine is a user";
  engine->OnControl(endpoints[0], Writer().Put(config.context).Put(ControlKind::kAbort).Take());
  engine->seat().PollOnce();
  EXPECT_EQ(Message(), "c: rank 0 (played) ended it");
}

TEST_F(CommCoreTest, AMembersReasonEndsItAndIsPassedOn) {
  Tell(0, ControlKind::kAbort, EncodeStatus(absl::UnavailableError("c: lost somebody")));
  EXPECT_EQ(core->end().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(), "c: lost somebody");
  EXPECT_EQ(KindsOf(endpoints[2].sent), std::vector{ControlKind::kAbort});
}

TEST_F(CommCoreTest, AFailureIsToldToAllMembersByBothWays) {
  core->Abort("had enough");
  for (const int r : {0, 2}) {
    const PlayedPeer& peer = endpoints[static_cast<size_t>(r)];
    EXPECT_EQ(KindsOf(peer.sent), std::vector{ControlKind::kAbort});
    EXPECT_EQ(peer.sent, peer.urgent);
    EXPECT_EQ(peer.revoked, core->end().status());
  }
  EXPECT_FALSE(engine->Accepts(config.context));
  EXPECT_EQ(engine->causes().cause(), core->end().status());
  core->Abort("once more");
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
}

// Peers may read and write the buffers of a call until they are revoked.
TEST_F(CommCoreTest, NoCallIsOverBeforeItsPeersAreRevoked) {
  const RefPtr<Work> work = Begin(AllReduce());
  bool revoked = false;
  work->Then([&](const absl::Status& status) {
    revoked = !status.ok() && !endpoints[0].revoked.ok() && !endpoints[2].revoked.ok() &&
              !engine->Accepts(config.context);
  });
  core->Abort("had enough");
  EXPECT_TRUE(work->done());
  EXPECT_TRUE(revoked);
}

TEST_F(CommCoreTest, ItHasEndedAtOnceForNewCalls) {
  const long users = core.use_count();
  ASSERT_TRUE(engine->seat().TakeIfQuiet());
  core->EndHere(absl::ResourceExhaustedError("no memory"), /*leaves=*/false);
  EXPECT_TRUE(core->end().ended());
  EXPECT_FALSE(core->Start(AllReduce(), true).ok());
  EXPECT_TRUE(engine->Accepts(config.context)) << "the driver has not come to it";
  EXPECT_EQ(core.use_count(), users + 1);
  engine->seat().Turn();
  EXPECT_FALSE(engine->Accepts(config.context));
  engine->seat().Leave();
  EXPECT_EQ(core.use_count(), users);
}

TEST_F(CommCoreTest, MessagesOfStrangersAndOfUnknownKindsDoNothing) {
  PlayedPeer stranger;
  InDriver([&] {
    core->OnControl(stranger, Writer().Put(ControlKind::kAbort).Take());
    core->OnControl(endpoints[0], "");
    core->OnControl(endpoints[0], Writer().Put(uint8_t{99}).Take());
    core->OnLost(stranger, absl::UnavailableError("the peer is gone"));
  });
  EXPECT_FALSE(core->end().ended());
  EXPECT_EQ(StateOf(0), MemberReport::State::kAlive);
}

TEST_F(CommCoreTest, AMemberThatHasLeftIsReportedAlsoAfterTheEnd) {
  Tell(0, ControlKind::kLeave);
  EXPECT_EQ(StateOf(0), MemberReport::State::kLeft);
  EXPECT_FALSE(core->end().ended()) << "leaving is no error";
  core->Abort("had enough");
  Tell(2, ControlKind::kLeave);
  EXPECT_EQ(StateOf(2), MemberReport::State::kLeft);
  EXPECT_TRUE(endpoints[0].sent.empty()) << "it is told nothing more";
}

TEST_F(CommCoreTest, ALostPathEndsItAfterAMoment) {
  InDriver([&] { core->OnLost(endpoints[2], absl::UnavailableError("the path broke")); });
  Tick();
  EXPECT_FALSE(core->end().ended()) << "a better reason may come";
  clock.Advance(BlameDecision::kGraceNs);
  Tick();
  EXPECT_TRUE(core->end().ended());
  EXPECT_EQ(BlameOf(core->end().status()).rank, 2);
}

TEST_F(CommCoreTest, TheLossOfAMemberThatHasLeftIsNoError) {
  Tell(2, ControlKind::kLeave);
  InDriver([&] { core->OnLost(endpoints[2], absl::UnavailableError("the path broke")); });
  clock.Advance(10 * BlameDecision::kGraceNs);
  Tick();
  EXPECT_FALSE(core->end().ended());
}

// The ballots go to the ranks that listen, and the ranks that made another call are named.
TEST_F(CommCoreTest, AVoteEndsItWithTheCallsOfAllRanks) {
  const RefPtr<Work> work = Begin(AllReduce());
  const Descriptor mine = AllReduce().descriptor(),
                   other = PlayedComm::Message(CallKind::kSend, 0).descriptor();
  const auto ballot = [](const Descriptor& called) {
    const std::string text(reinterpret_cast<const char*>(&called), sizeof(called));
    return Writer().Put(uint32_t{Tag::kUntagged}).Put(uint32_t{0}).Put(uint8_t{1}).Take() + text +
           Writer().Put(int32_t{-1}).Take() + text;
  };
  Tell(0, ControlKind::kBallot, ballot(other));
  engine->seat().PollOnce();
  EXPECT_EQ(KindsOf(endpoints[0].urgent), std::vector{ControlKind::kBallot});
  EXPECT_EQ(KindsOf(endpoints[2].urgent), std::vector{ControlKind::kBallot});
  EXPECT_FALSE(work->done());
  Tell(2, ControlKind::kBallot, ballot(mine));
  engine->seat().PollOnce();
  EXPECT_TRUE(work->done());
  EXPECT_EQ(core->end().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(BlameOf(core->end().status()).rank, 0);
  EXPECT_EQ(Message().rfind("all_reduce #1: ranks disagree: rank 0 called ", 0), 0u) << Message();
}

TEST_F(CommCoreTest, AVoteCountsTheBallotsThatHaveComeInTime) {
  const RefPtr<Work> work = Begin(AllReduce());
  InDriver([&] {
    Envelope early;
    early.tag = Tag(config.context, Tag::kUntagged, 0, 0);
    early.descriptor = PlayedComm::Message(CallKind::kSend, 0).descriptor();
    core->OnEarly(endpoints[0], early);
  });
  engine->seat().PollOnce();
  EXPECT_EQ(core->next_tick().at_ns, clock.Now() + Vote::kVoteNs);
  EXPECT_EQ(KindsOf(endpoints[2].urgent), std::vector{ControlKind::kBallot});
  clock.Advance(Vote::kVoteNs);
  Tick();
  EXPECT_TRUE(work->done());
  EXPECT_NE(Message().find("not known: rank 2"), std::string::npos) << Message();
}

TEST_F(CommCoreTest, MembersAreAskedAboutACallWhoseTimeIsUp) {
  const RefPtr<Work> work = Begin(AllReduce());
  EXPECT_EQ(core->waits_since(), clock.Now());
  EXPECT_EQ(core->next_tick().at_ns, clock.Now() + Inquiry::kWarnNs);
  clock.Advance(config.timeout_ns);
  Tick();
  EXPECT_EQ(KindsOf(endpoints[0].urgent), std::vector{ControlKind::kQuery});
  EXPECT_EQ(KindsOf(endpoints[2].urgent), std::vector{ControlKind::kQuery});
  EXPECT_FALSE(work->done());
  clock.Advance(BlameDecision::kAnswerNs);
  Tick();
  EXPECT_TRUE(work->done());
  EXPECT_EQ(BlameOf(core->end().status()).rank, 0) << "the lowest that did not answer";
  EXPECT_EQ(core->waits_since(), std::nullopt);
}

TEST_F(CommCoreTest, AQuestionIsAnsweredUntilTheEnd) {
  Writer query;
  const Descriptor none;
  query.Put(uint32_t{5})
      .Put(Asked::kCollective)
      .Put(CallFunnel::kPing.user_tag)
      .Put(CallFunnel::kPing.number)
      .PutRaw(&none, sizeof(none));
  const auto ask = [&] { Tell(0, ControlKind::kQuery, query.text()); };
  ask();
  EXPECT_EQ(KindsOf(endpoints[0].urgent), std::vector{ControlKind::kAnswer});
  core->Abort("had enough");
  const size_t told = endpoints[0].urgent.size();
  ask();
  EXPECT_EQ(endpoints[0].urgent.size(), told);
}

// A rank may wait for this rank, which waits for a third one in another communicator.
class TwoCommunicatorsTest : public CommCoreTest {
 protected:
  TwoCommunicatorsTest() {
    InDriver([&] { engine->OpenContext(engine->ReserveContext(), other); });
    other->since = 1;
    other->until = {clock.Now() + 30};
  }
  void Ask() {
    const Query query{7, Asked::kCollective, {Tag::kUntagged, 0}, {}};
    Tell(0, ControlKind::kQuery, query.ToText());
  }
  // The last answer to rank 0.
  struct Told {
    uint32_t nonce;
    BlameDecision::Answer answer;
    int64_t more_ns;
    absl::Status excuse;
  };
  Told Last() const {
    Reader reader(endpoints[0].urgent.back());
    EXPECT_EQ(reader.Get<Context>(), 20);
    EXPECT_EQ(reader.Get<ControlKind>(), ControlKind::kAnswer);
    const auto nonce = reader.Get<uint32_t>();
    const auto answer = reader.Get<BlameDecision::Answer>();
    const auto more_ns = reader.Get<int64_t>();
    reader.Get<CallId>();
    return {nonce, answer, more_ns, DecodeStatus(reader.GetText(kMaxControlBytes)).value()};
  }

  std::shared_ptr<PlayedContext> other = std::make_shared<PlayedContext>();
};

TEST_F(TwoCommunicatorsTest, TheOtherOneIsAskedWithinTheFirstAnswer) {
  Ask();
  EXPECT_EQ(Last().answer, BlameDecision::Answer::kElsewhere);
  EXPECT_EQ(Last().nonce, 7u);
  EXPECT_EQ(Last().more_ns, 30);
  ASSERT_EQ(other->asked.size(), 1u);
  other->asked[0](absl::DeadlineExceededError("it waits for rank 5"));
  EXPECT_EQ(endpoints[0].urgent.size(), 2u);
  EXPECT_EQ(Last().answer, BlameDecision::Answer::kExcused);
  EXPECT_EQ(Last().excuse.message(), "it waits for rank 5");
  EXPECT_EQ(Last().nonce, 7u);
}

TEST_F(TwoCommunicatorsTest, ItsOwnCallsAreNotTheOthers) {
  other->since = std::nullopt;
  const RefPtr<Work> work = Begin(AllReduce(/*tag=*/5));
  Ask();
  EXPECT_EQ(Last().answer, BlameDecision::Answer::kAbsent);
  EXPECT_TRUE(other->asked.empty());
}

TEST_F(TwoCommunicatorsTest, AFunctionThatRunsLongIsTheExcuse) {
  engine->functions().Note(this, "the hook");
  other->since = std::nullopt;
  Ask();
  EXPECT_EQ(Last().answer, BlameDecision::Answer::kAbsent) << "it may return soon";
  clock.Advance(OpenCalls::kLongRunNs);
  Ask();
  EXPECT_EQ(Last().answer, BlameDecision::Answer::kExcused);
  EXPECT_NE(std::string(Last().excuse.message()).find("the hook"), std::string::npos);
  engine->functions().Note(this, "");
}

TEST_F(TwoCommunicatorsTest, TheCommunicatorLivesUntilTheLastAnswer) {
  const long before = core.use_count();
  Ask();
  EXPECT_EQ(core.use_count(), before + 1);
  core->Abort("had enough");
  const size_t told = endpoints[0].urgent.size();
  other->asked[0](absl::OkStatus());
  EXPECT_EQ(endpoints[0].urgent.size(), told) << "nothing after the end";
  other->asked.clear();
  EXPECT_EQ(core.use_count(), before);
}

// This rank is the third one: others wait for what it finds out.
TEST_F(TwoCommunicatorsTest, WhatTheInquiryFindsIsToldToThoseWhoAsked) {
  const RefPtr<Work> work = Begin(AllReduce());
  std::vector<absl::Status> found;
  Deadline by;
  InDriver([&] { by = core->FindOut([&](const absl::Status& why) { found.push_back(why); }); });
  EXPECT_EQ(by.at_ns, clock.Now() + BlameDecision::kAnswerToOthersNs);
  EXPECT_EQ(KindsOf(endpoints[2].urgent), std::vector{ControlKind::kQuery});
  EXPECT_TRUE(found.empty());
  core->Abort("had enough");
  EXPECT_EQ(found, std::vector<absl::Status>{core->end().status()});
}

// Without a tick: the other rank has promised its own asker an answer in time.
TEST_F(TwoCommunicatorsTest, ACallThatEndsIsToldToThoseWhoAskedAtOnce) {
  const RefPtr<Work> work = Begin(PlayedComm::Message(CallKind::kSend, 0));
  std::vector<absl::Status> found;
  InDriver([&] { core->FindOut([&](const absl::Status& why) { found.push_back(why); }); });
  EXPECT_TRUE(found.empty());
  endpoints[0].Complete(absl::OkStatus(), 32);
  InDriver([&] { core->Attend(); });
  EXPECT_TRUE(work->done());
  EXPECT_EQ(found, std::vector<absl::Status>{absl::OkStatus()});
}

// Forged ballots may begin a vote in which all ranks have made the same call.
TEST_F(CommCoreTest, AVoteInWhichAllAgreeEndsNothing) {
  const RefPtr<Work> work = Begin(AllReduce());
  const Descriptor mine = AllReduce().descriptor();
  const std::string raw(reinterpret_cast<const char*>(&mine), sizeof(mine));
  const std::string ballot =
      Writer().Put(uint32_t{Tag::kUntagged}).Put(uint32_t{0}).Put(uint8_t{1}).Take() + raw +
      Writer().Put(int32_t{-1}).Take() + raw;
  Tell(0, ControlKind::kBallot, ballot);
  EXPECT_EQ(core->next_tick().at_ns, clock.Now() + Vote::kVoteNs);
  Tell(2, ControlKind::kBallot, ballot);
  engine->seat().PollOnce();
  EXPECT_FALSE(core->end().ended());
  EXPECT_FALSE(work->done());
  EXPECT_EQ(core->next_tick().at_ns, clock.Now() + Inquiry::kWarnNs) << "the vote is over";
}

TEST_F(CommCoreTest, TheUserOfMemoryIsNamed) {
  const Call call = AllReduce();
  const ConstBytes bytes(static_cast<const std::byte*>(call.in.data), 8);
  EXPECT_EQ(core->UserOf(bytes), "");
  const RefPtr<Work> work = Begin(call);
  EXPECT_EQ(core->UserOf(bytes), "all_reduce #1 on c");
}

TEST_F(CommCoreTest, ItLeavesOnceWhenTheUserReleasesIt) {
  InDriver([&] { core->Leave("destroyed the communicator"); });
  EXPECT_EQ(KindsOf(endpoints[0].sent), std::vector{ControlKind::kLeave});
  EXPECT_TRUE(endpoints[0].urgent.empty());
  EXPECT_EQ(endpoints[0].revoked.message(), "c: the communicator was destroyed");
  EXPECT_FALSE(engine->causes().told());
  InDriver([&] { core->OnShutdown(); });
  EXPECT_EQ(endpoints[0].sent.size(), 1u);
}

}  // namespace
}  // namespace entrain
