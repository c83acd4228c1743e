// Over one connection a pair through loopback. Every call is a few transfers a connection, what goes
// out and what comes in, all moved on together by one loop that never blocks: nobody who waits for
// one keeps another from coming.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include "bench/floor.h"
#include "bench/floor_rank.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain::perf {
namespace {

constexpr size_t kPiece = 256 << 10;       // of what is summed
constexpr size_t kTurn = 1 << 20;          // of one send or receive
constexpr size_t kCrowdedTurn = 48 << 10;  // of either, where ranks share cores and caches
// What goes whole to all others, or from all others to the root; more goes in shares. As was quickest
// on the Xeon of bench/README.md.
constexpr size_t kMostToAll = 128 << 10, kMostToRoot = 256 << 10;
constexpr size_t kMostPacked = 16 << 10;    // of all_to_all, with what others send
constexpr size_t kMostExpected = 32 << 10;  // ExpectAlone
constexpr int64_t kMeetingNs = 30 * kSecond;
// As the library's paths within a host: one that paces would take twice as long now and then, and
// what lies in the kernel stays in a cache.
constexpr char kCongestionControl[] = "reno";
constexpr int kSendBuffer = 512 << 10;

// TCP_QUICKACK. Data that go one way only are acknowledged by the receive that takes them, which so
// takes a microsecond longer, unless the connection is told that an answer will carry that (kLater);
// kNow sends what is owed.
constexpr int kLater = 0, kNow = 1;
void Acknowledge(const Fd& fd, int when) {
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_QUICKACK, &when, sizeof(when));
}

class TcpSubject final : public Subject, private FloorRank {
 public:
  // fds: a connection to each rank; the own place is empty.
  TcpSubject(std::vector<Fd> fds, int rank, bool crowded)
      : FloorRank(rank, static_cast<int>(fds.size()), crowded),
        turn_(crowded ? kCrowdedTurn : kTurn),
        piece_(std::min(turn_, kPiece)),
        wires_(fds.size()),
        pieces_(fds.size() * kPiece),
        sources_(fds.size()) {
    for (size_t k = 0; k < fds.size(); ++k) {
      wires_[k].fd = std::move(fds[k]);
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "tcp"; }
  std::string algorithm(const Case&) const override { return "floor"; }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    return Call(*this, measured, static_cast<const std::byte*>(in), static_cast<std::byte*>(out));
  }

 private:
  friend class FloorRank;  // Call
  // What is left to do on one connection, in this order.
  struct Wire {
    Fd fd;
    const std::byte* out = nullptr;
    size_t out_left = 0;
    size_t result_left = 0;  // of the own result, as far as it is there
    size_t addend_left = 0;  // to be added to the own result
    size_t piece_have = 0;   // of its piece that is added next
    std::byte* in = nullptr;
    size_t in_left = 0;
    bool in_is_result = false;
  };

  std::byte* PieceOf(int k) { return pieces_.data() + static_cast<size_t>(k) * kPiece; }

  // ---- What a call consists of

  void Send(int to, const std::byte* source, size_t bytes) {
    wires_[to].out = source;
    wires_[to].out_left = bytes;
    left_ += bytes;
  }
  void Receive(int from, std::byte* target, size_t bytes) {
    wires_[from].in_is_result = false;
    wires_[from].in = target;
    wires_[from].in_left = bytes;
    left_ += bytes;
  }
  // Before small data that are answered by none: what is owed for the last ones is sent while these
  // are on their way, and nothing by the receive.
  void ExpectAlone(int from, size_t bytes) {
    if (bytes > kMostExpected) {
      return;
    }
    if (!crowded_) {
      Acknowledge(wires_[from].fd, kNow);
    }
    Acknowledge(wires_[from].fd, kLater);
  }
  void ReceiveAlone(int from, std::byte* target, size_t bytes) {
    ExpectAlone(from, bytes);
    Receive(from, target, bytes);
  }
  // The own result, which SumHere or Receive brings forth and others may be sent.
  void SetResult(std::byte* result, size_t bytes) {
    result_ = result;
    result_bytes_ = bytes;
    result_done_ = 0;
  }
  void SendResult(int to) {
    wires_[to].result_left = result_bytes_;
    left_ += result_bytes_;
  }
  void ReceiveResult(int from) {
    Receive(from, result_, result_bytes_);
    wires_[from].in_is_result = true;
  }
  // The result is the sum of `own` and as much from every other rank.
  void SumHere(const std::byte* own) {
    own_ = own;
    for (int step = 1; step < ranks_; ++step) {
      wires_[Other(step)].addend_left = result_bytes_;
      left_ += result_bytes_;
    }
    pieces_missing_ = ranks_ - 1;
  }

