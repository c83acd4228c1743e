// An endpoint that records control messages, and keeps transfers until the test ends them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transports/transport.h"

namespace entrain {

class PlayedPeer final : public Endpoint {
 public:
  void PostSend(const Envelope&, ConstBytes, Completion* done) override {
    posted.push_back(done);
    during();
  }
  void PostRecv(const Envelope&, Bytes, Completion* done, RecvHint) override {
    posted.push_back(done);
  }
  bool HasEarly(Tag) const override { return early; }
  // The answers to an inline call.
  Sent TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest* request) override {
    Note(envelope, bytes.size());
    *request = {7, static_cast<int64_t>(bytes.size())};
    return sends;
  }
  Next TryRecv(const Envelope& envelope, Bytes bytes, const std::byte**) override {
    Note(envelope, bytes.size());
    return receives;
  }
  Next TryTaken(SendRequest) override { return receives; }
  void SendControl(absl::string_view message) override { sent.emplace_back(message); }
  bool SendUrgent(absl::string_view message) override {
    if (has_urgent) {
      urgent.emplace_back(message);
    }
    return has_urgent;
  }
  int64_t round_trip_ns() const override { return round_trip; }
  uint64_t received() const override { return arrived; }
  void Revoke(Context, Context, const absl::Status& why) override { revoked = why; }
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "played"; }

  // Ends the transfers that were posted.
  void Complete(const absl::Status& status, int64_t bytes = 0) {
    for (Completion* done : std::exchange(posted, {})) {
      done->done(done, status, bytes);
    }
  }

  Sent sends = Sent::kNo;
  Next receives = Next::kOther;
  std::function<void()> during = [] {};  // called in TrySend, TryRecv and PostSend
  std::vector<Tag> tags;                 // of TrySend and TryRecv
  size_t last_bytes = 0;
  int64_t last_count = 0;
  bool has_urgent = true, early = false;
  int64_t round_trip = 0;
  uint64_t arrived = 0;
  std::vector<std::string> sent, urgent;
  std::vector<Completion*> posted;
  absl::Status revoked;

 private:
  void Note(const Envelope& envelope, size_t bytes) {
    tags.push_back(envelope.tag);
    last_bytes = bytes;
    last_count = envelope.descriptor.count;
    during();
  }
};

}  // namespace entrain
