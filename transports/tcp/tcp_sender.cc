#include "transports/tcp/tcp_sender.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/base/status.h"
#include "lib/net/channel.h"

namespace entrain {
namespace {

// Keeps one turn of the loop short. With checksums, bytes are written soon after their checksums
// were computed, while they are still in a cache.
constexpr int64_t kBytesPerFlush = 1 << 20;
constexpr int64_t kAtOnceBytes = 32 << 10;

// Returns an upper bound of the room in a send buffer that `bytes` bytes need. The kernel also
// counts its own structures: about 1 KiB per segment, and a segment on Ethernet holds 1.4 KiB.
int64_t RoomFor(int64_t bytes) {
  return 2 * (bytes + 1024);
}

// Returns a lower bound of the room left in the send buffer, on the assumption that all bytes in
// the buffer must still be cut into segments. Returns 0 if the kernel does not report the room.
int64_t RoomIn(int fd) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t bytes = sizeof(memory);
  if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &bytes) != 0) {
    return 0;
  }
  return int64_t{memory[SK_MEMINFO_SNDBUF]} - 2 * int64_t{memory[SK_MEMINFO_WMEM_QUEUED]};
}

}  // namespace

bool TcpSender::TrySend(Channel& to, const Envelope& envelope, ConstBytes bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (count_ > 0 || to.unsent() || !before_data_.empty() || !outgoing_.empty() ||
      size > kAtOnceBytes || !outgoing_.HasCredit(size)) {
    return false;
  }
  const int64_t room = RoomFor(static_cast<int64_t>(sizeof(PacketHeader)) + size);
  if (room > room_) {
    room_ = RoomIn(to.fd());
    if (room > room_) {
      return false;
    }
  }
  PacketHeader header;
  header.type = PacketType::kEager;
  header.tag = envelope.tag.bits();
  header.descriptor = envelope.descriptor;
  header.bytes = size;
  Frame& frame = NewFrame(header, nullptr, bytes.data());
  const int64_t asked = SizeOf(frame);
  const int64_t written = WriteFrame(to, frame);
  if (written < 0) {
    error_ = IsFatal(errno) ? errno : 0;
    count_ = 0;
    framed_bytes_ = 0;
    outgoing_.ReturnCredit(frame.header.credit);
    return false;
  }
  outgoing_.TakeCredit(size);
  if (written < asked) {  // the kernel lacks memory
    frame.owned.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Written(written, to);
  return true;
}

void TcpSender::BeforeData(const PacketHeader& header, absl::string_view payload) {
  stuck_ = false;  // a frame that needs no stream can be written, so Arm must not let it wait
  before_data_.push_back({header, std::string(payload)});
  before_data_.back().header.bytes = static_cast<int64_t>(payload.size());
}

bool TcpSender::pending() const {
  return count_ > 0 || !unsent_.empty() || !before_data_.empty() || outgoing_.ready() ||
         outgoing_.credit_is_due() || streams_->sending();
}

TcpSender::Frame& TcpSender::NewFrame(const PacketHeader& header, Outgoing* send,
                                      const std::byte* payload) {
  Frame& frame = At(count_++);
  frame.header = header;
  frame.header.credit = outgoing_.SayCredit();
  frame.send = send;
  frame.payload = payload;
  frame.summed = false;
  framed_bytes_ += SizeOf(frame);
  return frame;
}

void TcpSender::WithdrawRefused() {
  while (Outgoing* const send = outgoing_.TakeRefused()) {
    TakeFrames(send);
    BeforeData(
        {.type = PacketType::kWithdraw, .tag = send->envelope.tag.bits(), .message = send->message},
        {});
    outgoing_.Complete(send);
  }
}

void TcpSender::Fill() {
  WithdrawRefused();
  while (count_ < kFrames && framed_bytes_ < kBytesPerFlush && FrameNext()) {
  }
}

bool TcpSender::FrameNext() {
  if (!before_data_.empty()) {
    NewFrame(before_data_.front().header, nullptr, nullptr).owned =
        std::move(before_data_.front().payload);
    before_data_.pop_front();
    return true;
  }
  Outgoing* const send = outgoing_.Next();
  if (send != nullptr &&
      (send->state == Outgoing::State::kWaiting ? FrameWaiting(send) : FrameData(send))) {
    return true;
  }
  if (outgoing_.credit_is_due()) {
    NewFrame({.type = PacketType::kCredit}, nullptr, nullptr);
    return true;
  }
  return false;
}

bool TcpSender::FrameWaiting(Outgoing* send) {
  PacketHeader header;
  header.tag = send->envelope.tag.bits();
  header.descriptor = send->envelope.descriptor;
  header.bytes = send->bytes;
  if (send->bytes > kFrameBytes || !outgoing_.HasCredit(send->bytes)) {
    outgoing_.Dequeue(send);
    header.type = PacketType::kRts;
    header.message = send->message;
    send->state = Outgoing::State::kSendingRts;
    NewFrame(header, send, nullptr);
    return true;
  }
  header.type = PacketType::kEager;
  if (!ChooseStreams(&header)) {
    return false;
  }
  outgoing_.TakeCredit(send->bytes);
  outgoing_.Dequeue(send);
  send->state = Outgoing::State::kGivenAway;
  FramePayload(header, send, send->data);
  return true;
}

bool TcpSender::FrameData(Outgoing* send) {
  PacketHeader header;
  const bool ahead = send->state == Outgoing::State::kAhead;
  header.type = ahead ? PacketType::kAhead : PacketType::kData;
  header.message = send->message;
  header.bytes = std::min(send->bytes - send->given, kFrameBytes);
  if (ahead) {
    header.bytes = std::min(header.bytes, outgoing_.Allowance());
  }
  if (!ChooseStreams(&header)) {
    return false;
  }
  if (ahead) {
    outgoing_.TakeCredit(header.bytes);
  }
  FramePayload(header, send, send->data + send->given);
  send->given += header.bytes;
  if (send->given == send->bytes) {
    outgoing_.Dequeue(send);
  }
  return true;
}

bool TcpSender::ChooseStreams(PacketHeader* header) {
  if (!streams_->Carry(header->bytes)) {
    return true;
  }
  header->streams = streams_->For(&header->bytes, header->type == PacketType::kEager);
  return header->streams != 0;
}

void TcpSender::FramePayload(const PacketHeader& header, Outgoing* send, const std::byte* payload) {
  large_bytes_ += header.bytes >= TcpStreams::kLeastPayload ? header.bytes : 0;
  if (header.streams == 0) {
    NewFrame(header, send, payload);
  } else {
    NewFrame(header, nullptr, nullptr);
    streams_->Give(header.streams, send, {payload, static_cast<size_t>(header.bytes)});
  }
}

absl::StatusOr<int64_t> TcpSender::Flush(Channel& to) {
  int64_t total = 0;
  stuck_ = false;
  while (total < kBytesPerFlush && !stuck_) {
    Fill();
    int64_t asked = 0, written = 0;
    if (count_ > 0) {
      written = WriteFrames(to, &asked);
      if (written < 0) {
        if (IsFatal(errno)) {
          error_ = errno;
          return ConnectionError(errno, "sending");
        }
        written = 0;
      } else {
        Written(written, to);
      }
    } else if (!to.Flush()) {
      error_ = errno;
      return ConnectionError(errno, "sending");
    }
    Settle(to);
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t carried, streams_->Write(&outgoing_));
    total += written + carried;
    if (!pending() && !to.unsent()) {
      break;
    }
    stuck_ = written < asked || to.unsent() || written + carried == 0;
  }
  return total;
}

