// Properties of ucx that the contract suite cannot test: addresses, devices, order, the harm that a
// lying peer can do, and the effects of loading UCX on the process.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/net/handshake.h"
#include "tests/transports/endpoint_contract.h"
#include "transports/rendezvous_sender.h"
#include "transports/ucx/devices.h"
#include "transports/ucx/library.h"
#include "transports/ucx/ucx_address.h"
#include "transports/ucx/ucx_packet.h"
#include "transports/ucx/ucx_transport.h"
#include "transports/ucx/ways.h"
#include "transports/ucx/wire.h"

namespace entrain::ucx {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string FirstBytes(const char* function) {
  const auto* const at = static_cast<const char*>(dlsym(RTLD_DEFAULT, function));
  return at == nullptr ? "" : std::string(at, 16);
}

// Must run first, before another test has loaded UCX.
TEST(UcxLibrary, ALoadingLeavesTheProcessAsItIs) {
  const char* const functions[] = {"mmap", "munmap", "madvise", "sbrk", "shmat"};
  std::vector<std::string> before;
  for (const char* function : functions) {
    before.push_back(FirstBytes(function));
  }
  struct sigaction handler_before {
  }, handler_after{};
  sigaction(SIGSEGV, nullptr, &handler_before);
  const auto library = LoadLibrary();
  if (!library.ok()) {
    GTEST_SKIP() << library.status();
  }
  sigaction(SIGSEGV, nullptr, &handler_after);
  EXPECT_EQ(handler_before.sa_handler, handler_after.sa_handler);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i], FirstBytes(functions[i])) << functions[i];
  }
  EXPECT_EQ(getenv("UCX_MEM_EVENTS"), nullptr);
  EXPECT_GE((*library)->minor, 13u);
}

TEST(UcxAddress, IsReadAsItWasWritten) {
  const UcxAddress address = {.version = "1.13",
                              .pid = 12,
                              .name = "host",
                              .pids = "p",
                              .net = true,
                              .worker = std::string("\0\xff/x", 4),
                              .host = "boot/1/2"};
  const auto parsed = UcxAddress::Parse(address.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->version, "1.13");
  EXPECT_EQ(parsed->process(), "12@host");
  EXPECT_EQ(parsed->pids, "p");
  EXPECT_TRUE(parsed->net);
  EXPECT_EQ(parsed->worker, address.worker);
  EXPECT_EQ(parsed->host, "boot/1/2");
  for (const char* wrong :
       {"1.13/1@h/p/lan/AAAA/x", "1.13/1@h/p/net/A*/x", "1.13/1@h/p/net//x", "/1@h/p/net/AAAA/x",
        "1.13//p/net/AAAA/x", "1.13/0@h/p/net/AAAA/x", "1.13/1@h/p/net/AAAA"}) {
    EXPECT_FALSE(UcxAddress::Parse(wrong).ok()) << wrong;
  }
}

TEST(UcxAddress, ReachesAlikeOnBothSides) {
  const UcxAddress here = {.version = "1.13",
                           .pid = 1,
                           .name = "a",
                           .pids = "p",
                           .net = false,
                           .worker = "w1",
                           .host = "a"};
  UcxAddress there = here;
  const auto reaches = [&] {
    EXPECT_EQ(here.Reaches(there), there.Reaches(here));
    return here.Reaches(there);
  };
  EXPECT_FALSE(reaches()) << "itself";
  there.worker = "w2";
  EXPECT_TRUE(reaches());
  there.host = "b";
  EXPECT_FALSE(reaches()) << "another host";
  there.net = true;
  EXPECT_FALSE(reaches()) << "from loopback";
  UcxAddress outside = here;
  outside.net = true;
  EXPECT_TRUE(outside.Reaches(there));
  there.version = "1.14";
  EXPECT_FALSE(outside.Reaches(there)) << "another release";
}

