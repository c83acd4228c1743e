// The transport of the processes of a VirtualWorld. It takes the place of inproc in the registry
// (virtual_transport.cc replaces TransportRegistry). Messages are copied when they are sent, and
// arrive when the virtual network says so.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transports/matching.h"
#include "transports/transport.h"

namespace entrain {

class VirtualEndpoint;
class VirtualWorld;

class VirtualTransport final : public Transport {
 public:
  VirtualTransport(VirtualWorld* world, const TransportConfig& config, Events* events);
  ~VirtualTransport() override;

  Traits traits() const override { return {"inproc", Medium::kNetwork, 600, 10e9, 20e9}; }
  std::string address() const override;
  bool Reaches(absl::string_view remote) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                    absl::string_view remote) override;
  int Poll() override;
  bool Arm() override;
  int wait_fd() const override { return wait_fd_; }

  // Called by the network when a message arrives.
  void OnMessage(int from, const std::string& text);
  void OnLost(int peer, bool proven);

 private:
  friend class VirtualEndpoint;
  struct Event {
    int from;
    bool lost, proven;
    std::string text;
  };
  void Take(const Event& event);
  void Ring();

  VirtualWorld* const world_;
  const int process_;
  Events* const events_;
  const int64_t connect_timeout_ns_;
  const int wait_fd_;
  CompletionList completions_;
  std::map<int, VirtualEndpoint*> endpoints_;  // by process
  std::deque<Event> arrived_;
  std::map<int, std::vector<Event>> early_;  // from processes to which this one has not connected
};

}  // namespace entrain
