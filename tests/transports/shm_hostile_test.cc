// Peers that do not keep the protocol, and strangers: an error, never a wrong index (invariant 5 of
// the contract).
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "transports/shm/channel.h"
#include "transports/shm/introduction.h"
#include "transports/shm/shm_transport.h"

namespace entrain::shm {
namespace {

using testing::HasSubstr;

struct Transfer : Completion {
  Transfer() {
    done = [](Completion* self, const absl::Status& result, int64_t) {
      ++static_cast<Transfer*>(self)->times;
      static_cast<Transfer*>(self)->status = result;
    };
  }
  int times = 0;
  absl::Status status;
};

Envelope Message(uint32_t tag) {
  return {Tag(1, tag, 0, 0), {.kind = CallKind::kSend, .count = 1}};
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// A transport under test, and a peer that is made of this test's own hands.
class ShmHostile : public testing::Test, public Events {
 protected:
  ShmHostile() { options.cpus = CpuSet::First(8); }
  bool Accepts(Context) override { return true; }
  void OnEarly(Endpoint&, const Envelope&) override { ++early; }
  void OnControl(Endpoint&, absl::string_view text) override { controls.emplace_back(text); }
  void OnLost(Endpoint&, const absl::Status& why) override { lost.push_back(why); }

  void SetUp() override {
    TransportConfig config;
    config.self.fill(2);  // the larger id: it is dialled
    config.host_id = "here";
    config.key = key;
    transport = CreateTransport(config, this, options).value();
    const std::vector<std::string> parts = absl::StrSplit(transport->address(), '/');
    name = parts.at(2);
    peer_id.fill(1);
    doorbell.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    self.id = peer_id;
    self.key = key;
    self.doorbell = doorbell.get();
    self.ring_bytes = 64 << 10;
    std::string peer_name;
    listener = ListenAbstract(&peer_name).value();  // somebody who waits is knocked at
    const std::string address = absl::StrCat("1/", geteuid(), "/", peer_name, "/here");
    path = transport->Connect(peer_id, address).value();
  }
  void TearDown() override {
    path->Close(absl::AbortedError("end of test"));
    transport->Poll();
    path.reset();
  }
  void Introduce() {
    Introduction introduction(&self, name);
    for (int i = 0; i < 100000; ++i) {
      const absl::StatusOr<bool> done = introduction.Step();
      ASSERT_TRUE(done.ok()) << done.status();
      transport->Poll();
      if (*done) {
        peer.emplace(introduction.Take());
        return;
      }
    }
    FAIL() << "not introduced";
  }
  void Write(uint8_t kind, const std::string& payload) {
    std::byte* at = peer->Reserve(payload.size());
    ASSERT_NE(at, nullptr);
    std::memcpy(at, payload.data(), payload.size());
    peer->Publish(static_cast<Kind>(kind));
  }
  // The first `ready` bytes can be read, the record is not finished.
  void Begin(const std::string& payload, size_t ready) {
    std::byte* at = peer->Reserve(payload.size());
    ASSERT_NE(at, nullptr);
    std::memcpy(at, payload.data(), payload.size());
    peer->Open(kEager, ready);
  }
  template <typename Wire>
  static std::string Raw(const Wire& wire) {
    return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
  }
  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(5 * kSecond);
    while (!condition() && !deadline.Passed(Clock::Real().Now())) {
      transport->Poll();
    }
    return condition();
  }
  void ExpectLost(const char* why) {
    ASSERT_TRUE(PollUntil([&] { return !lost.empty(); })) << why;
    EXPECT_EQ(lost[0].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(lost[0].message()), HasSubstr(why));
    EXPECT_EQ(lost.size(), 1u);
  }

  std::string key;
  Options options;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Endpoint> path;
  std::string name;
  PeerId peer_id{};
  Fd doorbell, listener;
  Self self;
  std::optional<Channel> peer;
  std::vector<std::string> controls;
  std::vector<absl::Status> lost;
  int early = 0;
};

class ShmHostileKeyed : public ShmHostile {
 protected:
  ShmHostileKeyed() { key = "the key"; }
};

TEST_F(ShmHostile, AProperPeerIsHeard) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(kControl, "hello");
  EXPECT_TRUE(PollUntil([&] { return controls.size() == 1; }));
  EXPECT_EQ(controls[0], "hello");
}

// What is being written is copied by who waits for it and nobody else; it counts when it is whole.
TEST_F(ShmHostile, AMessageIsTakenWhileItIsWritten) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  std::string text(5000, 'x');
  text.back() = 'y';
  const std::string head = Raw(WireEnvelope::Of(Message(3)));
  std::byte* const at = peer->Reserve(head.size() + text.size());
  ASSERT_NE(at, nullptr);
  std::memcpy(at, head.data(), head.size());
  std::string into(text.size(), '-'), shorter(text.size() - 1, '-'), other(text.size(), '-');
  const auto try_recv = [&](uint32_t tag, std::string* buffer) {
    return path->TryRecv(Message(tag),
                         Bytes(reinterpret_cast<std::byte*>(&(*buffer)[0]), buffer->size()));
  };
  peer->Open(kEager, 0);
  EXPECT_EQ(try_recv(3, &into), Endpoint::Next::kNothing);
  EXPECT_EQ(into, std::string(text.size(), '-'));
  std::memcpy(at + head.size(), text.data(), 1000);
  peer->Open(kEager, 1024);
  EXPECT_EQ(try_recv(4, &other), Endpoint::Next::kNothing);
  EXPECT_EQ(try_recv(3, &shorter), Endpoint::Next::kNothing);
  EXPECT_EQ(other, std::string(other.size(), '-'));
  EXPECT_EQ(shorter, std::string(shorter.size(), '-'));
  EXPECT_EQ(transport->Poll(), 0);
  EXPECT_TRUE(transport->Arm());  // nothing to stay awake for
  EXPECT_EQ(try_recv(3, &into), Endpoint::Next::kPart);
  EXPECT_EQ(try_recv(3, &into), Endpoint::Next::kNothing) << "nothing more since";
  EXPECT_EQ(into, std::string(1000, 'x') + std::string(4000, '-'));
  std::memcpy(at + head.size(), text.data(), text.size());
  peer->Publish(kEager);
  EXPECT_EQ(try_recv(4, &other), Endpoint::Next::kOther);
  EXPECT_EQ(try_recv(3, &into), Endpoint::Next::kThis);
  EXPECT_EQ(into, text);
  EXPECT_EQ(try_recv(3, &into), Endpoint::Next::kNothing);
  Write(kControl, "and on it goes");
  EXPECT_TRUE(PollUntil([&] { return controls.size() == 1; }));
  EXPECT_TRUE(lost.empty());
}

