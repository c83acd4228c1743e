// The small second connection of a path. It carries only urgent control messages, so that they
// never wait behind data. All its frames have the type CONTROL (frame.h). The control line carries
// so few bytes that its TCP window is never full. So if the peer's kernel does not acknowledge
// bytes, the peer's host is gone. This is true even if the peer's process is busy, slow or stopped.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/channel.h"
#include "lib/net/keep_alive.h"

namespace entrain {

class ControlLine {
 public:
  // Must be called when the connection is established.
  void Attach(Channel channel, bool checksums, const KeepAlive& keep_alive);
  void Close() { channel_.Reset(); }
  bool attached() const { return channel_.valid(); }
  int fd() const { return channel_.fd(); }

  // Sends the text at the next Write.
  void Send(absl::string_view text);
  // pending returns true if there are bytes to write. stuck returns true if the last Write ended
  // because the socket took no more bytes.
  bool pending() const { return attached() && (written_ < out_.size() || channel_.unsent()); }
  bool stuck() const { return stuck_; }
  // Returns true if Read may find a message although epoll does not report the socket.
  bool buffered() const { return channel_.buffered(); }
  // Returns the messages that were not written completely, so the peer does not have them. Must be
  // called only when the control line is over.
  std::vector<std::string> TakeUnsent();

  // The state of the connection after Read or Write. kClosed: the peer has closed this connection.
  // kReset: the connection was reset. The path's first connection may continue without the control
  // line. If not, the first connection will end soon, with the reason.
  enum class State { kGood, kClosed, kReset };
  // Writes as much as the socket takes. Returns an error if the peer's host is gone.
  absl::StatusOr<State> Write();
  // Reads at most one message into `*text`. If no whole message has arrived, `*text` is empty.
  // Returns an error if the peer's host is gone, or if the peer broke the protocol.
  absl::StatusOr<State> Read(std::string* text);

 private:
  Channel channel_;
  bool checksums_ = false;
  std::string out_;
  size_t written_ = 0;  // bytes of out_ that are written
  bool stuck_ = false;
  std::string in_;  // the bytes of an incomplete frame
};

}  // namespace entrain
