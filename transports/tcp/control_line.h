// The small second connection of a path. It carries urgent control messages, so that these never
// wait behind data, and nothing else: its frames are of type CONTROL (frame.h). It sends so few
// bytes that its window is never full. Therefore missing acknowledgements of the peer's kernel show
// that the peer's host is gone, no matter how busy, slow or stopped the peer's process is.
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
  // pending: there is something to write. stuck: the last Write ended because the socket takes no
  // more bytes.
  bool pending() const { return attached() && (written_ < out_.size() || channel_.unsent()); }
  bool stuck() const { return stuck_; }
  // Returns true if Read may find a message that epoll does not report.
  bool buffered() const { return channel_.buffered(); }
  // Returns the messages that were not sent as a whole, so that the peer has none of them. Must be
  // called only when the line is over.
  std::vector<std::string> TakeUnsent();

  // The state of the connection after reading or writing. kClosed: the peer has closed this
  // connection, or it was reset. The path's first connection then continues, or will end soon with
  // the reason.
  enum class State { kGood, kClosed };
  // Returns an error if the peer's host is gone.
  absl::StatusOr<State> Write();
  // Reads at most one message into `text`, which is empty if no message has arrived; the state is
  // then kGood. Returns an error if the peer's host is gone, or the peer broke the protocol.
  absl::StatusOr<State> Read(std::string* text);

 private:
  Channel channel_;
  bool checksums_ = false;
  std::string out_;
  size_t written_ = 0;  // bytes of out_ that are written
  bool stuck_ = false;
  std::string in_;  // an incomplete frame, after a Read without a message
};

}  // namespace entrain
