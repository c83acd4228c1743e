#include "transports/tcp/tcp_receiver.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/net/channel.h"

namespace entrain {
namespace {

constexpr int64_t kBytesPerRead = 4 << 20;  // keeps one turn of the loop short
// If more than kLargeRest bytes of a payload are missing, a read takes only a few bytes
// (kBesideLarge) after the payload.
constexpr int64_t kLargeRest = 32 << 10;
// After this many failed polls, arrived bytes are acknowledged. If processes share cores, the first
// polls fail because the sender has not run yet. An earlier acknowledgement would only take time
// from the sender.
constexpr int kLooks = 3;
constexpr size_t kBesideLarge = 4 * sizeof(PacketHeader);

}  // namespace

TcpReceiver::TcpReceiver(Endpoint* endpoint, Events* events, CompletionList* completions,
                         TcpSender* sender, StreamKeeper* keeper)
    : endpoint_(endpoint),
      events_(events),
      sender_(sender),
      queue_(endpoint, events, completions, sender),
      keeper_(keeper),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kFirstBuffer)) {}

void TcpReceiver::FailAll(const absl::Status& why) {
  queue_.FailAll(why);
  current_ = PayloadPart();
  keeper_->streams().ForgetExpected();
}

absl::StatusOr<int64_t> TcpReceiver::Read(Channel& from, bool frames) {
  int64_t total = 0;
  if (frames && !held_back()) {
    ENTRAIN_ASSIGN_OR_RETURN(total, ReadFrames(from));
  }
  if (!queue_.failed() && keeper_->streams().receiving()) {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t bytes, ReadStreams(from));
    total += bytes;
  }
  return total;
}

absl::StatusOr<int64_t> TcpReceiver::ReadFrames(Channel& from) {
  int64_t total = 0;
  bool drained = false;
  if (unparsed_) {
    total += static_cast<int64_t>(end_ - begin_);
    ENTRAIN_RETURN_IF_ERROR(Parse());
  }
  while (!drained && !queue_.failed() && !held_back_ && total < kBytesPerRead) {
    const absl::StatusOr<int64_t> bytes = ReadOnce(from, &drained);
    if (!bytes.ok() && keeper_->streams().receiving()) {
      ended_ = bytes.status();
      break;
    }
    ENTRAIN_RETURN_IF_ERROR(bytes.status());
    total += *bytes;
  }
  return total;
}

absl::StatusOr<int64_t> TcpReceiver::ReadStreams(Channel& from) {
  TcpStreams& streams = keeper_->streams();
  const absl::StatusOr<int64_t> bytes = streams.Read(&queue_);
  queue_.ReturnCredit();
  if (!bytes.ok()) {
    streams.ForgetExpected();  // a stream has failed, so no slice will arrive any more
  }
  if (streams.receiving()) {
    return *bytes;
  }
  ENTRAIN_RETURN_IF_ERROR(ended_);
  if (std::exchange(held_back_, false)) {
    ENTRAIN_RETURN_IF_ERROR(Parse());
  }
  if (!bytes.ok()) {
    bool drained = false;  // the peer's last frame on the first connection may give the reason
    ENTRAIN_RETURN_IF_ERROR(ReadOnce(from, &drained).status());
  }
  return bytes;
}

Endpoint::Next TcpReceiver::TryRecv(Channel& from, const Envelope& envelope, Bytes into) {
  using Next = Endpoint::Next;
  if (const MatchQueue::Kept kept = queue_.matching().TakeKept(envelope, into);
      kept != MatchQueue::Kept::kNothing) {
    queue_.ReturnCredit();
    return kept == MatchQueue::Kept::kWhole ? Next::kThis : Next::kOther;
  }
  const size_t lead = LeadBytes(checksums_);
  const size_t whole = lead + into.size();
  if (current_.incoming != nullptr || held_back() || whole > kBuffer) {
    return Next::kOther;
  }
  if (end_ - begin_ < whole) {
    Compact();
    if (capacity_ < whole) {
      GrowBuffer(whole);
    }
    const ssize_t got = from.Receive(buffer_.get() + end_, capacity_ - end_);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
      unparsed_ = true;
      looks_ = kLooks;
      written_ = sender_->written_bytes();
    } else if (got < 0 && looks_ > 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (--looks_ == 0) {
        AcknowledgeUnlessSent(from.fd());
      }
    } else if (got == 0 || IsFatal(errno)) {
      error_ = got == 0 ? 0 : errno;
      return Next::kOther;
    }
  }
  if (end_ - begin_ < lead) {
    return Next::kNothing;
  }
  PacketHeader header;
  if (!ParseHeader(&header) || header.type != PacketType::kEager || header.streams != 0 ||
      header.tag != envelope.tag.bits() || header.descriptor != envelope.descriptor ||
      header.bytes != static_cast<int64_t>(into.size()) || !CheckFrame(header).ok()) {
    return Next::kOther;
  }
  if (end_ - begin_ < whole) {
    return Next::kNothing;
  }
  // If this check fails, Read will report the error.
  if (!HasSum(buffer_.get() + begin_ + lead, into.size()) ||
      !sender_->outgoing().OnCredit(header.credit).ok()) {
    return Next::kOther;
  }
  if (!into.empty()) {
    std::memcpy(into.data(), buffer_.get() + begin_ + lead, into.size());
  }
  begin_ += whole;
  unparsed_ = begin_ < end_;
  if (!unparsed_) {
    begin_ = end_ = 0;
  }
  sender_->ReturnCredit(MatchQueue::CostOf(header.bytes));
  return Next::kThis;
}

