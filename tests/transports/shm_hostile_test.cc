// Peers that break the protocol, and strangers. They cause an error, but never a wrong index
// (invariant 5 of the contract).
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

#include "tests/support/transfer.h"
#include "transports/shm/channel.h"
#include "transports/shm/introduction.h"
#include "transports/shm/shm_transport.h"

namespace entrain::shm {
namespace {

using testing::HasSubstr;

Envelope Message(uint32_t tag) {
  return {Tag(1, tag, 0, 0), {.kind = CallKind::kSend, .count = 1}};
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// A transport under test, and a peer that this test plays byte by byte.
class ShmHostile : public testing::Test, public Events {
 protected:
  ShmHostile() {
    options.cpus = CpuSet::First(8);
    options.limits.reads = shm::Reads::kQuick;  // independent of this machine
  }
  bool Accepts(Context) override { return true; }
  void OnEarly(Endpoint&, const Envelope&) override { ++early; }
  void OnControl(Endpoint&, absl::string_view text) override { controls.emplace_back(text); }
  void OnLost(Endpoint&, const absl::Status& why) override { lost.push_back(why); }

  void SetUp() override {
    TransportConfig config;
    config.self.fill(2);  // larger id: waits for a connection
    config.host_id = "here";
    config.security.key = key;
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
    listener = ListenAbstract(&peer_name).value();  // a side that waits is asked to connect
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
  // Writes a record of which only the first `ready` bytes can be read. The record is not finished.
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

// A message that is still being written is copied only by the caller that waits for the message. It
// counts as received when it is complete.
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
  EXPECT_TRUE(transport->Arm());  // no reason to stay awake
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

// A waiting caller begins the copy and the engine finishes it. Nothing is lost or counted twice.
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

// The copied beginning of a record counts only for a receive of the record's length: the peer may
// publish another record in its place.
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
  for (const uint8_t kind : {kEager, kRts, kDone, kCts, kFragment, kWithdraw, kRetire}) {
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
      {kCts, Raw(WireCts{7, 0, 0})},
      {kFragment, Raw(WireFragment{0xffffffffffffffff}) + "data"},
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

// A repeated end is legal (it may have crossed a revocation). But a caller that waits for a message
// must not read ends forever.
TEST_F(ShmHostile, MoreEndsThanMessages) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::vector<std::byte> out(100'000);
  SendRequest request;
  ASSERT_EQ(path->TrySend(Message(1), out, &request), Endpoint::Sent::kRtsSent);
  for (int i = 0; i < 200; ++i) {
    Write(kDone, Raw(WireDone{request.number}));
  }
  Write(kEager, Raw(WireEnvelope::Of(Message(3))) + "abc");
  std::string into(3, '-');
  const auto try_recv = [&] {
    return path->TryRecv(Message(3), Bytes(reinterpret_cast<std::byte*>(&into[0]), into.size()));
  };
  EXPECT_EQ(try_recv(), Endpoint::Next::kOther);
  EXPECT_EQ(path->TryTaken(request), Endpoint::Next::kThis);
  ASSERT_TRUE(PollUntil([&] { return early == 1; }));
  EXPECT_EQ(try_recv(), Endpoint::Next::kThis);
  EXPECT_EQ(into, "abc");
  EXPECT_TRUE(lost.empty());
}

TEST_F(ShmHostile, AskingForMoreThanTheRtsSaid) {
  const std::vector<WireCts> asked[] = {
      {{0, 0, 100'000}},
      {{0, 0, ~uint64_t{0}}},
      {{0, 0, 0}, {0, 0, 10}},  // before the first is sent
  };
  for (const std::vector<WireCts>& asked_for : asked) {
    SCOPED_TRACE(asked_for.back().offset);
    ASSERT_NO_FATAL_FAILURE(Introduce());
    std::vector<std::byte> out(100'000);
    Transfer send;
    path->PostSend(Message(1), out, &send);
    transport->Poll();
    RingReader::Record record;
    ASSERT_TRUE(peer->reader().Peek(&record));
    ASSERT_EQ(record.kind, kRts);
    WireRts rts;
    std::memcpy(&rts, record.payload.data(), sizeof(rts));
    for (WireCts cts : asked_for) {
      cts.handle = rts.handle;
      Write(kCts, Raw(cts));
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

// This process may read the peer's memory. This does not mean that the peer may read ours.
TEST_F(ShmHostile, APeerThatCannotReadIsSentSmallMessagesThroughTheRing) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::vector<std::byte> out(8000, std::byte{1});
  SendRequest request;
  EXPECT_EQ(path->TrySend(Message(1), out, &request), Endpoint::Sent::kRtsSent);
  Transfer send;
  path->Await(request, &send);
  RingReader::Record record;
  ASSERT_TRUE(peer->reader().Peek(&record));
  ASSERT_EQ(record.kind, kRts);
  WireRts rts;
  std::memcpy(&rts, record.payload.data(), sizeof(rts));
  peer->reader().Pop();
  Write(kCts, Raw(WireCts{rts.handle, 77, 0}));
  ASSERT_TRUE(PollUntil([&] { return send.times == 1; }));
  ASSERT_TRUE(peer->reader().Peek(&record));
  EXPECT_EQ(record.kind, kFragment);
  peer->reader().Pop();
  EXPECT_EQ(path->TrySend(Message(1), out, &request), Endpoint::Sent::kCopied);
  ASSERT_TRUE(peer->reader().Peek(&record));
  EXPECT_EQ(record.kind, kEager);
  EXPECT_TRUE(lost.empty());
}

// A peer that cannot read the message would ask for it through the same ring.
TEST_F(ShmHostile, AFullRingSendsRtsForSmallMessagesOnlyToAPeerThatCanReadThem) {
  const std::vector<std::byte> out(3000, std::byte{1});
  for (const bool reads : {true, false}) {
    TearDown();
    peer.reset();
    options.pull = reads;
    SetUp();
    ASSERT_NO_FATAL_FAILURE(Introduce());
    SendRequest request;
    int copied = 0;
    auto how = Endpoint::Sent::kCopied;
    while (how == Endpoint::Sent::kCopied && copied < 1000) {
      how = path->TrySend(Message(1), out, &request);
      copied += how == Endpoint::Sent::kCopied ? 1 : 0;
    }
    EXPECT_GT(copied, 5);
    EXPECT_EQ(how, reads ? Endpoint::Sent::kRtsSent : Endpoint::Sent::kNo);
    int rts = 0;
    while (how == Endpoint::Sent::kRtsSent && ++rts < 1000) {
      how = path->TrySend(Message(1), out, &request);
    }
    EXPECT_EQ(how, Endpoint::Sent::kNo) << "no room for an RTS either";
  }
}

// A message of this size goes by RTS if the two ranks have cores of their own, and is copied if
// they share one.
TEST_F(ShmHostile, CoresAreThoseThatBothMayUse) {
  const std::vector<std::byte> out(8000, std::byte{1});
  for (const bool same : {true, false}) {
    TearDown();
    peer.reset();
    options.cpus = CpuSet::FromBits("\x04");
    SetUp();
    self.cpus = CpuSet::FromBits(same ? "\x04" : "\x10");
    ASSERT_NO_FATAL_FAILURE(Introduce());
    SendRequest request;
    EXPECT_EQ(path->TrySend(Message(1), out, &request) == Endpoint::Sent::kCopied, same);
  }
}

// The cores are also limited by the CPU time of both cgroups, whatever a peer claims for its own.
TEST_F(ShmHostile, CoresAreNoMoreThanBothHaveTimeFor) {
  const std::vector<std::byte> out(8000, std::byte{1});
  const CpuQuota most{~uint64_t{0}, ~uint64_t{0}, ~uint32_t{0}};
  for (const auto& [theirs, shared] : {std::pair(CpuQuota{1, 2, 1999}, true),
                                       {CpuQuota{1, 3, 1000}, false},
                                       {CpuQuota{1, 2, 2000}, true},
                                       {most, false}}) {
    TearDown();
    peer.reset();
    options.cpus.quota = {1, 2, 1999};
    SetUp();
    self.cpus = {CpuSet::First(8), theirs};
    ASSERT_NO_FATAL_FAILURE(Introduce());
    SendRequest request;
    EXPECT_EQ(path->TrySend(Message(1), out, &request) == Endpoint::Sent::kCopied, shared)
        << theirs.inode;
  }
}

// The receiver has copied the beginning and asks for the rest. The send is over when the rest is
// sent.
TEST_F(ShmHostile, ASendThatIsAskedForEndsWithItsLastFragment) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  std::vector<std::byte> out(300'000, std::byte{1});
  out[100'000] = std::byte{2};
  Transfer send;
  path->PostSend(Message(1), out, &send);
  transport->Poll();
  RingReader::Record record;
  ASSERT_TRUE(peer->reader().Peek(&record));
  WireRts rts;
  std::memcpy(&rts, record.payload.data(), sizeof(rts));
  peer->reader().Pop();
  Write(kCts, Raw(WireCts{rts.handle, 77, 100'000}));
  std::string came;
  while (came.size() < 200'000) {
    ASSERT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
    ASSERT_EQ(record.kind, kFragment);
    EXPECT_EQ(send.times, came.size() < 100'000 ? 0 : send.times) << "the rest has no room yet";
    absl::StrAppend(&came, AsText(record.payload.subspan(sizeof(WireFragment))));
    peer->reader().Pop();
    peer->Release();
  }
  EXPECT_EQ(came, '\2' + std::string(199'999, '\1'));
  ASSERT_TRUE(PollUntil([&] { return send.times == 1; }));
  EXPECT_EQ(send.status, absl::OkStatus());
  EXPECT_TRUE(lost.empty());
}

TEST_F(ShmHostile, AnRtsOfAnImpossibleLength) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), ~uint64_t{0}, 0, 0, 0}));
  ExpectLost("impossible length");
}

// A peer that sends the messages that the transport asks for. Handles: `asked` are the messages
// that the transport asked for, `done` those that it has read itself.
class ShmHostileSender : public ShmHostile {
 protected:
  struct Handles {
    std::vector<uint64_t> done, asked;
  };
  // Sends `count` messages of `bytes` to receives with this hint. Returns the handles of both
  // kinds.
  Handles SendAll(uint32_t count, size_t bytes, RecvHint hint = {}) {
    const std::vector<std::byte> out(bytes, std::byte{3});
    std::vector<std::vector<std::byte>> in(count, std::vector<std::byte>(bytes));
    std::vector<Transfer> received(count);
    for (uint32_t i = 0; i < count; ++i) {
      path->PostRecv(Message(i), absl::MakeSpan(in[i]), &received[i], hint);
      Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(i)), bytes,
                              reinterpret_cast<uint64_t>(out.data()), 100 + i, 0}));
    }
    Handles handles;
    EXPECT_TRUE(PollUntil([&] {
      Answer(bytes, &handles);
      return handles.done.size() + handles.asked.size() == count &&
             std::all_of(received.begin(), received.end(),
                         [](const Transfer& one) { return one.times == 1; });
    }));
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(received[i].status, absl::OkStatus());
      EXPECT_EQ(in[i], out) << i;
    }
    EXPECT_TRUE(lost.empty());
    return handles;
  }
  void Answer(size_t bytes, Handles* handles) {
    RingReader::Record record;
    while (peer->reader().Peek(&record)) {
      WireCts cts{};
      std::memcpy(&cts, record.payload.data(), std::min(sizeof(cts), record.payload.size()));
      (record.kind == kCts ? handles->asked : handles->done).push_back(cts.handle);
      peer->reader().Pop();
      peer->Release();
      for (size_t at = cts.offset; record.kind == kCts && at < bytes;) {
        const size_t piece = std::min<size_t>(8'000, bytes - at);
        while (!peer->HasRoomFor(sizeof(WireFragment) + piece)) {
          transport->Poll();
        }
        Write(kFragment, Raw(WireFragment{cts.to}) + std::string(piece, 3));
        at += piece;
      }
    }
  }
};
const std::vector<uint64_t> kAll{100, 101, 102, 103}, kNone;

TEST_F(ShmHostileSender, ReadsWhatIsReadQuickly) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  EXPECT_EQ(SendAll(4, 200'000).done, kAll);
}

TEST_F(ShmHostileSender, WhereReadsAreSlowASenderThatPollsIsAsked) {
  for (const bool sleeps : {true, false}) {
    SCOPED_TRACE(sleeps);
    TearDown();
    peer.reset();
    options.limits.reads = shm::Reads::kSlow;
    SetUp();
    ASSERT_NO_FATAL_FAILURE(Introduce());
    sleeps ? peer->Sleep(kForData) : peer->Wake();
    const Handles handles = SendAll(4, 200'000);
    EXPECT_EQ(handles.done, sleeps ? kAll : kNone);
    EXPECT_EQ(handles.asked, sleeps ? kNone : kAll);
  }
}

// A receive that waits only for this message leaves it to Poll, which asks for it.
TEST_F(ShmHostileSender, AMessageThatIsToComeThroughTheRingIsNotReadAtOnce) {
  TearDown();
  options.limits.reads = shm::Reads::kSlow;
  SetUp();
  ASSERT_NO_FATAL_FAILURE(Introduce());
  const std::vector<std::byte> out(100'000, std::byte{3});
  std::vector<std::byte> in(out.size());
  Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), out.size(),
                          reinterpret_cast<uint64_t>(out.data()), 5, 0}));
  EXPECT_EQ(path->TryRecv(Message(1), absl::MakeSpan(in)), Endpoint::Next::kOther);
  peer->Sleep(kForData);
  EXPECT_EQ(path->TryRecv(Message(1), absl::MakeSpan(in)), Endpoint::Next::kThis);
  EXPECT_EQ(in, out);
}

// If a part of a message turns out to be unreadable, the transport asks for the rest from there on.
TEST_F(ShmHostile, OfAMessageThatCanBeReadInPartTheRestIsAskedFor) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  constexpr size_t kReadable = 300 << 10, kBytes = 400 << 10;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 3, kReadable);
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + kReadable, kBytes - kReadable, PROT_NONE), 0);
  std::vector<std::byte> in(kBytes);
  Transfer received;
  path->PostRecv(Message(1), absl::MakeSpan(in), &received);
  Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), kBytes, reinterpret_cast<uint64_t>(memory),
                          5, 0}));
  RingReader::Record record;
  ASSERT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
  ASSERT_EQ(record.kind, kCts);
  WireCts cts;
  std::memcpy(&cts, record.payload.data(), sizeof(cts));
  EXPECT_EQ(cts.offset, kReadable);
  for (size_t at = cts.offset; at < kBytes; at += 10 << 10) {
    ASSERT_TRUE(PollUntil([&] { return peer->HasRoomFor(11 << 10); }));
    Write(kFragment, Raw(WireFragment{cts.to}) + std::string(10 << 10, 3));
  }
  ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
  EXPECT_EQ(received.status, absl::OkStatus());
  EXPECT_EQ(in, std::vector<std::byte>(kBytes, std::byte{3}));
  EXPECT_TRUE(lost.empty());
  munmap(memory, kBytes);
}

