// Waits for an observable condition. tests/sleeps_test.py rejects a sleep that neither polls nor
// has a comment that says why time must pass.
#pragma once

#include <chrono>
#include <thread>

namespace entrain {

// Returns whether `holds` becomes true within `limit`.
template <typename Condition>
bool Becomes(const Condition& holds, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
  const auto give_up = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > give_up) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace entrain
