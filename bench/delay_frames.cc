// delay-frames makes links long and bad on a kernel without netem. It forwards frames between pairs
// of network interfaces, in both directions. It needs root, and must run in the network namespace of
// the interfaces. --help has the details.
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "absl/strings/str_split.h"

#include "bench/frame_pieces.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"

namespace entrain {
namespace {

constexpr char kAbout[] =
    R"(Makes links long and bad: forwards frames between the network interfaces of each pair NEAR:FAR.
Each frame is DELAY_US microseconds late, in both directions. The options act only from NEAR to
FAR. So on a way through two pairs, out of one node and into another, each packet is drawn once.

A packet is what a real link would carry: a super-frame of segmentation offload counts as many, and
is cut around a packet that is lost or held back. Frames without an IP packet are never lost. Writes
"ready" and a newline when it begins to forward. SIGTERM ends it. Each direction holds at most
64 MiB. Frames beyond this limit are lost, as in a full router.
)";

constexpr size_t kMostHeld = size_t{64} << 20;
constexpr int kBuffer = 64 << 20;
constexpr size_t kMostFrame = 10 + 14 + 4 + (64 << 10);  // offloads, Ethernet, VLAN, payload
constexpr int64_t kHeldBackNs = 4'000'000, kSwayNs = 20'000'000;

volatile std::sig_atomic_t ended = 0;

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "delay-frames: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

// Opens a socket that receives the frames that arrive at an interface, but not those sent through
// it.
int Open(const std::string& interface) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    Fail("socket");
  }
  const int one = 1;
  packet_mreq promiscuous{};
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = promiscuous.mr_ifindex =
      static_cast<int>(if_nametoindex(interface.c_str()));
  promiscuous.mr_type = PACKET_MR_PROMISC;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kBuffer, sizeof(kBuffer));
  setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kBuffer, sizeof(kBuffer));
  if (address.sll_ifindex == 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof(promiscuous)) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Fail(interface);
  }
  return fd;
}

// These are the changes that a way makes to the packets of one direction. If all are zero, the way
// only delays packets.
struct Faults {
  double loss = 0, reorder = 0;  // shares, 0 to 1
  int64_t jitter_ns = 0;
};

// Draws packets with a probability. It draws the distance to the next one, so that a packet costs no
// random number.
class Draw {
 public:
  Draw(double share, std::mt19937_64& random) : share_(share), random_(&random) { Next(); }
  // Returns the number of packets before the next drawn one.
  uint64_t before() const { return before_; }
  void Pass(uint64_t packets) { before_ -= packets; }
  void Next() {
    before_ = share_ <= 0   ? UINT64_MAX
              : share_ >= 1 ? 0
                            : std::geometric_distribution<uint64_t>(share_)(*random_);
  }

 private:
  double share_;
  std::mt19937_64* random_;
  uint64_t before_ = 0;
};

// This is an extra delay that sways between 0 and a limit.
class Sway {
 public:
  Sway(int64_t most_ns, std::mt19937_64& random) : most_ns_(most_ns), random_(&random) {}
  int64_t At(int64_t now_ns) {
    if (most_ns_ == 0) {
      return 0;
    }
    if (now_ns >= until_ns_) {
      from_ns_ = to_ns_;
      to_ns_ = std::uniform_int_distribution<int64_t>(0, most_ns_)(*random_);
      until_ns_ = now_ns + kSwayNs;
    }
    return to_ns_ + (from_ns_ - to_ns_) * (until_ns_ - now_ns) / kSwayNs;
  }

 private:
  int64_t most_ns_;
  std::mt19937_64* random_;
  int64_t from_ns_ = 0, to_ns_ = 0, until_ns_ = 0;
};

struct Counts {
  uint64_t frames = 0, packets = 0, lost = 0, held_back = 0, overflowed = 0;
};