// Normally the next message that this side sends also acknowledges the bytes that have arrived. If
// this process only receives, there is no such message. The kernel would then acknowledge only when
// this process reads the next message, but that message has not arrived yet. (Switching the option
// on and off sends one acknowledgement.)
void TcpReceiver::AcknowledgeUnlessSent(int fd) {
  if (written_ == sender_->written_bytes()) {
    for (const int quick : {1, 0}) {
      (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof(quick));
    }
  }
}

absl::StatusOr<int64_t> TcpReceiver::ReadOnce(Channel& from, bool* drained) {
  // The bytes of a dropped payload are read into the buffer and skipped there. (The buffer is empty
  // while a payload is under way.)
  const bool under_way = current_.incoming != nullptr;
  const bool direct = under_way && !current_.incoming->dropped();
  const int64_t rest = direct ? current_.left : 0;
  if (end_ == capacity_) {
    GrowBuffer(capacity_ + 1);  // the buffer holds the beginning of a text that is longer than the
                                // buffer
  }
  // After a large payload, the next message is probably large too, and it is faster to read its
  // payload directly into the receive's buffer. So in two cases this read takes only a few bytes
  // into the buffer: after the rest of a large payload, and for the next header after a large
  // payload.
  const bool at_header = !under_way && end_ < LeadBytes(checksums_);
  const bool large = direct ? rest > kLargeRest : at_header && last_bytes_ > kLargeRest;
  const size_t room = large ? kBesideLarge : capacity_ - end_;
  iovec parts[2];
  parts[0] = {direct ? current_.incoming->writable(current_.at).data() : nullptr,
              static_cast<size_t>(rest)};
  parts[1] = {buffer_.get() + end_, room};
  const int64_t got = from.Receive(direct ? parts : parts + 1, direct ? 2 : 1);
  if (got < 0) {
    *drained = true;
    if (!IsFatal(errno)) {
      return 0;
    }
    return ConnectionError(errno, "receiving");
  }
  if (got == 0) {
    // The kernel reports an error only once. An earlier call may have got it.
    if (const int error = error_ != 0 ? error_ : sender_->error(); error != 0 && error != EPIPE) {
      return ConnectionError(error, "receiving");
    }
    return AsPeerEnded(
        absl::UnavailableError("the connection was closed without a word (its process has ended)"));
  }
  *drained = got < rest + static_cast<int64_t>(room);
  end_ += static_cast<size_t>(std::max<int64_t>(got - rest, 0));
  if (under_way) {
    const int64_t moved = std::min(got, current_.left);
    begin_ += direct ? 0 : static_cast<size_t>(moved);
    ENTRAIN_RETURN_IF_ERROR(Moved(moved));
  }
  ENTRAIN_RETURN_IF_ERROR(Parse());
  queue_.ReturnCredit();
  if (!*drained && !large) {
    GrowBuffer(capacity_ + 1);  // more was available than the buffer could take
  }
  return got;
}

absl::Status TcpReceiver::Moved(int64_t bytes) {
  current_.at += bytes;
  current_.left -= bytes;
  Incoming* const incoming = current_.incoming;
  if (current_.left == 0) {
    current_ = PayloadPart();
    if (!incoming->dropped() &&
        !HasSum(incoming->writable(whole_.at).data(), static_cast<size_t>(whole_.left))) {
      return WrongChecksum();
    }
  }
  queue_.Advance(incoming, bytes);
  return absl::OkStatus();
}

bool TcpReceiver::ParseHeader(PacketHeader* header) {
  const std::byte* const at = buffer_.get() + begin_ + LeadBytes(checksums_) - sizeof(*header);
  std::memcpy(header, at, sizeof(*header));
  if (checksums_) {
    std::memcpy(&sums_, at - sizeof(sums_), sizeof(sums_));
  }
  return !checksums_ || Crc32c(header, sizeof(*header)) == sums_.header;
}

absl::Status TcpReceiver::Parse() {
  while (!queue_.failed()) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool more, ParseFrame());
    if (!more) {
      break;
    }
  }
  unparsed_ = false;
  Compact();  // less than a frame is left
  return absl::OkStatus();
}

