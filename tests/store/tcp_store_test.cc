// Properties of a store whose ends are connected by a network.
#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/net/handshake.h"
#include "lib/net/listener.h"
#include "lib/net/local_socket.h"
#include "lib/net/socket.h"
#include "lib/store/request.h"
#include "lib/store/store.h"
#include "tests/support/plain_handshake.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr std::array<uint8_t, 16> kListenerId{9};

Stop Soon() {
  return {Deadline::After(20 * kSecond), nullptr};
}
Stop In(int64_t ns) {
  return {Deadline::After(ns), nullptr};
}

std::shared_ptr<Store> Serve(const char* key = "") {
  auto store = ServeStore("tcp://127.0.0.1:0", key);
  EXPECT_TRUE(store.ok()) << store.status();
  return *store;
}
Address AddressOf(const Store& store) {
  return *Address::Parse(store.url().substr(6));
}

std::string UnusedUrl() {
  const auto listener = OpenListener(*Address::FromHost("127.0.0.1", 0), {});
  return "tcp://" + listener->address.ToString();
}

// Returns a connection that has shaken hands. The test can write arbitrary bytes to it.
Fd Greet(const Store& store) {
  Fd fd = *Connect(AddressOf(store), Soon());
  Handshake handshake(true, Purpose::kStore, {7}, "");
  EXPECT_TRUE(RunHandshake(fd.get(), handshake, Soon()).ok());
  return fd;
}
void Send(const Fd& fd, const std::string& bytes) {
  // The server may close the connection in the middle.
  (void)WriteFull(fd.get(), bytes.data(), bytes.size(), Soon());
}
std::string Frame(const std::string& body) {
  return Writer().PutText(body).Take();  // u32 length and bytes, as a text
}
// Waits until the other side closes.
bool IsClosed(const Fd& fd) {
  char bytes[256];
  while (true) {
    const auto got = ReadSome(fd.get(), bytes, sizeof(bytes));
    if (!got.ok()) {
      return true;
    }
    if (*got == 0 && !WaitFd(fd.get(), POLLIN, Soon(), "waiting for the end").ok()) {
      return false;
    }
  }
}
void ExpectWorks(Store& store) {
  ASSERT_TRUE(store.Set("alive", "yes", Soon()).ok());
  EXPECT_EQ(*store.Get("alive", Soon()), "yes");
}

TEST(TcpStore, UrlLeadsToTheServer) {
  const auto served = Serve();
  EXPECT_EQ(served->host(), "127.0.0.1");
  const auto opened = OpenStore(served->url(), "", Soon());
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(served->Set("k", "v", Soon()).ok());
  EXPECT_EQ(*(*opened)->Get("k", Soon()), "v");
  EXPECT_EQ((*opened)->url(), served->url());
}

TEST(TcpStore, ServingOnAllAddressesPublishesAUsableOne) {
  const auto served = ServeStore("tcp://0.0.0.0:0", "");
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_NE((*served)->host(), "0.0.0.0");
  EXPECT_TRUE(OpenStore((*served)->url(), "", Soon()).ok());
}

TEST(TcpStore, PortInUseIsNamed) {
  const auto served = Serve();
  const auto second = ServeStore(served->url(), "");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(AddressOf(*served).ToString()));
}

TEST(TcpStore, UnreachableServerIsNamedWithTheReason) {
  const std::string one = UnusedUrl(), two = UnusedUrl();
  const int64_t start = Clock::Real().Now();
  const auto store = OpenStore(one + "," + two.substr(6), "", In(100 * kMillisecond));
  EXPECT_EQ(store.status().code(), absl::StatusCode::kUnavailable);
  const std::string text(store.status().message());
  EXPECT_THAT(text, HasSubstr(one.substr(6)));
  EXPECT_THAT(text, HasSubstr(two.substr(6)));
  EXPECT_THAT(text, HasSubstr("refused"));
  EXPECT_LT(Clock::Real().Now() - start, 5 * kSecond);
}

TEST(TcpStore, ConnectingWaitsForTheServer) {
  const std::string url = UnusedUrl();
  auto opening = std::async(std::launch::async, [&] { return OpenStore(url, "", Soon()); });
  EXPECT_EQ(opening.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  const auto served = ServeStore(url, "");
  ASSERT_TRUE(served.ok()) << served.status();
  const auto store = opening.get();
  EXPECT_TRUE(store.ok()) << store.status();
}

TEST(TcpStore, SecondHostIsUsedWhenTheFirstIsDown) {
  const auto served = Serve();
  const auto store = OpenStore(UnusedUrl() + "," + served->url().substr(6), "", Soon());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->url(), served->url());
}

