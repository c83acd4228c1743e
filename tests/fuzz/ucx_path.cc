// The transport ucx on a library that this file plays: the peer and strangers send any packets, in
// any order, before and after the handshake; sends stay under way as long as the input says.
#include <deque>
#include <map>

#include <sys/eventfd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "lib/net/handshake.h"
#include "tests/fuzz/path.h"
#include "transports/ucx/library.h"
#include "transports/ucx/ucx_packet.h"
#include "transports/ucx/ucx_transport.h"
#include "transports/ucx/wire.h"

namespace entrain::fuzz {
namespace {

using ucx::Card;
using ucx::Header;

struct PlayedEndpoint {
  ucp_err_handler_t error;
  bool closed = false;
};
struct PlayedRequest {
  explicit PlayedRequest(PlayedEndpoint* its_endpoint) : endpoint(its_endpoint) {}
  PlayedEndpoint* endpoint;
  ucp_send_nbx_callback_t callback = nullptr;  // null: of a flush or a close
  void* user_data = nullptr;
  Header header;
  const void* buffer = nullptr;
  size_t count = 0;
  bool packed = false;  // the payload is packed by callback
  bool done = false;
};
struct PlayedPacket {
  std::string header, payload;
};

// The state that the functions of the played library share. There is one at a time.
class Played {
 public:
  void Log(const Header& header) { sent.push_back(header); }
  // Takes the payload of a send as UCX does, and logs the packet.
  void Take(const PlayedRequest& request) {
    std::string payload(request.count, '\0');
    if (request.packed) {
      void* const state = ucx::kPacking.start_pack(nullptr, request.buffer, request.count);
      payload.resize(ucx::kPacking.packed_size(state));
      FUZZ_CHECK(ucx::kPacking.pack(state, 0, payload.data(), payload.size()) == payload.size());
      ucx::kPacking.finish(state);
    } else if (request.count > 0) {
      std::memcpy(payload.data(), request.buffer, request.count);
    }
    FUZZ_CHECK(ucx::CheckUcxPacket(request.header.packet, payload.size()).ok());
    Log(request.header);
    if (request.header.packet.type == PacketType::kHello) {
      hello = payload;
    } else if (request.header.packet.type == PacketType::kProof) {
      proof = payload;
    } else if (request.header.packet.type == PacketType::kRts) {
      known.push_back(request.header.packet.message);
    }
  }
  // Ends up to `most` sends under way, the oldest first.
  bool EndSends(size_t most, ucs_status_t status) {
    bool any = false;
    for (size_t i = 0; i < requests.size() && most > 0; ++i) {
      PlayedRequest& request = *requests[i];
      if (!request.done && request.callback != nullptr) {
        const ucs_status_t end = request.endpoint->closed ? UCS_ERR_CANCELED : status;
        if (end == UCS_OK) {
          Take(request);
        }
        request.done = true;
        request.callback(&request, end, request.user_data);
        --most;
        any = true;
      }
    }
    return any;
  }

