// Starts a thread of the library.
#pragma once

#include <thread>
#include <utility>

#include "lib/base/float_environment.h"

namespace entrain {

// Starts a thread that runs `body` in the library's floating-point environment. A new thread
// inherits the environment of the thread that creates it, which is the caller's environment if the
// caller's thread creates it outside of a call. Throws std::system_error like std::thread.
template <typename Body>
std::thread LibraryThread(Body body) {
  return std::thread([body = std::move(body)]() mutable {
    FloatEnvironment::Set();
    body();
  });
}

}  // namespace entrain
