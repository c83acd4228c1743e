// A live server of a store (lib/store/tcp_server.h) on a local socket. Its clients send any bytes,
// before and after the handshake. At the end the server must have closed every connection that has
// ended, must still answer an honest client, and must end.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/net/local_socket.h"
#include "lib/store/tcp_server.h"
#include "tests/fuzz/target.h"
#include "tests/support/plain_handshake.h"

namespace entrain::fuzz {
namespace {

enum Action : uint8_t { kConnect, kGreet, kRequest, kBytes, kRead, kHalfClose, kClose, kActions };
constexpr size_t kMostClients = 4;
constexpr int64_t kWatchdogNs = 10 * kSecond;

Stop Soon() {
  return {Deadline::After(kWatchdogNs), nullptr};
}

struct Client {
  Fd fd;
  bool fresh = true;   // nothing was sent or read
  bool ended = false;  // nothing more is sent
};

class Served {
 public:
  explicit Served(uint8_t settings) : key_((settings & 1) != 0 ? "the key" : "") {
    static int number = 0;
    name_ = absl::StrCat("entrain-fuzz-", getpid(), "-", number++);
    auto listener = ListenLocal(name_);
    FUZZ_CHECK(listener.ok());
    server_ = TcpStoreServer::Start(Listener{*std::move(listener), Address()}, key_).value();
  }
  ~Served() {
    for (Client& client : clients_) {
      End(client);
    }
    AskHonestly();
    server_.reset();
  }