  ucp_am_recv_callback_t callback = nullptr;
  void* sink = nullptr;
  int wake_fd = -1;
  bool hold = false;    // sends stay under way
  size_t may_end = 0;   // of the next progress
  bool breaks = false;  // every connection fails at the next progress
  std::deque<PlayedPacket> arriving;
  std::vector<std::unique_ptr<PlayedEndpoint>> endpoints;
  std::vector<std::unique_ptr<PlayedRequest>> requests;  // in the order of their start
  std::vector<Header> sent;
  std::string hello, proof;  // the last of each that was sent
  std::vector<uint64_t> known;
};
Played* played = nullptr;

PlayedEndpoint* Of(ucp_ep_h endpoint) {
  return reinterpret_cast<PlayedEndpoint*>(endpoint);
}

void* NewRequest(PlayedRequest request) {
  played->requests.push_back(std::make_unique<PlayedRequest>(request));
  return played->requests.back().get();
}

ucs_status_ptr_t Send(ucp_ep_h endpoint, unsigned, const void* header, size_t header_bytes,
                      const void* buffer, size_t count, const ucp_request_param_t* param) {
  FUZZ_CHECK(header_bytes == sizeof(Header) && !Of(endpoint)->closed);
  PlayedRequest request(Of(endpoint));
  request.callback = param->cb.send;
  request.user_data = param->user_data;
  std::memcpy(&request.header, header, sizeof(Header));
  request.buffer = buffer;
  request.count = count;
  request.packed = (param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE) != 0;
  if (!played->hold) {
    played->Take(request);
    return nullptr;
  }
  return NewRequest(request);
}

unsigned Progress(ucp_worker_h) {
  bool any = false;
  if (std::exchange(played->breaks, false)) {
    for (size_t i = 0; i < played->endpoints.size(); ++i) {
      PlayedEndpoint& endpoint = *played->endpoints[i];
      if (!endpoint.closed) {
        endpoint.error.cb(endpoint.error.arg, reinterpret_cast<ucp_ep_h>(&endpoint),
                          UCS_ERR_CONNECTION_RESET);
        any = true;
      }
    }
  }
  any = played->EndSends(std::exchange(played->may_end, 0), UCS_OK) || any;
  for (const auto& request : played->requests) {
    if (request->endpoint->closed && request->callback != nullptr && !request->done) {
      any = played->EndSends(played->requests.size(), UCS_ERR_CANCELED) || any;
      break;
    }
  }
  for (const auto& request : played->requests) {
    any = any || !request->done;
    request->done = request->done || request->callback == nullptr;
  }
  if (!played->arriving.empty()) {
    const PlayedPacket packet = std::move(played->arriving.front());
    played->arriving.pop_front();
    ucp_am_recv_param_t param{};
    // Header and payload lie in separate memory, so that a sanitizer sees every byte beyond.
    const std::vector<char> header(packet.header.begin(), packet.header.end());
    std::vector<char> payload(packet.payload.begin(), packet.payload.end());
    FUZZ_CHECK(played->callback(played->sink, header.data(), header.size(), payload.data(),
                                payload.size(), &param) == UCS_OK);
    any = true;
  }
  return any ? 1 : 0;
}

const ucx::Library& PlayedLibrary() {
  static const ucx::Library& library = *new ucx::Library{
      .ucp_get_version = nullptr,
      .ucp_config_read = [](const char*, const char*, ucp_config_t**) { return UCS_OK; },
      .ucp_config_modify = [](ucp_config_t*, const char*, const char*) { return UCS_OK; },
      .ucp_config_release = [](ucp_config_t*) {},
      .ucp_init_version = [](unsigned, unsigned, const ucp_params_t*, const ucp_config_t*,
                             ucp_context_h*) { return UCS_OK; },
      .ucp_cleanup = [](ucp_context_h) {},
      .ucp_worker_create =
          [](ucp_context_h, const ucp_worker_params_t*, ucp_worker_h* worker) {
            *worker = reinterpret_cast<ucp_worker_h>(played);
            return UCS_OK;
          },
      .ucp_worker_destroy =
          [](ucp_worker_h) { played->EndSends(played->requests.size(), UCS_ERR_CANCELED); },
      .ucp_worker_get_address =
          [](ucp_worker_h, ucp_address_t** address, size_t* bytes) {
            *address = reinterpret_cast<ucp_address_t*>(played);
            *bytes = 4;
            return UCS_OK;
          },
      .ucp_worker_release_address = [](ucp_worker_h, ucp_address_t*) {},
      .ucp_worker_progress = Progress,
      .ucp_worker_get_efd =
          [](ucp_worker_h, int* fd) {
            *fd = played->wake_fd;
            return UCS_OK;
          },
      .ucp_worker_arm = [](ucp_worker_h) { return UCS_OK; },
      .ucp_worker_set_am_recv_handler =
          [](ucp_worker_h, const ucp_am_handler_param_t* handler) {
            played->callback = handler->cb;
            played->sink = handler->arg;
            return UCS_OK;
          },
      .ucp_ep_create =
          [](ucp_worker_h, const ucp_ep_params_t* params, ucp_ep_h* endpoint) {
            played->endpoints.push_back(std::make_unique<PlayedEndpoint>());
            played->endpoints.back()->error = params->err_handler;
            *endpoint = reinterpret_cast<ucp_ep_h>(played->endpoints.back().get());
            return UCS_OK;
          },
      .ucp_ep_flush_nbx = [](ucp_ep_h endpoint, const ucp_request_param_t*) -> ucs_status_ptr_t {
        return played->hold ? NewRequest(PlayedRequest(Of(endpoint))) : nullptr;
      },
      .ucp_ep_close_nbx = [](ucp_ep_h endpoint, const ucp_request_param_t*) -> ucs_status_ptr_t {
        Of(endpoint)->closed = true;
        return NewRequest(PlayedRequest(Of(endpoint)));
      },
      .ucp_am_send_nbx = Send,
      .ucp_dt_create_generic =
          [](const ucp_generic_dt_ops_t*, void*, ucp_datatype_t* type) {
            *type = 1;
            return UCS_OK;
          },
      .ucp_dt_destroy = [](ucp_datatype_t) {},
      .ucp_request_check_status =
          [](void* request) {
            return static_cast<PlayedRequest*>(request)->done ? UCS_OK : UCS_INPROGRESS;
          },
      .ucp_request_free =
          [](void* request) { static_cast<PlayedRequest*>(request)->user_data = nullptr; },
      .ucs_status_string = [](ucs_status_t) { return "played"; },
      .major = 1,
      .minor = 13,
  };
  return library;
}

enum Action : uint8_t {
  kUser,
  kPacket,
  kRaw,
  kStep,
  kHold,
  kEndSends,
  kTurn,
  kBreak,
  kStranger,
  kTime,
  kPiece,
  kActions
};

class Path {
 public:
  explicit Path(uint8_t settings) {
    played = &played_;
    wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    played_.wake_fd = wake_.get();
    self_.fill(5);
    peer_.fill((settings & 1) != 0 ? 4 : 6);
    TransportConfig config;
    config.self = self_;
    config.host_id = "host";
    config.security = (settings & 2) != 0 ? "the key" : "";
    config.clock = &clock_;
    handshake_ =
        std::make_unique<Handshake>(peer_ < self_, Purpose::kData, peer_, config.security.key);
    early_ = (settings & 8) != 0;
    if (early_) {  // the peer's HELLO comes before Connect
      transport_ = CreateUcxTransport(config, &user_).value();
      Step();
      Turn();
    } else {
      transport_ = CreateUcxTransport(config, &user_).value();
    }
    endpoint_ = transport_->Connect(peer_, PeerAddress()).value();
    if ((settings & 4) != 0) {
      for (int i = 0; i < 4; ++i) {
        Step();
        Turn();
      }
    }
  }
  ~Path() {
    if (!user_.closed) {
      user_.Close(*endpoint_);
    }
    Turn();
    endpoint_.reset();
    Turn();
    user_.CheckAllDone();
    played_.breaks = true;  // otherwise the destructor waits for the peer
    played_.hold = false;
    transport_.reset();
    for (const auto& request : played_.requests) {
      FUZZ_CHECK(request->done || request->callback == nullptr);
    }
  }

