// The options on_loss and admit of EDiT and of a gradient channel.
#pragma once

#include <cstdint>

namespace entrain {

// Values are the C ABI's (train.h).
enum class OnLoss : int32_t { kFail = 0, kFinish = 1 };
// When newcomers are taken in.
enum class Admit : int32_t { kNone = 0, kExchange = 1 };

}  // namespace entrain
