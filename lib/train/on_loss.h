// The options on_loss and admit of EDiT and of a gradient channel.
#pragma once

#include <cstdint>

#include "lib/base/clock.h"
#include "lib/comm/communicator.h"

namespace entrain {

// The values are those of the C ABI (train.h).
enum class OnLoss : int32_t { kFail = 0, kFinish = 1 };
// Says when newcomers are admitted.
enum class Admit : int32_t { kNone = 0, kExchange = 1 };

// The least value of the option silence that is not 0, in seconds.
constexpr double kLeastSilence =
    static_cast<double>(CommOptions::kLeastSilenceNs) / static_cast<double>(kSecond);
constexpr const char* kTooShortSilence =
    "s is too short: a busy rank may not answer in less than 0.1 s; 0 is the default";

// Returns the time for which a rank may be silent (Inquiry::SetSilence), with on_loss finish.
// `seconds` is the option silence, and `given_ns` the setting of the communicator; 0: not set. If a
// stopped rank can come back as a newcomer, it is given up sooner.
inline int64_t SilenceOf(double seconds, Admit admit, int64_t given_ns) {
  return seconds > 0    ? static_cast<int64_t>(seconds * static_cast<double>(kSecond))
         : given_ns > 0 ? given_ns
                        : (admit == Admit::kNone ? 30 : 3) * kSecond;
}

}  // namespace entrain
