// The sending half of a ucx path. Makes packets of the messages to send, and decides the order of
// the packets. RendezvousSender decides the order of the messages, and counts the credit for eager
// messages.
//
// Order: first the urgent packets (CONTROL, CTS, REFUSE and WITHDRAW), then the messages, in the
// order of RendezvousSender::Next. A send is done when UCX has packed the last byte of its message.
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

  // Returns the queue of messages to send. The caller posts messages to the queue, and reports the
  // peer's answers to it.
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

  // Fails the sends to the peer's context `theirs` with `why`.
  void Revoke(Context theirs, const absl::Status& why);
  // Fails all messages. Afterwards this object does not use the wire any more. Returns the control
  // messages that were not sent.
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
