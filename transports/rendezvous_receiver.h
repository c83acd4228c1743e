// The receiver of the rendezvous protocol: a MatchQueue for eager messages, and the large ones that wait at the peer until
// their receive is posted. One per endpoint, shared by tcp and ucx; the other side of RendezvousSender.
//
//   RTS --(its receive is there)--> CTS sent --DATA, ...--> done
//     \--(nobody wants it)--> refused
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

// Tells the peer what became of its messages.
class Answers {
 public:
  virtual void ClearToSend(uint64_t message) = 0;
  virtual void Refuse(uint64_t message) = 0;
  // Credit for eager messages that have left this side's memory.
  virtual void ReturnCredit(int64_t bytes) = 0;

 protected:
  ~Answers() = default;
};

// Bytes of a message that are under way.
struct PayloadPart {
  Incoming* incoming = nullptr;
  int64_t at = 0, left = 0;  // where the next of them goes; of them
};

class RendezvousReceiver {
 public:
  // All outlive this.
  RendezvousReceiver(Endpoint* endpoint, Events* events, CompletionList* completions,
                     Answers* answers);

  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint);
  void Revoke(Context mine, const absl::Status& why);
  // No Incoming is to be used any more; nothing is answered from now on.
  void FailAll(const absl::Status& why);
  // Also after an event of a call of this closed the path.
  bool failed() const { return failed_; }

  // What the peer said, with numbers of its own. Errors are breaches of protocol.
  absl::Status OnRts(const Envelope& envelope, int64_t bytes, uint64_t message);
  void OnWithdraw(Tag tag, uint64_t message);
  // RTS and WITHDRAW of the peer's messages; CTS, REFUSE and CREDIT of ours, for `sender`. Other types are a breach of the
  // protocol: the transport takes those that it expects before.
  absl::Status OnPacket(const PacketHeader& header, RendezvousSender* sender);
  // So many bytes of it follow: where they go.
  absl::StatusOr<PayloadPart> OnData(uint64_t message, int64_t bytes);
  // MatchQueue::Advance, of a cleared message or of one from Begin.
  void Advance(Incoming* incoming, int64_t bytes);
  // Of what has been delivered since.
  void ReturnCredit();

  // For what is eager.
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
  std::vector<uint64_t> refused_;  // room for Revoke
};

}  // namespace entrain