// This holds frames in the order in which they leave.
class Queue {
 public:
  int64_t due_ns() const { return frames_.empty() ? INT64_MAX : frames_.front().due_ns; }
  const std::string& front() const { return frames_.front().bytes; }
  void Pop() { frames_.pop_front(); }
  void Push(int64_t due_ns, std::string bytes) {
    if (!frames_.empty() && due_ns < frames_.back().due_ns) {
      due_ns = frames_.back().due_ns;
    }
    frames_.push_back({due_ns, std::move(bytes)});
  }

 private:
  struct Frame {
    int64_t due_ns;
    std::string bytes;
  };
  std::deque<Frame> frames_;
};

class Way {
 public:
  Way(int from, int to, int64_t delay_ns, const Faults& faults, std::mt19937_64& random)
      : from_(from),
        to_(to),
        delay_ns_(delay_ns),
        loss_(faults.loss, random),
        reorder_(faults.reorder, random),
        jitter_(faults.jitter_ns, random) {}
  int from() const { return from_; }
  const Counts& counts() const { return counts_; }
  int64_t due_ns() const { return std::min(in_order_.due_ns(), held_back_.due_ns()); }

  void Receive() {
    static std::array<char, kMostFrame> buffer;
    while (true) {
      const ssize_t got = recv(from_, buffer.data(), buffer.size(), MSG_TRUNC);
      if (got <= 0) {
        return;
      }
      const auto bytes = static_cast<size_t>(got);
      if (bytes <= buffer.size() && held_ + bytes <= kMostHeld) {
        Accept({buffer.data(), bytes});
      } else {
        ++counts_.overflowed;
      }
    }
  }
  void Send(int64_t now_ns) {
    Send(in_order_, now_ns);
    Send(held_back_, now_ns);
  }

 private:
  // Cuts the frame into packets that stay together, and packets that are lost or held back.
  void Accept(std::string_view frame) {
    const uint64_t packets = PacketsIn(frame);
    const int64_t now = NowNs(), due = now + delay_ns_ + jitter_.At(now);
    ++counts_.frames;
    counts_.packets += packets;
    for (uint64_t first = 0; first < packets;) {
      const uint64_t together = std::min({packets - first, loss_.before(), reorder_.before()});
      if (together > 0) {
        Push(in_order_, due, frame, first, together, packets);
        Pass(together);
        first += together;
        continue;
      }
      const bool loses = loss_.before() == 0;
      if (loses) {
        ++counts_.lost;
      } else {
        ++counts_.held_back;
        Push(held_back_, due + kHeldBackNs, frame, first, 1, packets);
      }
      Pass(1);
      ++first;
    }
    if (packets == 0) {
      Push(in_order_, due, frame, 0, 0, 0);
    }
  }
  void Pass(uint64_t packets) {
    for (Draw* draw : {&loss_, &reorder_}) {
      if (draw->before() == 0) {
        draw->Next();
      } else {
        draw->Pass(packets);
      }
    }
  }
  void Push(Queue& queue, int64_t due_ns, std::string_view frame, uint64_t first, uint64_t count,
            uint64_t packets) {
    std::string bytes = count == packets ? std::string(frame) : Piece(frame, first, count);
    held_ += bytes.size();
    queue.Push(due_ns, std::move(bytes));
  }
  void Send(Queue& queue, int64_t now_ns) {
    while (queue.due_ns() <= now_ns) {
      // If the other interface does not take the frame (it is down, or its queue is full), the
      // frame is lost.
      (void)!send(to_, queue.front().data(), queue.front().size(), 0);
      held_ -= queue.front().size();
      queue.Pop();
    }
  }

  int from_, to_;
  int64_t delay_ns_;
  Draw loss_, reorder_;
  Sway jitter_;
  Queue in_order_, held_back_;
  size_t held_ = 0;
  Counts counts_;
};

struct Options {
  Faults faults;
  int seed = 1, delay_us = 0;
  std::string counts;
  std::vector<std::pair<std::string, std::string>> pairs;
};