// Makes an offer whose whole region is mapped.
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
    Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), message.bytes, message.address, 1,
                            message.region}));
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
      {1, 1, 4096, 4096, 4096, 4096},        // no magic number
      Offer(1, ~uint64_t{0} - 4095, 8192),   // past the last address
      Offer(2, 4096, 4096),                  // the region is in use
      {magic, 1, 8192, 4096, 4096, 4096},    // the mapping begins before the memory
      {magic, 1, 8192, 4096, 8193, 4096},    // the mapping ends behind the memory
      {magic, 1, 8192, 4096, 8192, 4097},    // the mapping is longer than the memory
      {magic, 1, 8192, 16384, 12288, 4096},  // the first page is not mapped
      {magic, 1, 8192, 16384, 8193, 4096},   // more than the last page is not mapped
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

// Memory cannot be mapped because seals, size or descriptors are missing: the message is copied.
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
    ASSERT_TRUE(peer->Offer(Offer(++region, address, out.size()), fd));
    std::vector<std::byte> in(out.size());
    Transfer received;
    Loan loan;
    path->PostRecv(Message(static_cast<uint32_t>(region)), absl::MakeSpan(in), &received,
                   {.loan = &loan});
    Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(static_cast<uint32_t>(region))), out.size(),
                            address, region, region}));
    ASSERT_TRUE(PollUntil([&] { return received.times == 1; }));
    EXPECT_EQ(received.status, absl::OkStatus());
    EXPECT_EQ(loan.lent, nullptr);
    EXPECT_EQ(in, out);
    // The same for a message that is received at once.
    std::vector<std::byte> part(50'000);
    Write(kRts,
          Raw(WireRts{WireEnvelope::Of(Message(99)), part.size(), address, 100 + region, region}));
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
      Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), in.size(), address, 1, 1}));
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

