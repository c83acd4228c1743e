// Delays links on a kernel without netem. Forwards frames between pairs of network interfaces, in
// both directions and in order. Each frame is DELAY_US microseconds late. Needs root. Must run in
// the network namespace of the interfaces:
//
//     delay-frames DELAY_US NEAR:FAR [NEAR:FAR...]
//
// Writes "ready" and a newline when it begins to forward. A signal ends it. It does not perform
// offloaded segmentation and checksums, so a large TCP segment is one frame here. Each direction
// holds at most 64 MiB. Frames beyond this limit are lost, as in a full router.
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr size_t kMostHeld = size_t{64} << 20;
constexpr int kBuffer = 64 << 20;
constexpr size_t kMostFrame = 10 + 14 + 4 + (64 << 10);  // offloads, Ethernet, VLAN, payload

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

struct Frame {
  int64_t due_ns;
  std::string bytes;
};

class Way {
 public:
  Way(int from, int to, int64_t delay_ns) : from_(from), to_(to), delay_ns_(delay_ns) {}
  int from() const { return from_; }
  int64_t due_ns() const { return frames_.empty() ? INT64_MAX : frames_.front().due_ns; }

  void Receive() {
    static std::array<char, kMostFrame> buffer;
    while (true) {
      const ssize_t got = recv(from_, buffer.data(), buffer.size(), MSG_TRUNC);
      if (got <= 0) {
        return;
      }
      const auto bytes = static_cast<size_t>(got);
      if (bytes <= buffer.size() && held_ + bytes <= kMostHeld) {
        frames_.push_back({NowNs() + delay_ns_, std::string(buffer.data(), bytes)});
        held_ += bytes;
      }
    }
  }
  void Send(int64_t now_ns) {
    while (due_ns() <= now_ns) {
      const std::string& frame = frames_.front().bytes;
      // If the other interface does not take the frame (it is down, or its queue is full), the
      // frame is lost.
      (void)!send(to_, frame.data(), frame.size(), 0);
      held_ -= frame.size();
      frames_.pop_front();
    }
  }

 private:
  int from_, to_;
  int64_t delay_ns_;
  std::deque<Frame> frames_;
  size_t held_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  char* end = nullptr;
  const long delay_us = argc > 2 ? std::strtol(argv[1], &end, 10) : -1;
  if (delay_us < 0 || end == argv[1] || *end != '\0') {
    std::fprintf(stderr, "usage: delay-frames DELAY_US NEAR:FAR [NEAR:FAR...]\n");
    return 2;
  }
  std::vector<Way> ways;
  for (int i = 2; i < argc; ++i) {
    const std::string pair = argv[i];
    const size_t colon = pair.find(':');
    if (colon == std::string::npos) {
      std::fprintf(stderr, "delay-frames: \"%s\" is not NEAR:FAR\n", argv[i]);
      return 2;
    }
    const int near = Open(pair.substr(0, colon)), far = Open(pair.substr(colon + 1));
    ways.emplace_back(near, far, delay_us * 1000);
    ways.emplace_back(far, near, delay_us * 1000);
  }
  std::puts("ready");
  std::fflush(stdout);
  std::vector<pollfd> waited;
  for (const Way& way : ways) {
    waited.push_back({way.from(), POLLIN, 0});
  }
  while (true) {
    int64_t due = INT64_MAX;
    for (const Way& way : ways) {
      due = way.due_ns() < due ? way.due_ns() : due;
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