  void Act(Input& in) {
    switch (in.Byte() % kActions) {
      case kUser:
        user_.Act(in, *endpoint_);
        break;
      case kPacket: {
        const uint8_t how = in.Byte();
        Header header;
        header.packet = TakeHeader(in, played_.known);
        header.path = (how & 1) != 0 ? in.Number<uint64_t>() : PathOfThisSide();
        header.number = (how & 2) != 0 ? number_ + in.Byte() : number_++;
        size_t payload = HasPayload(header.packet.type) && header.packet.bytes > 0
                             ? static_cast<size_t>(header.packet.bytes)
                             : 0;
        payload =
            (how & 4) != 0 ? in.Number<uint16_t>() : std::min<size_t>(payload, ucx::kMostPayload);
        Arrive(header, std::string(payload, 'p'));
        break;
      }
      case kPiece: {  // DATA of full length for a message of the peer
        Header header;
        header.packet.type = PacketType::kData;
        header.packet.message = in.Byte();
        header.packet.bytes = in.Number<uint16_t>() % (ucx::kMostPayload + 1);
        header.path = PathOfThisSide();
        header.number = number_++;
        Arrive(header, std::string(static_cast<size_t>(header.packet.bytes), 'd'));
        break;
      }
      case kRaw: {
        const absl::string_view header = in.Take(in.Byte() % 2 == 0 ? sizeof(Header) : in.Byte());
        played_.arriving.push_back({std::string(header), std::string(in.Text())});
        break;
      }
      case kStep:
        Step();
        break;
      case kHold:
        played_.hold = in.Byte() % 2 == 1;
        break;
      case kEndSends:
        played_.may_end = in.Byte();
        break;
      case kTurn:
        Turn();
        break;
      case kBreak:
        played_.breaks = in.Byte() % 8 == 0;
        break;
      case kStranger: {  // a HELLO of any process to any process
        Card card;
        card.from.fill(in.Byte());
        card.to = in.Byte() % 4 == 0 ? peer_ : self_;
        card.path = in.Byte();
        Hello(card, Handshake(in.Byte() % 2 == 0, Purpose::kData, card.from, "").TakeOutput());
        break;
      }
      default:
        clock_.Advance(int64_t{in.Byte()} * kSecond);
    }
  }