TEST_F(ShmHostile, MemoryOfAnRtsThatIsNotThereIsAskedForThroughTheRing) {
  ASSERT_NO_FATAL_FAILURE(Introduce());
  std::vector<std::byte> in(60000);
  Transfer receive;
  path->PostRecv(Message(1), Bytes(in.data(), in.size()), &receive);
  Write(kRts, Raw(WireRts{WireEnvelope::Of(Message(1)), in.size(), 8, 5, 0}));
  RingReader::Record record;
  ASSERT_TRUE(PollUntil([&] { return peer->reader().Peek(&record); }));
  EXPECT_EQ(record.kind, kCts);
  WireCts cts;
  std::memcpy(&cts, record.payload.data(), sizeof(cts));
  EXPECT_EQ(cts.handle, 5u);
  EXPECT_EQ(cts.offset, 0u);
  Write(kFragment, Raw(WireFragment{cts.to}) + std::string(16000, 'x'));
  transport->Poll();
  EXPECT_EQ(in[15999], std::byte{'x'});
  for (int i = 0; i < 6; ++i) {  // 112000 bytes in total
    Write(kFragment, Raw(WireFragment{cts.to}) + std::string(16000, 'x'));
    transport->Poll();
    peer->Release();
  }
  ExpectLost("more fragments than the RTS said");
  EXPECT_EQ(receive.times, 1);
  EXPECT_FALSE(receive.status.ok());
}

// Opens a raw connection to the listening socket.
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
  // Sends descriptors before the handshake is over.
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

// While this object lives, the process cannot open further descriptors.
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
  ASSERT_TRUE(introduction.Step().ok());  // its descriptors were sent
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