  // ---- Doing it

  absl::Status Move() {
    while (left_ > 0) {
      const size_t before = left_;
      for (int step = 1; step < ranks_; ++step) {
        ENTRAIN_RETURN_IF_ERROR(SendSome(wires_[Other(step)]));
      }
      for (int step = 1; step < ranks_; ++step) {
        ENTRAIN_RETURN_IF_ERROR(ReceiveSome(Other(step)));
      }
      if (crowded_ && left_ == before) {
        sched_yield();
      }
    }
    return absl::OkStatus();
  }

  absl::Status SendSome(Wire& wire) {
    if (wire.out_left > 0) {
      ENTRAIN_ASSIGN_OR_RETURN(const size_t sent,
                               WriteSome(wire.fd.get(), wire.out, std::min(wire.out_left, turn_)));
      wire.out += sent;
      wire.out_left -= sent;
      left_ -= sent;
      return absl::OkStatus();
    }
    const size_t gone = result_bytes_ - wire.result_left;
    if (wire.result_left > 0 && gone < result_done_) {
      ENTRAIN_ASSIGN_OR_RETURN(const size_t sent, WriteSome(wire.fd.get(), result_ + gone,
                                                            std::min(result_done_ - gone, turn_)));
      wire.result_left -= sent;
      left_ -= sent;
    }
    return absl::OkStatus();
  }

  absl::Status ReceiveSome(int from) {
    Wire& wire = wires_[from];
    if (wire.addend_left > 0) {
      const size_t size = PieceBytes();
      if (wire.piece_have == size) {
        return absl::OkStatus();  // the others' pieces first
      }
      ENTRAIN_ASSIGN_OR_RETURN(
          const size_t got,
          ReadSome(wire.fd.get(), PieceOf(from) + wire.piece_have, size - wire.piece_have));
      wire.piece_have += got;
      left_ -= got;
      if (got > 0 && wire.piece_have == size && --pieces_missing_ == 0) {
        AddPieces(size);
      }
    } else if (wire.in_left > 0) {
      ENTRAIN_ASSIGN_OR_RETURN(const size_t got,
                               ReadSome(wire.fd.get(), wire.in, std::min(wire.in_left, turn_)));
      wire.in += got;
      wire.in_left -= got;
      left_ -= got;
      result_done_ += wire.in_is_result ? got : 0;
    }
    return absl::OkStatus();
  }

  size_t PieceBytes() const { return std::min(piece_, result_bytes_ - result_done_); }

  void AddPieces(size_t size) {
    for (int k = 0; k < ranks_; ++k) {
      sources_[k] = k == rank_ ? own_ + result_done_ : PieceOf(k);
      wires_[k].addend_left -= k == rank_ ? 0 : size;
      wires_[k].piece_have = 0;
    }
    Sum(result_ + result_done_, sources_.data(), ranks_, size);
    result_done_ += size;
    pieces_missing_ = ranks_ - 1;
  }

  // ---- The calls

  bool PowerOfTwo() const { return (ranks_ & (ranks_ - 1)) == 0; }
  static std::byte* PartOf(std::byte* memory, int k, size_t part) { return memory + At(k, part); }
  static const std::byte* PartOf(const std::byte* memory, int k, size_t part) {
    return memory + At(k, part);
  }

