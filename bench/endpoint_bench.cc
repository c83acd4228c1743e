// endpoint_bench: measures one transport's endpoints between two cores, without engine, schedules
// or C API. Prints the time of one message in one direction (half of a round trip), and the rate of
// messages in a row.
//
//   inproc       two threads of one process
//   shm          two processes; large messages are read from the sender's memory
//   shm-pushed   like shm, but without reads of the sender's memory: all bytes go through the rings
//   tcp          two processes, over loopback
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/perf/cores.h"
#include "tools/perf/statistics.h"
#include "transports/registry.h"
#include "transports/shm/shm_transport.h"

namespace entrain::perf {
namespace {

constexpr int64_t kTimeLimitNs = 60 * kSecond;           // for one message
constexpr int kWindow = 8;                               // messages in flight at once
constexpr int kBursts = 31, kLongBursts = 5, kRows = 5;  // repetitions; the median is printed
constexpr int kMostTrips = 2000, kLeastInRow = 16, kMostInRow = 20000;
constexpr Context kContext = 1;
constexpr char kPushed[] = "shm-pushed";

struct Options {
  std::vector<std::string> transports{"inproc", "shm", kPushed, "tcp"};
  int64_t min_bytes = 8, max_bytes = 64 << 20;
  int factor = 4;
  double budget_s = 0.1;
  std::string json;
};

// The next task, which side 0 sends to side 1.
struct Order {
  enum Kind : int32_t { kPingPong, kInRow, kEnd };
  Kind kind = kEnd;
  int32_t messages = 0;
  int64_t bytes = 0;
};

struct Transfer final : Completion {
  Transfer() {
    done = [](Completion* self, const absl::Status& result, int64_t) {
      auto* const transfer = static_cast<Transfer*>(self);
      transfer->open = false;
      transfer->status = result;
    };
  }
  bool open = false;
  absl::Status status;
};

// One of the two sides. `line` is a socket between the sides for orders and addresses. The
// transport does not use it.
class Side final : public Events {
 public:
  Side(int me, int line) : me_(me), line_(line) {}
  ~Side() override {
    if (path_ != nullptr) {
      path_->Close(absl::AbortedError("the end"));
      transport_->Poll();
    }
  }
  absl::Status Join(const std::string& name, int64_t most_bytes);

  absl::Status Tell(const Order& order) const;
  absl::StatusOr<Order> Hear() const;
  // Executes an order. The other side must execute the same order. Returns the duration in
  // nanoseconds.
  absl::StatusOr<int64_t> Do(const Order& order);
  // Compares the last received message with the bytes that the other side sends.
  absl::Status Check(int64_t bytes) const;

  bool Accepts(Context) override { return true; }
  void OnEarly(Endpoint&, const Envelope&) override {}
  void OnControl(Endpoint&, absl::string_view) override {}
  void OnLost(Endpoint&, const absl::Status& why) override { lost_ = why; }

 private:
  static std::byte Pattern(int side, int64_t i) {
    return static_cast<std::byte>(i * 131 + side * 57 + (i >> 9));
  }
  static Envelope Message(int64_t bytes) {
    return {Tag(kContext, 0, 0, Tag::kPointToPoint),
            {.kind = CallKind::kSend, .dtype = static_cast<uint8_t>(DType::kU8), .count = bytes}};
  }
  void Send(int64_t bytes, Transfer& transfer) {
    transfer.open = true;
    path_->PostSend(Message(bytes), {out_.data(), static_cast<size_t>(bytes)}, &transfer);
  }
  void Receive(int64_t bytes, Transfer& transfer) {
    transfer.open = true;
    path_->PostRecv(Message(bytes), {in_.data(), static_cast<size_t>(bytes)}, &transfer);
  }
  absl::Status Await(const Transfer& transfer);
  absl::Status PingPong(const Order& order);
  absl::Status InRow(const Order& order);