// Returns nullopt if the program shall continue, otherwise its exit code.
std::optional<int> Understand(int argc, char** argv, Options& options) {
  double loss = 0, reorder = 0, jitter_ms = 0;
  std::string pairs;
  CommandLine line(kAbout, "delay-frames");
  line.Real("--loss", loss, "percent of the packets are lost (0)", 0, 100);
  line.Real("--reorder", reorder,
            "percent of the packets are held back by 4 ms, behind later ones (0)", 0, 100);
  line.Real("--jitter", jitter_ms,
            "packets are up to so many ms late; this varies within 20 ms, and keeps the order (0)",
            0, 1e5);
  line.Whole("--seed", options.seed, "of these draws (1)", 0, INT_MAX);
  line.Text("--counts", options.counts,
            "at the end, write the numbers of packets, lost and held back, to FILE as JSON");
  line.RequiredWhole("DELAY_US", options.delay_us, "of each frame", 0, INT_MAX);
  line.RequiredText("PAIRS", pairs, "NEAR:FAR[,NEAR:FAR...]");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return code;
  }
  options.faults = {loss / 100, reorder / 100, static_cast<int64_t>(jitter_ms * 1e6)};
  for (const absl::string_view pair : absl::StrSplit(pairs, ',')) {
    options.pairs.push_back(absl::StrSplit(pair, ':'));
    if (options.pairs.back().second.empty()) {
      std::fprintf(stderr, "delay-frames: PAIRS: \"%s\" is not NEAR:FAR\n",
                   std::string(pair).c_str());
      return 2;
    }
  }
  return std::nullopt;
}

void WriteCounts(const std::string& path, const std::vector<Way>& ways) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    Fail(path);
  }
  // Packets count once, where the options act: ways alternate between out and in.
  Counts out;
  uint64_t overflowed = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    const Counts& one = ways[i].counts();
    overflowed += one.overflowed;
    if (i % 2 == 0) {
      out.frames += one.frames;
      out.packets += one.packets;
      out.lost += one.lost;
      out.held_back += one.held_back;
    }
  }
  const nlohmann::ordered_json counts{{"frames", out.frames},
                                      {"packets", out.packets},
                                      {"lost", out.lost},
                                      {"held_back", out.held_back},
                                      {"overflowed_frames", overflowed}};
  std::fprintf(file, "%s\n", counts.dump().c_str());
  std::fclose(file);
}

void Forward(std::vector<Way>& ways) {
  std::vector<pollfd> waited;
  for (const Way& way : ways) {
    waited.push_back({way.from(), POLLIN, 0});
  }
  while (ended == 0) {
    int64_t due = INT64_MAX;
    for (const Way& way : ways) {
      due = std::min(due, way.due_ns());
    }
    const int64_t left = due == INT64_MAX ? 1'000'000'000 : due - NowNs();
    const timespec time_limit{left > 0 ? left / 1'000'000'000 : 0,
                              left > 0 ? left % 1'000'000'000 : 0};
    if (ppoll(waited.data(), waited.size(), &time_limit, nullptr) < 0 && errno != EINTR) {
      Fail("ppoll");
    }
    for (Way& way : ways) {
      way.Receive();
      way.Send(NowNs());
    }
  }
}

int Main(int argc, char** argv) {
  Options options;
  if (const std::optional<int> code = Understand(argc, argv, options)) {
    return *code;
  }
  const int64_t delay_ns = options.delay_us * int64_t{1000};
  std::signal(SIGTERM, [](int) { ended = 1; });
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  std::vector<Way> ways;
  for (const auto& [near_name, far_name] : options.pairs) {
    const int near = Open(near_name), far = Open(far_name);
    ways.emplace_back(near, far, delay_ns, options.faults, random);
    ways.emplace_back(far, near, delay_ns, Faults{}, random);
  }
  std::puts("ready");
  std::fflush(stdout);
  Forward(ways);
  if (!options.counts.empty()) {
    WriteCounts(options.counts, ways);
  }
  return 0;
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  return entrain::Main(argc, argv);
}