TEST(TcpStore, ConnectingEndsByItsFlag) {
  const std::string url = UnusedUrl();
  std::atomic<bool> cancelled{false};
  auto opening = std::async(std::launch::async, [&] {
    return OpenStore(url, "", {Deadline::Never(), &cancelled});
  });
  EXPECT_EQ(opening.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  cancelled = true;
  EXPECT_EQ(opening.get().status().code(), absl::StatusCode::kAborted);
}

TEST(TcpStore, WrongKeyIsRefusedAtOnce) {
  const auto served = Serve("right");
  const auto none = OpenStore(served->url(), "", Soon());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("the other side uses a key"));
  for (const size_t bytes :
       {size_t{1}, kMaxStoreValue}) {  // the refusal may come while it is written
    const auto wrong = OpenStore(served->url(), "wrong", Soon());
    ASSERT_TRUE(wrong.ok()) << wrong.status();
    const absl::Status set = (*wrong)->Set("a", std::string(bytes, 'a'), Soon());
    EXPECT_EQ(set.code(), absl::StatusCode::kFailedPrecondition) << set;
    EXPECT_THAT(std::string(set.message()), HasSubstr("does not hold the same key"));
  }
  EXPECT_TRUE(OpenStore(served->url(), "right", Soon()).ok());
}

// A stranger's hello is answered by a hello. A guess at the key is answered by the same bytes for
// every key.
TEST(TcpStore, StrangersGetNothingThatDependsOnTheKey) {
  for (const char* key : {"a key of the job", "another key"}) {
    const auto served = Serve(key);
    const Fd fd = *Connect(AddressOf(*served), Soon());
    Handshake stranger(true, Purpose::kStore, {7}, "a guess");
    ASSERT_TRUE(StepHandshake(fd.get(), stranger, Soon()).ok());
    char more;
    EXPECT_EQ(WaitFd(fd.get(), POLLIN, In(50 * kMillisecond), "more than a hello").code(),
              absl::StatusCode::kDeadlineExceeded);
    Send(fd, stranger.TakeOutput());
    std::string refusal(Handshake::kProofBytes, 'x');
    ASSERT_TRUE(ReadFull(fd.get(), refusal.data(), refusal.size(), Soon()).ok());
    EXPECT_EQ(refusal, std::string(Handshake::kProofBytes, '\0'));
    EXPECT_FALSE(ReadFull(fd.get(), &more, 1, Soon()).ok());
  }
}

// The listener here acts like a server that is flooded with strangers.
TEST(TcpStore, RequestsOutliveAConnectionThatIsCutBeforeItsProofWasRead) {
  const auto listener = OpenListener(*Address::FromHost("127.0.0.1", 0), {});
  auto answering = std::async(std::launch::async, [&] {
    for (const bool cut : {true, true, false}) {
      EXPECT_TRUE(WaitFd(listener->fd.get(), POLLIN, Soon(), "accepting").ok());
      const Fd fd = *Accept(listener->fd.get());
      Handshake handshake(false, Purpose::kStore, kListenerId, "");
      EXPECT_TRUE(StepHandshake(fd.get(), handshake, Soon()).ok());
      if (cut) {
        continue;
      }
      EXPECT_TRUE(RunHandshake(fd.get(), handshake, Soon()).ok());
      Send(fd, Frame(EncodeReply(std::string("here"))));
      IsClosed(fd);
    }
  });
  auto store = *OpenStore("tcp://" + listener->address.ToString(), "", Soon());
  EXPECT_EQ(*store->Get("where", Soon()), "here");
  store.reset();
  answering.get();
}

