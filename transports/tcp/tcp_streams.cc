#include "transports/tcp/tcp_streams.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <utility>

#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/net/channel.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

constexpr int64_t kBytesPerRead = 4 << 20;  // keeps one turn of the loop short

// On a long path: the smallest slice, and the time between two questions to the kernel.
constexpr int64_t kLeastSlice = 16 << 10;
constexpr int64_t kMeasureEvery = kMillisecond;
// Bytes wait in a queue if the smoothed round trip is longer than the shortest by this time, or by
// an eighth.
constexpr int64_t kQueueIsLong = 10 * kMillisecond;

// Returns the largest send buffer that this host gives to a connection.
uint32_t LargestSendBuffer() {
  const std::vector<std::string> numbers =
      absl::StrSplit(ReadIpSetting("tcp_wmem"), absl::ByAnyChar("\t "), absl::SkipEmpty());
  uint32_t largest = 0;
  return numbers.size() == 3 && absl::SimpleAtoi(numbers[2], &largest)
             ? largest
             : std::numeric_limits<uint32_t>::max();
}

// Returns true if the host's limit of a send buffer holds the connection back. (The counter
// tcpi_sndbuf_limited also has the time in which TCP_NOTSENT_LOWAT allows no more bytes.)
bool SendBufferIsFull(int fd) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t bytes = sizeof(memory);
  static const uint32_t largest = LargestSendBuffer();
  return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &bytes) == 0 &&
         memory[SK_MEMINFO_SNDBUF] >= largest &&
         memory[SK_MEMINFO_WMEM_QUEUED] > memory[SK_MEMINFO_SNDBUF] / 4 * 3;
}

// Calls `each(stream, at, bytes)` for every slice of a payload of `payload` bytes, in order.
template <typename Each>
void ForSlices(unsigned streams, int64_t payload, Each each) {
  const int64_t slices = std::popcount(streams);
  for (int64_t i = 0; streams != 0; ++i, streams &= streams - 1) {
    const int64_t at = payload * i / slices;
    each(std::countr_zero(streams), at, payload * (i + 1) / slices - at);
  }
}

}  // namespace

void TcpStreams::Add(Channel channel) {
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->channel = std::move(channel);
}

void TcpStreams::CloseAll() {
  streams_.clear();
  in_use_ = 0;
  expected_ = 0;
}

uint16_t TcpStreams::For(int64_t* whole_payload, bool whole) {
  if (long_path_) {
    return ForLongPath(whole_payload, whole);
  }
  const int64_t payload = *whole_payload;
  struct Free {
    int on_its_way, stream;
  };
  Free free[kMost];
  int count = 0;
  for (int i = 0; i < in_use_; ++i) {
    if (Idle(At(i))) {
      int on_its_way = 0;
      // if this call fails, the next write reports the error
      (void)ioctl(fd(i), SIOCOUTQ, &on_its_way);
      free[count++] = {on_its_way, i};
    }
  }
  const auto slices = static_cast<int>(std::min<int64_t>(in_use_, payload / kLeastPayload));
  if (2 * count < slices) {
    return 0;
  }
  std::sort(free, free + count,
            [](const Free& x, const Free& y) { return x.on_its_way < y.on_its_way; });
  unsigned chosen = 0;
  for (int i = 0; i < std::min(count, slices); ++i) {
    chosen |= 1u << free[i].stream;
  }
  return static_cast<uint16_t>(chosen);
}

