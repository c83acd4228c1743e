// The receiving half of a ucx path. Assigns packets to their messages, and copies payloads to the
// receives' buffers.
//
// Thread safety: none.
#pragma once

#include "absl/status/status.h"

#include "transports/rendezvous_receiver.h"
#include "transports/transport.h"
#include "transports/ucx/sender.h"
#include "transports/ucx/ucx_packet.h"

namespace entrain::ucx {

class Receiver {
 public:
  // `sender`, the sending half, gets the peer's credit and CTS.
  Receiver(Endpoint* endpoint, Events* events, CompletionList* completions, Sender* sender);

  void Post(const Envelope& envelope, Bytes into, Completion* done, RecvHint hint) {
    queue_.Post(envelope, into, done, hint);
  }
  bool HasEarly(Tag tag) const { return queue_.matching().HasEarly(tag); }
  void Revoke(Context mine, const absl::Status& why) { queue_.Revoke(mine, why); }
  void FailAll(const absl::Status& why) { queue_.FailAll(why); }

  // Handles a checked packet of any type except HELLO, PROOF and CLOSE. Calls Events, which may
  // close the path. After an error the path must fail.
  absl::Status OnPacket(const PacketHeader& header, ConstBytes payload);

 private:
  absl::Status Sort(const PacketHeader& header, ConstBytes payload);
  absl::Status OnData(const PacketHeader& header, ConstBytes payload);

  Endpoint* const endpoint_;
  Events* const events_;
  Sender* const sender_;
  RendezvousReceiver queue_;
};

}  // namespace entrain::ucx