// The server may have served a request before the connection was cut, although the client has no
// answer.
TEST(TcpStore, RequestsThatCountAreNotRepeated) {
  const auto listener = OpenListener(*Address::FromHost("127.0.0.1", 0), {});
  const auto accept = [&](Handshake& handshake, int steps) {
    EXPECT_TRUE(WaitFd(listener->fd.get(), POLLIN, Soon(), "accepting").ok());
    Fd fd = *Accept(listener->fd.get());
    for (int step = 0; step < steps; ++step) {
      EXPECT_TRUE(StepHandshake(fd.get(), handshake, Soon()).ok());
    }
    return fd;
  };
  const auto read = [](const Fd& fd) {
    uint32_t bytes = 0;
    EXPECT_TRUE(ReadFull(fd.get(), &bytes, sizeof(bytes), Soon()).ok());
    std::string request(bytes, '\0');
    EXPECT_TRUE(ReadFull(fd.get(), request.data(), bytes, Soon()).ok());
    return DecodeRequest(request)->op;
  };
  std::vector<StoreOp> served;
  auto answering = std::async(std::launch::async, [&] {
    for (int cut = 0; cut < 3; ++cut) {
      Handshake handshake(false, Purpose::kStore, kListenerId, "");
      served.push_back(read(accept(handshake, 2)));  // does not send its own proof
    }
    Handshake handshake(false, Purpose::kStore, kListenerId, "");
    const Fd fd = accept(handshake, 3);
    served.push_back(read(fd));
    Send(fd, Frame(EncodeReply(std::string("here"))));
    IsClosed(fd);
  });
  auto store = *OpenStore("tcp://" + listener->address.ToString(), "", Soon());
  EXPECT_EQ(store->Add("count", 1, Soon()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->CompareAndSet("once", "", "x", Soon()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->Join("meeting", 0, 2, Parts(), Soon()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(*store->Get("where", Soon()), "here");
  store.reset();
  answering.get();
  EXPECT_THAT(served, testing::ElementsAre(StoreOp::kAdd, StoreOp::kCompareAndSet, StoreOp::kJoin,
                                           StoreOp::kGet));
}

TEST(LocalStore, AnotherUserGetsNotAByte) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string name = absl::StrCat("test-", getpid());
  const auto served = ServeStore("local:" + name, "");
  ASSERT_TRUE(served.ok()) << served.status();
  socklen_t bytes = 0;
  const sockaddr_un address = AbstractAddress(absl::StrCat("entrain-store-0-", name), &bytes);
  const pid_t pid = fork();
  if (pid == 0) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte;
    if (setgid(65534) != 0 || setuid(65534) != 0 ||
        connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      _exit(2);
    }
    _exit(recv(fd, &byte, 1, 0) <= 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE((*served)->Set("still", "here", Soon()).ok());
}

TEST(TcpStore, SomebodyElsesServerIsRefused) {
  auto listener = OpenListener(*Address::FromHost("127.0.0.1", 0), {});
  auto answering = std::async(std::launch::async, [&] {
    EXPECT_TRUE(WaitFd(listener->fd.get(), POLLIN, Soon(), "accepting").ok());
    const Fd fd = *Accept(listener->fd.get());
    Send(fd, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n");
    IsClosed(fd);
  });
  const auto store = OpenStore("tcp://" + listener->address.ToString(), "", Soon());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("HTTP/1.1"));
  answering.get();
}

TEST(TcpStore, ErrorsOfAServerAreCleaned) {
  const auto listener = OpenListener(*Address::FromHost("127.0.0.1", 0), {});
  auto answering = std::async(std::launch::async, [&] {
    EXPECT_TRUE(WaitFd(listener->fd.get(), POLLIN, Soon(), "accepting").ok());
    const Fd fd = *Accept(listener->fd.get());
    Handshake handshake(false, Purpose::kStore, kListenerId, "");
    EXPECT_TRUE(RunHandshake(fd.get(), handshake, Soon()).ok());
    char request;
    EXPECT_TRUE(ReadFull(fd.get(), &request, 1, Soon()).ok());
    Send(fd, Frame(EncodeReply(absl::InvalidArgumentError("\x1b[2Jno\n[0] all well\xff"))));
    IsClosed(fd);
  });
  auto store = *OpenStore("tcp://" + listener->address.ToString(), "", Soon());
  const absl::Status set = store->Set("a", "b", Soon());
  EXPECT_THAT(std::string(set.message()), HasSubstr("?[2Jno [0] all well?"));
  store.reset();
  answering.get();
}

TEST(TcpStore, ClosingTellsWhoWaits) {
  auto served = Serve();
  const std::string url = served->url();
  const auto store = *OpenStore(url, "", Soon());
  auto waiting = std::async(std::launch::async, [&] { return store->Get("never", Soon()); });
  // The request is parked, or about to be.
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  served.reset();
  const auto value = waiting.get();
  EXPECT_EQ(value.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr(url));
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("closed"));
}

TEST(TcpStore, CallsAfterTheServerIsGoneFailAtOnce) {
  auto served = Serve();
  const std::string url = served->url();
  const auto store = *OpenStore(url, "", Soon());
  ASSERT_TRUE(store->Set("k", "v", Soon()).ok());
  served.reset();
  const auto value = store->Get("k", Soon());
  EXPECT_EQ(value.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr(url));
}

TEST(TcpStore, AnotherServerInItsPlaceIsNotTakenForIt) {
  auto served = Serve();
  const std::string url = served->url();
  const auto store = *OpenStore(url, "", Soon());
  served.reset();
  const auto again = ServeStore(url, "");
  ASSERT_TRUE(again.ok()) << again.status();
  const auto value = store->TryGet("k", Soon());
  EXPECT_EQ(value.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("replaced"));
}

TEST(TcpStore, HundredsOfClientsWaitForOneKey) {
  constexpr int kClients = 300;
  const auto served = Serve();
  std::vector<Fd> clients;
  StoreRequest get;
  get.key = "go";
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(Greet(*served));
    Send(clients.back(), Frame(EncodeRequest(get)));
  }
  ExpectWorks(*served);
  ASSERT_TRUE(served->Set("go", "now", Soon()).ok());
  const std::string expected = Frame(EncodeReply(std::string("now")));
  for (const Fd& client : clients) {
    std::string reply(expected.size(), '\0');
    ASSERT_TRUE(ReadFull(client.get(), reply.data(), reply.size(), Soon()).ok());
    EXPECT_EQ(reply, expected);
  }
}

TEST(TcpStore, ClientThatLeavesWhileItWaitsHurtsNobody) {
  const auto served = Serve();
  StoreRequest get;
  get.key = "go";
  {
    const Fd gone = Greet(*served);
    Send(gone, Frame(EncodeRequest(get)));
    ExpectWorks(*served);
  }
  const Fd stays = Greet(*served);
  Send(stays, Frame(EncodeRequest(get)));
  ASSERT_TRUE(served->Set("go", "now", Soon()).ok());
  const std::string expected = Frame(EncodeReply(std::string("now")));
  std::string reply(expected.size(), '\0');
  ASSERT_TRUE(ReadFull(stays.get(), reply.data(), reply.size(), Soon()).ok());
  EXPECT_EQ(reply, expected);
}

TEST(TcpStoreServer, RequestInSingleBytesIsUnderstood) {
  const auto served = Serve();
  StoreRequest set;
  set.op = StoreOp::kSet;
  set.key = "slow";
  set.value = "writer";
  const Fd fd = Greet(*served);
  for (const char byte : Frame(EncodeRequest(set))) {
    Send(fd, std::string(1, byte));
  }
  EXPECT_EQ(*served->Get("slow", Soon()), "writer");
}

TEST(TcpStoreServer, AnnouncedLengthBeyondTheLimitEndsTheConnection) {
  const auto served = Serve();
  for (const uint32_t bytes : {0u, static_cast<uint32_t>(kMaxRequestBytes + 1), ~0u}) {
    const Fd fd = Greet(*served);
    Send(fd, Writer().Put(bytes).Take());
    EXPECT_TRUE(IsClosed(fd));
  }
  ExpectWorks(*served);
}

// A member sends requests that it never finishes, until the server accepts no more bytes of them.
class FullServer : public testing::Test {
 protected:
  void Fill() {
    constexpr size_t kEach = 2 << 20, kLimit = 256 << 20;
    for (size_t filled = 0; filled < kLimit; filled += kEach) {
      // The last one ends 3 bytes before the limit, and its request has no further bytes.
      const bool last = filled + kEach == kLimit;
      const size_t announced = last ? kEach - 4 : kMaxRequestBytes;
      const Fd& fd = unfinished_.emplace_back(Greet(*served_));
      Send(fd, Writer().Put(static_cast<uint32_t>(announced)).Take() +
                   std::string(kEach - 4 - (last ? 3 : 0), 'x'));
      int unread = 1;
      EXPECT_TRUE(Becomes([&] { return ioctl(fd.get(), SIOCOUTQ, &unread) == 0 && unread == 0; }));
    }
    served_->Set("after", "those", Soon()).IgnoreError();
    EXPECT_EQ(SetLarge().code(), absl::StatusCode::kResourceExhausted);
  }
  absl::Status SetLarge() { return served_->Set("large", std::string(100 << 10, 'v'), Soon()); }
  const std::shared_ptr<Store> served_ = Serve();
  std::vector<Fd> unfinished_;
};

TEST_F(FullServer, SmallRequestsAndMeetingsGoOn) {
  const auto join = [](const std::shared_ptr<Store>& store, int rank, int size) {
    return *store->Join("meeting", rank, size, Parts{"part"}, Soon());
  };
  const auto early = *OpenStore(served_->url(), "", Soon());
  auto zero = join(early, 0, 3);
  EXPECT_EQ(zero->Absent(Soon())->size(), 2u);
  Fill();
  // A client that connects now must work, too.
  const auto late = OpenStore(served_->url(), "", Soon());
  ASSERT_TRUE(late.ok()) << late.status();
  ExpectWorks(**late);
  auto one = join(*late, 1, 3), two = join(*late, 2, 3);
  for (StoreMeeting* meeting : {zero.get(), one.get(), two.get()}) {
    const auto table = meeting->Wait(Soon());
    ASSERT_TRUE(table.ok()) << table.status();
  }
  zero->Finish();
  one->Finish();
  zero.reset();
  one.reset();
  ExpectWorks(*served_);  // handled after those requests
  EXPECT_TRUE(two->Check().ok()) << two->Check();
  two->Fail(absl::AbortedError("the reason"));
  EXPECT_EQ(two->Wait(Soon()).status().message(), "the reason");
}

TEST_F(FullServer, LargeRequestsAreRefusedUntilThereIsRoom) {
  const Fd fd = Greet(*served_);
  Fill();
  StoreRequest set;
  set.op = StoreOp::kSet;
  set.key = "large";
  set.value = std::string(kMaxStoreValue, 'v');
  const auto answer = [&](StoreRequest request) {
    Send(fd, Frame(EncodeRequest(request)));
    uint32_t bytes = 0;
    EXPECT_TRUE(ReadFull(fd.get(), &bytes, sizeof(bytes), Soon()).ok());
    std::string reply(bytes, '\0');
    EXPECT_TRUE(ReadFull(fd.get(), reply.data(), bytes, Soon()).ok());
    return DecodeReply(reply);
  };
  const auto refused = answer(set);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("unfinished requests and unread answers"));
  StoreRequest small = set;
  small.value = "v";
  EXPECT_TRUE(answer(small).ok());  // on the same connection
  unfinished_.clear();
  // The server notices the end after some time.
  for (const Stop stop = Soon(); !answer(set).ok() && !stop.deadline.Passed(Clock::Real().Now());) {
  }
  EXPECT_TRUE(answer(set).ok());
}

TEST(TcpStoreServer, TalkingWhileWaitingEndsTheConnection) {
  const auto served = Serve();
  StoreRequest get;
  get.key = "never";
  const Fd fd = Greet(*served);
  Send(fd, Frame(EncodeRequest(get)) + "more");
  EXPECT_TRUE(IsClosed(fd));
  ExpectWorks(*served);
}

TEST(TcpStoreServer, StrangersAreTurnedAway) {
  const auto served = Serve();
  const std::string http =
      "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a-scanner/1.0 (test)\r\n\r\n";
  std::string tls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  tls.resize(200, 'r');
  for (const std::string& bytes : {http, tls}) {
    const Fd fd = *Connect(AddressOf(*served), Soon());
    Send(fd, bytes);
    EXPECT_TRUE(IsClosed(fd));
  }
  ExpectWorks(*served);
}

// The loss of a rank's host is noticed within the time of ENTRAIN_KEEPALIVE. A stopped rank with a
// full window is not reported as gone.
TEST(TcpStore, BothEndsAskWhileNothingIsSent) {
  ASSERT_EQ(setenv("ENTRAIN_KEEPALIVE", "20s/5s", 1), 0);
  const auto served = Serve();
  const auto opened = OpenStore(served->url(), "", Soon());
  ASSERT_EQ(unsetenv("ENTRAIN_KEEPALIVE"), 0);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ExpectWorks(**opened);
  int ends = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    if (!RemoteAddress(fd).ok()) {
      continue;
    }
    const auto option = [&](int level, int name) {
      int value = -1;
      socklen_t bytes = sizeof(value);
      EXPECT_EQ(getsockopt(fd, level, name, &value, &bytes), 0);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 5);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 5);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 4);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    ++ends;
  }
  EXPECT_EQ(ends, 4);  // each handle has a connection
}

