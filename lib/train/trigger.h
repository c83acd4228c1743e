// When replicas exchange: asked once before each forward pass that may (training, first
// micro-batch).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace entrain {

struct StepInfo {
  int64_t step = 0;             // g: optimizer steps counted
  int64_t last_sync_step = -1;  // g at the last exchange or anchor creation; -1: none yet
  bool requested = false;       // somebody asked for an exchange as soon as possible
};

class SyncTrigger {
 public:
  explicit SyncTrigger(int64_t warmup_steps) : warmup_steps_(warmup_steps) {}
  virtual ~SyncTrigger() = default;

  // The same answer on all ranks. Never in warm-up, never twice at one step: a second exchange
  // there has nothing to exchange and would let the outer momentum take a free step.
  absl::StatusOr<bool> Due(const StepInfo& info) {
    if (info.step < warmup_steps_ || info.step == info.last_sync_step) {
      return false;
    }
    return info.requested ? true : IsTime(info);
  }
  int64_t warmup_steps() const { return warmup_steps_; }

 protected:
  // After warm-up, at a step without an exchange. May communicate and block; a trigger by time
  // agrees here with the other ranks.
  virtual absl::StatusOr<bool> IsTime(const StepInfo& info) = 0;

 private:
  const int64_t warmup_steps_;  // W_s
};

// At steps W_s + k H. Needs no agreement, since all replicas count the same steps.
class StepTrigger final : public SyncTrigger {
 public:
  StepTrigger(int64_t warmup_steps, int64_t interval)
      : SyncTrigger(warmup_steps), interval_(interval) {}

 protected:
  absl::StatusOr<bool> IsTime(const StepInfo& info) override;

 private:
  const int64_t interval_;  // H
};

}  // namespace entrain
