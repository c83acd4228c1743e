#include "transports/tcp/tcp_sender.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr int64_t kBytesPerFlush = 4 << 20;  // one turn of the loop stays short
constexpr int64_t kCreditWorthAFrame = kCredit / 4;
constexpr int64_t kAtOnceBytes = 32 << 10;

absl::Status Breach(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the peer broke the protocol: ", what));
}

// What a write may take of a send buffer, which the kernel counts with structures of its own: about
// 1 KiB for a segment, and Ethernet's segments are of 1.4 KiB.
int64_t RoomFor(int64_t bytes) {
  return 2 * (bytes + 1024);
}

// What is left of it, should all that is in it yet be cut into segments. 0: the kernel does not say.
int64_t RoomIn(int fd) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t bytes = sizeof(memory);
  if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &bytes) != 0) {
    return 0;
  }
  return int64_t{memory[SK_MEMINFO_SNDBUF]} - 2 * int64_t{memory[SK_MEMINFO_WMEM_QUEUED]};
}

}  // namespace

void TcpSender::Post(const Envelope& envelope, ConstBytes bytes, Completion* done) {
  if (free_.empty()) {
    Send& fresh = sends_.emplace_back();
    fresh.message = kPlaces + sends_.size() - 1;
    free_.push_back(&fresh);
  }
  Send* send = free_.back();
  free_.pop_back();
  const uint64_t message = send->message;
  *send = Send();
  send->envelope = envelope;
  send->data = bytes.data();
  send->bytes = static_cast<int64_t>(bytes.size());
  send->done = done;
  send->message = message;
  send->state = State::kWaiting;
  send->queued = true;
  waiting_.push_back(send);
}