// Moves the unparsed bytes to the beginning of the buffer, so that the next read has room.
void TcpReceiver::Compact() {
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

void TcpReceiver::GrowBuffer(size_t least) {
  size_t capacity = capacity_;
  while (capacity < std::min(least, kBuffer)) {
    capacity *= 2;
  }
  if (capacity > capacity_) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    std::memcpy(larger.get(), buffer_.get(), end_);
    buffer_ = std::move(larger);
    capacity_ = capacity;
  }
}

absl::StatusOr<bool> TcpReceiver::ParseFrame() {
  const size_t lead = LeadBytes(checksums_);
  if (current_.incoming != nullptr || end_ - begin_ < lead) {
    return false;
  }
  PacketHeader header;
  if (!ParseHeader(&header)) {
    return WrongChecksum();
  }
  ENTRAIN_RETURN_IF_ERROR(CheckFrame(header));
  const bool text = header.type == PacketType::kControl || header.type == PacketType::kClose;
  if (text && end_ - begin_ - lead < static_cast<size_t>(header.bytes)) {
    return false;  // a text is delivered as a whole; the buffer grows to hold it
  }
  held_back_ = (text || header.type == PacketType::kWithdraw) && keeper_->streams().receiving();
  if (held_back_) {
    return false;
  }
  begin_ += lead;
  ENTRAIN_RETURN_IF_ERROR(sender_->outgoing().OnCredit(header.credit));
  last_bytes_ = header.bytes > 0 ? header.bytes : last_bytes_;
  switch (header.type) {
    case PacketType::kEager:
      ENTRAIN_RETURN_IF_ERROR(OnMessage(header));
      return true;
    case PacketType::kData:
    case PacketType::kAhead:
      ENTRAIN_RETURN_IF_ERROR(OnData(header));
      return true;
    case PacketType::kControl:
    case PacketType::kClose:
      ENTRAIN_RETURN_IF_ERROR(OnText(header));
      return true;
    case PacketType::kWant:
      keeper_->OnWant(header.message);
      return true;
    case PacketType::kStands:
      ENTRAIN_RETURN_IF_ERROR(keeper_->OnStands(header.message, header.tag));
      return true;
    default:
      ENTRAIN_RETURN_IF_ERROR(queue_.OnPacket(header, &sender_->outgoing()));
      return true;
  }
}

absl::Status TcpReceiver::OnMessage(const PacketHeader& header) {
  const Envelope envelope{Tag::FromBits(header.tag), header.descriptor};
  const auto bytes = static_cast<size_t>(header.bytes);
  if (header.streams == 0 && end_ - begin_ >= bytes) {
    const ConstBytes payload(buffer_.get() + begin_, bytes);
    begin_ += bytes;
    if (!HasSum(payload.data(), payload.size())) {
      return WrongChecksum();
    }
    return queue_.matching().Deliver(envelope, payload);
  }
  ENTRAIN_ASSIGN_OR_RETURN(Incoming * incoming, queue_.matching().Begin(envelope, header.bytes));
  if (queue_.failed()) {
    return absl::OkStatus();  // an event closed the path, and `incoming` no longer exists
  }
  if (header.streams != 0) {
    incoming->Begin(header.bytes);
  }
  return Expect(header, {incoming, 0, header.bytes});
}

absl::Status TcpReceiver::OnData(const PacketHeader& header) {
  ENTRAIN_ASSIGN_OR_RETURN(const PayloadPart part,
                           header.type == PacketType::kAhead
                               ? queue_.OnAhead(header.message, header.bytes)
                               : queue_.OnData(header.message, header.bytes));
  return Expect(header, part);
}

absl::Status TcpReceiver::Expect(const PacketHeader& header, const PayloadPart& part) {
  TcpStreams& streams = keeper_->streams();
  if (std::bit_width(header.streams) > streams.count()) {
    return BreachOfProtocol(absl::StrCat("a payload by stream ", std::bit_width(header.streams),
                                         " of ", streams.count()));
  }
  if (header.streams != 0) {
    streams.Expect(header.streams, part);
    return absl::OkStatus();
  }
  current_ = whole_ = part;
  const size_t here = std::min(end_ - begin_, static_cast<size_t>(part.left));
  if (here > 0 && !part.incoming->dropped()) {
    std::memcpy(part.incoming->writable(part.at).data(), buffer_.get() + begin_, here);
  }
  begin_ += here;
  if (here > 0 || part.left == 0) {
    return Moved(static_cast<int64_t>(here));
  }
  return absl::OkStatus();
}

absl::Status TcpReceiver::OnText(const PacketHeader& header) {
  const absl::string_view text(reinterpret_cast<const char*>(buffer_.get() + begin_),
                               static_cast<size_t>(header.bytes));
  begin_ += text.size();
  if (!HasSum(text.data(), text.size())) {
    return WrongChecksum();
  }
  if (header.type == PacketType::kClose) {
    return AsPeerEnded(
        absl::UnavailableError(absl::StrCat("closed by the peer: ", CleanText(text))));
  }
  events_->OnControl(*endpoint_, text);
  return absl::OkStatus();
}

}  // namespace entrain
