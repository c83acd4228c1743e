// The options on_loss and admit of EDiT and of a gradient channel.
#pragma once

#include <cstdint>

namespace entrain {

// The values are those of the C ABI (train.h).
enum class OnLoss : int32_t { kFail = 0, kFinish = 1 };
// Says when newcomers are admitted.
enum class Admit : int32_t { kNone = 0, kExchange = 1 };

}  // namespace entrain