// A folder like /sys/class/infiniband.
class UcxDevices : public testing::Test {
 protected:
  UcxDevices() {
    char name[] = "/tmp/entrain-ucx-XXXXXX";
    folder = mkdtemp(name);
    Add("mlx5_0", "1", "4: ACTIVE", "lo");
    Add("mlx5_0", "2", "1: DOWN", "lo");
    Add("mlx5_1", "1", "4: ACTIVE", "ib7");
  }
  ~UcxDevices() override { std::filesystem::remove_all(folder); }
  void Add(const std::string& device, const std::string& port, const std::string& state,
           const std::string& interface) {
    const std::filesystem::path path = folder / device;
    std::filesystem::create_directories(path / "ports" / port);
    std::filesystem::create_directories(path / "device" / "net" / interface);
    std::ofstream(path / "ports" / port / "state") << state << "\n";
  }
  std::filesystem::path folder;
};

TEST_F(UcxDevices, PortsThatAreUpAreFound) {
  const std::vector<RdmaPort> ports = ListRdmaPorts(folder.string());
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].name, "mlx5_0:1");
  EXPECT_THAT(ports[0].interfaces, ElementsAre("lo"));
  EXPECT_EQ(ports[1].name, "mlx5_1:1");
  EXPECT_THAT(ListRdmaPorts((folder / "none").string()), IsEmpty());
}

TEST_F(UcxDevices, OnLoopbackThereIsNoRdmaAndNoOtherHost) {
  for (const bool tcp : {true, false}) {
    const auto devices = ChooseDevices(TransportConfig(), ListRdmaPorts(folder.string()), tcp);
    ASSERT_TRUE(devices.ok()) << devices.status();
    EXPECT_EQ(devices->names, tcp ? "lo" : "");
    EXPECT_FALSE(devices->net);
  }
}

TEST_F(UcxDevices, AFilterThatNothingPassesIsRefused) {
  TransportConfig config;
  config.interface_filter = "nosuch0";
  const auto devices = ChooseDevices(config, {}, true);
  EXPECT_THAT(std::string(devices.status().message()), HasSubstr("nosuch0"));
}

TEST(UcxWays, TcpIsTakenOnlyWhereItIsNamed) {
  const auto tls = [](const char* asked) { return WaysOf(std::string(asked)).tls; };
  EXPECT_EQ(WaysOf(std::nullopt).tls, "^sm,tcp");
  for (const char* as_it_is : {"tcp", "sm", "rc,ud,self", "rc,tcp", "^tcp", "^sm,tcp", "all,tcp"}) {
    EXPECT_EQ(tls(as_it_is), as_it_is);
  }
  EXPECT_EQ(tls("all"), "^tcp");
  EXPECT_EQ(tls("^sm"), "^sm,tcp");
  for (const char* with : {"tcp", "rc,tcp", "all,tcp"}) {
    EXPECT_TRUE(WaysOf(std::string(with)).tcp) << with;
  }
  for (const char* without : {"all", "^sm", "^posix", "sm", "rc", "^tcp"}) {
    EXPECT_FALSE(WaysOf(std::string(without)).tcp) << without;
  }
  EXPECT_FALSE(WaysOf(std::nullopt).sm);
  EXPECT_TRUE(WaysOf(std::string("all")).sm);
  EXPECT_TRUE(WaysOf(std::string("posix,self")).sm);
}

// Returns the number of listening TCP sockets of this process.
int Listening() {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words.size() > 9 && words[3] == "0A") {
        inodes.insert(absl::StrCat("socket:[", words[9], "]"));
      }
    }
  }
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count +=
        static_cast<int>(inodes.count(std::filesystem::read_symlink(entry.path(), error).string()));
  }
  return count;
}