  const int me_, line_;
  std::vector<std::byte> out_, in_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> path_;
  absl::Status lost_;
};

absl::StatusOr<std::unique_ptr<Transport>> Create(const std::string& name,
                                                  const TransportConfig& config, Events* events) {
  if (name == kPushed) {
    return shm::CreateTransport(config, events, {.limits = {}, .pull = false});
  }
  for (const TransportFactory& factory : TransportRegistry()) {
    if (name == factory.name) {
      return factory.create(config, events);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("no transport is called ", name));
}

absl::Status Side::Join(const std::string& name, int64_t most_bytes) {
  out_.resize(static_cast<size_t>(most_bytes));
  in_.resize(static_cast<size_t>(most_bytes));
  for (int64_t i = 0; i < most_bytes; ++i) {
    out_[static_cast<size_t>(i)] = Pattern(me_, i);
  }
  TransportConfig config;
  config.self.fill(static_cast<uint8_t>(me_ + 1));
  config.host_id = "endpoint_bench";
  ENTRAIN_ASSIGN_OR_RETURN(transport_, Create(name, config, this));
  const std::string mine = transport_->address();
  char theirs[1025] = "";
  if (send(line_, mine.data(), mine.size(), MSG_NOSIGNAL) < 0 ||
      recv(line_, theirs, sizeof(theirs) - 1, 0) <= 0) {
    return ErrnoStatus(errno, "cannot exchange addresses with the other side");
  }
  PeerId peer;
  peer.fill(static_cast<uint8_t>(2 - me_));
  ENTRAIN_ASSIGN_OR_RETURN(path_, transport_->Connect(peer, theirs));
  return absl::OkStatus();
}

absl::Status Side::Tell(const Order& order) const {
  return send(line_, &order, sizeof(order), MSG_NOSIGNAL) == sizeof(order)
             ? absl::OkStatus()
             : ErrnoStatus(errno, "cannot reach the other side");
}

absl::StatusOr<Order> Side::Hear() const {
  Order order;
  pollfd wait{line_, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(kTimeLimitNs / kMillisecond)) != 1 ||
      recv(line_, &order, sizeof(order), 0) != sizeof(order)) {
    return absl::UnavailableError("the other side has ended");
  }
  return order;
}

absl::Status Side::Await(const Transfer& transfer) {
  constexpr int kPollsPerLook = 1 << 16;  // polls between two looks at the clock
  Deadline end;
  for (int64_t i = 1; transfer.open; ++i) {
    transport_->Poll();
    if (!lost_.ok()) {
      return lost_;
    }
    if (i % kPollsPerLook == 0) {
      const int64_t now = Clock::Real().Now();
      end = i == kPollsPerLook ? Deadline::From(now, kTimeLimitNs) : end;
      if (end.Passed(now)) {
        return absl::DeadlineExceededError("a message did not come within a minute");
      }
    }
  }
  return transfer.status;
}

absl::Status Side::PingPong(const Order& order) {
  Transfer sent, received;
  for (int i = 0; i < order.messages; ++i) {
    Receive(order.bytes, received);
    if (me_ == 1) {
      ENTRAIN_RETURN_IF_ERROR(Await(received));
    }
    Send(order.bytes, sent);
    if (me_ == 0) {
      ENTRAIN_RETURN_IF_ERROR(Await(received));
    }
    ENTRAIN_RETURN_IF_ERROR(Await(sent));
  }
  return absl::OkStatus();
}

// Sends messages from side 0 to side 1; at the end side 1 returns one byte.
absl::Status Side::InRow(const Order& order) {
  Transfer window[kWindow], last;
  for (int i = 0; i < order.messages + kWindow; ++i) {
    Transfer& next = window[i % kWindow];
    if (i >= kWindow) {
      ENTRAIN_RETURN_IF_ERROR(Await(next));
    }
    if (i < order.messages) {
      me_ == 0 ? Send(order.bytes, next) : Receive(order.bytes, next);
    }
  }
  me_ == 0 ? Receive(1, last) : Send(1, last);
  return Await(last);
}

absl::StatusOr<int64_t> Side::Do(const Order& order) {
  const int64_t start = Clock::Real().Now();
  ENTRAIN_RETURN_IF_ERROR(order.kind == Order::kPingPong ? PingPong(order) : InRow(order));
  return Clock::Real().Now() - start;
}

absl::Status Side::Check(int64_t bytes) const {
  for (int64_t i = 0; i < bytes; ++i) {
    if (in_[static_cast<size_t>(i)] != Pattern(1 - me_, i)) {
      return absl::DataLossError(absl::StrCat("byte ", i, " of ", bytes, " is wrong"));
    }
  }
  return absl::OkStatus();
}

struct Figures {
  double one_way_us = 0, least_us = 0, in_a_row_gbs = 0;
};

// Side 0, which gives the orders.
class Leader {
 public:
  Leader(Side& side, const Options& options) : side_(side), budget_ns_(options.budget_s * 1e9) {}

