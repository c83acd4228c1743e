// The option on_loss of EDiT and of a gradient channel.
#pragma once

#include <cstdint>

namespace entrain {

// Values are the C ABI's (train.h).
enum class OnLoss : int32_t { kFail = 0, kFinish = 1 };

}  // namespace entrain