// Begun by one who waits, finished by the engine: nothing is lost or counted twice.
TEST_F(ShmHostile, AMessageThatWasBegunIsDeliveredByPoll) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::string text(5000, 'x');
  ASSERT_NO_FATAL_FAILURE(Begin(Raw(WireEnvelope::Of(Message(3))) + text, 2048));
  std::string into(text.size(), '-');
  const Bytes bytes(reinterpret_cast<std::byte*>(&into[0]), into.size());
  EXPECT_EQ(path->TryRecv(Message(3), bytes), Endpoint::Next::kPart);
  EXPECT_NE(into, std::string(text.size(), '-'));
  Transfer done;
  path->PostRecv(Message(3), bytes, &done);
  transport->Poll();
  EXPECT_EQ(done.times, 0);
  peer->Publish(kEager);
  ASSERT_TRUE(PollUntil([&] { return done.times == 1; }));
  EXPECT_EQ(done.status, absl::OkStatus());
  EXPECT_EQ(into, text);
}

// What was copied of a record counts for a receive of its length only: the peer may publish another
// in its place.
TEST_F(ShmHostile, AMessageThatWasBegunAndIsAnotherInTheEnd) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::string text(5000, 'x'), head = Raw(WireEnvelope::Of(Message(3)));
  ASSERT_NO_FATAL_FAILURE(Begin(head + text, 4096));
  std::string into(text.size(), '-');
  const auto try_recv = [&](size_t bytes) {
    return path->TryRecv(Message(3), Bytes(reinterpret_cast<std::byte*>(&into[0]), bytes));
  };
  EXPECT_EQ(try_recv(text.size()), Endpoint::Next::kPart);
  Write(kEager, head + "other");
  EXPECT_EQ(try_recv(5), Endpoint::Next::kThis);
  EXPECT_EQ(into.substr(0, 5), "other");
}

TEST_F(ShmHostile, RecordsOfUnknownKind) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(99, "what");
  ExpectLost("unknown kind 99");
}