  absl::StatusOr<Figures> Measure(int64_t bytes) {
    ENTRAIN_RETURN_IF_ERROR(Do({Order::kPingPong, 1, bytes}).status());
    ENTRAIN_RETURN_IF_ERROR(side_.Check(bytes));
    ENTRAIN_ASSIGN_OR_RETURN(const double estimate, Do({Order::kPingPong, 3, bytes}));
    const int trips = Fitting(budget_ns_ / 2 / kBursts / estimate, 1, kMostTrips);
    const int bursts = estimate * kBursts > budget_ns_ ? kLongBursts : kBursts;
    std::vector<double> times, rates;
    for (int i = 0; i < bursts; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(const double trip, Do({Order::kPingPong, trips, bytes}));
      times.push_back(trip / 2 * 1e-3);
    }
    const int row = Fitting(budget_ns_ / 2 / kRows / estimate, kLeastInRow, kMostInRow);
    for (int i = 0; i < kRows; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(const double each, Do({Order::kInRow, row, bytes}));
      rates.push_back(static_cast<double>(bytes) / each);
    }
    const Sample trips_us(std::move(times));
    return Figures{trips_us.median(), trips_us.least(), Median(std::move(rates))};
  }
  absl::Status End() { return side_.Tell({}); }

 private:
  static int Fitting(double wanted, int least, int most) {
    return static_cast<int>(std::clamp<double>(wanted, least, most));
  }
  // Returns the nanoseconds per message.
  absl::StatusOr<double> Do(const Order& order) {
    ENTRAIN_RETURN_IF_ERROR(side_.Tell(order));
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t took, side_.Do(order));
    return static_cast<double>(took) / order.messages;
  }

  Side& side_;
  const double budget_ns_;
};

absl::Status Follow(const Options& options, const std::string& transport, int line) {
  PinToCore(1);
  Side side(1, line);
  ENTRAIN_RETURN_IF_ERROR(side.Join(transport, options.max_bytes));
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const Order order, side.Hear());
    if (order.kind == Order::kEnd) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(side.Do(order).status());
    if (order.kind == Order::kPingPong && order.messages == 1) {
      ENTRAIN_RETURN_IF_ERROR(side.Check(order.bytes));
    }
  }
}

absl::Status Print(const Options& options, const std::string& transport, int64_t bytes,
                   const Figures& figures) {
  std::printf("%-12s %12lld %12.2f %12.2f %14.2f\n", transport.c_str(),
              static_cast<long long>(bytes), figures.one_way_us, figures.least_us,
              figures.in_a_row_gbs);
  std::fflush(stdout);
  if (options.json.empty()) {
    return absl::OkStatus();
  }
  std::FILE* const file = std::fopen(options.json.c_str(), "ae");
  if (file == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("--json: cannot write \"", options.json, "\""));
  }
  const nlohmann::ordered_json line{{"transport", transport},
                                    {"bytes", bytes},
                                    {"one_way_us", figures.one_way_us},
                                    {"least_us", figures.least_us},
                                    {"in_a_row_gbs", figures.in_a_row_gbs}};
  std::fprintf(file, "%s\n", line.dump().c_str());
  std::fclose(file);
  return absl::OkStatus();
}