 private:
  void Arrive(const Header& header, std::string payload) {
    played_.arriving.push_back(
        {std::string(reinterpret_cast<const char*>(&header), sizeof(header)), std::move(payload)});
  }
  void Hello(const Card& card, const std::string& hello) {
    Header header;
    std::string payload(reinterpret_cast<const char*>(&card), sizeof(card));
    payload += hello;
    header.packet.type = PacketType::kHello;
    header.packet.bytes = static_cast<int64_t>(payload.size());
    Arrive(header, std::move(payload));
  }
  // Takes the next step of an honest peer: sends HELLO, reads HELLO, sends PROOF.
  void Step() {
    if (!std::exchange(said_hello_, true)) {
      hello_ = handshake_->TakeOutput();
      Hello({.from = peer_, .to = self_, .path = 77}, hello_);
      number_ = 1;
      return;
    }
    if (handshake_->wanted() == Handshake::kHelloBytes && played_.hello.size() > sizeof(Card)) {
      (void)handshake_->Consume(played_.hello.substr(sizeof(Card)));
    } else if (handshake_->wanted() == Handshake::kProofBytes && !played_.proof.empty()) {
      (void)handshake_->Consume(played_.proof);
    }
    if (const std::string proof = handshake_->TakeOutput(); !proof.empty()) {
      Header header;
      header.packet.type = PacketType::kProof;
      header.packet.bytes = static_cast<int64_t>(proof.size());
      header.path = PathOfThisSide();
      header.number = number_++;
      Arrive(header, proof);
    }
  }
  // The number that packets to this side must carry, which its HELLO says.
  uint64_t PathOfThisSide() const {
    Card card;
    if (played_.hello.size() >= sizeof(card)) {
      std::memcpy(&card, played_.hello.data(), sizeof(card));
    }
    return card.path;
  }
  // This side's address with another process in it.
  std::string PeerAddress() const {
    std::vector<std::string> parts = absl::StrSplit(transport_->address(), '/');
    parts[1] = "1@peer";
    parts[2] = "other pids";
    return absl::StrJoin(parts, "/");
  }
  void Turn() {
    user_.in_poll = true;
    for (int i = 0; i < 4; ++i) {
      transport_->Poll();
    }
    user_.in_poll = false;
    (void)transport_->Arm();
  }

