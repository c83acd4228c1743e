// plain-sockets times an exchange over plain tcp connections with the kernel's defaults, between the
// nodes of cluster.sh. --help has the details.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/way_calls.h"

namespace entrain {
namespace {

constexpr char kAbout[] =
    R"(Each two of N nodes send each other 2/N of BYTES at once, over CONNECTIONS tcp connections with
the kernel's defaults. So each node sends as much as in an all_reduce of BYTES, but waits for
nothing before it sends; two nodes send each other BYTES. Run it by bench/cluster.sh. A
connection that can take more takes the next piece of 64 KiB, so a slow connection does not hold
up the others by more than the kernel's send buffer. Writes JSON lines: the first exchange on
fresh connections, later ones (median), and one after silence. The time is from a common start
until all nodes have received all their bytes, and have given all their own to the kernel.
"retransmitted" and "segments" are those that node 0 sent in this line's calls
(TCP_INFO), "least_round_trip" is the kernel's, in seconds.
)";

constexpr size_t kPiece = size_t{64} << 10;

size_t PieceAt(size_t offset, size_t bytes) {
  return std::min(kPiece, bytes - offset);
}

// This is one connection. It sends the offset of a piece (8 bytes), and then the bytes of the piece.
class Connection {
 public:
  Connection(int fd, size_t bytes) : fd_(fd), bytes_(bytes) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  int fd() const { return fd_; }
  bool has_piece() const { return sends_; }

  // Sends, and takes further pieces from *next, until the kernel takes no more or no piece is left.
  void Send(const char* from, size_t* next) {
    while (sends_ || *next < bytes_) {
      if (!sends_) {
        sends_ = true;
        sending_ = *next;
        sent_ = 0;
        *next += PieceAt(*next, bytes_);
      }
      const size_t all = sizeof(sending_) + PieceAt(sending_, bytes_);
      iovec parts[2] = {{reinterpret_cast<char*>(&sending_) + std::min(sent_, sizeof(sending_)),
                         sizeof(sending_) - std::min(sent_, sizeof(sending_))},
                        {}};
      const size_t body = std::max(sent_, sizeof(sending_)) - sizeof(sending_);
      parts[1] = {const_cast<char*>(from) + sending_ + body, PieceAt(sending_, bytes_) - body};
      const ssize_t done = writev(fd_, parts, 2);
      if (done < 0) {
        Check();
        return;
      }
      sent_ += static_cast<size_t>(done);
      sends_ = sent_ < all;
    }
  }

  // Receives until nothing is there. Returns the number of bytes of the other node's data.
  size_t Receive(char* to) {
    size_t received = 0;
    while (true) {
      const bool in_head = got_ < sizeof(receiving_);
      char* const at = in_head ? reinterpret_cast<char*>(&receiving_) + got_
                               : to + receiving_ + (got_ - sizeof(receiving_));
      const size_t left = in_head ? sizeof(receiving_) - got_
                                  : sizeof(receiving_) + PieceAt(receiving_, bytes_) - got_;
      const ssize_t done = recv(fd_, at, left, 0);
      if (done == 0) {
        FailCall("the other node has ended");
      }
      if (done < 0) {
        Check();
        return received;
      }
      got_ += static_cast<size_t>(done);
      received += in_head ? 0 : static_cast<size_t>(done);
      if (in_head && got_ == sizeof(receiving_) && receiving_ >= bytes_) {
        FailCall("a piece is beyond the end");
      }
      if (!in_head && static_cast<size_t>(done) == left) {
        got_ = 0;
      }
    }
  }

 private:
  static void Check() {
    if (errno != EAGAIN && errno != EINTR) {
      FailCall(std::strerror(errno));
    }
  }

  int fd_;
  size_t bytes_;
  bool sends_ = false;
  uint64_t sending_ = 0, receiving_ = 0;  // offsets of the pieces
  size_t sent_ = 0, got_ = 0;             // of the pieces, with the offset in front
};

// Returns word number `at` of the bytes that node `rank` sends. The receiver checks it.
uint64_t WordAt(size_t at, int rank) {
  return at * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank);
}

// This is the exchange with one other node.
class Pair {
 public:
  Pair(int rank, int peer, size_t bytes)
      : peer_(peer), bytes_(bytes), mine_(bytes / 8), theirs_(bytes / 8) {
    for (size_t i = 0; i < mine_.size(); ++i) {
      mine_[i] = WordAt(i, rank);
    }
  }
  void Add(int fd) { connections_.emplace_back(fd, bytes_); }
  const std::vector<Connection>& connections() const { return connections_; }

