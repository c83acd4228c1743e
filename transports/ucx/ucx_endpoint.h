// A ucx path to one peer. A path is in its handshake, is up, or has ended.
//
//   hello of both ──> proof of both ──> up ──Close, CLOSE of the peer, or failure──> ended
//
// Both sides know the peer's worker address from the start. So each side creates an endpoint of UCX
// at once, and sends HELLO. Before the handshake (lib/net/handshake.h) is done, an endpoint accepts
// no other packets than HELLO, PROOF and CLOSE.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "lib/net/handshake.h"
#include "transports/matching.h"
#include "transports/transport.h"
#include "transports/ucx/receiver.h"
#include "transports/ucx/sender.h"
#include "transports/ucx/wire.h"

namespace entrain::ucx {

// The state that endpoints share, and the interface to their transport. Must outlive them.
class Shared {
 public:
  explicit Shared(Events* its_engine) : engine(its_engine) {}
  virtual ~Shared() = default;
  virtual void OnDestroyed(UcxEndpoint* endpoint) = 0;
  // Returns the deadline for the last messages of a path.
  virtual Deadline DepartBy(const Wire& wire) const = 0;

  Events* const engine;
  CompletionList completions;
};

class UcxEndpoint final : public Endpoint {
 public:
  UcxEndpoint(Shared* shared, const TransportConfig& config, const PeerId& peer,
              std::string peer_name);
  ~UcxEndpoint() override;

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override;
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override;
  bool HasEarly(Tag tag) const override { return receiver_.HasEarly(tag); }
  void SendControl(absl::string_view message) override;
  void Revoke(Context mine, Context theirs, const absl::Status& why) override;
  void Close(const absl::Status& why) override;
  std::string peer_address() const override { return "ucx " + peer_name_; }

  // ---- Functions for the transport, called from Poll or Connect. The transport owns the wire,
  // which must outlive the path.
  Lender* lender() { return &sender_; }
  void Attach(Wire* wire);
  void OnHello(ConstBytes hello);
  void OnPacket(const PacketHeader& header, ConstBytes payload);
  void Lose(const absl::Status& why);  // the next Report calls OnLost
  int Report();
  int Flush() { return up_ && !ended() ? sender_.Flush() : 0; }
  // Returns true if there is something to send, and UCX would take it.
  bool can_flush() const { return up_ && !ended() && sender_.pending() && wire_->ready(); }
  bool reporting() const { return !failed_.ok(); }
  bool up() const { return up_; }
  bool ended() const { return !end_.ok(); }
  Deadline connect_by() const { return connect_by_; }

 private:
  void SendCard(const TransportConfig& config);
  absl::Status Consume(ConstBytes bytes);
  void End(const absl::Status& why);

  Shared* const shared_;
  const PeerId peer_;
  const std::string peer_name_;
  const PeerId self_;
  const Deadline connect_by_;
  Wire* wire_ = nullptr;
  Handshake handshake_;
  bool up_ = false;
  absl::Status end_;     // reason of the end
  absl::Status failed_;  // the error that the next Report passes to OnLost
  Sender sender_;
  Receiver receiver_;
};

}  // namespace entrain::ucx