  Played played_;
  Fd wake_;
  FakeClock clock_;
  PathUser user_;
  PeerId self_{}, peer_{};
  std::unique_ptr<Handshake> handshake_;
  bool said_hello_ = false, early_ = false;
  std::string hello_;
  uint64_t number_ = 0;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  [[maybe_unused]] static const int set = setenv("UCX_TLS", "sm", 1);
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
  const auto packet = [](Script& script, PacketType type, int choice, int size, int message,
                         bool known = false) {
    PutHeader(script.Byte(kPacket).Byte(0), type, choice, size, message, known);
  };
  std::vector<std::string> seeds;
  for (const int settings : {4, 5, 6, 7, 12, 13}) {
    Script eager, large, sends, ends;
    for (Script* script : {&eager, &large, &sends, &ends}) {
      script->Byte(settings);
    }
    user(eager, kPostRecv, 0, 4);
    packet(eager, PacketType::kEager, 0, 4, 0);
    packet(eager, PacketType::kEager, 2, 5, 0);
    packet(eager, PacketType::kControl, 0, 3, 0);
    eager.Byte(kTurn);
    user(eager, kPostRecv, 2, 5);
    eager.Byte(kTurn);

    packet(large, PacketType::kRts, 0, 8, 9);
    large.Byte(kTurn);
    user(large, kPostRecv, 0, 8);
    large.Byte(kTurn);
    large.Byte(kPiece)
        .Byte(9)
        .Number(uint16_t(40'000))
        .Byte(kPiece)
        .Byte(9)
        .Number(uint16_t(30'000))
        .Byte(kTurn);
    packet(large, PacketType::kWithdraw, 0, 0, 9);
    large.Byte(kTurn);

    user(sends, kPostSend, 0, 9);
    sends.Byte(kHold).Byte(1);
    user(sends, kPostSend, 2, 5);
    user(sends, kPostSend, 2, 4);
    sends.Byte(kTurn);
    packet(sends, PacketType::kCts, 0, 0, 0, true);
    sends.Byte(kTurn).Byte(kEndSends).Byte(3).Byte(kTurn);
    user(sends, kRevoke, 0, 0);
    sends.Byte(kTurn).Byte(kEndSends).Byte(200).Byte(kTurn);

    user(ends, kPostRecv, 0, 5);
    packet(ends, PacketType::kClose, 0, 3, 0);
    ends.Byte(kTurn).Byte(kStranger).Byte(9).Byte(1).Byte(1).Byte(0).Byte(kTurn);
    user(ends, kClose, 0, 0);
    ends.Byte(kTurn).Byte(kTime).Byte(9).Byte(kTurn);
    for (Script* script : {&eager, &large, &sends, &ends}) {
      seeds.push_back(script->Take());
    }
  }
  seeds.push_back(Script()
                      .Byte(0)
                      .Byte(kStep)
                      .Byte(kTurn)
                      .Byte(kStep)
                      .Byte(kTurn)
                      .Byte(kBreak)
                      .Byte(0)
                      .Byte(kTurn)
                      .Take());
  return seeds;
}

}  // namespace entrain::fuzz

namespace entrain::ucx {

// Replaces library.cc, whose functions are those of the machine's UCX.
absl::StatusOr<const Library*> LoadLibrary() {
  return &fuzz::PlayedLibrary();
}
absl::Status Library::Error(ucs_status_t status, absl::string_view what) const {
  return absl::UnavailableError(absl::StrCat(what, ": ", int{status}));
}

}  // namespace entrain::ucx