  void Prepare() {
    std::fill(theirs_.begin(), theirs_.end(), 0);
    next_ = received_ = 0;
  }
  // Sends and receives what is possible without waiting. Returns true if all is done. Otherwise
  // adds what to wait for.
  bool Move(std::vector<pollfd>& waited) {
    for (Connection& one : connections_) {
      received_ += one.Receive(reinterpret_cast<char*>(theirs_.data()));
      one.Send(reinterpret_cast<const char*>(mine_.data()), &next_);
    }
    bool sends = next_ < bytes_;
    for (const Connection& one : connections_) {
      const bool more = one.has_piece() || next_ < bytes_;
      waited.push_back({one.fd(), static_cast<short>(POLLIN | (more ? POLLOUT : 0)), 0});
      sends = sends || more;
    }
    return received_ == bytes_ && !sends;
  }
  void Verify() const {
    for (size_t i = 0; i < theirs_.size(); ++i) {
      if (theirs_[i] != WordAt(i, peer_)) {
        FailCall("wrong bytes arrived");
      }
    }
  }

 private:
  int peer_;
  size_t bytes_;
  std::vector<uint64_t> mine_, theirs_;
  std::vector<Connection> connections_;
  size_t next_ = 0, received_ = 0;
};

class Sockets {
 public:
  Sockets(Nodes& nodes, size_t bytes, int count) {
    for (int peer = 0; peer < nodes.size(); ++peer) {
      pairs_.emplace_back(nodes.rank(), peer, bytes);
    }
    Connect(nodes, count);
    pairs_.erase(pairs_.begin() + nodes.rank());
  }

  void Prepare() {
    for (Pair& pair : pairs_) {
      pair.Prepare();
    }
  }
  void Run() {
    std::vector<pollfd> waited;
    while (true) {
      waited.clear();
      bool done = true;
      for (Pair& pair : pairs_) {
        done = pair.Move(waited) && done;
      }
      if (done) {
        return;
      }
      poll(waited.data(), waited.size(), -1);
    }
  }
  void Verify() const {
    for (const Pair& pair : pairs_) {
      pair.Verify();
    }
  }
  // Returns what TCP_INFO has counted since the last call of this function.
  nlohmann::ordered_json Found() {
    uint64_t again = 0, segments = 0;
    uint32_t least_us = UINT32_MAX;
    for (const Pair& pair : pairs_) {
      for (const Connection& one : pair.connections()) {
        tcp_info info{};
        socklen_t length = sizeof(info);
        getsockopt(one.fd(), IPPROTO_TCP, TCP_INFO, &info, &length);
        again += info.tcpi_total_retrans;
        segments += info.tcpi_data_segs_out;
        least_us = std::min(least_us, info.tcpi_min_rtt);
      }
    }
    return {{"retransmitted", again - std::exchange(again_, again)},
            {"segments", segments - std::exchange(segments_, segments)},
            {"least_round_trip", least_us * 1e-6}};
  }

 private:
  // A node connects to those below it, and says its number.
  void Connect(Nodes& nodes, int count) {
    const std::vector<std::string> addresses = nodes.Addresses();
    const int rank = nodes.rank(), above = nodes.size() - 1 - rank;
    const int listener =
        ListenAt(addresses[static_cast<size_t>(rank)], nodes.port(), std::max(1, above * count));
    for (int peer = 0; peer < rank; ++peer) {
      for (int i = 0; i < count; ++i) {
        const int fd = ConnectTo(addresses[static_cast<size_t>(peer)], nodes.port());
        if (write(fd, &rank, sizeof(rank)) != sizeof(rank)) {
          FailCall("the other node has ended");
        }
        pairs_[static_cast<size_t>(peer)].Add(fd);
      }
    }
    for (int i = 0; i < above * count; ++i) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = 0;
      if (recv(fd, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer) || peer <= rank ||
          peer >= nodes.size()) {
        FailCall("the other node has ended");
      }
      pairs_[static_cast<size_t>(peer)].Add(fd);
    }
    close(listener);
  }

  std::vector<Pair> pairs_;
  uint64_t again_ = 0, segments_ = 0;
};

int Main(int argc, char** argv) {
  CallOptions options;
  int bytes = 0, count = 0;
  CommandLine line(kAbout, "plain-sockets");
  line.RequiredWhole("BYTES", bytes, "a multiple of 8", 8, INT_MAX);
  line.RequiredWhole("CONNECTIONS", count, "between two nodes", 1, 1000);
  if (const std::optional<int> code = ParseCalls(line, argc, argv, options)) {
    return *code;
  }
  if (bytes % 8 != 0) {
    RefuseArgument("BYTES", std::to_string(bytes), "is not a multiple of 8");
  }
  Nodes nodes;
  // A share has whole words, and one at least.
  const auto all = static_cast<size_t>(nodes.size());
  const size_t share = std::max<size_t>(8, 2 * static_cast<size_t>(bytes) / all / 8 * 8);
  Sockets sockets(nodes, share, count);
  Exchange exchange;
  exchange.facts = {{"program", "plain-sockets"},
                    {"subject", "exchange"},
                    {"bytes", bytes},
                    {"connections", count}};
  exchange.sent = static_cast<double>(share * (all - 1));
  exchange.prepare = [&] { sockets.Prepare(); };
  exchange.call = [&] { sockets.Run(); };
  exchange.finish = [&] { sockets.Verify(); };
  exchange.found = [&] { return sockets.Found(); };
  TimeCalls(nodes, options, exchange);
  return 0;
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  return entrain::Main(argc, argv);
}
