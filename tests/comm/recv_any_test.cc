// Receives from any peer: the messages that they take, also while there are receives from one peer,
// and their ends without a message.
#include <chrono>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::ElementsAre;
using testing::HasSubstr;

// A message of i64s and, for a receive, its sender.
struct Message {
  explicit Message(size_t elements, int64_t value = -1) : data(elements, value) {}
  std::vector<int64_t> data;
  int32_t source = -1;
};

Call CallOf(CallKind kind, Message& message, int peer, int64_t tag = -1) {
  const BufferView view{message.data.data(),
                        static_cast<int64_t>(message.data.size() * sizeof(int64_t)),
                        MemoryKind::kHost};
  Call call;
  call.kind = kind;
  (kind == CallKind::kSend ? call.in : call.out) = view;
  call.dtype = DType::kI64;
  call.count = static_cast<int64_t>(message.data.size());
  call.root = peer;
  call.source = kind == CallKind::kRecvAny ? &message.source : nullptr;
  call.options.user_tag = tag;
  return call;
}

absl::Status Send(const Comm& comm, int peer, size_t elements, int64_t value, int64_t tag = -1) {
  Message message(elements, value);
  return comm->Run(CallOf(CallKind::kSend, message, peer, tag));
}

RefPtr<Work> StartReceive(const Comm& comm, Message& message, int64_t tag, int peer = -1) {
  const CallKind kind = peer < 0 ? CallKind::kRecvAny : CallKind::kRecv;
  auto work = comm->Start(CallOf(kind, message, peer, tag));
  EXPECT_TRUE(work.ok()) << work.status();
  return *std::move(work);
}

absl::Status Outcome(const RefPtr<Work>& work) {
  return work->Wait(Deadline::After(20 * kSecond)) ? work->status()
                                                   : absl::InternalError("it goes on");
}

