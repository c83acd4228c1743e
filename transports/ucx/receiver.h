// The receiving half of a ucx path: parcels to the messages they belong to, payloads to their
// places.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "transports/matching.h"
#include "transports/transport.h"
#include "transports/ucx/parcel.h"
#include "transports/ucx/sender.h"

namespace entrain::ucx {

class Receiver {
 public:
  // `sender`: the other half, which hears of credit and grants.
  Receiver(Endpoint* endpoint, Events* events, CompletionList* completions, Sender* sender);

  void Post(const Envelope& envelope, Bytes into, Completion* done);
  void Revoke(Context mine, const absl::Status& why);
  void FailAll(const absl::Status& why);

  // One that was checked, of any type but HELLO, PROOF and CLOSE. Calls Events, which may close the
  // path. An error: the path must fail.
  absl::Status OnParcel(const Header& header, ConstBytes payload);

 private:
  absl::Status Sort(const Header& header, ConstBytes payload);
  absl::Status OnData(const Header& header, ConstBytes payload);
  absl::Status OnAnnounce(const Header& header);
  void OnWithdraw(const Header& header);
  void Answer(Incoming* incoming);
  Incoming* FindGranted(uint64_t message) const;
  void ForgetGranted(Incoming* incoming);

  Endpoint* const endpoint_;
  Events* const events_;
  Sender* const sender_;
  MatchQueue queue_;
  bool failed_ = false;
  std::vector<Incoming*> granted_;  // announced by the peer, on their way
  std::vector<uint64_t> refused_;   // room for Revoke
};

}  // namespace entrain::ucx
