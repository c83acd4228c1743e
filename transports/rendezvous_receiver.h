// The receiving side of the rendezvous protocol. Large messages wait at the peer until their
// receives are posted. The object has the path's MatchQueue, and this queue also takes eager
// messages. Each endpoint of tcp and ucx has one RendezvousReceiver. The peer has a
// RendezvousSender.
//
//   RTS --(its receive is posted)--> CTS sent --DATA, ...--> done
//     \--(no receive may take it)--> refused
//
// After Lend, data may come behind its RTS at once (AHEAD). The queue keeps it until its receive is
// posted. What comes of a refused message is discarded, until the peer withdraws the message or
// all its bytes have come.
//
// Thread safety: none; only the driver calls.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transports/matching.h"
#include "transports/packet.h"
#include "transports/rendezvous_sender.h"
#include "transports/transport.h"

namespace entrain {

// Sends the answers of a RendezvousReceiver to the peer. `message` is the number that the peer has
// given to the message.
class Answers {
 public:
  virtual void ClearToSend(uint64_t message) = 0;
  virtual void Refuse(uint64_t message) = 0;
  // Returns credit to the peer: `bytes` of this side's memory for early messages are free again.
  virtual void ReturnCredit(int64_t bytes) = 0;

 protected:
  ~Answers() = default;
};

// A part of a message's payload that is arriving.
struct PayloadPart {
  Incoming* incoming = nullptr;
  int64_t at = 0, left = 0;  // position of the next byte in the message; number of missing bytes
};

class RendezvousReceiver {
 public:
  // All arguments must outlive the object.
  RendezvousReceiver(Endpoint* endpoint, Events* events, CompletionList* completions,
                     Answers* answers);

  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint);
  void Revoke(Context mine, const absl::Status& why);
  // Must be called when the path has ended. Afterwards the transport must not use any Incoming, and
  // this object does not call Answers any more.
  void FailAll(const absl::Status& why);
  // Returns true after FailAll. An event during a call of this object may have caused FailAll.
  bool failed() const { return failed_; }
  // Raises the limit of what the peer may send before it is asked for. The transport must then send
  // LEND.
  void Lend(int64_t bytes) {
    lent_ = true;
    matching_.Lend(bytes);
  }

  // ---- Functions for the peer's packets. `message` is the peer's number of a message. An error
  // means that the peer broke the protocol.
  absl::Status OnRts(const Envelope& envelope, int64_t bytes, uint64_t message);
  void OnWithdraw(Tag tag, uint64_t message);
  // Handles RTS and WITHDRAW, which are about the peer's messages. Passes CTS and REFUSE to
  // `sender`, because they are about this side's messages. Ignores CREDIT: the transport must
  // handle the field `credit` of every packet. Returns an error for all other types.
  absl::Status OnPacket(const PacketHeader& header, RendezvousSender* sender);
  // Returns where the next `bytes` bytes of the message must be written.
  absl::StatusOr<PayloadPart> OnData(uint64_t message, int64_t bytes);
  // Does the same for data that the peer has sent before it was asked for it.
  absl::StatusOr<PayloadPart> OnAhead(uint64_t message, int64_t bytes);
  // Calls MatchQueue::Advance for a message whose CTS was sent, or for a message that
  // MatchQueue::Begin returned.
  void Advance(Incoming* incoming, int64_t bytes);
  // Returns credit to the peer, for the messages delivered since the last call.
  void ReturnCredit();

  // Returns the queue, which also takes eager messages.
  MatchQueue& matching() { return matching_; }
  const MatchQueue& matching() const { return matching_; }

 private:
  void Answer(Incoming* incoming);
  absl::StatusOr<PayloadPart> Part(Incoming* incoming, int64_t bytes);
  Incoming* Find(uint64_t message) const;
  void Forget(Incoming* incoming);

  Answers* const answers_;
  MatchQueue matching_;
  bool failed_ = false;
  bool lent_ = false;
  // The messages sent by RTS of which data may come, by number: those whose CTS was sent and, after
  // Lend, all others.
  absl::flat_hash_map<uint64_t, Incoming*> open_;
  std::vector<uint64_t> refused_;  // reused by Revoke
};

}  // namespace entrain