class RecvAny : public testing::TestWithParam<std::string> {
 protected:
  RanksOptions Options(int64_t timeout_ns = 20 * kSecond) const {
    RanksOptions options;
    options.transports = GetParam();
    options.timeout_ns = timeout_ns;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, RecvAny, testing::ValuesIn(WithUcx({"inproc", "shm", "tcp"})),
                         [](const auto& test) { return test.param; });

// Sizes: empty, small, more than a transport sends eagerly, more than one piece.
constexpr size_t kSizes[] = {0, 1, 500, 9000, 1, 200000, 3};
constexpr int64_t kTags = 7;  // each tag has one size
constexpr int64_t kOfEachRank = 10 * kTags;

// Sends the tags in turn, with pauses. The sends are only started, because a blocking one may wait for its receive,
// and so all could wait in a circle: if one rank is ahead, rank 0 takes its messages in place of the other's. When
// the first has sent everything, rank 0 may need a message that the other sends only after one whose receive comes
// later.
void SendAllTags(const Comm& comm) {
  std::mt19937 random(static_cast<uint32_t>(comm->rank()) + 1);
  std::deque<Message> messages;
  std::vector<RefPtr<Work>> sends;
  for (int64_t number = 0; number < kOfEachRank; ++number) {
    if (random() % 10 == 0) {  // ranks come at different times
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    }
    const int64_t tag = number % kTags;
    Message& message = messages.emplace_back(kSizes[tag], comm->rank() * 1000 + number);
    auto send = comm->Start(CallOf(CallKind::kSend, message, 0, tag));
    ASSERT_TRUE(send.ok()) << send.status();
    sends.push_back(*std::move(send));
  }
  for (const RefPtr<Work>& send : sends) {
    ASSERT_EQ(Outcome(send), absl::OkStatus());
  }
}

// The k-th receive of a tag ends when k messages of that tag have been sent, by whichever rank.
void ReceiveAllTags(const Comm& comm) {
  std::mt19937 random(1);
  const int senders = comm->size() - 1;
  std::vector<std::vector<int64_t>> next(kTags, std::vector<int64_t>(3, 0));
  for (int64_t i = 0; i < kOfEachRank * senders; ++i) {
    const int64_t tag = i / senders % kTags;
    Message message(kSizes[tag]);
    const Call call = CallOf(CallKind::kRecvAny, message, -1, tag);
    if (random() % 2 == 0) {
      ASSERT_EQ(comm->Run(call), absl::OkStatus());
    } else {
      const auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      ASSERT_EQ(Outcome(*work), absl::OkStatus());
      EXPECT_EQ((*work)->Info().source, message.source);
      EXPECT_EQ((*work)->Info().operation, "recv_any");
    }
    ASSERT_TRUE(message.source == 1 || message.source == 2) << message.source;
    int64_t& number = next[static_cast<size_t>(tag)][static_cast<size_t>(message.source)];
    const std::vector<int64_t> sent(message.data.size(),
                                    message.source * 1000 + kTags * number + tag);
    ASSERT_EQ(message.data, sent) << "receive " << i;
    ++number;
  }
}

// All other ranks send to rank 0, some early and some late.
TEST_P(RecvAny, TakesEachRanksMessagesInTheirOrder) {
  RunRanks(3, Options(), [](const Comm& comm) {
    if (comm->rank() == 0) {
      ReceiveAllTags(comm);
    } else {
      SendAllTags(comm);
    }
  });
}

// Half of the receives are over before rank 1 sends anything.
TEST_P(RecvAny, ARankMayComeWhenAnotherHasSentAll) {
  absl::Notification all_sent;
  RunRanks(3, Options(), [&](const Comm& comm) {
    if (comm->rank() == 0) {
      ReceiveAllTags(comm);
      return;
    }
    if (comm->rank() == 1) {
      ASSERT_TRUE(all_sent.WaitForNotificationWithTimeout(absl::Seconds(20)));
    }
    SendAllTags(comm);
    if (comm->rank() == 2) {
      all_sent.Notify();
    }
  });
}

TEST_P(RecvAny, NoRankIsPassedOver) {
  RunRanks(3, Options(), [](const Comm& comm) {
    if (comm->rank() > 0) {
      for (int64_t number = 0; number < 20; ++number) {
        ASSERT_EQ(Send(comm, 0, 4, number), absl::OkStatus());
      }
      ASSERT_EQ(Send(comm, 0, 1, 0, 9), absl::OkStatus());
      return;
    }
    Message mark(1);
    for (const int peer : {1, 2}) {  // a message of each has come by then
      ASSERT_EQ(comm->Run(CallOf(CallKind::kRecv, mark, peer, 9)), absl::OkStatus());
    }
    int from[3] = {0, 0, 0};
    for (int i = 0; i < 10; ++i) {
      Message message(4);
      ASSERT_EQ(comm->Run(CallOf(CallKind::kRecvAny, message, -1)), absl::OkStatus());
      ++from[message.source];
    }
    EXPECT_GE(from[1], 1);
    EXPECT_GE(from[2], 1);
    for (int i = 0; i < 30; ++i) {
      Message message(4);
      ASSERT_EQ(comm->Run(CallOf(CallKind::kRecvAny, message, -1)), absl::OkStatus());
    }
  });
}

// The receives of a tag take messages in program order, whatever the kind of receive.
TEST_P(RecvAny, StandsInLineWithReceivesOfOnePeer) {
  for (const int64_t tag : {int64_t{-1}, int64_t{5}}) {
    absl::Notification started, second, third, fourth;
    RunRanks(3, Options(), [&](const Comm& comm) {
      const auto at = [](absl::Notification& step) {
        ASSERT_TRUE(step.WaitForNotificationWithTimeout(absl::Seconds(20)));
      };
      if (comm->rank() == 1) {
        at(started);
        ASSERT_EQ(Send(comm, 0, 3, 11, tag), absl::OkStatus());
        at(third);
        ASSERT_EQ(Send(comm, 0, 3, 12, tag), absl::OkStatus());
        return;
      }
      if (comm->rank() == 2) {
        at(second);
        ASSERT_EQ(Send(comm, 0, 3, 21, tag), absl::OkStatus());
        at(fourth);
        ASSERT_EQ(Send(comm, 0, 3, 22, tag), absl::OkStatus());
        return;
      }
      Message a(3), b(3), c(3), d(3);
      const RefPtr<Work> any = StartReceive(comm, a, tag), of_one = StartReceive(comm, b, tag, 1),
                         again = StartReceive(comm, c, tag), of_two = StartReceive(comm, d, tag, 2);
      EXPECT_EQ(of_one->Info().sequence, 0u) << "it has no number yet";
      started.Notify();
      ASSERT_EQ(Outcome(any), absl::OkStatus());
      EXPECT_EQ(a.source, 1);
      EXPECT_THAT(a.data, ElementsAre(11, 11, 11));
      EXPECT_FALSE(of_one->Wait(Deadline::After(20 * kMillisecond)));
      EXPECT_EQ(of_one->Info().sequence, 2u);
      second.Notify();
      ASSERT_EQ(Outcome(again), absl::OkStatus());  // `of_one` waits for rank 1 only
      EXPECT_EQ(c.source, 2);
      EXPECT_THAT(c.data, ElementsAre(21, 21, 21));
      third.Notify();
      ASSERT_EQ(Outcome(of_one), absl::OkStatus());
      EXPECT_THAT(b.data, ElementsAre(12, 12, 12));
      fourth.Notify();
      ASSERT_EQ(Outcome(of_two), absl::OkStatus());
      EXPECT_THAT(d.data, ElementsAre(22, 22, 22));
    });
  }
}

TEST_P(RecvAny, OtherTagsDoNotWaitForIt) {
  RunRanks(2, Options(), [](const Comm& comm) {
    if (comm->rank() == 1) {
      ASSERT_EQ(Send(comm, 0, 2, 7, 3), absl::OkStatus());
      ASSERT_EQ(Send(comm, 0, 2, 8), absl::OkStatus());
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
      ASSERT_EQ(Send(comm, 0, 2, 9, 4), absl::OkStatus());
      return;
    }
    Message any(2), tagged(2), untagged(2);
    const RefPtr<Work> work = StartReceive(comm, any, 4);
    ASSERT_EQ(comm->Run(CallOf(CallKind::kRecv, untagged, 1)), absl::OkStatus());
    ASSERT_EQ(comm->Run(CallOf(CallKind::kRecv, tagged, 1, 3)), absl::OkStatus());
    EXPECT_THAT(untagged.data, ElementsAre(8, 8));
    EXPECT_THAT(tagged.data, ElementsAre(7, 7));
    EXPECT_FALSE(work->done());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    ASSERT_EQ(Outcome(work), absl::OkStatus());
    EXPECT_THAT(any.data, ElementsAre(9, 9));
  });
}

TEST_P(RecvAny, InABatchEachTakesOne) {
  RunRanks(3, Options(), [](const Comm& comm) {
    if (comm->rank() > 0) {
      ASSERT_EQ(Send(comm, 0, 4, comm->rank()), absl::OkStatus());
      return;
    }
    Message one(4), other(4);
    const std::vector<Call> calls = {CallOf(CallKind::kRecvAny, one, -1),
                                     CallOf(CallKind::kRecvAny, other, -1)};
    ASSERT_EQ(Outcome(comm->StartAll(calls)), absl::OkStatus());
    EXPECT_EQ(one.source + other.source, 3);
    EXPECT_EQ(one.data, std::vector<int64_t>(4, one.source));
    EXPECT_EQ(other.data, std::vector<int64_t>(4, other.source));
  });
}

TEST_P(RecvAny, AnotherLengthIsAMismatch) {
  RunRanks(2, Options(), [](const Comm& comm) {
    if (comm->rank() == 1) {
      EXPECT_THAT(Send(comm, 0, 5, 1).code(),
                  testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kDataLoss));
      return;
    }
    Message message(4);
    const absl::Status status = comm->Run(CallOf(CallKind::kRecvAny, message, -1));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("5 i64"));
    EXPECT_EQ(message.source, -1);
    EXPECT_EQ(message.data, std::vector<int64_t>(4, -1));
  });
}

