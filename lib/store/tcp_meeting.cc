#include "lib/store/tcp_meeting.h"

#include <limits>
#include <optional>
#include <utility>

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr size_t kReadStep = 64 << 10;

// Returns the smallest round trip time that the kernel has measured; 0: unknown, or a local socket.
int64_t RoundTripNs(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  const bool known = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
                     info.tcpi_min_rtt != std::numeric_limits<uint32_t>::max();
  return known ? info.tcpi_min_rtt * kMicrosecond : 0;
}

class TcpMeeting final : public StoreMeeting {
 public:
  TcpMeeting(Channel channel, std::string url, std::string key, bool serves, Deadline by)
      : channel_(std::move(channel)),
        url_(std::move(url)),
        key_(std::move(key)),
        serves_(serves),
        by_(by) {}

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    ENTRAIN_RETURN_IF_ERROR(ReadUntil(stop, [this] { return table_.has_value(); }));
    return *std::exchange(table_, std::nullopt);
  }

  absl::Status Check() override {
    bool more = true;
    while (more && over_.ok() && !ended_) {
      Receive(&more);
    }
    return over_;
  }

  void Fail(const absl::Status& why) override {
    Say(StoreOp::kFail, EncodeStatus(why), {LastWordBy(by_)});
  }

  void Finish() override {
    const Stop stop{LastWordBy(by_)};
    Say(StoreOp::kFinish, "", stop);
    if (serves_) {
      // The server first tells the other ranks that the store may end, and then answers this rank.
      // This process must not end before that.
      ReadUntil(stop, [this] { return told_server_ && server_rank_ < 0; }).IgnoreError();
    }
  }

  absl::StatusOr<std::vector<int>> Absent(const Stop& stop) override {
    const Stop later{Deadline::From(stop.deadline.at_ns, 2 * RoundTripNs(channel_.fd())),
                     stop.cancelled};
    absent_.reset();
    Say(StoreOp::kAbsent, "", later);
    ENTRAIN_RETURN_IF_ERROR(ReadUntil(later, [this] { return absent_.has_value(); }));
    return *absent_;
  }

 private:
  // Ignores errors: if the server is gone, a later read detects that.
  void Say(StoreOp op, std::string value, const Stop& stop) {
    StoreRequest request;
    request.op = op;
    request.key = key_;
    request.value = std::move(value);
    const std::string frame = Writer().PutText(EncodeRequest(request)).Take();
    WriteFull(channel_, frame.data(), frame.size(), stop).IgnoreError();
  }

  template <typename Predicate>
  absl::Status ReadUntil(const Stop& stop, const Predicate& found) {
    const std::string what = absl::StrCat("store ", url_, ": meeting ", key_);
    while (!found()) {
      ENTRAIN_RETURN_IF_ERROR(over_);
      if (ended_) {
        return absl::UnavailableError(absl::StrCat(what, ": the server was closed"));
      }
      bool more = false;
      Receive(&more);
      if (!more && over_.ok() && !ended_ && !found()) {
        ENTRAIN_RETURN_IF_ERROR(WaitFd(channel_.fd(), POLLIN, stop, what));
      }
    }
    return absl::OkStatus();
  }

  // Reads the available bytes and handles the complete messages. Sets `*more` to true if more bytes
  // may be available now.
  void Receive(bool* more) {
    const size_t had = in_.size();
    in_.resize(had + kReadStep);
    const auto got = ReadSome(channel_, in_.data() + had, kReadStep);
    in_.resize(had + (got.ok() ? *got : 0));
    *more = got.ok() && *got > 0;
    TakeFrames();
    if (!got.ok()) {
      ended_ = true;
      // A server that runs in no rank's process may end once all ranks have joined.
      if (over_.ok() && (server_rank_ >= 0 || (!told_server_ && !table_seen_))) {
        over_ = ServerEnded(url_, server_rank_);
      }
    }
  }

  void TakeFrames() {
    size_t at = 0;
    while (over_.ok() && in_.size() - at >= kLengthBytes) {
      const absl::string_view rest = absl::string_view(in_).substr(at);
      const auto bytes = Reader(rest).Get<uint32_t>();
      if (rest.size() - kLengthBytes < bytes) {
        break;
      }
      Act(rest.substr(kLengthBytes, bytes));
      at += kLengthBytes + bytes;
    }
    in_.erase(0, at);
  }

  void Act(absl::string_view body) {
    if (!body.empty() && static_cast<uint8_t>(body[0]) < static_cast<uint8_t>(NewsKind::kTable)) {
      const absl::Status refused = DecodeReply(body).status();
      over_ = refused.ok() ? absl::DataLossError("an answer that was not asked for") : refused;
      over_ = Annotate(over_, absl::StrCat("store ", url_, ": meeting ", key_));
      return;
    }
    absl::StatusOr<News> news = DecodeNews(body);
    if (!news.ok()) {
      over_ = Annotate(news.status(), absl::StrCat("store ", url_, ": meeting ", key_));
    } else if (news->kind == NewsKind::kTable) {
      table_ = std::move(news->table);
      table_seen_ = true;
    } else if (news->kind == NewsKind::kFailed) {
      over_ = news->failure;
    } else if (news->kind == NewsKind::kAbsent) {
      absent_ = std::move(news->absent);
    } else {
      server_rank_ = news->server_rank;
      told_server_ = true;
    }
  }

  Channel channel_;
  const std::string url_, key_;
  const bool serves_;
  const Deadline by_;
  std::string in_;
  std::optional<std::vector<Parts>> table_;
  bool table_seen_ = false;
  std::optional<std::vector<int>> absent_;
  int32_t server_rank_ = -1;
  bool told_server_ = false;
  bool ended_ = false;  // the connection has ended
  absl::Status over_;
};

}  // namespace

std::unique_ptr<StoreMeeting> OnConnection(Channel channel, std::string url, std::string key,
                                           bool serves, Deadline by) {
  return std::make_unique<TcpMeeting>(std::move(channel), std::move(url), std::move(key), serves,
                                      by);
}

}  // namespace entrain