  // Everybody sums a share.
  void SumShares(const std::byte* source, std::byte* target, size_t bytes) {
    const auto [own, own_end] = ShareOf(rank_, bytes);
    SetResult(target + own, own_end - own);
    SumHere(source + own);
    for (int step = 1; step < ranks_; ++step) {
      const auto [first, last] = ShareOf(Other(step), bytes);
      Send(Other(step), source + first, last - first);
    }
  }

  absl::Status AllReduce(const std::byte* source, std::byte* target, size_t bytes) {
    if (Packed(bytes) > kMostToAll) {
      SumShares(source, target, bytes);
      for (int step = 1; step < ranks_; ++step) {
        const auto [first, last] = ShareOf(Other(step), bytes);
        Receive(Other(step), target + first, last - first);
        SendResult(Other(step));
      }
      return Move();
    }
    if (PowerOfTwo()) {
      return DoublingAllReduce(source, target, bytes);
    }
    SetResult(target, bytes);
    SumHere(source);
    for (int step = 1; step < ranks_; ++step) {
      Send(Other(step), source, bytes);
    }
    return Move();
  }

  absl::Status DoublingAllReduce(const std::byte* source, std::byte* target, size_t bytes) {
    for (int distance = 1; distance < ranks_; distance *= 2) {
      const int peer = rank_ ^ distance;
      Send(peer, source, bytes);
      Receive(peer, PieceOf(peer), bytes);
      ENTRAIN_RETURN_IF_ERROR(Move());
      const void* sources[] = {source, PieceOf(peer)};
      Sum(target, sources, 2, bytes);
      source = target;
    }
    return absl::OkStatus();
  }