TEST_P(RecvAny, TheDeadlineSaysWhoHasNotSent) {
  absl::Notification given_up;
  RunRanks(3, Options(300 * kMillisecond), [&](const Comm& comm) {
    if (comm->rank() > 0) {
      EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(20)));
      return;
    }
    Message message(4);
    const auto before = std::chrono::steady_clock::now();
    const absl::Status status = comm->Run(CallOf(CallKind::kRecvAny, message, -1, 5));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(900));
    given_up.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("recv_any tag 5: timed out on rank 0 after"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("nothing has come from ranks 1, 2"));
    const Blame blame = BlameOf(status);
    EXPECT_EQ(blame.rank, -1) << "either might have sent it";
    EXPECT_THAT(std::vector<int>(blame.late.begin(), blame.late.end()), ElementsAre(1, 2));
    EXPECT_EQ(blame.operation, "recv_any");
  });
}

TEST_P(RecvAny, OfTwoTheOtherIsToBlame) {
  absl::Notification given_up;
  RunRanks(2, Options(300 * kMillisecond), [&](const Comm& comm) {
    if (comm->rank() == 1) {
      EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(20)));
      return;
    }
    Message message(4);
    const absl::Status status = comm->Run(CallOf(CallKind::kRecvAny, message, -1));
    given_up.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("it has not made the matching call"));
    EXPECT_EQ(BlameOf(status).rank, 1);
  });
}