// The ports of this process's connections to the server and of their other ends.
std::set<std::string> Connections() {
  std::set<std::string> ports;
  for (int fd = 0; fd < 1024; ++fd) {
    if (const auto address = RemoteAddress(fd); address.ok()) {
      ports.insert(address->ToString());
    }
  }
  return ports;
}

// The server's proof may arrive at any moment between opening and the first call. The connection is
// kept whenever that is.
TEST(TcpStore, FirstCallUsesTheConnectionThatOpenMade) {
  const auto served = Serve();
  for (int i = 0; i < 1000; ++i) {
    const auto opened = OpenStore(served->url(), "", Soon());
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto before = Connections();
    ExpectWorks(**opened);
    const auto after = Connections();
    EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end()))
        << "round " << i;
  }
}

TEST(TcpStoreServer, StrangersGetAPartOfTheDescriptorsAtMost) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit few = {256, files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto served = Serve();
  setrlimit(RLIMIT_NOFILE, &files);
  std::vector<Fd> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(*Connect(AddressOf(*served), Soon()));
  }
  const auto last = OpenStore(served->url(), "", Soon());  // accepted after the silent ones
  ASSERT_TRUE(last.ok()) << last.status();
  const auto kept = std::count_if(silent.begin(), silent.end(), [](const Fd& fd) {
    char hello[Handshake::kHelloBytes];
    return ReadSome(fd.get(), hello, sizeof(hello)).ok() && ReadSome(fd.get(), hello, 1).ok();
  });
  EXPECT_LE(kept, 32);
  EXPECT_GE(kept, 31);
}