bool TcpSender::TrySend(int fd, const Envelope& envelope, ConstBytes bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t cost = MatchQueue::CostOf(size);
  if (count_ > 0 || !urgent_.empty() || !waiting_.empty() || !granted_.empty() ||
      size > kAtOnceBytes || credit_used_ + cost > kCredit) {
    return false;
  }
  const int64_t room = RoomFor(static_cast<int64_t>(sizeof(FrameHeader)) + size);
  if (room > room_) {
    room_ = RoomIn(fd);
    if (room > room_) {
      return false;
    }
  }
  FrameHeader header;
  header.type = FrameType::kEager;
  header.tag = envelope.tag.bits();
  header.descriptor = envelope.descriptor;
  header.bytes = size;
  Frame& frame = NewFrame(header, nullptr, bytes.data());
  const int64_t asked = frame.size();
  const int64_t written = WriteFrame(fd, frame);
  if (written < 0) {
    count_ = 0;
    framed_bytes_ = 0;
    credit_to_return_ += frame.header.credit;
    return false;
  }
  credit_used_ += cost;
  if (written < asked) {  // the kernel is short of memory
    frame.owned.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Written(written);
  return true;
}

void TcpSender::Free(Send* send) {
  send->state = State::kFree;
  send->message += kPlaces;  // a new generation
  free_.push_back(send);
}

void TcpSender::Complete(Send* send, const absl::Status& status) {
  completions_->Add(send->done, status, status.ok() ? send->bytes : 0);
  Free(send);
}

TcpSender::Send* TcpSender::Find(uint64_t message) {
  const uint64_t place = message % kPlaces;
  if (place >= sends_.size()) {
    return nullptr;
  }
  Send* send = &sends_[place];
  return send->message == message && send->state != State::kFree ? send : nullptr;
}

void TcpSender::Urgent(const FrameHeader& header, absl::string_view payload) {
  urgent_.push_back({header, std::string(payload)});
  urgent_.back().header.bytes = static_cast<int64_t>(payload.size());
}

absl::Status TcpSender::OnCredit(int64_t bytes) {
  if (bytes > credit_used_) {
    return Breach("more credit returned than was used");
  }
  credit_used_ -= bytes;
  return absl::OkStatus();
}

absl::Status TcpSender::OnGrant(uint64_t message) {
  Send* send = Find(message);
  if (send == nullptr || send->state == State::kDead) {
    return absl::OkStatus();  // revoked meanwhile: a withdrawal is on its way
  }
  if (send->state != State::kAnnounced) {
    return Breach("a grant for a message that is not announced");
  }
  --announced_;
  send->state = State::kGranted;
  send->queued = true;
  granted_.push_back(send);
  return absl::OkStatus();
}

absl::Status TcpSender::OnRefuse(uint64_t message) {
  Send* send = Find(message);
  if (send == nullptr || send->state == State::kDead) {
    return absl::OkStatus();
  }
  if (send->state != State::kAnnounced) {
    return Breach("a refusal of a message that is not announced");
  }
  --announced_;
  Complete(send, absl::OkStatus());  // the buffer is free again; what became of the message is the
                                     // receiver's matter
  return absl::OkStatus();
}

bool TcpSender::pending() const {
  return count_ > 0 || !urgent_.empty() || !waiting_.empty() || !granted_.empty() ||
         credit_to_return_ >= kCreditWorthAFrame;
}

TcpSender::Frame& TcpSender::NewFrame(const FrameHeader& header, Send* send,
                                      const std::byte* payload) {
  Frame& frame = At(count_++);
  frame.header = header;
  frame.header.credit = static_cast<uint32_t>(std::min<int64_t>(credit_to_return_, kCredit));
  credit_to_return_ -= frame.header.credit;
  frame.send = send;
  frame.payload = payload;
  framed_bytes_ += frame.size();
  return frame;
}

void TcpSender::Fill() {
  while (count_ < kFrames && framed_bytes_ < kBytesPerFlush && FrameNext()) {
  }
}

bool TcpSender::FrameNext() {
  if (!urgent_.empty()) {
    NewFrame(urgent_.front().header, nullptr, nullptr).owned = std::move(urgent_.front().payload);
    urgent_.pop_front();
    return true;
  }
  for (std::deque<Send*>* queue : {&waiting_, &granted_}) {
    while (!queue->empty()) {
      Send* send = queue->front();
      if (send->state == State::kDead) {
        queue->pop_front();
        Free(send);
        continue;
      }
      if (queue == &granted_) {
        FrameData(send);
      } else {
        FrameWaiting(send);
      }
      if (!send->queued) {
        queue->pop_front();
      }
      return true;
    }
  }
  if (credit_to_return_ >= kCreditWorthAFrame) {
    NewFrame({.type = FrameType::kCredit}, nullptr, nullptr);
    return true;
  }
  return false;
}

void TcpSender::FrameWaiting(Send* send) {
  FrameHeader header;
  header.tag = send->envelope.tag.bits();
  header.descriptor = send->envelope.descriptor;
  header.bytes = send->bytes;
  send->queued = false;
  const int64_t cost = MatchQueue::CostOf(send->bytes);
  if (send->bytes <= kFrameBytes && credit_used_ + cost <= kCredit) {
    credit_used_ += cost;
    header.type = FrameType::kEager;
    send->state = State::kFramed;
    NewFrame(header, send, send->data);
  } else {
    header.type = FrameType::kAnnounce;
    header.message = send->message;
    send->state = State::kAnnouncing;
    NewFrame(header, send, nullptr);
  }
}

void TcpSender::FrameData(Send* send) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.message = send->message;
  header.bytes = std::min(send->bytes - send->framed, kFrameBytes);
  NewFrame(header, send, send->data + send->framed);
  send->framed += header.bytes;
  send->queued = send->framed < send->bytes;
}

absl::StatusOr<int64_t> TcpSender::Flush(int fd) {
  int64_t total = 0;
  while (total < kBytesPerFlush) {
    Fill();
    if (count_ == 0) {
      break;
    }
    int64_t asked = 0;
    const int64_t written = WriteFrames(fd, &asked);
    if (written < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
        break;
      }
      return ErrnoStatus(errno, "sending");
    }
    total += written;
    Written(written);
    if (written < asked) {
      break;
    }
  }
  return total;
}