TEST_F(ShmHostile, RecordsTooShortForTheirKind) {
  for (const uint8_t kind : {kEager, kAnnounce, kDone, kPush, kFragment, kWithdraw, kRetire}) {
    SCOPED_TRACE(int{kind});
    ASSERT_NO_FATAL_FAILURE(Introduce());
    Write(kind, "abc");
    ASSERT_NO_FATAL_FAILURE(ExpectLost("broke the protocol"));
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

TEST_F(ShmHostile, HandlesThatWereNeverGiven) {
  const std::pair<uint8_t, std::string> records[] = {
      {kDone, Raw(WireDone{12345})},
      {kPush, Raw(WirePush{7, 0, 0, 1, 1})},
      {kFragment, Raw(WireFragment{0xffffffffffffffff, 0, 0}) + "data"},
      {kWithdraw, Raw(WireWithdraw{1 << 20})},
      {kRetire, Raw(WireRetire{3})},
  };
  for (const auto& [kind, payload] : records) {
    SCOPED_TRACE(int{kind});
    ASSERT_NO_FATAL_FAILURE(Introduce());
    Write(kind, payload);
    ASSERT_NO_FATAL_FAILURE(ExpectLost("broke the protocol"));
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

// An end that comes again is legal (it may have crossed a revocation), but nobody who waits for a
// message is to read them for ever.
TEST_F(ShmHostile, MoreEndsThanMessages) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::vector<std::byte> out(100'000);
  Ticket ticket;
  ASSERT_EQ(path->TrySend(Message(1), out, &ticket), Endpoint::Sent::kAnnounced);
  for (int i = 0; i < 200; ++i) {
    Write(kDone, Raw(WireDone{ticket.number}));
  }
  Write(kEager, Raw(WireEnvelope::Of(Message(3))) + "abc");
  std::string into(3, '-');
  const auto try_recv = [&] {
    return path->TryRecv(Message(3), Bytes(reinterpret_cast<std::byte*>(&into[0]), into.size()));
  };
  EXPECT_EQ(try_recv(), Endpoint::Next::kOther);
  EXPECT_EQ(path->TryTaken(ticket), Endpoint::Next::kThis);
  ASSERT_TRUE(PollUntil([&] { return early == 1; }));
  EXPECT_EQ(try_recv(), Endpoint::Next::kThis);
  EXPECT_EQ(into, "abc");
  EXPECT_TRUE(lost.empty());
}

TEST_F(ShmHostile, AskingForMoreThanWasAnnounced) {
  const std::vector<WirePush> asked[] = {
      {{0, 0, 0, 100'001, 0}},
      {{0, 0, 100'000, 1, 0}},
      {{0, 0, 100'001, ~uint64_t{0}, 0}},
      {{0, 0, 50'000, 0, 0}},
      {{0, 0, 0, 100'000, 0}, {0, 0, 0, 10, 0}},  // before the first is sent
  };
  for (const std::vector<WirePush>& pushes : asked) {
    SCOPED_TRACE(pushes.back().offset);
    ASSERT_NO_FATAL_FAILURE(Introduce());
    std::vector<std::byte> out(100'000);
    Transfer send;
    path->PostSend(Message(1), out, &send);
    transport->Poll();
    RingReader::Record record;
    ASSERT_TRUE(peer->reader().Peek(&record));
    ASSERT_EQ(record.kind, kAnnounce);
    WireAnnounce announced;
    std::memcpy(&announced, record.payload.data(), sizeof(announced));
    for (WirePush push : pushes) {
      push.handle = announced.handle;
      Write(kPush, Raw(push));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectLost("broke the protocol"));
    EXPECT_EQ(send.times, 1);
    EXPECT_FALSE(send.status.ok());
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

// We may read its memory, which does not say that it may read ours.
TEST_F(ShmHostile, APeerThatCannotReadIsSentSmallMessagesThroughTheRing) {
  TearDown();
  options.limits.quick_bytes = 4096;
  SetUp();
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::vector<std::byte> out(8000, std::byte{1});
  Ticket ticket;
  EXPECT_EQ(path->TrySend(Message(1), out, &ticket), Endpoint::Sent::kAnnounced);
  Transfer send;
  path->Await(ticket, &send);
  RingReader::Record record;
  ASSERT_TRUE(peer->reader().Peek(&record));
  ASSERT_EQ(record.kind, kAnnounce);
  WireAnnounce announced;
  std::memcpy(&announced, record.payload.data(), sizeof(announced));
  peer->reader().Pop();
  Write(kPush, Raw(WirePush{announced.handle, 77, 0, out.size(), 1}));
  ASSERT_TRUE(PollUntil([&] { return send.times == 1; }));
  ASSERT_TRUE(peer->reader().Peek(&record));
  EXPECT_EQ(record.kind, kFragment);
  peer->reader().Pop();
  EXPECT_EQ(path->TrySend(Message(1), out, &ticket), Endpoint::Sent::kCopied);
  ASSERT_TRUE(peer->reader().Peek(&record));
  EXPECT_EQ(record.kind, kEager);
  EXPECT_TRUE(lost.empty());
}

// A peer that cannot read the message would ask for it through the same ring.
TEST_F(ShmHostile, AFullRingAnnouncesSmallMessagesOnlyToAPeerThatCanReadThem) {
  const std::vector<std::byte> out(3000, std::byte{1});
  for (const bool reads : {true, false}) {
    TearDown();
    peer.reset();
    options.pull = reads;
    SetUp();
    ASSERT_NO_FATAL_FAILURE(Introduce());
    Ticket ticket;
    int copied = 0;
    auto how = Endpoint::Sent::kCopied;
    while (how == Endpoint::Sent::kCopied && copied < 1000) {
      how = path->TrySend(Message(1), out, &ticket);
      copied += how == Endpoint::Sent::kCopied ? 1 : 0;
    }
    EXPECT_GT(copied, 5);
    EXPECT_EQ(how, reads ? Endpoint::Sent::kAnnounced : Endpoint::Sent::kNo);
    int announced = 0;
    while (how == Endpoint::Sent::kAnnounced && ++announced < 1000) {
      how = path->TrySend(Message(1), out, &ticket);
    }
    EXPECT_EQ(how, Endpoint::Sent::kNo) << "no room for an announcement either";
  }
}

// A message of this size is announced where the two have cores of their own, and copied where they share one.
TEST_F(ShmHostile, CoresAreThoseThatBothMayUse) {
  const std::vector<std::byte> out(8000, std::byte{1});
  for (const bool same : {true, false}) {
    TearDown();
    peer.reset();
    options.limits.quick_bytes = 4096;
    options.cpus = CpuSet::FromBits("\x04");
    SetUp();
    self.cpus = CpuSet::FromBits(same ? "\x04" : "\x10");
    ASSERT_NO_FATAL_FAILURE(Introduce());
    Ticket ticket;
    EXPECT_EQ(path->TrySend(Message(1), out, &ticket) == Endpoint::Sent::kCopied, same);
  }
}

// Nor more than the cgroups of both have time for, whatever a peer says of its own.
TEST_F(ShmHostile, CoresAreNoMoreThanBothHaveTimeFor) {
  const std::vector<std::byte> out(8000, std::byte{1});
  const CpuQuota most{~uint64_t{0}, ~uint64_t{0}, ~uint32_t{0}};
  for (const auto& [theirs, shared] : {std::pair(CpuQuota{1, 2, 1999}, true),
                                       {CpuQuota{1, 3, 1000}, false},
                                       {CpuQuota{1, 2, 2000}, true},
                                       {most, false}}) {
    TearDown();
    peer.reset();
    options.limits.quick_bytes = 4096;
    options.cpus.quota = {1, 2, 1999};
    SetUp();
    self.cpus = {CpuSet::First(8), theirs};
    ASSERT_NO_FATAL_FAILURE(Introduce());
    Ticket ticket;
    EXPECT_EQ(path->TrySend(Message(1), out, &ticket) == Endpoint::Sent::kCopied, shared)
        << theirs.inode;
  }
}

// A message that is read in part is done when its receiver says so, not when the rest is sent.
TEST_F(ShmHostile, ASendLastsUntilBothItsPartsAreThere) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  std::vector<std::byte> out(30'000 + 10'000, std::byte{1});
  std::fill(out.begin() + 30'000, out.end(), std::byte{2});
  Transfer send;
  path->PostSend(Message(1), out, &send);
  transport->Poll();
  RingReader::Record record;
  ASSERT_TRUE(peer->reader().Peek(&record));
  WireAnnounce announced;
  std::memcpy(&announced, record.payload.data(), sizeof(announced));
  peer->reader().Pop();
  // The rest, then a piece of what could not be read.
  for (const uint64_t offset : {30'000, 20'000}) {
    Write(kPush, Raw(WirePush{announced.handle, 77, offset, 10'000, 0}));
    ASSERT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
    EXPECT_EQ(record.kind, kFragment);
    EXPECT_EQ(record.payload.size(), sizeof(WireFragment) + 10'000);
    EXPECT_EQ(record.payload.back(), out[offset]);
    peer->reader().Pop();
    peer->Release();
  }
  for (int i = 0; i < 100; ++i) {
    transport->Poll();
  }
  EXPECT_EQ(send.times, 0);
  Write(kDone, Raw(WireDone{announced.handle}));
  ASSERT_TRUE(PollUntil([&] { return send.times == 1; }));
  EXPECT_EQ(send.status, absl::OkStatus());
  EXPECT_TRUE(lost.empty());
}

TEST_F(ShmHostile, AnAnnouncementOfAnImpossibleLength) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(1)), ~uint64_t{0}, 0, 0, 0}));
  ExpectLost("impossible length");
}

// Of several large messages one way, half are read and half asked for, unless the sender sleeps.
TEST_F(ShmHostile, ASenderThatPollsIsAskedToPushItsShare) {
  for (const bool sleeps : {true, false}) {
    SCOPED_TRACE(sleeps);
    ASSERT_NO_FATAL_FAILURE(Introduce());
    sleeps ? peer->Sleep(kForData) : peer->Wake();
    constexpr size_t kBytes = 200'000, kMessages = 4;
    std::vector<std::byte> out(kBytes, std::byte{3});
    std::vector<std::vector<std::byte>> in(kMessages, std::vector<std::byte>(kBytes));
    Transfer received[kMessages];
    for (uint32_t i = 0; i < kMessages; ++i) {
      path->PostRecv(Message(i), absl::MakeSpan(in[i]), &received[i]);
      Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(i)), kBytes,
                                        reinterpret_cast<uint64_t>(out.data()), 100 + i, 0}));
    }
    std::vector<uint64_t> done, asked;
    ASSERT_TRUE(PollUntil([&] {
      RingReader::Record record;
      while (peer->reader().Peek(&record)) {
        uint64_t handle;
        std::memcpy(&handle, record.payload.data(), sizeof(handle));
        (record.kind == kPush ? asked : done).push_back(handle);
        if (record.kind == kPush) {
          WirePush push;
          std::memcpy(&push, record.payload.data(), sizeof(push));
          EXPECT_EQ(push.bytes, kBytes);
          for (size_t sent = 0; sent < kBytes;) {
            const size_t piece = std::min<size_t>(8'000, kBytes - sent);
            while (!peer->HasRoomFor(sizeof(WireFragment) + piece)) {
              transport->Poll();
            }
            Write(kFragment, Raw(WireFragment{push.to, 0, 0}) + std::string(piece, 3));
            sent += piece;
          }
        }
        peer->reader().Pop();
        peer->Release();
      }
      return done.size() + asked.size() == kMessages &&
             received[0].times + received[1].times + received[2].times + received[3].times ==
                 kMessages;
    }));
    EXPECT_EQ(asked, sleeps ? std::vector<uint64_t>() : std::vector<uint64_t>({100, 102}));
    for (size_t i = 0; i < kMessages; ++i) {
      EXPECT_EQ(received[i].status, absl::OkStatus());
      EXPECT_EQ(in[i], out) << i;
    }
    EXPECT_TRUE(lost.empty());
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

class ShmHostileOnOneCore : public ShmHostile {
 protected:
  ShmHostileOnOneCore() { options.cpus = CpuSet::First(1); }
};

// Of messages that no cache will hold 1 MiB is read, then as much asked for; and as the sender says
// that its copies take for ever, the rest is read.
TEST_F(ShmHostileOnOneCore, ASenderThatSaysItIsSlowIsAskedToPushOnce) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  constexpr size_t kBytes = 256 << 10, kMessages = 20;
  const std::vector<std::byte> out(kBytes, std::byte{3});
  std::vector<uint64_t> asked;
  for (uint32_t i = 0; i < kMessages; ++i) {
    std::vector<std::byte> in(kBytes);
    Transfer received;
    path->PostRecv(Message(i), absl::MakeSpan(in), &received, {.cold = true});
    Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(i)), kBytes,
                                      reinterpret_cast<uint64_t>(out.data()), 100 + i, 0}));
    ASSERT_TRUE(PollUntil([&] {
      RingReader::Record record;
      while (peer->reader().Peek(&record)) {
        if (record.kind == kPush) {
          WirePush push;
          std::memcpy(&push, record.payload.data(), sizeof(push));
          asked.push_back(push.handle);
          for (size_t sent = 0; sent < kBytes; sent += 16 << 10) {
            EXPECT_TRUE(PollUntil([&] { return peer->HasRoomFor(20'000); }));
            Write(kFragment,
                  Raw(WireFragment{push.to, 0xffffffff, 0xffffffff}) + std::string(16 << 10, 3));
          }
        }
        peer->reader().Pop();
        peer->Release();
      }
      return received.times > 0;
    }));
    EXPECT_EQ(received.status, absl::OkStatus());
    EXPECT_EQ(in, out) << i;
  }
  EXPECT_EQ(asked, std::vector<uint64_t>({104, 105, 106, 107}));
  EXPECT_TRUE(lost.empty());
}

// A single one is read from its front while its rest comes through the ring; and what turns out
// unreadable is asked for when the rest is there.
TEST_F(ShmHostile, OfASingleMessageTheSenderPushesTheRest) {
  constexpr size_t kBytes = 200'000;
  std::vector<std::byte> out(kBytes, std::byte{3});
  for (const bool readable : {true, false}) {
    SCOPED_TRACE(readable);
    ASSERT_NO_FATAL_FAILURE(Introduce());
    std::vector<std::byte> in(kBytes);
    const auto announce = [&](bool good) {
      Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(1)), kBytes,
                                        good ? reinterpret_cast<uint64_t>(out.data()) : 8, 5, 0}));
    };
    const auto next = [&](WirePush* push) {
      RingReader::Record record;
      EXPECT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
      std::memcpy(push, record.payload.data(), std::min(sizeof(*push), record.payload.size()));
      peer->reader().Pop();
      peer->Release();
      return record.kind;
    };
    for (unsigned i = 0; i < LoneMessages::kRun; ++i) {  // the first are read whole
      Transfer first;
      path->PostRecv(Message(1), absl::MakeSpan(in), &first);
      announce(true);
      WirePush none{};
      ASSERT_EQ(next(&none), kDone);
      ASSERT_TRUE(PollUntil([&] { return first.times == 1; }));
    }
    std::fill(in.begin(), in.end(), std::byte{0});
    Transfer received;
    path->PostRecv(Message(1), absl::MakeSpan(in), &received);
    announce(readable);
    const auto answer = [&](const WirePush& push) {
      for (size_t sent = 0; sent < push.bytes;) {
        const size_t piece = std::min<size_t>(8'000, push.bytes - sent);
        ASSERT_TRUE(PollUntil([&] { return peer->HasRoomFor(sizeof(WireFragment) + piece); }));
        Write(kFragment, Raw(WireFragment{push.to, 0, 0}) + std::string(piece, 3));
        sent += piece;
      }
    };
    WirePush rest{}, front{};
    ASSERT_EQ(next(&rest), kPush);
    EXPECT_GT(rest.offset, 0u);
    EXPECT_EQ(rest.offset + rest.bytes, kBytes);
    EXPECT_EQ(rest.last, 0u);
    EXPECT_EQ(received.times, 0);
    ASSERT_NO_FATAL_FAILURE(answer(rest));
    if (!readable) {
      ASSERT_EQ(next(&front), kPush);
      EXPECT_EQ(front.offset, 0u);
      EXPECT_EQ(front.bytes, rest.offset);
      EXPECT_EQ(front.last, 1u);
      ASSERT_NO_FATAL_FAILURE(answer(front));
    }
    ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
    EXPECT_EQ(received.status, absl::OkStatus());
    EXPECT_EQ(in, out);
    RingReader::Record record;
    EXPECT_EQ(peer->reader().Peek(&record), readable);
    EXPECT_TRUE(!readable || record.kind == kDone);
    EXPECT_TRUE(lost.empty());
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

// All of it is mapped.
WireOffer Offer(uint64_t region, uint64_t address, uint64_t bytes) {
  return {.region = region,
          .address = address,
          .bytes = bytes,
          .mapped_address = address,
          .mapped_bytes = bytes};
}

TEST_F(ShmHostile, MessagesInMemoryThatWasNotOfferedOrBeyondIt) {
  const SealedMemory memory = SealedMemory::Create(1 << 20).value();
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const struct {
    uint64_t region, address, bytes;
  } messages[] = {{8, address, 100000},
                  {7, address - 1, 100000},
                  {7, address + 1, 1 << 20},
                  {7, address + (1 << 20) + 1, 0},
                  {7, address, ~uint64_t{0} >> 1}};
  for (const auto& message : messages) {
    SCOPED_TRACE(message.address - address);
    ASSERT_NO_FATAL_FAILURE(Introduce());
    ASSERT_TRUE(peer->Offer(Offer(7, address, 1 << 20), memory.fd()));
    Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(1)), message.bytes, message.address,
                                      1, message.region}));
    ASSERT_NO_FATAL_FAILURE(ExpectLost("broke the protocol"));
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
}

TEST_F(ShmHostile, OffersThatAreNone) {
  const SealedMemory memory = SealedMemory::Create(4096).value();
  constexpr uint64_t magic = WireOffer::kMagic;
  const WireOffer offers[] = {
      {1, 1, 4096, 4096, 4096, 4096},        // no magic
      Offer(1, ~uint64_t{0} - 4095, 8192),   // past the last address
      Offer(2, 4096, 4096),                  // which is taken
      {magic, 1, 8192, 4096, 4096, 4096},    // mapped before it,
      {magic, 1, 8192, 4096, 8193, 4096},    // behind it,
      {magic, 1, 8192, 4096, 8192, 4097},    // longer,
      {magic, 1, 8192, 16384, 12288, 4096},  // a page of it before, not mapped,
      {magic, 1, 8192, 16384, 8193, 4096},   // more than one behind
      {magic, 1, 8192, ~uint64_t{0} - 8192, 8192, ~uint64_t{0} - 4096},
  };
  for (const WireOffer& offer : offers) {
    ASSERT_NO_FATAL_FAILURE(Introduce());
    ASSERT_TRUE(peer->Offer(Offer(2, 4096, 4096), memory.fd()));
    ASSERT_TRUE(peer->Offer(offer, memory.fd()));
    ASSERT_NO_FATAL_FAILURE(ExpectLost("offers impossible memory"));
    TearDown();
    lost.clear();
    peer.reset();
    SetUp();
  }
  ASSERT_NO_FATAL_FAILURE(Introduce());
  ASSERT_EQ(send(peer->socket(), "abc", 3, MSG_NOSIGNAL), 3);
  ExpectLost("what is no offer");
}

// Memory that cannot be mapped, for want of seals, size or descriptors: the message is copied.
TEST_F(ShmHostile, MemoryThatCannotBeMappedIsCopied) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  const SealedMemory small = SealedMemory::Create(4096).value();
  std::vector<std::byte> out(1 << 20, std::byte{5});
  const auto address = reinterpret_cast<uint64_t>(out.data());
  uint64_t region = 0;
  const size_t before = OpenDescriptors();
  for (const int fd : {unsealed.get(), small.fd(), doorbell.get()}) {
    peer->Sleep(kForData);  // else it would be asked to push a part
    ASSERT_TRUE(peer->Offer(Offer(++region, address, out.size()), fd));
    std::vector<std::byte> in(out.size());
    Transfer received;
    Loan loan;
    path->PostRecv(Message(static_cast<uint32_t>(region)), absl::MakeSpan(in), &received,
                   {.loan = &loan});
    Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(static_cast<uint32_t>(region))),
                                      out.size(), address, region, region}));
    ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
    EXPECT_EQ(received.status, absl::OkStatus());
    EXPECT_EQ(loan.lent, nullptr);
    EXPECT_EQ(in, out);
    // Likewise where it is taken at once.
    std::vector<std::byte> part(50'000);
    Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(99)), part.size(), address,
                                      100 + region, region}));
    EXPECT_EQ(path->TryRecv(Message(99), absl::MakeSpan(part)), Endpoint::Next::kThis);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), out.begin()));
  }
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_TRUE(lost.empty());
}

