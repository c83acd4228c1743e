// Drives the pure state machine of a handshake over a blocking socket, without TLS: for tests that
// play one side by hand.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/net/socket.h"

namespace entrain {

// Takes one step: sends the output, then reads and consumes the bytes that the machine wants. A
// dialer's first step leaves its proof as output.
inline absl::Status StepHandshake(int fd, Handshake& handshake, const Stop& stop) {
  const auto write = [&] {
    const std::string output = handshake.TakeOutput();
    return WriteFull(fd, output.data(), output.size(), stop);
  };
  ENTRAIN_RETURN_IF_ERROR(write());
  const size_t wanted = handshake.wanted();
  if (wanted == 0) {
    return absl::OkStatus();
  }
  char buffer[Handshake::kHelloBytes];
  ENTRAIN_RETURN_IF_ERROR(ReadFull(fd, buffer, wanted, stop));
  const absl::Status status = handshake.Consume({buffer, wanted});
  if (!status.ok()) {
    write().IgnoreError();  // the refusal
  }
  return status;
}

// Takes all steps. Returns the other side's id.
inline absl::StatusOr<std::array<uint8_t, 16>> RunHandshake(int fd, Handshake& handshake,
                                                            const Stop& stop) {
  while (!handshake.done()) {
    ENTRAIN_RETURN_IF_ERROR(StepHandshake(fd, handshake, stop));
  }
  ENTRAIN_RETURN_IF_ERROR(StepHandshake(fd, handshake, stop));  // a listener's proof
  return handshake.peer();
}

}  // namespace entrain
