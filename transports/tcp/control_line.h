// The small second connection of a path. It carries urgent control messages, which so never wait behind data, and
// nothing else: frames of type CONTROL (frame.h). As so little is sent by it, its window is never full, and what the
// peer's kernel acknowledges, or not, says whether the peer's host is there, however busy, slow or stopped the peer's
// process is.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/keep_alive.h"
#include "lib/net/socket.h"

namespace entrain {

class ControlLine {
 public:
  // The connection stands.
  void Attach(Fd fd, const KeepAlive& keep_alive);
  void Close() { fd_.Reset(); }
  bool attached() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }

  // Writes it soon: at the next Write.
  void Send(absl::string_view text);
  // Whether there is something to write, and whether the last Write ended because the socket takes no more.
  bool pending() const { return attached() && written_ < out_.size(); }
  bool stuck() const { return stuck_; }
  // The line is over: what was handed to Send and has not left whole, so that nobody has it.
  std::vector<std::string> TakeUnsent();

  // How the connection is after reading or writing. kClosed: it is over, as the peer has closed it or it was reset; the
  // first connection goes on, or will end soon and say why.
  enum class State { kGood, kClosed };
  // An error: the peer's host is gone.
  absl::StatusOr<State> Write();
  // Gives at most one message to `text`, whose State is kGood; empty: none has come. An error: the peer's host is gone,
  // or the peer broke the protocol.
  absl::StatusOr<State> Read(std::string* text);

 private:
  Fd fd_;
  std::string out_;
  size_t written_ = 0;  // of it
  bool stuck_ = false;
  std::string in_;  // less than a whole frame, between two calls of Read that gave none
};

}  // namespace entrain
