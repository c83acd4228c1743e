// A communicator of the engine that does nothing. Tests override the functions that they observe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/engine/engine.h"

namespace entrain {

class IdleContext : public ContextOwner {
 public:
  void Attend() override {}
  void OnControl(Endpoint& /*from*/, absl::string_view /*message*/) override {}
  void OnLost(Endpoint& /*peer*/, const absl::Status& /*why*/) override {}
  Deadline next_tick() const override { return Deadline::Never(); }
  void OnTick(int64_t /*now*/) override {}
  void OnEarly(Endpoint& /*from*/, const Envelope& /*envelope*/) override {}
  std::string UserOf(ConstBytes /*memory*/) const override { return ""; }
  void OnShutdown() override {}
  std::optional<int64_t> waits_since() const override { return std::nullopt; }
  Deadline FindOut(HeldUpBy /*then*/) override { return {}; }
};

}  // namespace entrain
