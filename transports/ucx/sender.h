// The sending half of a ucx path: what is to be sent, in which order, and what may go eagerly.
//
//   Post --> waiting --(small, credit)--> EAGER ------------------------------> done
//                   \------(otherwise)--> ANNOUNCE --> announced
//                                                         |GRANT
//                                                      granted --> DATA, ... --> done
//
// Order: urgent parcels (proof, control, grants, withdrawals); then what waits, in the order posted
// (invariant 1); then the data of granted messages, one message after another. A send is done when
// UCX has packed its last byte.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "transports/matching.h"
#include "transports/transport.h"
#include "transports/ucx/wire.h"

namespace entrain::ucx {

class Sender final : public Lender {
 public:
  explicit Sender(CompletionList* completions) : completions_(completions) {}
  void Attach(Wire* wire) { wire_ = wire; }

  void Post(const Envelope& envelope, ConstBytes bytes, Completion* done);
  void Control(absl::string_view text) { Urgent({.type = ParcelType::kControl}, text); }
  void Grant(uint64_t message) { Urgent({.type = ParcelType::kGrant, .message = message}, {}); }
  void Refuse(uint64_t message) { Urgent({.type = ParcelType::kRefuse, .message = message}, {}); }
  // Credit to give back to the peer, with the next parcel or, when it is much, in one of its own.
  void ReturnCredit(int64_t bytes) { credit_to_return_ += bytes; }

  // What the peer said. Errors are breaches of protocol.
  absl::Status OnCredit(int64_t bytes);
  absl::Status OnGrant(uint64_t message);
  absl::Status OnRefuse(uint64_t message);
  void OnTaken(uint64_t message, int64_t bytes) override;

  // Sends as much as UCX takes, up to some MiB; the number of parcels.
  int Flush();
  // Whether there is something to send.
  bool pending() const;

  // Sends with the peer's number `theirs` fail with `why`.
  void Revoke(Context theirs, const absl::Status& why);
  // Everything fails, and the wire is let go. Returns control messages that were not sent.
  std::deque<std::string> FailAll(const absl::Status& why);

 private:
  // kPacked: all of it is in parcels. kDead: revoked while in a queue, freed when its turn comes.
  enum class State : uint8_t { kFree, kWaiting, kAnnounced, kGranted, kPacked, kDead };
  struct Send {
    Envelope envelope;
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t given = 0, taken = 0;  // of its data, to UCX and by it
    Completion* done = nullptr;
    uint64_t message = 0;  // generation * kPlaces + place, so that a stale number is recognised
    State state = State::kFree;
    bool queued = false;  // in waiting_ or granted_
  };
  struct UrgentParcel {
    Header header;
    std::string payload;
  };
  static constexpr uint64_t kPlaces = 1 << 24;

  void Urgent(const Header& header, absl::string_view payload);
  void Give(Header header, ConstBytes payload, Send* send);
  int64_t SendNext();
  int64_t SendWaiting(Send* send);
  int64_t SendData(Send* send);
  Send* Find(uint64_t message);
  void Complete(Send* send, const absl::Status& status);
  void Free(Send* send);
  void TakeBack(Send* send, const absl::Status& why);

  CompletionList* const completions_;
  Wire* wire_ = nullptr;
  std::deque<Send> sends_;
  std::vector<Send*> free_;
  std::deque<Send*> waiting_, granted_;  // may hold dead ones
  std::deque<UrgentParcel> urgent_;
  int64_t credit_used_ = 0, credit_to_return_ = 0;
};

}  // namespace entrain::ucx
