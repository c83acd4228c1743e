#include "transports/tcp/control_line.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "lib/base/crc32c.h"
#include "lib/net/channel.h"
#include "transports/rendezvous_sender.h"
#include "transports/tcp/frame.h"

namespace entrain {
namespace {

absl::StatusOr<ControlLine::State> Sort(int error) {
  if (!IsFatal(error)) {
    return ControlLine::State::kGood;
  }
  if (error == ECONNRESET || error == EPIPE || error == ECONNABORTED) {
    return ControlLine::State::kReset;
  }
  return ConnectionError(error, "control line");
}

}  // namespace

void ControlLine::Attach(Channel channel, bool checksums, const KeepAlive& keep_alive) {
  channel_ = std::move(channel);
  checksums_ = checksums;
  ProbeAlways(fd(), keep_alive);
}

void ControlLine::Send(absl::string_view text) {
  PacketHeader header;
  header.type = PacketType::kControl;
  header.bytes = static_cast<int64_t>(text.size());
  if (checksums_) {
    const FrameSums sums = FrameSums::Of(header, text.data());
    out_.append(reinterpret_cast<const char*>(&sums), sizeof(sums));
  }
  out_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out_.append(text.data(), text.size());
}

std::vector<std::string> ControlLine::TakeUnsent() {
  std::vector<std::string> unsent;
  PacketHeader header;
  for (size_t begin = 0, end = 0; begin < out_.size(); begin = end) {
    begin += LeadBytes(checksums_);
    std::memcpy(&header, out_.data() + begin - sizeof(header), sizeof(header));
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
    FrameSums sums;
    const size_t lead = LeadBytes(checksums_);
    size_t wanted = lead;
    if (in_.size() >= wanted) {
      std::memcpy(&header, in_.data() + lead - sizeof(header), sizeof(header));
      if (checksums_) {
        std::memcpy(&sums, in_.data(), sizeof(sums));
        if (Crc32c(&header, sizeof(header)) != sums.header) {
          return WrongChecksum();
        }
      }
      if (!CheckFrame(header).ok() || header.type != PacketType::kControl || header.bytes == 0) {
        return BreachOfProtocol(
            "a frame that is no control message, beside the path's first connection");
      }
      wanted += static_cast<size_t>(header.bytes);
    }
    if (in_.size() == wanted) {
      *text = in_.substr(lead);
      if (checksums_ && Crc32c(text->data(), text->size()) != sums.payload) {
        return WrongChecksum();
      }
      in_.clear();
      return State::kGood;
    }
    char buffer[LeadBytes(true) + kMaxControlBytes];
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