uint16_t TcpStreams::ForLongPath(int64_t* payload, bool whole) {
  if (const int64_t now = Clock::Real().Now(); now - measured_ns_ >= kMeasureEvery) {
    measured_ns_ = now;
    MeasureWindows();
  }
  struct Candidate {
    int64_t room;
    int stream;
  };
  Candidate candidates[kMost];
  int count = 0;
  int64_t total = 0;
  for (int i = 0; i < in_use_; ++i) {
    const Window& now = At(i).now;
    const int64_t queued = now.under_way + now.unsent + now.given;
    // A few bytes beyond the window, so that the kernel never waits for this process.
    const int64_t room =
        now.window + std::clamp<int64_t>(now.window / 8, 2 * kLeastSlice, 8 * kLeastSlice) - queued;
    total += now.under_way + now.given;
    if (Idle(At(i)) && room >= kLeastSlice) {
      candidates[count++] = {room, i};
    }
  }
  full_ = count == 0 || total >= limit_.bytes();
  if (full_) {
    return 0;
  }
  std::sort(candidates, candidates + count,
            [](const Candidate& x, const Candidate& y) { return x.room > y.room; });
  const int most =
      static_cast<int>(std::clamp<int64_t>(*payload / kLeastSlice, 1, static_cast<int64_t>(count)));
  // Takes as few streams as hold the payload in their windows. If none do, as many as hold the most.
  int taken = 1;
  int64_t held = 0;
  for (int n = 1; n <= most && held < *payload; ++n) {
    if (const int64_t these = n * candidates[n - 1].room; these > held) {
      held = these;
      taken = n;
    }
  }
  if (whole) {
    taken = held < *payload ? most : taken;
  } else {
    *payload = std::min(*payload, held);
  }
  unsigned chosen = 0;
  for (int n = 0; n < taken; ++n) {
    chosen |= 1u << candidates[n].stream;
    At(candidates[n].stream).now.given += *payload / taken;
  }
  return static_cast<uint16_t>(chosen);
}

void TcpStreams::MeasureWindows() {
  int64_t under_way = 0, acknowledged = 0, smoothed_ns = 0, shortest_ns = 0;
  for (int i = 0; i < count(); ++i) {  // of all, because the number in use changes
    tcp_info info{};
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd(i), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
      continue;  // the next write reports the error
    }
    const int64_t segment = std::max<int64_t>(info.tcpi_snd_mss, 1);
    At(i).now = {.under_way = info.tcpi_unacked * segment,
                 .unsent = info.tcpi_notsent_bytes + static_cast<int64_t>(At(i).slice.size()),
                 .window = info.tcpi_snd_cwnd * segment};
    under_way += At(i).now.under_way;
    acknowledged += static_cast<int64_t>(info.tcpi_bytes_acked);
    if (info.tcpi_unacked > 0 && (smoothed_ns == 0 || info.tcpi_rtt * kMicrosecond < smoothed_ns)) {
      smoothed_ns = info.tcpi_rtt * kMicrosecond;
    }
    if (info.tcpi_min_rtt > 0 &&
        (shortest_ns == 0 || info.tcpi_min_rtt * kMicrosecond < shortest_ns)) {
      shortest_ns = info.tcpi_min_rtt * kMicrosecond;
    }
  }
  limit_.OnMeasured(measured_ns_, under_way, acknowledged, smoothed_ns, shortest_ns);
}

void TcpStreams::Give(uint16_t streams, Outgoing* send, ConstBytes payload) {
  ForSlices(streams, static_cast<int64_t>(payload.size()),
            [&](int stream, int64_t at, int64_t bytes) {
              Stream& to = At(stream);
              to.slice = payload.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
              to.whole = bytes;
              to.send = send;
              to.started = false;
            });
}

void TcpStreams::Start(uint16_t streams) {
  ForSlices(streams, 0, [&](int stream, int64_t, int64_t) { At(stream).started = true; });
}

bool TcpStreams::sending() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return !stream->slice.empty() || stream->send != nullptr || stream->channel.unsent();
  });
}

bool TcpStreams::due() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->due(); });
}

absl::StatusOr<int64_t> TcpStreams::Write(RendezvousSender* queue) {
  int64_t total = 0;
  for (const std::unique_ptr<Stream>& each : streams_) {
    Stream& stream = *each;
    if (!stream.channel.Flush()) {
      return ConnectionError(errno, "sending by a stream");
    }
    if (stream.due()) {
      queue->Taken(std::exchange(stream.send, nullptr), stream.whole);
    }
    if (stream.slice.empty() || !stream.started || !stream.writable) {
      continue;
    }
    const ssize_t written = stream.channel.Send(stream.slice.data(), stream.slice.size());
    if (written < 0) {
      if (!IsFatal(errno)) {
        stream.writable = !long_path_;
        continue;
      }
      return ConnectionError(errno, "sending by a stream");
    }
    total += written;
    stream.slice = stream.slice.subspan(static_cast<size_t>(written));
    stream.writable = !long_path_ || stream.slice.empty();
    if (stream.slice.empty()) {
      if (stream.due()) {
        queue->Taken(std::exchange(stream.send, nullptr), stream.whole);
      }
      stream.owned = std::string();
    }
  }
  return total;
}

