#include "transports/tcp/control_line.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "transports/rendezvous_sender.h"
#include "transports/tcp/connection_error.h"
#include "transports/tcp/frame.h"

namespace entrain {
namespace {

absl::StatusOr<ControlLine::State> Sort(int error) {
  if (!IsFatal(error)) {
    return ControlLine::State::kGood;
  }
  if (error == ECONNRESET || error == EPIPE || error == ECONNABORTED) {
    return ControlLine::State::kClosed;
  }
  return ConnectionError(error, "control line");
}

}  // namespace

void ControlLine::Attach(Channel channel, const KeepAlive& keep_alive) {
  channel_ = std::move(channel);
  ProbeAlways(fd(), keep_alive);
}

void ControlLine::Send(absl::string_view text) {
  PacketHeader header;
  header.type = PacketType::kControl;
  header.bytes = static_cast<int64_t>(text.size());
  out_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out_.append(text.data(), text.size());
}

std::vector<std::string> ControlLine::TakeUnsent() {
  std::vector<std::string> unsent;
  PacketHeader header;
  for (size_t begin = 0, end = 0; begin < out_.size(); begin = end) {
    std::memcpy(&header, out_.data() + begin, sizeof(header));
    begin += sizeof(header);
    end = begin + static_cast<size_t>(header.bytes);
    if (end > written_) {
      unsent.push_back(out_.substr(begin, end - begin));
    }
  }
  out_.clear();
  written_ = 0;
  return unsent;
}

absl::StatusOr<ControlLine::State> ControlLine::Write() {
  stuck_ = false;
  while (written_ < out_.size()) {
    const ssize_t sent = channel_.Send(out_.data() + written_, out_.size() - written_);
    if (sent < 0) {
      stuck_ = !IsFatal(errno);
      return Sort(errno);
    }
    written_ += static_cast<size_t>(sent);
  }
  if (!channel_.Flush()) {
    return Sort(errno);
  }
  stuck_ = channel_.unsent();
  out_.clear();
  written_ = 0;
  return State::kGood;
}

absl::StatusOr<ControlLine::State> ControlLine::Read(std::string* text) {
  text->clear();
  while (true) {
    PacketHeader header;
    size_t wanted = sizeof(header);
    if (in_.size() >= wanted) {
      std::memcpy(&header, in_.data(), sizeof(header));
      if (!CheckFrame(header).ok() || header.type != PacketType::kControl || header.bytes == 0) {
        return BreachOfProtocol(
            "a frame that is no control message, beside the path's first connection");
      }
      wanted += static_cast<size_t>(header.bytes);
    }
    if (in_.size() == wanted) {
      *text = in_.substr(sizeof(header));
      in_.clear();
      return State::kGood;
    }
    char buffer[sizeof(header) + kMaxControlBytes];
    const ssize_t got = channel_.Receive(buffer, wanted - in_.size());
    if (got == 0) {
      return State::kClosed;
    }
    if (got < 0) {
      return Sort(errno);
    }
    in_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace entrain