TEST_P(RecvAny, EndsWithTheCommunicator) {
  RunRanks(3, Options(), [](const Comm& comm) {
    Message message(4);
    const RefPtr<Work> work = StartReceive(comm, message, -1);
    const RefPtr<Work> behind = StartReceive(comm, message, -1, (comm->rank() + 1) % 3);
    const absl::Status met = comm->Barrier();  // the abort may reach others in the barrier
    if (comm->rank() == 2) {
      ASSERT_EQ(met, absl::OkStatus());
      comm->Abort("no more of this");
    }
    const absl::Status status = Outcome(work);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no more of this"));
    EXPECT_EQ(Outcome(behind).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(message.source, -1);
  });
}

// The messages that the others sent before are taken. Then no rank is left that could send.
TEST_P(RecvAny, FailsWhenAllOthersAreGone) {
  RunRanks(3, Options(), [](const Comm& comm) {
    if (comm->rank() > 0) {
      ASSERT_EQ(Send(comm, 0, 4, comm->rank()), absl::OkStatus());
      return;
    }
    const auto before = std::chrono::steady_clock::now();
    int sources = 0;
    for (int i = 0; i < 2; ++i) {
      Message message(4);
      ASSERT_EQ(comm->Run(CallOf(CallKind::kRecvAny, message, -1)), absl::OkStatus());
      EXPECT_EQ(message.data, std::vector<int64_t>(4, message.source));
      sources += message.source;
    }
    EXPECT_EQ(sources, 3);
    Message message(4);
    const absl::Status status = comm->Run(CallOf(CallKind::kRecvAny, message, -1));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  });
}

TEST_P(RecvAny, AThreadsReceivesOfOnePeerGoOnBesideIt) {
  RunRanks(2, Options(), [](const Comm& comm) {
    constexpr int64_t kMessages = 300;
    if (comm->rank() == 1) {
      for (int64_t number = 0; number < kMessages; ++number) {
        ASSERT_EQ(Send(comm, 0, 5, number, 1), absl::OkStatus());
        ASSERT_EQ(Send(comm, 0, 5, number), absl::OkStatus());
      }
      return;
    }
    std::thread other([&] {
      for (int64_t number = 0; number < kMessages; ++number) {
        Message message(5);
        ASSERT_EQ(comm->Run(CallOf(CallKind::kRecvAny, message, -1, 1)), absl::OkStatus());
        ASSERT_EQ(message.data, std::vector<int64_t>(5, number));
      }
    });
    for (int64_t number = 0; number < kMessages; ++number) {
      Message message(5);
      ASSERT_EQ(comm->Run(CallOf(CallKind::kRecv, message, 1)), absl::OkStatus());
      ASSERT_EQ(message.data, std::vector<int64_t>(5, number));
    }
    other.join();
  });
}

}  // namespace
}  // namespace entrain