bool TcpStreams::Disown(const Outgoing* send) {
  bool any = false;
  for (const std::unique_ptr<Stream>& each : streams_) {
    Stream& stream = *each;
    if (stream.send == send) {
      stream.owned.assign(reinterpret_cast<const char*>(stream.slice.data()), stream.slice.size());
      stream.slice = {reinterpret_cast<const std::byte*>(stream.owned.data()), stream.owned.size()};
      stream.send = nullptr;
      any = true;
    }
  }
  return any;
}

void TcpStreams::Expect(uint16_t streams, const PayloadPart& part) {
  ForSlices(streams, part.left, [&](int stream, int64_t at, int64_t bytes) {
    At(stream).expected.push_back({part.incoming, part.at + at, bytes});
    ++expected_;
  });
}

absl::StatusOr<int64_t> TcpStreams::Read(RendezvousReceiver* queue) {
  int64_t total = 0;
  for (const std::unique_ptr<Stream>& each : streams_) {
    Stream& stream = *each;
    while ((stream.readable || stream.channel.buffered()) && !stream.expected.empty() &&
           total < kBytesPerRead) {
      PayloadPart& part = stream.expected.front();
      const Bytes into = part.incoming->writable(part.at);
      const auto left = static_cast<size_t>(part.left);
      const ssize_t got = part.incoming->dropped() ? stream.channel.Discard(left)
                                                   : stream.channel.Receive(into.data(), left);
      if (got < 0) {
        if (!IsFatal(errno)) {
          stream.readable = !long_path_;
          break;
        }
        return ConnectionError(errno, "receiving by a stream");
      }
      if (got == 0) {
        return absl::UnavailableError("a stream was closed before all had come by it");
      }
      total += got;
      Incoming* const incoming = part.incoming;
      part.at += got;
      part.left -= got;
      const bool more = part.left > 0;
      if (!more) {
        stream.expected.pop_front();
        --expected_;
      }
      queue->Advance(incoming, got);
      if (more) {
        stream.readable = !long_path_;
        break;
      }
    }
  }
  return total;
}

void TcpStreams::SetReady(int fd) {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    if (stream->channel.fd() == fd) {
      stream->readable = stream->writable = true;
    }
  }
}

bool TcpStreams::buffered() const {
  return receiving() && std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
           return !stream->expected.empty() && stream->channel.buffered();
         });
}

void TcpStreams::ForgetExpected() {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    stream->expected.clear();
  }
  expected_ = 0;
}

bool TcpStreams::IsOver(int stream) const {
  char byte;
  const ssize_t got = recv(fd(stream), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && IsFatal(errno));
}

uint32_t TcpStreams::Interest(int stream) const {
  const Stream& of = At(stream);
  return (of.expected.empty() ? 0 : static_cast<uint32_t>(EPOLLIN)) |
         ((of.slice.empty() || !of.started) && !of.channel.unsent()
              ? 0
              : static_cast<uint32_t>(EPOLLOUT));
}

TcpStreams::Progress TcpStreams::Measure(int first, int streams) const {
  Progress progress{.full = true, .queue = true};
  const auto add = [&](int fd) {
    tcp_info info{};
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0) {
      progress.bytes += static_cast<int64_t>(info.tcpi_bytes_acked);
      progress.busy_ns =
          std::max(progress.busy_ns, static_cast<int64_t>(info.tcpi_busy_time) * kMicrosecond);
      progress.window_ns =
          std::max(progress.window_ns, static_cast<int64_t>(info.tcpi_rwnd_limited) * kMicrosecond);
      progress.full = progress.full && SendBufferIsFull(fd);
      progress.segments += info.tcpi_data_segs_out;
      progress.repeated += info.tcpi_total_retrans;
      const int64_t shortest = int64_t{info.tcpi_min_rtt} * kMicrosecond;
      progress.round_trip_ns = std::max(progress.round_trip_ns, shortest);
      progress.queue = progress.queue && int64_t{info.tcpi_rtt} * kMicrosecond >
                                             shortest + std::max(kQueueIsLong, shortest / 8);
    }
  };
  if (streams == 0) {
    add(first);
  }
  for (int i = 0; i < streams; ++i) {
    add(fd(i));
  }
  return progress;
}

}  // namespace entrain
