// An endpoint that keeps the control messages that are sent to it.
#pragma once

#include <string>
#include <vector>

#include "transports/transport.h"

namespace entrain {

class PlayedPeer final : public Endpoint {
 public:
  void PostSend(const Envelope&, ConstBytes, Completion*) override {}
  void PostRecv(const Envelope&, Bytes, Completion*, RecvHint) override {}
  bool HasEarly(Tag) const override { return false; }
  void SendControl(absl::string_view message) override { sent.emplace_back(message); }
  bool SendUrgent(absl::string_view message) override {
    if (has_urgent) {
      urgent.emplace_back(message);
    }
    return has_urgent;
  }
  int64_t round_trip_ns() const override { return round_trip; }
  void Revoke(Context, Context, const absl::Status&) override {}
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "played"; }

  bool has_urgent = true;
  int64_t round_trip = 0;
  std::vector<std::string> sent, urgent;
};

}  // namespace entrain