TEST(TcpStoreServer, MoreSilentStrangersThanPlacesKeepNobodyOut) {
  const auto served = Serve();
  std::vector<Fd> silent;
  for (int i = 0; i < 700; ++i) {
    auto fd = Connect(AddressOf(*served), Soon());
    if (!fd.ok()) {
      break;  // no descriptor left on this machine
    }
    silent.push_back(*std::move(fd));
  }
  silent.resize(silent.size() - std::min<size_t>(silent.size(), 20));  // leaves room for the rest
  ASSERT_GT(silent.size(), 200u);
  const auto store = OpenStore(served->url(), "", Soon());
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectWorks(**store);
}

// An honest client needs a round trip after it was accepted. It must not be closed because there
// are many strangers meanwhile.
TEST(TcpStoreServer, StrangerHasTimeForItsProofHoweverManyFollow) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2000) {
    GTEST_SKIP() << "needs 2000 descriptors";
  }
  const auto served = Serve();
  const Fd honest = *Connect(AddressOf(*served), Soon());
  Handshake handshake(true, Purpose::kStore, {7}, "");
  ASSERT_TRUE(StepHandshake(honest.get(), handshake, Soon()).ok());
  std::vector<Fd> others;
  for (int i = 0; i < 700; ++i) {
    others.push_back(*Connect(AddressOf(*served), Soon()));
  }
  ExpectWorks(*served);  // handled after the strangers
  StoreRequest set;
  set.op = StoreOp::kSet;
  set.key = "key";
  Send(honest, handshake.TakeOutput() + Frame(EncodeRequest(set)));
  ASSERT_TRUE(StepHandshake(honest.get(), handshake, Soon()).ok());
  char reply;
  EXPECT_TRUE(ReadFull(honest.get(), &reply, 1, Soon()).ok());
}

