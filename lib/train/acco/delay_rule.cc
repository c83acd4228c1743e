#include "lib/train/acco/delay_rule.h"

namespace entrain {

RoundKind DelayRule::Next(int64_t round) {
  const bool begins_batch = method_ == DelayMethod::kAcco && !half_held();
  kind_ = Synchronous(round)            ? RoundKind::kCommit
          : method_ == DelayMethod::kWp ? RoundKind::kPredict
          : begins_batch                ? RoundKind::kEstimate
                                        : RoundKind::kCommit;
  return kind_;
}

}  // namespace entrain