// UCX believes every byte that comes to its TCP port. Some 24 bytes are enough to end the process.
TEST(UcxWays, ThereIsNoPortForStrangersUnlessTcpIsNamed) {
  if (const absl::Status absent = LoadLibrary().status(); !absent.ok()) {
    GTEST_SKIP() << absent;
  }
  struct Nobody : Sink {
    void OnPacket(const Header&, ConstBytes) override {}
  } nobody;
  ASSERT_EQ(Listening(), 0);
  for (const char* tls : {"", "all", "^sm", "sm"}) {
    *tls == '\0' ? unsetenv("UCX_TLS") : setenv("UCX_TLS", tls, 1);
    const auto worker = Worker::Create("", &nobody);
    EXPECT_TRUE(worker.ok()) << tls << ": " << worker.status();
    EXPECT_EQ(Listening(), 0) << "UCX_TLS=" << tls;
  }
  setenv("UCX_TLS", "tcp", 1);
  const auto worker = Worker::Create("lo", &nobody);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_GT(Listening(), 0) << "or this test sees nothing";
}

TEST(UcxWays, TcpIsRefusedByNameUnlessStrangersArePermitted) {
  if (const absl::Status absent = LoadLibrary().status(); !absent.ok()) {
    GTEST_SKIP() << absent;
  }
  TransportConfig config;
  config.security = Security("a key does not help");
  unsetenv("ENTRAIN_INSECURE");
  for (const char* tls : {"tcp", "rc,tcp", "sm,tcp"}) {
    setenv("UCX_TLS", tls, 1);
    const absl::Status refused = CreateUcxTransport(config, nullptr).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(absl::StrCat("UCX_TLS=", tls, " names tcp")),
                      HasSubstr("ENTRAIN_INSECURE=1")));
    EXPECT_EQ(Listening(), 0);
  }
  setenv("UCX_TLS", "sm", 1);
  EXPECT_TRUE(CheckStrangers(WaysOf("sm")).ok());
  EXPECT_TRUE(CheckStrangers(WaysOf("all")).ok());
  EXPECT_TRUE(CheckStrangers(WaysOf(std::nullopt)).ok());
  setenv("ENTRAIN_INSECURE", "1", 1);
  EXPECT_TRUE(CheckStrangers(WaysOf("tcp")).ok());
  unsetenv("ENTRAIN_INSECURE");
}

TEST(UcxWays, WithoutAnyWayTheTransportSaysWhatIsMissing) {
  if (!ListRdmaPorts().empty()) {
    GTEST_SKIP() << "there is RDMA here";
  }
  unsetenv("UCX_TLS");
  const absl::Status absent = UcxAbsence(/*named=*/true);
  EXPECT_THAT(std::string(absent.message()),
              HasSubstr("no RDMA device may be used here, and UCX_TLS names neither tcp nor sm"));
  TransportConfig config;
  const auto transport = CreateUcxTransport(config, nullptr);
  EXPECT_EQ(transport.status(), absent);
}

TEST(UcxPacket, LengthsAreChecked) {
  const auto check = [](PacketType type, int64_t bytes, size_t payload) {
    return CheckUcxPacket({.type = type, .bytes = bytes}, payload).ok();
  };
  EXPECT_TRUE(check(PacketType::kEager, 8, 8));
  EXPECT_FALSE(check(PacketType::kEager, 8, 7));
  EXPECT_FALSE(check(PacketType::kEager, -1, 0));
  EXPECT_FALSE(check(PacketType::kData, kMostPayload + 1, kMostPayload + 1));
  EXPECT_TRUE(check(PacketType::kRts, kMaxMessageBytes, 0));
  EXPECT_FALSE(check(PacketType::kRts, kMaxMessageBytes + 1, 0));
  EXPECT_FALSE(check(PacketType::kRts, 8, 8));
  EXPECT_FALSE(check(PacketType::kCts, 1, 1));
  EXPECT_FALSE(check(PacketType::kHello, 8, 8));
  EXPECT_FALSE(check(PacketType::kWant, 0, 0));
  EXPECT_FALSE(CheckUcxPacket({.version = 1}, 0).ok());
  EXPECT_FALSE(CheckUcxPacket({.streams = 1}, 0).ok());
}