// Random bytes, and valid requests with bytes changed, cut and repeated. Both follow a valid
// handshake.
TEST(TcpStoreServer, SurvivesRandomBytes) {
  const auto served = Serve();
  const unsigned seed = 20240607;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    StoreRequest request;
    request.op = static_cast<StoreOp>(random() % 11);
    request.key = std::string(random() % 600, 'k');
    request.value = std::string(random() % 3000, 'v');
    std::string bytes = Frame(EncodeRequest(request));
    if (round % 3 == 0) {
      bytes.resize(random() % 200 + 1);
      for (char& c : bytes) {
        c = static_cast<char>(random());
      }
    } else {
      for (unsigned i = 0; i < random() % 4 + 1; ++i) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      bytes.resize(random() % bytes.size() + 1);
    }
    const Fd fd = Greet(*served);
    Send(fd, bytes);
    if (round % 2 == 0) {
      shutdown(fd.get(), SHUT_WR);
      EXPECT_TRUE(IsClosed(fd)) << "round " << round;
    }
    if (round % 50 == 0) {
      ExpectWorks(*served);
    }
  }
  ExpectWorks(*served);
}

TEST(ServeStore, RefusesWhatCannotBeServed) {
  for (const char* url : {"mem:x", "file:/tmp/x", "tcp://", "tcp://h", ""}) {
    EXPECT_EQ(ServeStore(url, "").status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  // An address reserved for documentation, which no host has.
  const auto foreign = ServeStore("tcp://192.0.2.7:0", "");
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(foreign.status().message()), HasSubstr("192.0.2.7"));
}

}  // namespace
}  // namespace entrain