TEST_F(ShmHostile, MemoryRetiredWhileItIsLentStaysUntilTheEnd) {
  const SealedMemory memory = SealedMemory::Create(1 << 20).value();
  memory.data()[99'999] = std::byte{7};
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  for (const bool revoked_there : {false, true}) {
    for (const bool revoked_here : {false, true}) {
      SCOPED_TRACE(testing::Message() << revoked_there << revoked_here);
      ASSERT_NO_FATAL_FAILURE(Introduce());
      ASSERT_TRUE(peer->Offer(Offer(1, address, 1 << 20), memory.fd()));
      std::vector<std::byte> in(100'000);
      Transfer received;
      Loan loan;
      path->PostRecv(Message(1), absl::MakeSpan(in), &received, {.loan = &loan});
      Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(1)), in.size(), address, 1, 1}));
      ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
      ASSERT_NE(loan.lent, nullptr);
      if (revoked_there) {
        peer->RevokeContext(1);
        Write(kWithdraw, Raw(WireWithdraw{1}));
      }
      if (revoked_here) {
        path->Revoke(1, 1, absl::AbortedError("enough"));
      }
      Write(kRetire, Raw(WireRetire{1}));
      Write(kControl, "done");
      ASSERT_TRUE(PollUntil([&] { return !controls.empty(); }));
      EXPECT_EQ(loan.lent[99'999], std::byte{7});
      EXPECT_EQ(path->Release(&loan).ok(), !revoked_there && !revoked_here);
      RingReader::Record record;
      int done = 0;
      while (peer->Peek(&record)) {
        done += record.kind == kDone ? 1 : 0;
        peer->reader().Pop();
      }
      EXPECT_EQ(done, 1);
      EXPECT_TRUE(lost.empty());
      TearDown();
      lost.clear();
      controls.clear();
      peer.reset();
      SetUp();
    }
  }
}

