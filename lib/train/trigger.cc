#include "lib/train/trigger.h"

namespace entrain {

absl::StatusOr<bool> StepTrigger::IsTime(const StepInfo& info) {
  return (info.step - warmup_steps()) % interval_ == 0;
}

}  // namespace entrain