int64_t TcpSender::WriteFrames(Channel& to, int64_t* asked) {
  iovec parts[3 * kFrames];
  size_t used = 0;
  int64_t skip = first_written_;  // written bytes of the first frame
  for (size_t i = 0; i < count_; ++i) {
    Frame& frame = At(i);
    if (checksums_ && !std::exchange(frame.summed, true)) {
      frame.sums = FrameSums::Of(frame.header, frame.data());
    }
    const std::pair<const void*, int64_t> pieces[] = {
        {&frame.sums, checksums_ ? sizeof(FrameSums) : 0},
        {&frame.header, sizeof(PacketHeader)},
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
  return to.Send(parts, used);
}

// Writes a whole frame. Copies the parts of a tiny frame together first. That is cheaper than to
// pass several parts to the kernel.
int64_t TcpSender::WriteFrame(Channel& to, const Frame& frame) {
  constexpr size_t kTiny = 512;
  std::byte tiny[sizeof(PacketHeader) + kTiny];
  const auto size = static_cast<size_t>(PayloadOf(frame.header));
  if (size > kTiny || checksums_) {
    int64_t asked = 0;
    return WriteFrames(to, &asked);
  }
  std::memcpy(tiny, &frame.header, sizeof(PacketHeader));
  if (size > 0) {
    std::memcpy(tiny + sizeof(PacketHeader), frame.data(), size);
  }
  return to.Send(tiny, sizeof(PacketHeader) + size);
}

void TcpSender::Written(int64_t bytes, const Channel& to) {
  written_bytes_ += bytes;
  room_ -= RoomFor(bytes);
  first_written_ += bytes;
  while (count_ > 0 && first_written_ >= SizeOf(frames_[first_])) {
    Frame& frame = frames_[first_];
    first_written_ -= SizeOf(frame);
    framed_bytes_ -= SizeOf(frame);
    FrameDone(frame, to);
    frame.owned.clear();
    first_ = (first_ + 1) % kFrames;
    --count_;
  }
}

void TcpSender::FrameDone(const Frame& frame, const Channel& to) {
  streams_->Start(frame.header.streams);
  Outgoing* const send = frame.send;
  if (send == nullptr) {
    return;
  }
  if (frame.header.type == PacketType::kRts) {
    outgoing_.RtsSent(send);
    return;
  }
  if (to.unsent() || !unsent_.empty()) {
    unsent_.push_back({send, frame.header.bytes, to.given()});
  } else {
    outgoing_.Taken(send, frame.header.bytes);
  }
}

void TcpSender::Settle(const Channel& to) {
  while (IsDue(to)) {
    const Unsent first = unsent_.front();
    unsent_.pop_front();
    if (first.send != nullptr) {
      outgoing_.Taken(first.send, first.bytes);
    }
  }
}

bool TcpSender::TakeFrames(Outgoing* send) {
  bool half_written = false;
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    Frame& frame = At(i);
    const bool started = i == 0 && first_written_ > 0;
    if (frame.send == send && !started) {
      if (frame.header.type == PacketType::kEager || frame.header.type == PacketType::kAhead) {
        outgoing_.PutCreditBack(frame.header.bytes);
      }
      outgoing_.ReturnCredit(frame.header.credit);
      framed_bytes_ -= SizeOf(frame);
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
  for (Unsent& unsent : unsent_) {
    if (unsent.send == send) {
      unsent.send = nullptr;
      half_written = true;
    }
  }
  return streams_->Disown(send) || half_written;
}

void TcpSender::TakeBack(Outgoing* send, const absl::Status& why) {
  using State = Outgoing::State;
  const State state = send->state;
  const bool half_written =
      state != State::kWaiting && state != State::kRtsSent && TakeFrames(send);
  if (send->known() || (state == State::kSendingRts && half_written)) {
    BeforeData(
        {.type = PacketType::kWithdraw, .tag = send->envelope.tag.bits(), .message = send->message},
        {});
  }
  outgoing_.Fail(send, why);
}

void TcpSender::Revoke(Context theirs, const absl::Status& why) {
  outgoing_.ForEach([&](Outgoing* send) {
    if (send->envelope.tag.context() == theirs) {
      TakeBack(send, why);
    }
  });
}

void TcpSender::FailAll(const absl::Status& why) {
  outgoing_.ForEach([&](Outgoing* send) { TakeBack(send, why); });
  outgoing_.Clear();
  std::deque<FrameBeforeData> control;
  for (FrameBeforeData& frame : before_data_) {
    if (frame.header.type == PacketType::kControl) {
      control.push_back(std::move(frame));
    }
  }
  before_data_ = std::move(control);
}

}  // namespace entrain
