#include "transports/tcp/stream_keeper.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "transports/rendezvous_sender.h"

namespace entrain {
namespace {

// Bytes sent between two readings of the kernel's counters.
constexpr int64_t kMeasureEvery = 1 << 20;
// If more than one segment in so many is lost, each stream is slow, and more streams are perhaps
// faster. (FlightLimit avoids losses of this process's own making.)
constexpr int64_t kSegmentsALoss = 5000;

constexpr double kUsualBytesPerNs = 0.125, kUsualWindow = 15 << 18;
constexpr int kLeastStreams = 1;

// The part of a stream's id that STANDS carries.
uint64_t ShortId(const ConnectionId& id) {
  uint64_t part = 0;
  std::memcpy(&part, id.data(), sizeof(part));
  return part;
}

}  // namespace

int StreamsOfLongPath(int64_t round_trip_ns, int paths) {
  const double wanted = kUsualBytesPerNs * static_cast<double>(round_trip_ns) / kUsualWindow /
                        static_cast<double>(std::max(paths, 1));
  return static_cast<int>(std::clamp<double>(std::ceil(wanted), kLeastStreams, TcpStreams::kMost));
}

void StreamKeeper::Begin(bool dialer, int setting, bool one_host, int long_path) {
  dialer_ = dialer;
  enabled_ = setting != 1 && (setting > 1 || !one_host || long_path > 0);
  set_ = setting;
  long_path_ = setting == 0 && long_path > 0;
  if (long_path_) {
    choice_.Begin(long_path, TcpStreams::kMost);
  }
}

int StreamKeeper::Tend(int first) {
  if (!enabled_) {
    return 0;
  }
  if (set_ == 0) {
    Measure(first);
  }
  const int wanted = set_ > 0 ? set_ : choice_.streams();
  if (set_ > 0 || long_path_ || sendable_ >= wanted) {
    streams_.Use(std::min(wanted, sendable_));
  }
  if (!dialer_) {
    if (wanted > said_) {
      said_ = wanted;
      sender_.Want(wanted);
    }
    return 0;
  }
  const int more =
      std::min(std::max(wanted, asked_), TcpStreams::kMost) - streams_.count() - dialling_;
  if (!invited_ || gave_up_ || more <= 0) {
    return 0;
  }
  dialling_ += more;
  return more;
}

void StreamKeeper::Measure(int first) {
  if (choice_.streams() > sendable_) {
    return;
  }
  if (choice_.streams() != measured_) {
    measured_ = choice_.streams();
    last_ = streams_.Measure(first, measured_);
    last_large_ = sender_.large_bytes();
  }
  if (sender_.large_bytes() - last_large_ < kMeasureEvery) {
    return;
  }
  last_large_ = sender_.large_bytes();
  const TcpStreams::Progress now = streams_.Measure(first, measured_);
  const int64_t busy_ns = now.busy_ns - last_.busy_ns;
  const bool limited = now.full || now.window_ns - last_.window_ns > busy_ns / 4;
  // A loss beside a queue is due to too many bytes, and more streams would send more.
  const int64_t lost = now.queue ? 0 : now.repeated - last_.repeated;
  choice_.OnMeasured(now.bytes - last_.bytes, busy_ns, now.round_trip_ns,
                     limited || lost * kSegmentsALoss > now.segments - last_.segments);
  static std::atomic<bool> warned{false};
  if (long_path_ && limited && measured_ == TcpStreams::kMost && !warned.exchange(true)) {
    ENTRAIN_LOG(kWarning, "tcp: a long path is slower than its network, because the hosts' ",
                "net.ipv4.tcp_wmem and net.ipv4.tcp_rmem limit its ", measured_,
                " connections; raise their third numbers on both hosts (docs/tcp.md)");
  }
  last_ = now;
}

void StreamKeeper::OnWant(uint64_t streams) {
  invited_ = true;
  asked_ = static_cast<int>(std::min<uint64_t>(streams, TcpStreams::kMost));
}

absl::Status StreamKeeper::OnStands(uint64_t stream, uint64_t id) {
  const auto next = static_cast<uint64_t>(
      dialer_ ? streams_.count() + static_cast<int>(standing_.size()) : sendable_);
  const bool known =
      dialer_ ? static_cast<int>(standing_.size()) < dialling_ : sendable_ < streams_.count();
  if (!known || stream != next) {
    return BreachOfProtocol(absl::StrCat("stream ", stream, " stands, of which nobody knows"));
  }
  if (dialer_) {
    standing_.push_back(id);
    AddDialled();
  } else {
    ++sendable_;
  }
  return absl::OkStatus();
}

void StreamKeeper::OnDialled(Channel stream, const ConnectionId& id) {
  dialled_.emplace_back(ShortId(id), std::move(stream));
  AddDialled();
}

// Adds the streams that are established on both sides, in the order of their numbers.
void StreamKeeper::AddDialled() {
  while (!standing_.empty()) {
    const auto found = std::find_if(dialled_.begin(), dialled_.end(), [this](const auto& each) {
      return each.first == standing_.front();
    });
    if (found == dialled_.end()) {
      if (gave_up_) {  // the stream of this number has perhaps failed, and numbers cannot be skipped
        dialled_.clear();
      }
      return;
    }
    sender_.Stands(streams_.count(), found->first);
    streams_.Add(std::move(found->second));
    dialled_.erase(found);
    standing_.erase(standing_.begin());
    ++sendable_;
    --dialling_;
  }
}

void StreamKeeper::OnNotDialled() {
  gave_up_ = true;
  AddDialled();
}

bool StreamKeeper::OnAccepted(Channel stream, const ConnectionId& id) {
  if (!enabled_ || dialer_ || streams_.count() == TcpStreams::kMost) {
    return false;
  }
  sender_.Stands(streams_.count(), ShortId(id));
  streams_.Add(std::move(stream));
  return true;
}

}  // namespace entrain
