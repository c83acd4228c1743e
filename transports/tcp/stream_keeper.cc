#include "transports/tcp/stream_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "transports/rendezvous_sender.h"

namespace entrain {
namespace {

// Bytes sent between two readings of the kernel's counters.
constexpr int64_t kMeasureEvery = 1 << 20;

}  // namespace

void StreamKeeper::Begin(bool dialer, int setting, bool one_host) {
  dialer_ = dialer;
  enabled_ = setting != 1 && (setting > 1 || !one_host);
  set_ = setting;
}

bool StreamKeeper::Tend(int first) {
  if (!enabled_) {
    return false;
  }
  if (set_ == 0) {
    Measure(first);
  }
  const int wanted = set_ > 0 ? set_ : choice_.streams();
  if (set_ > 0 || sendable_ >= wanted) {
    streams_.Use(std::min(wanted, sendable_));
  }
  if (!dialer_) {
    if (wanted > said_) {
      said_ = wanted;
      sender_.Want(wanted);
    }
    return false;
  }
  const bool dial = invited_ && !dialling_ && !gave_up_ &&
                    streams_.count() < std::min(std::max(wanted, asked_), TcpStreams::kMost);
  dialling_ = dialling_ || dial;
  return dial;
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
  choice_.OnMeasured(now.bytes - last_.bytes, now.busy_ns - last_.busy_ns, now.round_trip_ns);
  last_ = now;
}

void StreamKeeper::OnWant(uint64_t streams) {
  invited_ = true;
  asked_ = static_cast<int>(std::min<uint64_t>(streams, TcpStreams::kMost));
}

absl::Status StreamKeeper::OnStands(uint64_t stream) {
  const int next = dialer_ ? streams_.count() : sendable_;
  const bool known = dialer_ ? dialling_ && !stands_ : next < streams_.count();
  if (!known || stream != static_cast<uint64_t>(next)) {
    return BreachOfProtocol(absl::StrCat("stream ", stream, " stands, of which nobody knows"));
  }
  if (dialer_) {
    stands_ = true;
    AddDialled();
  } else {
    ++sendable_;
  }
  return absl::OkStatus();
}

void StreamKeeper::OnDialled(Channel stream) {
  dialled_ = std::move(stream);
  AddDialled();
}

void StreamKeeper::AddDialled() {
  if (stands_ && dialled_.valid()) {
    sender_.Stands(streams_.count());
    streams_.Add(std::move(dialled_));
    ++sendable_;
    dialling_ = stands_ = false;
  }
}

bool StreamKeeper::OnAccepted(Channel stream) {
  if (!enabled_ || dialer_ || streams_.count() == TcpStreams::kMost) {
    return false;
  }
  sender_.Stands(streams_.count());
  streams_.Add(std::move(stream));
  return true;
}

}  // namespace entrain
