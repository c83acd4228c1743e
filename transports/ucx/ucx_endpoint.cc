#include "transports/ucx/ucx_endpoint.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/base/text.h"

namespace entrain::ucx {

UcxEndpoint::UcxEndpoint(Shared* shared, const TransportConfig& config, const PeerId& peer,
                         std::string peer_name)
    : shared_(shared),
      peer_(peer),
      peer_name_(std::move(peer_name)),
      self_(config.self),
      connect_by_(Deadline::After(config.connect_timeout_ns, *config.clock)),
      handshake_(/*dialer=*/config.self < peer, Purpose::kData, config.self, config.security.key),
      sender_(&shared->completions),
      receiver_(this, shared->engine, &shared->completions, &sender_) {}

UcxEndpoint::~UcxEndpoint() {
  Close(absl::AbortedError("endpoint destroyed"));
  shared_->OnDestroyed(this);
}

void UcxEndpoint::Attach(Wire* wire) {
  wire_ = wire;
  sender_.Attach(wire);
  const Card card = {.from = self_, .to = peer_, .path = wire->path()};
  std::string text(reinterpret_cast<const char*>(&card), sizeof(card));
  text += handshake_.TakeOutput();
  const PacketHeader header = {.type = PacketType::kHello,
                               .bytes = static_cast<int64_t>(text.size())};
  wire_->Send(header, {reinterpret_cast<const std::byte*>(text.data()), text.size()}, 0);
}

void UcxEndpoint::PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (ended()) {
    shared_->completions.Add(done, end_, 0);
  } else {
    sender_.outgoing().Post(envelope, bytes, done);
  }
}

void UcxEndpoint::PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) {
  // also called after the end, because messages that had arrived before are kept
  receiver_.Post(envelope, bytes, done, hint);
}

void UcxEndpoint::SendControl(absl::string_view message) {
  if (!ended()) {
    sender_.Control(message);
  }
}

void UcxEndpoint::Revoke(Context mine, Context theirs, const absl::Status& why) {
  if (!ended()) {
    receiver_.Revoke(mine, why);
    sender_.Revoke(theirs, why);
  }
}

void UcxEndpoint::End(const absl::Status& why) {
  end_ = why;
  receiver_.FailAll(why);
  std::deque<std::string> controls = sender_.FailAll(why);
  if (wire_ != nullptr) {
    wire_->Depart(std::move(controls), why.message(), shared_->DepartBy(*wire_));
    wire_ = nullptr;
  }
}

void UcxEndpoint::Close(const absl::Status& why) {
  failed_ = absl::OkStatus();  // no OnLost after Close
  if (!ended()) {
    End(why.ok() ? absl::AbortedError("closed") : why);
  }
}

void UcxEndpoint::Lose(const absl::Status& why) {
  if (!ended()) {
    End(why);
    failed_ = why;
  }
}

int UcxEndpoint::Report() {
  if (failed_.ok()) {
    return 0;
  }
  const absl::Status why = std::exchange(failed_, absl::OkStatus());
  ENTRAIN_LOG(kInfo, "lost ", peer_address(), ": ", why.message());
  shared_->engine->OnLost(*this, why);
  return 1;
}

absl::Status UcxEndpoint::Consume(ConstBytes bytes) {
  if (bytes.size() != handshake_.wanted()) {
    return absl::UnavailableError("the peer broke the protocol: a handshake out of order");
  }
  const absl::Status status =
      handshake_.Consume({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (status.ok() && handshake_.peer() != peer_) {
    return absl::UnavailableError("another process answers at this address");
  }
  const std::string proof = handshake_.TakeOutput();  // the proof, or the refusal
  if (!proof.empty()) {
    const PacketHeader header = {.type = PacketType::kProof,
                                 .bytes = static_cast<int64_t>(proof.size())};
    wire_->Send(header, {reinterpret_cast<const std::byte*>(proof.data()), proof.size()}, 0);
  }
  up_ = handshake_.done();
  return status;
}

void UcxEndpoint::OnHello(ConstBytes hello) {
  if (const absl::Status status = Consume(hello); !status.ok()) {
    Lose(status);
  }
}

void UcxEndpoint::OnPacket(const PacketHeader& header, ConstBytes payload) {
  absl::Status status;
  if (header.type == PacketType::kClose) {
    status = AsPeerEnded(absl::UnavailableError(
        absl::StrCat("closed by the peer: ",
                     CleanText({reinterpret_cast<const char*>(payload.data()), payload.size()}))));
  } else if (header.type == PacketType::kProof) {
    status = Consume(payload);
  } else if (!up_) {
    status = absl::UnavailableError("the peer broke the protocol: no handshake");
  } else {
    status = receiver_.OnPacket(header, payload);
  }
  if (!status.ok()) {
    Lose(status);
  }
}

}  // namespace entrain::ucx