  absl::Status HalvingReduceScatter(const std::byte* source, std::byte* target, size_t part) {
    int first = 0;  // part in `source`, and later in what is summed of it
    for (int distance = ranks_ / 2; distance > 0; distance /= 2) {
      const int peer = rank_ ^ distance, kept = rank_ & -distance;
      const size_t bytes = static_cast<size_t>(distance) * part;
      Send(peer, PartOf(source, (peer & -distance) - first, part), bytes);
      Receive(peer, PieceOf(peer), bytes);
      ENTRAIN_RETURN_IF_ERROR(Move());
      const void* sources[] = {PartOf(source, kept - first, part), PieceOf(peer)};
      std::byte* const sum = distance == 1 ? target : PieceOf(rank_);
      Sum(sum, sources, 2, bytes);
      source = sum;
      first = kept;
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const std::byte* source, std::byte* target, size_t part) {
    if (PowerOfTwo() && Packed(part) <= kMostToAll) {
      return HalvingReduceScatter(source, target, part);
    }
    SetResult(target, part);
    SumHere(PartOf(source, rank_, part));
    for (int step = 1; step < ranks_; ++step) {
      Send(Other(step), PartOf(source, Other(step), part), part);
    }
    return Move();
  }

  absl::Status Reduce(int root, const std::byte* source, std::byte* target, size_t bytes) {
    if (ranks_ == 2 || Packed(bytes) <= kMostToRoot) {
      if (rank_ != root) {
        Send(root, source, bytes);
        return Move();
      }
      SetResult(target, bytes);
      SumHere(source);
      for (int step = 1; step < ranks_; ++step) {
        ExpectAlone(Other(step), bytes);
      }
      return Move();
    }
    // Every rank has memory at `target`, though only the root's counts.
    SumShares(source, target, bytes);
    if (rank_ != root) {
      SendResult(root);
      return Move();
    }
    for (int step = 1; step < ranks_; ++step) {
      const auto [first, last] = ShareOf(Other(step), bytes);
      Receive(Other(step), target + first, last - first);
    }
    return Move();
  }

  absl::Status AllGather(const std::byte* source, std::byte* target, size_t part) {
    std::memcpy(PartOf(target, rank_, part), source, part);
    if (PowerOfTwo()) {
      for (int distance = 1; distance < ranks_; distance *= 2) {
        const int peer = rank_ ^ distance;
        const size_t bytes = static_cast<size_t>(distance) * part;
        Send(peer, distance == 1 ? source : PartOf(target, rank_ & -distance, part), bytes);
        Receive(peer, PartOf(target, peer & -distance, part), bytes);
        ENTRAIN_RETURN_IF_ERROR(Move());
      }
      return absl::OkStatus();
    }
    for (int step = 1; step < ranks_; ++step) {
      Send(Other(step), source, part);
      Receive(Other(step), PartOf(target, Other(step), part), part);
    }
    return Move();
  }

  // What is large goes out of the root once: everybody passes on a share to the others.
  absl::Status Broadcast(int root, std::byte* target, size_t bytes) {
    if (Packed(bytes) <= kMostToAll) {
      for (int step = 1; rank_ == root && step < ranks_; ++step) {
        Send(Other(step), target, bytes);
      }
      if (rank_ != root) {
        ReceiveAlone(root, target, bytes);
      }
      return Move();
    }
    const auto share_of = [&](int k) { return ShareOf(k < root ? k : k - 1, ranks_ - 1, bytes); };
    if (rank_ != root) {
      const auto [first, last] = share_of(rank_);
      SetResult(target + first, last - first);
      ReceiveResult(root);
    }
    for (int step = 1; step < ranks_; ++step) {
      const int k = Other(step);
      if (k == root) {
        continue;
      }
      const auto [first, last] = share_of(k);
      if (rank_ == root) {
        Send(k, target + first, last - first);
      } else {
        Receive(k, target + first, last - first);
        SendResult(k);
      }
    }
    return Move();
  }

  absl::Status Gather(int root, const std::byte* source, std::byte* target, size_t part) {
    if (rank_ != root) {
      Send(root, source, part);
      return Move();
    }
    std::memcpy(PartOf(target, rank_, part), source, part);
    for (int step = 1; step < ranks_; ++step) {
      ReceiveAlone(Other(step), PartOf(target, Other(step), part), part);
    }
    return Move();
  }

  absl::Status Scatter(int root, const std::byte* source, std::byte* target, size_t part) {
    if (rank_ != root) {
      ReceiveAlone(root, target, part);
      return Move();
    }
    for (int step = 1; step < ranks_; ++step) {
      Send(Other(step), PartOf(source, Other(step), part), part);
    }
    ENTRAIN_RETURN_IF_ERROR(Move());
    std::memcpy(target, PartOf(source, rank_, part), part);
    return absl::OkStatus();
  }

  // By one bit of the ranks after the other, all parts on their way to the other half together. Place
  // k has what goes to the ranks that are like k in the bits still to come, and is from those that are
  // like it in the others.
  absl::Status DoublingAllToAll(const std::byte* source, std::byte* target, size_t part) {
    std::memcpy(target, source, part * static_cast<size_t>(ranks_));
    const size_t half = part * static_cast<size_t>(ranks_ / 2);
    for (int distance = 1; distance < ranks_; distance *= 2) {
      const int peer = rank_ ^ distance;
      const auto each = [&](auto move) {
        int at = 0;
        for (int k = 0; k < ranks_; ++k) {
          if (((k ^ rank_) & distance) != 0) {
            move(PartOf(target, k, part), at++);
          }
        }
      };
      each([&](const std::byte* from, int at) {
        std::memcpy(PartOf(PieceOf(rank_), at, part), from, part);
      });
      Send(peer, PieceOf(rank_), half);
      Receive(peer, PieceOf(peer), half);
      ENTRAIN_RETURN_IF_ERROR(Move());
      each([&](std::byte* to, int at) { std::memcpy(to, PartOf(PieceOf(peer), at, part), part); });
    }
    return absl::OkStatus();
  }

  absl::Status AllToAll(const std::byte* source, std::byte* target, size_t part) {
    if (PowerOfTwo() && ranks_ > 2 && Packed(part) <= kMostPacked) {
      return DoublingAllToAll(source, target, part);
    }
    std::memcpy(PartOf(target, rank_, part), PartOf(source, rank_, part), part);
    for (int step = 1; step < ranks_; ++step) {
      Send(Other(step), PartOf(source, Other(step), part), part);
      Receive(Other(step), PartOf(target, Other(step), part), part);
    }
    return Move();
  }

  // Ranks 0 and 1, 2 and 3, ...; an odd one out does nothing.
  absl::Status PingPong(const std::byte* source, std::byte* target, size_t bytes) {
    const int peer = rank_ ^ 1;
    for (const int from : {std::min(rank_, peer), std::max(rank_, peer)}) {
      if (peer >= ranks_) {
        break;
      }
      if (rank_ == from) {
        Send(peer, source, bytes);
      } else {
        Receive(peer, target, bytes);
      }
      ENTRAIN_RETURN_IF_ERROR(Move());
    }
    return absl::OkStatus();
  }

  // A byte to a rank twice as far away each time.
  absl::Status Barrier() {
    for (int distance = 1; distance < ranks_; distance *= 2) {
      const int from = (rank_ - distance + ranks_) % ranks_;
      Send(Other(distance), PieceOf(rank_), 1);
      Receive(from, PieceOf(from), 1);
      ENTRAIN_RETURN_IF_ERROR(Move());
    }
    return absl::OkStatus();
  }

  const size_t turn_, piece_;
  std::vector<Wire> wires_;  // by rank; the own one is empty
  size_t left_ = 0;          // bytes, out and in, of the call
  std::vector<std::byte> pieces_;
  // What this rank brings forth, and of what.
  std::byte* result_ = nullptr;
  size_t result_bytes_ = 0, result_done_ = 0;
  const std::byte* own_ = nullptr;
  int pieces_missing_ = 0;
  std::vector<const void*> sources_;
};

class TcpFloor final : public Floor {
 public:
  absl::Status Start(int ranks) {
    ENTRAIN_ASSIGN_OR_RETURN(const Address any, Address::Parse("127.0.0.1:0"));
    for (int rank = 0; rank < ranks; ++rank) {
      ENTRAIN_ASSIGN_OR_RETURN(const Fd listener, Listen(any));
      ENTRAIN_ASSIGN_OR_RETURN(const Address address, LocalAddress(listener.get()));
      // A forked child closes the library's sockets, and ranks are children. A duplicate stays open.
      Fd kept(fcntl(listener.get(), F_DUPFD_CLOEXEC, 0));
      if (!kept.valid()) {
        return ErrnoStatus(errno, "duplicating a listener");
      }
      listeners_.push_back(std::move(kept));
      addresses_.push_back(address);
    }
    return absl::OkStatus();
  }