TEST_F(ShmHostile, EarlyMessagesBeyondTheCredit) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::string message = Raw(WireEnvelope::Of(Message(1))) + std::string(8000, 'x');
  for (int i = 0; i < 400 && lost.empty(); ++i) {
    if (peer->HasRoomFor(message.size())) {
      Write(kEager, message);
    }
    transport->Poll();
  }
  ExpectLost("broke the protocol");
  EXPECT_LE(early, 140) << "more than the credit was kept";
}

TEST_F(ShmHostile, AControlMessageThatIsTooLong) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(kControl, std::string(kMaxControlBytes + 1, 'x'));
  ExpectLost("too long");
}

TEST_F(ShmHostile, AnnouncedMemoryThatIsNotThereIsAskedForThroughTheRing) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  std::vector<std::byte> in(60000);
  Transfer receive;
  path->PostRecv(Message(1), Bytes(in.data(), in.size()), &receive);
  Write(kAnnounce, Raw(WireAnnounce{WireEnvelope::Of(Message(1)), in.size(), 8, 5, 0}));
  RingReader::Record record;
  ASSERT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
  EXPECT_EQ(record.kind, kPush);
  WirePush push;
  std::memcpy(&push, record.payload.data(), sizeof(push));
  EXPECT_EQ(push.handle, 5u);
  EXPECT_EQ(push.offset, 0u);
  EXPECT_EQ(push.bytes, in.size());
  Write(kFragment, Raw(WireFragment{push.to, 0, 0}) + std::string(16000, 'x'));
  transport->Poll();
  EXPECT_EQ(in[15999], std::byte{'x'});
  for (int i = 0; i < 6; ++i) {  // 112000 bytes in all
    Write(kFragment, Raw(WireFragment{push.to, 0, 0}) + std::string(16000, 'x'));
    transport->Poll();
    peer->Release();
  }
  ExpectLost("more fragments than announced");
  EXPECT_EQ(receive.times, 1);
  EXPECT_FALSE(receive.status.ok());
}

