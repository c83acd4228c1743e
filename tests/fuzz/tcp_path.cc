// A whole path of tcp (transports/tcp) whose peer sends any bytes on the first connection, on the
// control line and on the streams: frames, matching, credit, rendezvous and streams. The handshake
// is already over; the target `handshake` tests it.
#include <sys/socket.h>

#include "tests/fuzz/path.h"
#include "transports/tcp/tcp_endpoint.h"

namespace entrain::fuzz {
namespace {

enum Action : uint8_t {
  kUser,
  kFrame,
  kBytes,
  kLine,
  kStreamBytes,
  kAddStream,
  kListen,
  kTurn,
  kEnd,
  kPiece,
  kActions
};
constexpr size_t kMostPayload = 80'000;

struct Pair {
  Fd ours, peers;
};
Pair Connect() {
  int ends[2];
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}
void SendTo(const Fd& fd, absl::string_view bytes) {
  if (fd.valid() && !bytes.empty()) {
    // Bytes that the socket does not take are lost, which is one more way to break the protocol.
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

class Path final : public TcpShared {
 public:
  Path(PathUser* user, uint8_t settings)
      : TcpShared(user, TimedWait::Create().value()),
        user_(user),
        endpoint_(std::make_unique<TcpEndpoint>(
            this,
            PathTarget{.peer = PeerId{1},
                       .address = Address(),
                       .dials = (settings & 1) != 0,
                       .connect_by = Deadline::Never()},
            PathSettings{.streams = (settings & 2) != 0 ? 3 : 0,
                         .congestion = {},
                         .keep_alive = {},
                         .least_round_trip_ns = (settings & 4) != 0 ? 20 * kMillisecond : 0})) {
    Pair first = Connect(), line = Connect();
    first_ = std::move(first.peers);
    line_ = std::move(line.peers);
    PathSockets sockets;
    sockets.id.fill(7);
    sockets.first = Channel(std::move(first.ours));
    sockets.line = Channel(std::move(line.ours));
    endpoint_->Attach(std::move(sockets));
  }
  ~Path() override {
    if (!user_->closed) {
      user_->Close(*endpoint_);
    }
    Turn();
    user_->ReleaseLoans(*endpoint_, true);
    endpoint_.reset();
    user_->in_poll = true;
    completions.Run();
    user_->in_poll = false;
    user_->CheckAllDone();
  }

  void Act(Input& in) {
    switch (in.Byte() % kActions) {
      case kUser:
        user_->Act(in, *endpoint_);
        break;
      case kFrame: {
        const PacketHeader header = TakeHeader(in, known_);
        std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
        if (HasPayload(header.type) && header.bytes > 0 && header.streams == 0) {
          frame.append(std::min(static_cast<size_t>(header.bytes), kMostPayload), 'p');
        }
        SendTo(first_, frame);
        break;
      }
      case kPiece: {  // of the payload of an earlier frame
        SendTo(first_, std::string(in.Number<uint16_t>(), 'q'));
        break;
      }
      case kBytes:
        SendTo(first_, in.Text());
        break;
      case kLine: {
        PacketHeader header = TakeHeader(in, known_);
        const absl::string_view text = in.Take(in.Byte());
        if (in.Byte() % 4 != 0) {
          header.type = PacketType::kControl;
          header.bytes = static_cast<int64_t>(text.size());
        }
        SendTo(line_, absl::string_view(reinterpret_cast<const char*>(&header), sizeof(header)));
        SendTo(line_, text);
        break;
      }
      case kStreamBytes:
        if (const uint8_t stream = in.Byte(); !streams_.empty()) {
          SendTo(streams_[stream % streams_.size()], std::string(in.Number<uint16_t>(), 's'));
        }
        break;
      case kAddStream: {
        if (streams_.size() < 4 && endpoint_->connected()) {
          Pair stream = Connect();
          ConnectionId id{};
          id[0] = in.Byte() % 8;  // the input may name it in STANDS
          if (dialling_ > 0) {
            --dialling_;
            endpoint_->OnStreamDialled(Channel(std::move(stream.ours)), id);
          } else {
            endpoint_->OnStreamAccepted(Channel(std::move(stream.ours)), id);
          }
          streams_.push_back(std::move(stream.peers));
        }
        break;
      }
      case kListen:
        Listen();
        break;
      case kTurn:
        Turn();
        break;
      default:
        End(in.Byte());
    }
  }

 private:
  // TcpShared
  void OnConnected(TcpEndpoint*, PathSockets) override {}
  bool OnFurther(const PeerId&, const ConnectionId&, const ConnectionId&, Channel*) override {
    return false;
  }
  void DialStream(TcpEndpoint*) override { ++dialling_; }
  void OnWatched(TcpEndpoint*, int) override {}
  void OnUnwatched(int) override {}
  void OnClosedEarly(TcpEndpoint*, const absl::Status&) override {}
  void OnDisconnected(TcpEndpoint*) override {}
  void OnDestroyed(TcpEndpoint*) override {}

  // As the transport polls.
  void Turn() {
    user_->in_poll = true;
    if (endpoint_->connected()) {
      endpoint_->Flush();
    }
    int ready[16];
    int count = 0;
    waiter->ForEachReady([&](int fd) {
      if (count < 16) {
        ready[count++] = fd;
      }
    });
    for (int i = 0; i < count && endpoint_->connected(); ++i) {
      endpoint_->OnReady(ready[i]);
    }
    if (endpoint_->connected()) {
      endpoint_->Read();
    }
    endpoint_->Report();
    completions.Run();
    if (endpoint_->connected()) {
      endpoint_->Flush();
      (void)endpoint_->Arm();
    }
    user_->in_poll = false;
  }
  // Reads what this side sends, and learns the numbers of its messages.
  void Listen() {
    char bytes[4096];
    for (int i = 0; i < 64; ++i) {
      const ssize_t got = recv(first_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got <= 0) {
        break;
      }
      heard_.append(bytes, static_cast<size_t>(got));
    }
    while (heard_.size() >= sizeof(PacketHeader)) {
      PacketHeader header;
      std::memcpy(&header, heard_.data(), sizeof(header));
      FUZZ_CHECK(CheckFrame(header).ok());
      const auto whole = sizeof(header) + static_cast<size_t>(PayloadOf(header));
      if (heard_.size() < whole) {
        break;
      }
      if (header.type == PacketType::kRts) {
        known_.push_back(header.message);
      }
      heard_.erase(0, whole);
    }
    for (const Fd& stream : streams_) {
      while (stream.valid() && recv(stream.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
      }
    }
    while (line_.valid() && recv(line_.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
  }
  void End(uint8_t which) {
    switch (which % 8) {
      case 0:
        first_.Reset();
        break;
      case 1:
        line_.Reset();
        break;
      case 2:
        if (!streams_.empty()) {
          streams_[which / 8 % streams_.size()].Reset();
        }
        break;
      case 3:
        shutdown(first_.get(), SHUT_WR);
        break;
      default:
        break;
    }
  }

  PathUser* const user_;
  std::unique_ptr<TcpEndpoint> endpoint_;
  Fd first_, line_;  // the peer's ends
  std::vector<Fd> streams_;
  int dialling_ = 0;
  std::string heard_;
  std::vector<uint64_t> known_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  PathUser user;
  Path path(&user, in.Byte());
  for (int actions = 0; !in.empty() && actions < 200; ++actions) {
    path.Act(in);
  }
}

std::vector<std::string> FuzzSeeds() {
  const auto user = [](Script& script, int what, int choice, int size) {
    script.Byte(kUser).Byte(what).Byte(choice).Byte(size);
  };
  const auto frame = [](Script& script, PacketType type, int choice, int size, int message,
                        bool known = false, int streams = 0) {
    PutHeader(script.Byte(kFrame), type, choice, size, message, known, streams);
  };
  std::vector<std::string> seeds;
  for (const int settings : {0, 1, 2, 3}) {
    Script eager, large, sends, streams, ends;
    for (Script* script : {&eager, &large, &sends, &streams, &ends}) {
      script->Byte(settings);
    }
    user(eager, kPostRecv, 0, 4);
    frame(eager, PacketType::kEager, 0, 4, 0);
    frame(eager, PacketType::kEager, 2, 5, 0);
    eager.Byte(kTurn);
    user(eager, kPostRecv, 2, 5);
    frame(eager, PacketType::kControl, 0, 3, 0);
    eager.Byte(kLine).Byte(7).Byte(0).Byte(0).Byte(0).Byte(0).Byte(5).Raw("hello").Byte(1).Byte(
        kTurn);

    frame(large, PacketType::kRts, 0, 8, 9);
    large.Byte(kTurn);
    user(large, kPostRecv, 0, 8);
    large.Byte(kTurn).Byte(kListen);
    frame(large, PacketType::kData, 0, 7, 9);
    frame(large, PacketType::kData, 0, 6, 9);
    large.Byte(kTurn);
    frame(large, PacketType::kWithdraw, 0, 0, 9);
    large.Byte(kTurn);

    user(sends, kPostSend, 0, 9);
    user(sends, kPostSend, 2, 4);
    user(sends, kTrySend, 2, 3);
    sends.Byte(kTurn).Byte(kListen);
    frame(sends, PacketType::kCts, 0, 0, 0, true);
    sends.Byte(kTurn).Byte(kListen).Byte(kTurn);
    frame(sends, PacketType::kRefuse, 0, 0, 0, true);
    user(sends, kRevoke, 0, 0);
    sends.Byte(kTurn);

    frame(streams, PacketType::kWant, 0, 0, 3);
    streams.Byte(kTurn).Byte(kAddStream).Byte(kAddStream);
    frame(streams, PacketType::kStands, 0, 0, 0);
    frame(streams, PacketType::kStands, 0, 0, 1);
    streams.Byte(kTurn);
    user(streams, kPostRecv, 0, 7);
    user(streams, kPostSend, 0, 9);
    frame(streams, PacketType::kEager, 0, 7, 0, false, 3);
    streams.Byte(kTurn)
        .Byte(kStreamBytes)
        .Byte(0)
        .Number(uint16_t(20'000))
        .Byte(kStreamBytes)
        .Byte(1)
        .Number(uint16_t(20'000));
    frame(streams, PacketType::kControl, 0, 3, 0);
    streams.Byte(kTurn).Byte(kListen).Byte(kTurn);

    user(ends, kPostRecv, 0, 5);
    frame(ends, PacketType::kClose, 0, 3, 0);
    ends.Byte(kTurn);
    user(ends, kPostRecv, 2, 5);
    user(ends, kClose, 0, 0);
    for (Script* script : {&eager, &large, &sends, &streams, &ends}) {
      seeds.push_back(script->Take());
    }
  }
  return seeds;
}

}  // namespace entrain::fuzz