  // Everybody connects to those before it, and says who it is.
  absl::StatusOr<std::unique_ptr<Subject>> Join(int rank, bool crowded) override {
    const Stop stop{Deadline::After(kMeetingNs)};
    std::vector<Fd> fds(addresses_.size());
    for (int k = 0; k < rank; ++k) {
      ENTRAIN_ASSIGN_OR_RETURN(fds[k], Connect(addresses_[k], stop));
      ENTRAIN_RETURN_IF_ERROR(WriteFull(fds[k].get(), &rank, sizeof(rank), stop));
    }
    const int listener = listeners_[rank].get();
    for (size_t left = fds.size() - 1 - static_cast<size_t>(rank); left > 0; --left) {
      ENTRAIN_RETURN_IF_ERROR(WaitFd(listener, POLLIN, stop, "waiting for the other ranks"));
      ENTRAIN_ASSIGN_OR_RETURN(Fd fd, Accept(listener));
      int from = 0;
      ENTRAIN_RETURN_IF_ERROR(ReadFull(fd.get(), &from, sizeof(from), stop));
      fds[from] = std::move(fd);
    }
    for (const Fd& fd : fds) {
      (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, kCongestionControl,
                       sizeof(kCongestionControl) - 1);
      (void)setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
    }
    return std::make_unique<TcpSubject>(std::move(fds), rank, crowded);
  }

 private:
  std::vector<Fd> listeners_;
  std::vector<Address> addresses_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Floor>> MakeTcpFloor(int ranks) {
  auto floor = std::make_unique<TcpFloor>();
  ENTRAIN_RETURN_IF_ERROR(floor->Start(ranks));
  return floor;
}

}  // namespace entrain::perf