// A raw connection to the listening socket.
Fd Dial(const std::string& name) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  return fd;
}

TEST_F(ShmHostile, StrangersAreSentAwayAndTheirDescriptorsClosed) {
  const size_t before = OpenDescriptors();
  const Fd stranger = Dial(name);
  transport->Poll();
  // Descriptors before the handshake is over.
  std::string text = "GET / HTTP/1.1\r\n" + std::string(200, 'x');
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = doorbell.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  ASSERT_GT(sendmsg(stranger.get(), &message, MSG_NOSIGNAL), 0);
  char answer[256];
  EXPECT_TRUE(PollUntil([&] {
    const ssize_t got = recv(stranger.get(), answer, sizeof(answer), 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  })) << "not sent away";
  EXPECT_EQ(OpenDescriptors(), before + 1);  // our end
  EXPECT_TRUE(lost.empty());
  ASSERT_NO_FATAL_FAILURE(Introduce());  // the real peer still gets in
}

TEST_F(ShmHostileKeyed, APeerWithoutTheKeyDoesNotGetIn) {
  self.key = "another key";
  Introduction introduction(&self, name);
  absl::StatusOr<bool> done = false;
  for (int i = 0; i < 100000 && done.ok(); ++i) {
    done = introduction.Step();
    ASSERT_FALSE(done.ok() && *done);
    transport->Poll();
  }
  EXPECT_FALSE(done.ok());
  EXPECT_TRUE(lost.empty());
  self.key = key;
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(kControl, "hello");
  EXPECT_TRUE(PollUntil([&] { return controls.size() == 1; }));
}

// While it lives, this process can open nothing more.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDIN_FILENO);
    close(next);
    const rlimit none{static_cast<rlim_t>(next), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(ShmHostile, BeingOutOfDescriptorsIsNotThePeersFault) {
  Introduction introduction(&self, name);
  ASSERT_TRUE(PollUntil([&] {
    EXPECT_TRUE(introduction.Step().ok());
    return introduction.peer_known();
  }));
  ASSERT_TRUE(introduction.Step().ok());  // its descriptors are on their way
  {
    const NoMoreDescriptors limit;
    ASSERT_TRUE(PollUntil([&] { return !lost.empty(); }));
  }
  EXPECT_EQ(lost[0].code(), absl::StatusCode::kResourceExhausted) << lost[0];
  EXPECT_THAT(std::string(lost[0].message()),
              HasSubstr("this process has no room for the peer's descriptors: Too many open"));
}

TEST_F(ShmHostile, ADoorbellThatCouldBlockIsRefused) {
  doorbell.Reset(eventfd(0, EFD_CLOEXEC));
  self.doorbell = doorbell.get();
  Introduction introduction(&self, name);
  for (int i = 0; i < 1000 && lost.empty(); ++i) {
    (void)introduction.Step();
    transport->Poll();
  }
  ExpectLost("could block");
}

}  // namespace
}  // namespace entrain::shm