int64_t TcpSender::WriteFrames(int fd, int64_t* asked) {
  iovec parts[2 * kFrames];
  size_t used = 0;
  int64_t skip = first_written_;  // of the first frame
  for (size_t i = 0; i < count_; ++i) {
    Frame& frame = At(i);
    const std::pair<const void*, int64_t> pieces[] = {{&frame.header, sizeof(FrameHeader)},
                                                      {frame.data(), PayloadOf(frame.header)}};
    for (const auto& [data, size] : pieces) {
      const int64_t skipped = std::min(skip, size);
      skip -= skipped;
      if (size > skipped) {
        parts[used].iov_base = const_cast<char*>(static_cast<const char*>(data)) + skipped;
        parts[used++].iov_len = static_cast<size_t>(size - skipped);
        *asked += size - skipped;
      }
    }
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = used;
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// A whole frame. What is tiny is cheaper copied than described to the kernel.
int64_t TcpSender::WriteFrame(int fd, const Frame& frame) {
  constexpr size_t kTiny = 512;
  std::byte tiny[sizeof(FrameHeader) + kTiny];
  const auto size = static_cast<size_t>(PayloadOf(frame.header));
  if (size > kTiny) {
    int64_t asked = 0;
    return WriteFrames(fd, &asked);
  }
  std::memcpy(tiny, &frame.header, sizeof(FrameHeader));
  if (size > 0) {
    std::memcpy(tiny + sizeof(FrameHeader), frame.data(), size);
  }
  return send(fd, tiny, sizeof(FrameHeader) + size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpSender::Written(int64_t bytes) {
  room_ -= RoomFor(bytes);
  first_written_ += bytes;
  while (count_ > 0 && first_written_ >= frames_[first_].size()) {
    Frame& frame = frames_[first_];
    first_written_ -= frame.size();
    framed_bytes_ -= frame.size();
    FrameDone(frame);
    frame.owned.clear();
    first_ = (first_ + 1) % kFrames;
    --count_;
  }
}

void TcpSender::FrameDone(const Frame& frame) {
  Send* send = frame.send;
  if (send == nullptr) {
    return;
  }
  if (frame.header.type == FrameType::kAnnounce) {
    send->state = State::kAnnounced;
    ++announced_;
    return;
  }
  send->written += frame.header.bytes;
  if (send->written == send->bytes) {
    Complete(send, absl::OkStatus());
  }
}

bool TcpSender::TakeFrames(Send* send) {
  bool half_written = false;
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    Frame& frame = At(i);
    const bool started = i == 0 && first_written_ > 0;
    if (frame.send == send && !started) {
      if (frame.header.type == FrameType::kEager) {
        credit_used_ -= MatchQueue::CostOf(frame.header.bytes);
      }
      credit_to_return_ += frame.header.credit;
      framed_bytes_ -= frame.size();
      continue;
    }
    if (frame.send == send) {
      half_written = true;
      frame.send = nullptr;
      frame.owned.assign(reinterpret_cast<const char*>(frame.payload),
                         static_cast<size_t>(PayloadOf(frame.header)));
    }
    if (kept != i) {
      std::swap(At(kept), frame);
    }
    ++kept;
  }
  count_ = kept;
  return half_written;
}

void TcpSender::TakeBack(Send* send, const absl::Status& why) {
  const State state = send->state;
  const bool half_written =
      state != State::kWaiting && state != State::kAnnounced && TakeFrames(send);
  announced_ -= state == State::kAnnounced ? 1 : 0;
  if (state == State::kAnnounced || state == State::kGranted ||
      (state == State::kAnnouncing && half_written)) {
    Urgent(
        {.type = FrameType::kWithdraw, .tag = send->envelope.tag.bits(), .message = send->message},
        {});
  }
  completions_->Add(send->done, why, 0);
  if (send->queued) {
    send->state = State::kDead;
  } else {
    Free(send);
  }
}

void TcpSender::Revoke(Context theirs, const absl::Status& why) {
  for (Send& send : sends_) {
    if (send.state != State::kFree && send.state != State::kDead &&
        send.envelope.tag.context() == theirs) {
      TakeBack(&send, why);
    }
  }
}

void TcpSender::FailAll(const absl::Status& why) {
  for (Send& send : sends_) {
    if (send.state != State::kFree && send.state != State::kDead) {
      TakeBack(&send, why);
    }
  }
  waiting_.clear();
  granted_.clear();
  std::deque<UrgentFrame> control;
  for (UrgentFrame& frame : urgent_) {
    if (frame.header.type == FrameType::kControl) {
      control.push_back(std::move(frame));
    }
  }
  urgent_ = std::move(control);
}

}  // namespace entrain
