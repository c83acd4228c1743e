// The sending half of a ucx path: makes packets of the messages to send, and orders them.
// RendezvousSender decides which messages are sent, and which go eagerly.
//
// Order: urgent packets (proof, control, CTS, WITHDRAW), then the messages whose turn it is. A send
// is done when UCX has packed its last byte.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"

#include "transports/rendezvous_receiver.h"
#include "transports/rendezvous_sender.h"
#include "transports/transport.h"
#include "transports/ucx/wire.h"

namespace entrain::ucx {

class Sender final : public Lender, public Answers {
 public:
  explicit Sender(CompletionList* completions) : outgoing_(completions) {}
  void Attach(Wire* wire) { wire_ = wire; }

  // Returns the messages to send. The caller posts messages there, and reports the peer's answers.
  RendezvousSender& outgoing() { return outgoing_; }
  void Control(absl::string_view text) { Urgent({.type = PacketType::kControl}, text); }
  void ClearToSend(uint64_t message) override {
    Urgent({.type = PacketType::kCts, .message = message}, {});
  }
  void Refuse(uint64_t message) override {
    Urgent({.type = PacketType::kRefuse, .message = message}, {});
  }
  void ReturnCredit(int64_t bytes) override { outgoing_.ReturnCredit(bytes); }
  void OnTaken(uint64_t message, int64_t bytes) override;

  // Sends as much as UCX takes, up to some MiB. Returns the number of packets sent.
  int Flush();
  // Returns true if there is something to send.
  bool pending() const;

  // Fails with `why` the sends that have the peer's context `theirs`.
  void Revoke(Context theirs, const absl::Status& why);
  // Fails everything, and lets the wire go. Returns the control messages that were not sent.
  std::deque<std::string> FailAll(const absl::Status& why);

 private:
  struct UrgentPacket {
    PacketHeader header;
    std::string payload;
  };

  void Urgent(const PacketHeader& header, absl::string_view payload);
  void Give(PacketHeader header, ConstBytes payload, Outgoing* send);
  int64_t SendNext();
  int64_t SendWaiting(Outgoing* send);
  int64_t SendData(Outgoing* send);
  void CompleteIfTaken(Outgoing* send);
  void TakeBack(Outgoing* send, const absl::Status& why);

  RendezvousSender outgoing_;
  Wire* wire_ = nullptr;
  std::deque<UrgentPacket> urgent_;
};

}  // namespace entrain::ucx