absl::Status Lead(const Options& options, const std::string& transport, int line) {
  PinToCore(0);
  Side side(0, line);
  ENTRAIN_RETURN_IF_ERROR(side.Join(transport, options.max_bytes));
  Leader leader(side, options);
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    ENTRAIN_ASSIGN_OR_RETURN(const Figures figures, leader.Measure(bytes));
    ENTRAIN_RETURN_IF_ERROR(Print(options, transport, bytes, figures));
  }
  return leader.End();
}

int Say(const std::string& transport, const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "endpoint_bench: %s: %s\n", transport.c_str(),
                 std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : 1;
}

// Must run in a process of its own, since its threads are pinned.
int Measure(const Options& options, const std::string& transport) {
  int line[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0) {
    return Say(transport, ErrnoStatus(errno, "socketpair"));
  }
  const Fd near(line[0]);
  Fd far(line[1]);
  if (transport == "inproc") {
    absl::Status followed;
    std::thread follower([&] {
      followed = Follow(options, transport, far.get());
      far.Reset();  // if the leader waits on the other end, its wait fails
    });
    const absl::Status led = Lead(options, transport, near.get());
    shutdown(near.get(), SHUT_RDWR);
    follower.join();
    return Say(transport, led.ok() ? followed : led);
  }
  const pid_t follower = fork();
  if (follower == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int code = Say(transport, Follow(options, transport, far.get()));
    std::fflush(nullptr);
    _exit(code);
  }
  far.Reset();
  const int code = Say(transport, Lead(options, transport, near.get()));
  shutdown(near.get(), SHUT_RDWR);
  int status = 0;
  waitpid(follower, &status, 0);
  return code != 0 || status != 0 ? 1 : 0;
}

absl::Status Understand(const std::string& min_bytes, const std::string& max_bytes,
                        Options& options) {
  const auto least = ParseSize(min_bytes), most = ParseSize(max_bytes);
  ENTRAIN_RETURN_IF_ERROR(Annotate(least.status(), "--min-bytes"));
  ENTRAIN_RETURN_IF_ERROR(Annotate(most.status(), "--max-bytes"));
  if (*least < 1 || *most < *least) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-bytes: ", min_bytes, " is not between 1 and --max-bytes ", max_bytes));
  }
  options.min_bytes = *least;
  options.max_bytes = *most;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  std::string min_bytes = "8", max_bytes = "64M";
  CommandLine line(
      "A transport's endpoints between two cores: microseconds of one message one way, both sides "
      "polling (the median and the least of bursts), and GB/s of messages in a row, eight under "
      "way.",
      "endpoint_bench");
  line.Choices("--transport", options.transports, "inproc, shm, shm-pushed, tcp (these), ucx",
               {"inproc", "shm", kPushed, "ucx", "tcp"});
  line.Text("--min-bytes", min_bytes, "smallest size (8)");
  line.Text("--max-bytes", max_bytes, "largest size (64M)");
  line.Whole("--factor", options.factor, "from one size to the next (4)", 2, 1 << 20);
  line.Real("--budget", options.budget_s, "seconds a size, about (0.1)", 0, 3600);
  line.Text("--json", options.json, "write the figures to FILE too");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  if (const absl::Status understood = Understand(min_bytes, max_bytes, options); !understood.ok()) {
    std::fprintf(stderr, "endpoint_bench: %s\n", std::string(understood.message()).c_str());
    return 2;
  }
  if (Cores() < 2) {
    std::fprintf(stderr, "endpoint_bench: needs two cores\n");
    return 1;
  }
  if (!options.json.empty()) {
    std::remove(options.json.c_str());
  }
  std::printf("%-12s %12s %12s %12s %14s\n", "# transport", "bytes", "one way, us", "least, us",
              "in a row, GB/s");
  std::fflush(stdout);
  int code = 0;
  for (const std::string& transport : options.transports) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int own = Measure(options, transport);
      std::fflush(nullptr);
      _exit(own);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    code = status == 0 ? code : 1;
  }
  return code;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