TEST(UcxWire, WhatComesBeforeItsTurnIsKept) {
  Wire wire(nullptr, PeerId{}, nullptr, nullptr);
  const auto number = [](uint64_t n) { return Header{.packet = {.message = n}, .number = n}; };
  const std::string text = "two";
  PacketHeader header;
  std::string payload;
  EXPECT_FALSE(wire.Arrived(number(2), {reinterpret_cast<const std::byte*>(text.data()), 3}));
  EXPECT_FALSE(wire.Arrived(number(1), {}));
  EXPECT_FALSE(wire.Next(&header, &payload));
  EXPECT_TRUE(wire.Arrived(number(0), {}));
  ASSERT_TRUE(wire.Next(&header, &payload));
  EXPECT_EQ(header.message, 1u);
  ASSERT_TRUE(wire.Next(&header, &payload));
  EXPECT_EQ(header.message, 2u);
  EXPECT_EQ(payload, "two");
  EXPECT_FALSE(wire.Next(&header, &payload));
  EXPECT_TRUE(wire.failure().ok());
  EXPECT_FALSE(wire.Arrived(number(2), {}));
  EXPECT_THAT(std::string(wire.failure().message()), HasSubstr("packet 2 came where 3 was due"));
}

// A node, and a peer that the test plays, over UCX's shared memory.
class UcxLiar : public testing::Test, protected Sink {
 protected:
  void SetUp() override {
    setenv("UCX_TLS", "sm", 1);
    if (const absl::Status absent = UcxAbsence(/*named=*/true); !absent.ok()) {
      GTEST_SKIP() << absent;
    }
    node = MakeNode("ucx_sm", 1);
    worker = *Worker::Create("", this);
    me.fill(2);
    wire = std::make_unique<Wire>(worker.get(), node->config.self, nullptr, nullptr);
    const auto address = UcxAddress::Parse(node->transport->address());
    ASSERT_TRUE(wire->Open(address->worker).ok());
    UcxAddress mine = *address;
    mine.worker = worker->address();
    path = *node->transport->Connect(me, mine.ToString());
  }
  void TearDown() override {
    if (path != nullptr) {
      path->Close(absl::AbortedError("end of test"));
      path.reset();
      wire->StartClose();
      Until([&] {
        wire->CheckClose();
        return wire->closed();
      });
    }
  }
  void OnPacket(const Header& header, ConstBytes payload) override {
    if (header.packet.type == PacketType::kHello) {
      Card card;
      std::memcpy(&card, payload.data(), sizeof(card));
      wire->Introduce(card.path);
      Shake(payload.subspan(sizeof(card)));
    } else if (header.packet.type == PacketType::kProof) {
      Shake(payload);
    }
  }
  void Shake(ConstBytes bytes) {
    ASSERT_TRUE(shake.Consume({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).ok());
    if (const std::string proof = shake.TakeOutput(); proves && !proof.empty()) {
      Say({.type = PacketType::kProof}, proof);
    }
  }
  void Say(PacketHeader header, const std::string& text = "") {
    if (header.type != PacketType::kRts && header.bytes == 0) {
      header.bytes = static_cast<int64_t>(text.size());
    }
    wire->Send(header, {reinterpret_cast<const std::byte*>(text.data()), text.size()}, 0);
  }
  void Hello(const PeerId& to) {
    const Card card = {.from = me, .to = to, .path = 77};
    Say({.type = PacketType::kHello},
        std::string(reinterpret_cast<const char*>(&card), sizeof(card)) + shake.TakeOutput());
  }
  bool Until(const std::function<bool()>& condition, double seconds = 5) {
    const Deadline by = Deadline::After(static_cast<int64_t>(seconds * kSecond));
    while (!condition() && !by.Passed(Clock::Real().Now())) {
      node->transport->Poll();
      worker->Progress();
    }
    return condition();
  }
  std::string LostBecause() {
    return Until([&] { return !node->events.lost.empty(); })
               ? std::string(node->events.lost[0].message())
               : "";
  }

  std::unique_ptr<Node> node;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<Endpoint> path;
  PeerId me{};
  Handshake shake{
      /*dialer=*/false, Purpose::kData, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, ""};
  bool proves = true;
};

TEST_F(UcxLiar, AnHonestOneIsHeard) {
  Hello(node->config.self);
  ASSERT_TRUE(Until([&] { return shake.done(); }));
  Say({.type = PacketType::kControl}, "hello");
  ASSERT_TRUE(Until([&] { return !node->events.controls.empty(); }));
  EXPECT_THAT(node->events.controls, ElementsAre("hello"));
}

TEST_F(UcxLiar, AHelloForAnotherProcessIsDropped) {
  PeerId other;
  other.fill(9);
  Hello(other);
  Say({.type = PacketType::kControl}, "me too");
  EXPECT_FALSE(Until([&] { return !node->events.lost.empty() || shake.done(); }, 0.2));
  EXPECT_TRUE(node->events.controls.empty());
}

TEST_F(UcxLiar, NothingIsBelievedBeforeTheHandshake) {
  proves = false;
  Hello(node->config.self);
  ASSERT_TRUE(Until([&] { return wire->introduced(); }));
  Say({.type = PacketType::kControl}, "believe me");
  EXPECT_THAT(LostBecause(), HasSubstr("no handshake"));
  EXPECT_TRUE(node->events.controls.empty());
}

TEST_F(UcxLiar, EveryBreachEndsThePathAndIsNamed) {
  struct Lie {
    const char* what;
    PacketHeader header;
    std::string payload;
  };
  const Lie lies[] = {
      {"was not cleared", {.type = PacketType::kData, .message = 5}, "data"},
      {"RTS without a number", {.type = PacketType::kRts, .bytes = 8}, ""},
      {"more credit returned", {.type = PacketType::kCredit, .credit = 1}, ""},
      {"of type 99", {.type = static_cast<PacketType>(99)}, ""},
      {"a packet of type 2", {.type = PacketType::kRts, .bytes = -8, .message = 1}, ""},
      {"with 3", {.type = PacketType::kEager, .bytes = 8}, "abc"},
      {"out of order", {.type = PacketType::kProof}, std::string(32, 'p')},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    Hello(node->config.self);
    ASSERT_TRUE(Until([&] { return shake.done(); }));
    Say(lie.header, lie.payload);
    EXPECT_THAT(LostBecause(), HasSubstr(lie.what));
    TearDown();
    shake = Handshake(false, Purpose::kData, me, "");
    worker.reset();
    node.reset();
    SetUp();
  }
}

TEST(UcxKey, AnotherKeyLosesThePathOnBothSides) {
  setenv("UCX_TLS", "sm", 1);
  if (!UcxAbsence(/*named=*/true).ok()) {
    GTEST_SKIP() << UcxAbsence(true);
  }
  const auto a = MakeNode("ucx_sm", 1, "one key"), b = MakeNode("ucx_sm", 2, "another");
  auto to_b = *a->transport->Connect(b->config.self, b->transport->address());
  auto to_a = *b->transport->Connect(a->config.self, a->transport->address());
  const Deadline by = Deadline::After(5 * kSecond);
  while ((a->events.lost.empty() || b->events.lost.empty()) && !by.Passed(Clock::Real().Now())) {
    a->transport->Poll();
    b->transport->Poll();
  }
  ASSERT_EQ(a->events.lost.size(), 1u);
  ASSERT_EQ(b->events.lost.size(), 1u);
  EXPECT_THAT(std::string(a->events.lost[0].message()) + std::string(b->events.lost[0].message()),
              HasSubstr("key"));
  to_b->Close(absl::AbortedError("end"));
  to_a->Close(absl::AbortedError("end"));
}

}  // namespace
}  // namespace entrain::ucx