  void Act(Input& in) {
    const uint8_t action = in.Byte() % kActions;
    if (action == kConnect) {
      if (clients_.size() < kMostClients) {
        clients_.push_back({.fd = Dial()});
      }
      return;
    }
    if (clients_.empty()) {
      return;
    }
    Client& client = clients_[in.Byte() % clients_.size()];
    if (!client.fd.valid()) {
      return;
    }
    switch (action) {
      case kGreet: {
        Handshake handshake(true, Purpose::kStore, {in.Byte()}, key_);
        if (client.fresh && !client.ended) {
          FUZZ_CHECK_OK(RunHandshake(client.fd.get(), handshake, Soon()).status());
          client.fresh = false;
        }
        break;
      }
      case kRequest:
        SendTo(client, Writer().PutText(TakeRequest(in)).Take());
        break;
      case kBytes:
        SendTo(client, in.Text());
        break;
      case kRead: {
        char bytes[4096];
        (void)recv(client.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
        client.fresh = false;  // this may have been the server's hello
        break;
      }
      case kHalfClose:
        shutdown(client.fd.get(), SHUT_WR);
        client.ended = true;
        break;
      default:
        client.fd.Reset();
    }
  }

 private:
  Fd Dial() {
    auto fd = ConnectLocal(name_);
    FUZZ_CHECK(fd.ok());
    return *std::move(fd);
  }
  static void SendTo(Client& client, absl::string_view bytes) {
    if (!client.ended && !bytes.empty()) {
      client.fresh = false;
      (void)send(client.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  static std::string TakeRequest(Input& in) {
    const uint8_t how = in.Byte();
    StoreRequest request;
    request.op = static_cast<StoreOp>(in.Byte() % 12);
    request.key = absl::StrCat("key", in.Byte() % 4);
    if (request.op == StoreOp::kJoin && how % 4 != 0) {
      Entry entry;
      entry.rank = in.Byte() % 4;
      entry.size = 1 + in.Byte() % 4;
      entry.serves = in.Byte() % 4 == 0;
      for (int parts = in.Byte() % 4; parts > 0; --parts) {
        entry.parts.emplace_back(in.Take(in.Byte()));
      }
      request.value = EncodeEntry(entry);
    } else if (request.op == StoreOp::kFail && how % 4 != 0) {
      request.value = EncodeStatus(absl::AbortedError("enough"));
    } else {
      request.value = std::string(in.Text());
    }
    request.expected = std::string(in.Take(in.Byte()));
    request.delta = in.Byte();
    return EncodeRequest(request);
  }
  // Every connection that has ended must be closed by the server too.
  static void End(Client& client) {
    if (!client.fd.valid()) {
      return;
    }
    shutdown(client.fd.get(), SHUT_WR);
    char bytes[4096];
    while (true) {
      const ssize_t got = recv(client.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        break;
      }
      if (got < 0) {
        pollfd wait{client.fd.get(), POLLIN, 0};
        FUZZ_CHECK(poll(&wait, 1, kWatchdogNs / kMillisecond) != 0);
      }
    }
    client.fd.Reset();
  }
  void AskHonestly() {
    const Fd fd = Dial();
    Handshake handshake(true, Purpose::kStore, {99}, key_);
    FUZZ_CHECK_OK(RunHandshake(fd.get(), handshake, Soon()).status());
    StoreRequest request;
    request.op = StoreOp::kSet;
    request.key = "honest";
    request.value = "yes";
    const std::string frame = Writer().PutText(EncodeRequest(request)).Take();
    FUZZ_CHECK(WriteFull(fd.get(), frame.data(), frame.size(), Soon()).ok());
    uint32_t length = 0;
    FUZZ_CHECK(ReadFull(fd.get(), &length, sizeof(length), Soon()).ok() &&
               length <= kMaxReplyBytes);
    std::string reply(length, '\0');
    FUZZ_CHECK(ReadFull(fd.get(), reply.data(), reply.size(), Soon()).ok());
    const auto answer = DecodeReply(reply);
    FUZZ_CHECK(answer.ok() && *answer == "yes");
  }

  const std::string key_;
  std::string name_;
  std::unique_ptr<TcpStoreServer> server_;
  std::vector<Client> clients_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  Served served(in.Byte());
  for (int actions = 0; !in.empty() && actions < 100; ++actions) {
    served.Act(in);
  }
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const int settings : {0, 1}) {
    Script map, meeting, strangers;
    map.Byte(settings)
        .Byte(kConnect)
        .Byte(kGreet)
        .Byte(0)
        .Byte(1)
        .Byte(kConnect)
        .Byte(kGreet)
        .Byte(1)
        .Byte(2);
    const auto request = [](Script& script, int client, StoreOp op, int key,
                            absl::string_view value, absl::string_view expected, int delta) {
      script.Byte(kRequest).Byte(client).Byte(1).Byte(static_cast<int>(op)).Byte(key).Text(value);
      script.Byte(static_cast<int>(expected.size())).Raw(expected).Byte(delta);
    };
    request(map, 0, StoreOp::kGet, 1, "", "", 0);
    request(map, 1, StoreOp::kSet, 1, "value", "", 0);
    request(map, 1, StoreOp::kAdd, 2, "", "", 4);
    request(map, 1, StoreOp::kCompareAndSet, 1, "new", "value", 0);
    map.Byte(kRead).Byte(0);
    request(map, 0, StoreOp::kDelete, 1, "", "", 0);
    seeds.push_back(map.Take());

    meeting.Byte(settings)
        .Byte(kConnect)
        .Byte(kGreet)
        .Byte(0)
        .Byte(1)
        .Byte(kConnect)
        .Byte(kGreet)
        .Byte(1)
        .Byte(2);
    for (int rank = 0; rank < 2; ++rank) {
      meeting.Byte(kRequest)
          .Byte(rank)
          .Byte(1)
          .Byte(static_cast<int>(StoreOp::kJoin))
          .Byte(1)
          .Byte(rank)
          .Byte(1)
          .Byte(rank);
      meeting.Byte(2).Byte(4).Raw("card").Byte(4).Raw("host").Byte(0).Byte(0);
    }
    request(meeting, 0, StoreOp::kFinish, 1, "", "", 0);
    meeting.Byte(kClose).Byte(1);
    seeds.push_back(meeting.Take());

    strangers.Byte(settings)
        .Byte(kConnect)
        .Byte(kBytes)
        .Byte(0)
        .Text("GET / HTTP/1.1\r\n\r\n")
        .Byte(kConnect);
    strangers.Byte(kHalfClose)
        .Byte(1)
        .Byte(kConnect)
        .Byte(kGreet)
        .Byte(2)
        .Byte(3)
        .Byte(kBytes)
        .Byte(2)
        .Text(std::string("\xff\xff\xff\x7f", 4));
    seeds.push_back(strangers.Take());
  }
  return seeds;
}

}  // namespace entrain::fuzz
