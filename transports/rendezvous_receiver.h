// The receiver of the rendezvous protocol. It has a MatchQueue for eager messages, and keeps the
// large messages that wait at the peer until their receives are posted. There is one per endpoint,
// in tcp and ucx; RendezvousSender is the other side.
//
//   RTS --(its receive is posted)--> CTS sent --DATA, ...--> done
//     \--(no receive may take it)--> refused
//
// Thread safety: none; the thread that drives the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transports/matching.h"
#include "transports/packet.h"
#include "transports/rendezvous_sender.h"
#include "transports/transport.h"

namespace entrain {

// The interface by which the object tells the peer the fate of the peer's messages.
class Answers {
 public:
  virtual void ClearToSend(uint64_t message) = 0;
  virtual void Refuse(uint64_t message) = 0;
  // Returns credit for eager messages that have left this side's memory.
  virtual void ReturnCredit(int64_t bytes) = 0;

 protected:
  ~Answers() = default;
};

// A part of a message's payload that is under way.
struct PayloadPart {
  Incoming* incoming = nullptr;
  int64_t at = 0, left = 0;  // position of the next byte; missing bytes
};

class RendezvousReceiver {
 public:
  // All arguments must outlive the object.
  RendezvousReceiver(Endpoint* endpoint, Events* events, CompletionList* completions,
                     Answers* answers);

  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint);
  void Revoke(Context mine, const absl::Status& why);
  // Must be called when the path has ended. No Incoming may be used afterwards, and nothing is
  // answered any more.
  void FailAll(const absl::Status& why);
  // Returns true after FailAll, even if an event of one of this object's calls caused it.
  bool failed() const { return failed_; }

  // ---- Functions for the peer's packets. `message` is the peer's number. An error means that the
  // peer broke the protocol.
  absl::Status OnRts(const Envelope& envelope, int64_t bytes, uint64_t message);
  void OnWithdraw(Tag tag, uint64_t message);
  // Handles RTS and WITHDRAW of the peer's messages, and passes CTS, REFUSE and CREDIT about this
  // side's messages to `sender`. Other types break the protocol, so the transport must handle its
  // other types before it calls this function.
  absl::Status OnPacket(const PacketHeader& header, RendezvousSender* sender);
  // Returns the place for the next `bytes` bytes of the message.
  absl::StatusOr<PayloadPart> OnData(uint64_t message, int64_t bytes);
  // Calls MatchQueue::Advance for a cleared message, or for a message from Begin.
  void Advance(Incoming* incoming, int64_t bytes);
  // Returns credit for the messages delivered since the last call.
  void ReturnCredit();

  // Returns the queue, which also takes eager messages.
  MatchQueue& matching() { return matching_; }
  const MatchQueue& matching() const { return matching_; }

 private:
  void Answer(Incoming* incoming);
  Incoming* Find(uint64_t message) const;
  void Forget(Incoming* incoming);

  Answers* const answers_;
  MatchQueue matching_;
  bool failed_ = false;
  std::vector<Incoming*> cleared_;
  std::vector<uint64_t> refused_;  // reused by Revoke
};

}  // namespace entrain
