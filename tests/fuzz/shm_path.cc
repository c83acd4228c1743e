// The transport shm whose peer is hostile: it introduces itself in any way, writes any records and
// any bytes into the shared rings, changes the words beside them, and offers any memory.
#include <optional>

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/memory/sealed_memory.h"
#include "lib/net/handshake.h"
#include "lib/net/local_socket.h"
#include "tests/fuzz/path.h"
#include "transports/shm/channel.h"
#include "transports/shm/introduction.h"
#include "transports/shm/passing.h"
#include "transports/shm/shm_transport.h"

namespace entrain::fuzz {
namespace {

using namespace shm;  // NOLINT(google-build-using-namespace): of the code under test

enum Action : uint8_t {
  kUser,
  kRecord,
  kRawRecord,
  kOpenRecord,
  kListen,
  kState,
  kRingBytes,
  kWords,
  kOffer,
  kTurn,
  kTime,
  kHangup,
  kIntroduce,
  kDialRaw,
  kShakeRaw,
  kCardRaw,
  kBytesRaw,
  kCloseRaw,
  kActions
};
constexpr size_t kRingBytesOfAll = 32 << 10;
constexpr size_t kMostRaw = 3;
constexpr uint64_t kCardMagic = 0x33'44'52'41'43'4d'48'53;

// The peer's memory, from which messages are read.
const std::vector<std::byte>& Heap() {
  static const auto& heap = *new std::vector<std::byte>(300'000, std::byte{3});
  return heap;
}
const SealedMemory& Shareable() {
  static const auto& memory = *new SealedMemory(SealedMemory::Create(128 << 10).value());
  return memory;
}
template <typename Wire>
std::string Raw(const Wire& wire) {
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

// A connection of a process that may or may not be the peer.
struct RawSocket {
  Fd fd;
  bool dials = false;
  std::unique_ptr<Handshake> handshake;
  std::string inbox;
};

class Path {
 public:
  explicit Path(uint8_t settings) : victim_dials_((settings & 1) != 0) {
    TransportConfig config;
    config.self.fill(victim_dials_ ? 1 : 3);
    config.host_id = "here";
    config.security = (settings & 2) != 0 ? "the key" : "";
    config.clock = &clock_;
    shm::Options options;
    options.cpus = CpuSet::First(8);
    options.limits.ring_bytes = kRingBytesOfAll;
    options.limits.fragment_bytes = 4 << 10;
    options.limits.credit = 64 << 10;
    options.limits.piece_bytes = 16 << 10;
    options.limits.reads = (settings & 8) != 0 ? shm::Reads::kQuick : shm::Reads::kSlow;
    options.pull = (settings & 16) == 0;
    transport_ = shm::CreateTransport(config, &user_, options).value();
    const std::vector<std::string> parts = absl::StrSplit(transport_->address(), '/');
    name_ = parts.at(2);
    doorbell_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    self_.id.fill(2);
    self_.key = config.security.key;
    self_.doorbell = doorbell_.get();
    self_.ring_bytes = kRingBytesOfAll;
    self_.pull = options.pull;
    self_.cpus = CpuSet::First(8);
    self_.cookie.fill(9);
    std::string peer_name;
    listener_ = ListenAbstract(&peer_name).value();
    endpoint_ =
        transport_
            ->Connect(self_.id, absl::StrCat(getpid(), "/", geteuid(), "/", peer_name, "/here"))
            .value();
    if ((settings & 4) != 0) {
      Introduce();
    }
  }
  ~Path() {
    user_.ReleaseLoans(*endpoint_, true);
    if (!user_.closed) {
      user_.Close(*endpoint_);
    }
    Turn();
    user_.ReleaseLoans(*endpoint_, true);
    user_.CheckAllDone();
    endpoint_.reset();
    Turn();
    transport_.reset();
  }

  void Act(Input& in) {
    const uint8_t action = in.Byte() % kActions;
    if (action >= kDialRaw) {
      ActRaw(static_cast<Action>(action), in);
      return;
    }
    switch (action) {
      case kUser:
        user_.Act(in, *endpoint_);
        break;
      case kRecord: {
        const auto kind = static_cast<Kind>(2 + in.Byte() % 10);
        Write(kind, PayloadOf(kind, in));
        break;
      }
      case kRawRecord: {
        const auto kind = static_cast<Kind>(in.Byte());
        Write(kind, std::string(in.Text()));
        break;
      }
      case kOpenRecord:
        if (peer_) {
          const std::string payload = PayloadOf(kEager, in);
          if (std::byte* const at = Reserve(payload.size())) {
            std::memcpy(at, payload.data(), payload.size());
            peer_->Open(kEager, in.Number<uint16_t>() % (payload.size() + 1));
          }
        }
        break;
      case kListen:
        Listen();
        break;
      case kState:
        if (memory_) {
          std::byte* const line =
              Ring(in) + in.Byte() % (kRingBytesOfAll / RingFormat::kLine) * RingFormat::kLine;
          RingFormat::StateAt(line).store(in.Number<uint64_t>());
        }
        break;
      case kRingBytes:
        if (memory_) {
          std::byte* const ring = Ring(in);
          const size_t at = in.Number<uint16_t>() % kRingBytesOfAll;
          const absl::string_view bytes = in.Take(in.Byte());
          std::memcpy(ring + at, bytes.data(), std::min(bytes.size(), kRingBytesOfAll - at));
        }
        break;
      case kWords:
        ChangeWord(in);
        break;
      case kOffer:
        Offer(in);
        break;
      case kTurn:
        Turn();
        break;
      case kTime:
        clock_.Advance(int64_t{in.Byte()} * kSecond);
        break;
      case kHangup:
        if (peer_ && in.Byte() % 4 == 0) {
          peer_->Hangup();
          hung_up_ = true;
        }
        break;
      default:
        Introduce();
    }
  }

 private:
  // As an honest peer, until it knows that it is introduced.
  void Introduce() {
    if (peer_ || introduced_) {
      return;
    }
    introduced_ = true;
    std::unique_ptr<Introduction> introduction;
    if (!victim_dials_) {
      introduction = std::make_unique<Introduction>(&self_, name_);
    }
    for (int i = 0; i < 20; ++i) {
      Turn();
      if (introduction == nullptr) {
        absl::StatusOr<Fd> fd = AcceptLocal(listener_.get());
        if (!fd.ok() || !fd->valid()) {
          continue;
        }
        introduction = std::make_unique<Introduction>(&self_, *std::move(fd));
        introduction->Admit();
      }
      const absl::StatusOr<bool> done = introduction->Step();
      if (!done.ok()) {
        return;
      }
      if (*done) {
        Acquaintance acquaintance = introduction->Take();
        side_ = acquaintance.side;
        memory_ = Segment::Adopt(Fd(dup(acquaintance.segment.fd()))).value();
        peer_.emplace(std::move(acquaintance));
        Turn();
        return;
      }
    }
  }
  std::byte* Reserve(size_t payload) {
    return payload <= peer_->MaxPayload() && !peer_->broken() && peer_->HasRoomFor(payload)
               ? peer_->Reserve(payload)
               : nullptr;
  }
  void Write(Kind kind, const std::string& payload) {
    if (peer_ && kind > RingFormat::kPad) {
      if (std::byte* const at = Reserve(payload.size())) {
        std::memcpy(at, payload.data(), payload.size());
        peer_->Publish(kind);
      }
    }
  }
  uint64_t Handle(Input& in) {
    const uint8_t which = in.Byte();
    if (which % 4 == 0 || known_.empty()) {
      return which % 8 == 0 ? in.Number<uint64_t>() : which;
    }
    return known_[which % known_.size()];
  }
  std::string PayloadOf(Kind kind, Input& in) {
    switch (kind) {
      case kEager: {
        const Envelope envelope = EnvelopeOf(in.Byte());
        const int64_t bytes = kSizes[in.Byte() % kSizeCount];
        return Raw(WireEnvelope::Of(envelope)) +
               std::string(static_cast<size_t>(std::min<int64_t>(bytes, 7000)), 'e');
      }
      case kRts: {
        const uint8_t how = in.Byte();
        WireRts rts{WireEnvelope::Of(EnvelopeOf(in.Byte())),
                    static_cast<uint64_t>(kSizes[in.Byte() % kSizeCount]), 0, in.Byte(), 0};
        rts.address = reinterpret_cast<uint64_t>(Heap().data());
        if (how % 4 == 1) {
          rts.address = reinterpret_cast<uint64_t>(Shareable().data()) + in.Number<uint16_t>();
          rts.region = in.Byte();
        } else if (how % 4 == 2) {
          rts.address = in.Number<uint64_t>();
        }
        if (how >= 128) {
          rts.bytes = in.Number<uint64_t>();
        }
        return Raw(rts);
      }
      case kDone:
        return Raw(WireDone{Handle(in)});
      case kCts:
        return Raw(WireCts{Handle(in), in.Byte(), in.Number<uint32_t>()});
      case kFragment:
        return Raw(WireFragment{Handle(in)}) + std::string(in.Number<uint16_t>() % 7000, 'f');
      case kWithdraw:
        return Raw(WireWithdraw{in.Number<uint32_t>()});
      case kRetire:
        return Raw(WireRetire{in.Byte()});
      default:
        return std::string(in.Take(in.Byte()));
    }
  }
  // Reads the victim's records, and learns the numbers in them.
  void Listen() {
    RingReader::Record record;
    for (int i = 0; i < 32 && peer_ && peer_->Peek(&record); ++i) {
      WireRts rts{};
      WireCts cts{};
      if (record.kind == kRts && TakeAll(record.payload, &rts)) {
        known_.push_back(rts.handle);
      } else if (record.kind == kCts && TakeAll(record.payload, &cts)) {
        known_.push_back(cts.to);
      }
      peer_->reader().Pop();
      peer_->Release();
    }
  }
  std::byte* Ring(Input& in) { return memory_->ring(in.Byte() % 4 == 0 ? 1 - side_ : side_); }
  void ChangeWord(Input& in) {
    if (!memory_) {
      return;
    }
    const uint8_t which = in.Byte();
    Side& side = memory_->side(which % 16 == 15 ? 1 - side_ : side_);
    switch (which % 5) {
      case 0:
        side.sleeping.store(in.Number<uint32_t>());
        break;
      case 1:
        side.head.store(in.Number<uint64_t>());
        break;
      case 2:
        side.consumed.store(in.Number<uint64_t>());
        break;
      case 3:
        side.closed.store(in.Byte() % 8 == 0 ? 1 : 0);
        break;
      default:
        side.revoked[in.Byte() % 4].store(in.Number<uint64_t>());
    }
  }
  void Offer(Input& in) {
    if (!peer_ || hung_up_) {
      return;
    }
    const uint8_t how = in.Byte();
    const auto address = reinterpret_cast<uint64_t>(Shareable().data());
    const auto bytes = static_cast<uint64_t>(Shareable().size());
    WireOffer offer{.region = in.Byte(),
                    .address = address,
                    .bytes = bytes,
                    .mapped_address = address,
                    .mapped_bytes = bytes};
    for (uint64_t* const field :
         {&offer.address, &offer.bytes, &offer.mapped_address, &offer.mapped_bytes}) {
      if ((how & 1) != 0) {
        *field += static_cast<uint64_t>(int64_t{in.Number<int16_t>()});
      }
    }
    if ((how & 2) != 0) {
      offer.address = in.Number<uint64_t>();
      offer.mapped_address = offer.address + in.Byte();
    }
    if ((how & 4) != 0) {
      offer.magic = in.Number<uint64_t>();
    }
    (void)peer_->Offer(offer, (how & 8) != 0 ? doorbell_.get() : Shareable().fd());
  }

  // ---- Connections that this file makes without Introduction.
  void ActRaw(Action action, Input& in) {
    if (action == kDialRaw) {
      DialRaw(in.Byte());
      return;
    }
    if (raw_.empty()) {
      return;
    }
    RawSocket& raw = raw_[in.Byte() % raw_.size()];
    switch (action) {
      case kShakeRaw:
        ShakeRaw(raw);
        break;
      case kCardRaw:
        SendCard(raw, in);
        break;
      case kBytesRaw:
        if (raw.fd.valid()) {
          const absl::string_view bytes = in.Text();
          (void)SendWith(raw.fd.get(), bytes.data(), bytes.size(), {});
        }
        break;
      default:
        raw.fd.Reset();
    }
  }
  void DialRaw(uint8_t how) {
    if (raw_.size() == kMostRaw) {
      return;
    }
    RawSocket raw;
    raw.dials = !victim_dials_;
    if (raw.dials) {
      absl::StatusOr<Fd> fd = ConnectLocal(name_);
      raw.fd = fd.ok() ? *std::move(fd) : Fd();
    } else {
      Turn();
      absl::StatusOr<Fd> fd = AcceptLocal(listener_.get());
      raw.fd = fd.ok() ? *std::move(fd) : Fd();
    }
    PeerId id = self_.id;
    if (how % 4 == 0) {
      id.fill(how);
    }
    raw.handshake = std::make_unique<Handshake>(raw.dials, Purpose::kShm, id,
                                                how % 8 == 7 ? "another key" : self_.key);
    raw_.push_back(std::move(raw));
  }
  // Goes on with the handshake as an honest peer.
  void ShakeRaw(RawSocket& raw) {
    for (int i = 0; i < 6 && raw.fd.valid(); ++i) {
      if (const std::string out = raw.handshake->TakeOutput(); !out.empty()) {
        (void)SendWith(raw.fd.get(), out.data(), out.size(), {});
      }
      Turn();
      char bytes[Handshake::kHelloBytes];
      const size_t wanted =
          raw.handshake->wanted() - std::min(raw.inbox.size(), raw.handshake->wanted());
      const ssize_t got = wanted == 0 ? 0 : recv(raw.fd.get(), bytes, wanted, MSG_DONTWAIT);
      if (got > 0) {
        raw.inbox.append(bytes, static_cast<size_t>(got));
      }
      if (!raw.handshake->done() && raw.inbox.size() == raw.handshake->wanted() &&
          !raw.handshake->Consume(std::exchange(raw.inbox, "")).ok()) {
        return;
      }
    }
  }
  // Sends a card of the right form with some changed bytes and any descriptors.
  void SendCard(RawSocket& raw, Input& in) {
    if (!raw.fd.valid()) {
      return;
    }
    Writer card;
    card.Put(kCardMagic)
        .Put(reinterpret_cast<uint64_t>(self_.cookie.data()))
        .PutRaw(self_.cookie.data(), self_.cookie.size());
    card.PutRaw(std::string(CpuSet::kMostBytes, '\x01').data(), CpuSet::kMostBytes);
    card.Put(uint64_t{1}).Put(uint64_t{2}).Put(uint32_t{1000}).Put(uint32_t{0});
    std::string bytes = card.Take();
    for (int changes = in.Byte() % 4; changes > 0; --changes) {
      char& byte = bytes[in.Number<uint16_t>() % bytes.size()];
      byte = static_cast<char>(byte ^ in.Byte());
    }
    const size_t cut = in.Byte() % 16;
    bytes = bytes.substr(0, bytes.size() - (in.Byte() % 2 == 0 ? 0 : cut));
    int fds[kMaxDescriptors];
    size_t count = in.Byte() % (kMaxDescriptors + 1);
    std::vector<Fd> owned;
    for (size_t i = 0; i < count; ++i) {
      owned.push_back(Descriptor(in));
      fds[i] = owned.back().get();
    }
    count = std::count_if(owned.begin(), owned.end(), [](const Fd& fd) { return fd.valid(); }) ==
                    static_cast<ptrdiff_t>(count)
                ? count
                : 0;
    (void)SendWith(raw.fd.get(), bytes.data(), bytes.size(), absl::MakeConstSpan(fds, count));
  }
  Fd Descriptor(Input& in) {
    const uint8_t which = in.Byte() % 6;
    switch (which) {
      case 0:
        return Fd(dup(doorbell_.get()));
      case 1:
        return Fd(eventfd(0, EFD_CLOEXEC));  // blocks
      case 2: {                              // memory of another form
        Fd memory(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        const absl::string_view header = in.Take(in.Byte());
        (void)!write(memory.get(), header.data(), header.size());
        (void)!ftruncate(memory.get(), in.Number<uint32_t>() % (1 << 20));
        return memory;
      }
      case 3: {  // a segment whose header is changed
        const Segment segment = Segment::Create(kRingBytesOfAll).value();
        Fd memory(dup(segment.fd()));
        const absl::string_view bytes = in.Take(in.Byte() % 32);
        (void)!pwrite(memory.get(), bytes.data(), bytes.size(), in.Byte() % 32);
        return memory;
      }
      case 4: {
        const Segment segment = Segment::Create(kRingBytesOfAll).value();
        return Fd(dup(segment.fd()));
      }
      default:
        return Fd(dup(Shareable().fd()));
    }
  }
  void Turn() {
    clock_.Advance(kMillisecond);
    (void)transport_->Arm();
    user_.in_poll = true;
    transport_->Poll();
    user_.in_poll = false;
  }

  const bool victim_dials_;
  FakeClock clock_;
  PathUser user_;
  Fd doorbell_, listener_;
  Self self_;
  std::string name_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Channel> peer_;
  std::optional<Segment> memory_;  // a second mapping, for what no honest peer does
  int side_ = 0;
  bool introduced_ = false, hung_up_ = false;
  std::vector<uint64_t> known_;
  std::vector<RawSocket> raw_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  Path path(in.Byte());
  for (int actions = 0; !in.empty() && actions < 200; ++actions) {
    path.Act(in);
  }
}

std::vector<std::string> FuzzSeeds() {
  const auto user = [](Script& script, int what, int choice, int size) {
    script.Byte(kUser).Byte(what).Byte(choice).Byte(size);
  };
  const auto record = [](Script& script, Kind kind) -> Script& {
    return script.Byte(kRecord).Byte(kind - 2);
  };
  std::vector<std::string> seeds;
  for (const int settings : {4, 4 + 1, 4 + 2 + 8, 4 + 16}) {
    Script eager, pulls, sends, offers, words;
    for (Script* script : {&eager, &pulls, &sends, &offers, &words}) {
      script->Byte(settings);
    }
    user(eager, kPostRecv, 0, 4);
    record(eager, kEager).Byte(0).Byte(4);
    record(eager, kEager).Byte(2).Byte(5).Byte(kTurn);
    user(eager, fuzz::kTryRecv, 2, 5);
    record(eager, shm::kControl).Byte(5).Raw("hello").Byte(kTurn);
    eager.Byte(kOpenRecord).Byte(0).Byte(5).Number(uint16_t(1024));
    user(eager, fuzz::kTryRecv, 0, 5);
    record(eager, kBye).Byte(3).Raw("bye").Byte(kTurn);

    record(pulls, kRts).Byte(0).Byte(0).Byte(8).Byte(1).Byte(kTurn);
    user(pulls, kPostRecv, 0, 8);
    for (int i = 0; i < 8; ++i) {
      pulls.Byte(kTurn);
    }
    pulls.Byte(kListen);
    record(pulls, kRts).Byte(2).Byte(2).Byte(7).Byte(2).Number(uint64_t{8});
    user(pulls, kPostRecv, 2, 7);
    pulls.Byte(kTurn).Byte(kTurn).Byte(kListen);
    record(pulls, kFragment).Byte(1).Number(uint16_t(6000)).Byte(kTurn);

    user(sends, kPostSend, 0, 9);
    user(sends, kPostSend, 2, 4);
    user(sends, fuzz::kTrySend, 2, 6);
    sends.Byte(kTurn).Byte(kListen);
    record(sends, kCts)
        .Byte(1)
        .Byte(5)
        .Number(uint32_t{0})
        .Byte(kTurn)
        .Byte(kListen)
        .Byte(kTurn)
        .Byte(kListen);
    record(sends, kDone).Byte(1).Byte(kTurn);
    user(sends, kRevoke, 0, 0);
    sends.Byte(kTurn);

    offers.Byte(kOffer).Byte(0).Byte(1).Byte(kTurn);
    user(offers, kPostRecvLoan, 0, 8);
    record(offers, kRts)
        .Byte(1)
        .Byte(0)
        .Byte(8)
        .Byte(1)
        .Number(uint16_t(64))
        .Byte(1)
        .Byte(kTurn)
        .Byte(kTurn);
    record(offers, kRetire).Byte(1).Byte(kTurn);
    record(offers, kWithdraw).Number(uint32_t{1}).Byte(kTurn);

    words.Byte(kWords)
        .Byte(1)
        .Number(uint64_t{64})
        .Byte(kTurn)
        .Byte(kState)
        .Byte(1)
        .Byte(0)
        .Number(RingFormat::StateOf(2, 40, 0))
        .Byte(kTurn);
    Script beyond;  // the message is longer than the memory that was offered
    beyond.Byte(settings).Byte(kOffer).Byte(0).Byte(1).Byte(kTurn);
    user(beyond, kPostRecv, 0, 9);
    record(beyond, kRts).Byte(1).Byte(0).Byte(9).Byte(1).Number(uint16_t(64)).Byte(1).Byte(kTurn);
    for (Script* script : {&eager, &pulls, &sends, &offers, &words, &beyond}) {
      seeds.push_back(script->Take());
    }
  }
  for (const int settings : {0, 1, 2}) {
    Script raw;
    raw.Byte(settings).Byte(kDialRaw).Byte(1).Byte(kShakeRaw).Byte(0).Byte(kTurn);
    raw.Byte(kCardRaw).Byte(0).Byte(0).Byte(0).Byte(0).Byte(settings == 1 ? 1 : 2).Byte(0);
    if (settings != 1) {
      raw.Byte(4);
    }
    raw.Byte(kTurn).Byte(kTurn);
    seeds.push_back(raw.Take());
  }
  return seeds;
}

}  // namespace entrain::fuzz
