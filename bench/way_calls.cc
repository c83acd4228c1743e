#include "bench/way_calls.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

namespace entrain {
namespace {

constexpr int kPings = 3;
constexpr double kPatience = 60, kMargin = 0.01;  // seconds
// 1448 of 1514 bytes of a frame are payload.
constexpr double kPayload = 1448.0 / 1514;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) {
    FailCall(std::string(name) + " is not set: start this program by bench/cluster.sh");
  }
  return value;
}

void SendAll(int fd, const double* values, size_t count) {
  const char* at = reinterpret_cast<const char*>(values);
  for (size_t left = count * sizeof(double); left > 0;) {
    const ssize_t done = send(fd, at, left, MSG_NOSIGNAL);
    if (done <= 0) {
      FailCall("another node has ended");
    }
    at += done;
    left -= static_cast<size_t>(done);
  }
}

void ReceiveAll(int fd, double* values, size_t count) {
  if (recv(fd, values, count * sizeof(double), MSG_WAITALL) !=
      static_cast<ssize_t>(count * sizeof(double))) {
    FailCall("another node has ended");
  }
}

sockaddr_in AddressOf(const std::string& address, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1) {
    FailCall("\"" + address + "\" is not an IPv4 address");
  }
  return name;
}

void SetNoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void SleepUntil(double moment) {
  const timespec until{
      static_cast<time_t>(moment),
      static_cast<long>((moment - static_cast<double>(static_cast<time_t>(moment))) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

double ParseRate(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double scale = unit == "kbit" ? 1e3 : unit == "mbit" ? 1e6 : unit == "gbit" ? 1e9 : 0;
  return number > 0 ? number * scale : 0;
}

// This has the times of one call, computed from those of all nodes.
struct Taken {
  double seconds = 0, node0 = 0;
};

Taken TimeOne(Nodes& nodes, const Exchange& exchange, double silence) {
  exchange.prepare();
  nodes.Start(silence);
  const double begun = SecondsNow();
  exchange.call();
  const double ended = SecondsNow();
  exchange.finish();
  const std::vector<double> all = nodes.AllGather({begun, ended});
  double last_begun = 0, last_ended = 0;
  for (size_t i = 0; i < all.size(); i += 2) {
    last_begun = std::max(last_begun, all[i]);
    last_ended = std::max(last_ended, all[i + 1]);
  }
  return {last_ended - last_begun, all[1] - last_begun};
}

void Write(const Nodes& nodes, const CallOptions& options, const Exchange& exchange,
           const std::string& call, std::vector<Taken> taken) {
  const nlohmann::ordered_json found = exchange.found();  // all nodes may count from here on
  if (nodes.rank() != 0) {
    return;
  }
  std::sort(taken.begin(), taken.end(),
            [](const Taken& a, const Taken& b) { return a.seconds < b.seconds; });
  const Taken median = taken[taken.size() / 2];
  nlohmann::ordered_json line = exchange.facts;
  line.update({{"nodes", nodes.size()},
               {"call", call},
               {"seconds", median.seconds},
               {"least", taken.front().seconds},
               {"most", taken.back().seconds},
               {"node0_seconds", median.node0},
               {"calls", taken.size()},
               {"silence", call == "silent" ? options.silence : 0},
               {"sent_bytes", std::llround(exchange.sent)},
               {"round_trip_found", nodes.round_trip()}});
  const double bound = options.rate > 0 ? exchange.sent * 8 / (options.rate * kPayload) : 0;
  if (options.rate > 0) {
    line["bound"] = bound;
  }
  if (options.round_trip > 0) {
    line["round_trips"] = (median.seconds - bound) * 1e3 / options.round_trip;
  }
  line.update(found);
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

std::vector<Taken> TimeInARow(Nodes& nodes, const CallOptions& options, const Exchange& exchange) {
  nodes.Start(0);
  const std::vector<double> all = nodes.AllGather(exchange.in_a_row(options.calls));
  std::vector<Taken> taken;
  const auto calls = static_cast<size_t>(options.calls);
  for (size_t i = 0; i < calls; ++i) {
    Taken one{0, all[i]};
    for (size_t at = i; at < all.size(); at += calls) {
      one.seconds = std::max(one.seconds, all[at]);
    }
    taken.push_back(one);
  }
  return taken;
}

}  // namespace

void FailCall(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

void RefuseArgument(const std::string& name, const std::string& value, const std::string& why) {
  std::fprintf(stderr, "%s: %s: \"%s\" %s\n", program_invocation_short_name, name.c_str(),
               value.c_str(), why.c_str());
  std::exit(2);
}

double SecondsNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int ListenAt(const std::string& address, int port, int backlog) {
  const sockaddr_in name = AddressOf(address, port);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      listen(fd, backlog) != 0) {
    FailCall("cannot listen: " + std::string(std::strerror(errno)));
  }
  return fd;
}

int ConnectTo(const std::string& address, int port) {
  const sockaddr_in name = AddressOf(address, port);
  for (const double begun = SecondsNow(); SecondsNow() < begun + kPatience;) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
      return fd;
    }
    close(fd);
    SleepUntil(SecondsNow() + kMargin);
  }
  FailCall("cannot connect to " + address + ": " + std::strerror(errno));
}

Nodes::Nodes()
    : rank_(std::atoi(Variable("RANK").c_str())),
      size_(std::atoi(Variable("WORLD_SIZE").c_str())),
      port_(std::atoi(Variable("MASTER_PORT").c_str())),
      address_(Variable("MASTER_ADDR")) {
  if (rank_ == 0) {
    Serve();
  } else {
    Connect();
  }
  MeasureRoundTrip();
}

Nodes::~Nodes() {
  for (const int fd : peers_) {
    close(fd);
  }
}

void Nodes::Serve() {
  const int listener = ListenAt(address_, port_ + 1, size_);
  peers_.resize(static_cast<size_t>(size_ - 1));
  for (int i = 1; i < size_; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    double from = 0;
    ReceiveAll(fd, &from, 1);
    SetNoDelay(fd);
    peers_.at(static_cast<size_t>(from) - 1) = fd;
  }
  close(listener);
}

void Nodes::Connect() {
  peers_.push_back(ConnectTo(address_, port_ + 1));
  SetNoDelay(peers_[0]);
  const double mine = rank_;
  SendAll(peers_[0], &mine, 1);
}

void Nodes::MeasureRoundTrip() {
  double longest = 0;
  for (const int fd : peers_) {
    double least = kPatience, value = 0;
    for (int i = 0; i < kPings; ++i) {
      const double begun = SecondsNow();
      if (rank_ == 0) {
        SendAll(fd, &value, 1);
        ReceiveAll(fd, &value, 1);
      } else {
        ReceiveAll(fd, &value, 1);
        SendAll(fd, &value, 1);
      }
      least = std::min(least, SecondsNow() - begun);
    }
    longest = std::max(longest, least);
  }
  round_trip_ = AllGather({longest})[0];  // node 0's
}

std::vector<double> Nodes::AllGather(const std::vector<double>& mine) {
  std::vector<double> all = mine;
  all.resize(mine.size() * static_cast<size_t>(size_));
  if (rank_ != 0) {
    SendAll(peers_[0], mine.data(), mine.size());
    ReceiveAll(peers_[0], all.data(), all.size());
    return all;
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    ReceiveAll(peers_[i], &all[(i + 1) * mine.size()], mine.size());
  }
  for (const int fd : peers_) {
    SendAll(fd, all.data(), all.size());
  }
  return all;
}

std::vector<std::string> Nodes::Addresses() {
  sockaddr_in own = AddressOf(address_, port_);
  if (rank_ != 0) {
    socklen_t length = sizeof(own);
    getsockname(peers_[0], reinterpret_cast<sockaddr*>(&own), &length);
  }
  std::vector<std::string> names;
  for (const double value : AllGather({static_cast<double>(own.sin_addr.s_addr)})) {
    const in_addr address{static_cast<in_addr_t>(value)};
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address, text, sizeof(text));
    names.emplace_back(text);
  }
  return names;
}

void Nodes::Start(double silence) {
  AllGather({0});  // all are here
  double moment = SecondsNow() + 0.75 * round_trip_ + kMargin + silence;
  if (rank_ == 0) {
    for (const int fd : peers_) {
      SendAll(fd, &moment, 1);
    }
  } else {
    ReceiveAll(peers_[0], &moment, 1);
  }
  SleepUntil(moment);
}

std::optional<int> ParseCalls(CommandLine& line, int argc, char** argv, CallOptions& options) {
  std::string rate;
  line.Whole("--calls", options.calls, "later calls, of which the median counts (3)", 1, 1'000'000);
  line.Real("--silence", options.silence,
            "also one call after so many seconds of silence (0: none)", 0, 1e6);
  line.Text(
      "--rate", rate,
      "of a link, as 100mbit, 1gbit: adds \"bound\", the time of the bytes that a node sends");
  line.Real("--round-trip", options.round_trip,
            "in ms: adds \"round_trips\", (seconds - bound) / round trip", 0, 1e6);
  const std::optional<int> code = line.Parse(argc, argv);
  if (!code && !rate.empty()) {
    options.rate = ParseRate(rate);
    if (options.rate <= 0) {
      RefuseArgument("--rate", rate, "is not a rate as 100mbit, 1gbit");
    }
  }
  return code;
}

void TimeCalls(Nodes& nodes, const CallOptions& options, const Exchange& exchange) {
  Write(nodes, options, exchange, "first", {TimeOne(nodes, exchange, 0)});
  std::vector<Taken> later;
  if (exchange.in_a_row) {
    later = TimeInARow(nodes, options, exchange);
  }
  while (static_cast<int>(later.size()) < options.calls) {
    later.push_back(TimeOne(nodes, exchange, 0));
  }
  Write(nodes, options, exchange, "later", later);
  if (options.silence > 0) {
    Write(nodes, options, exchange, "silent", {TimeOne(nodes, exchange, options.silence)});
  }
}

}  // namespace entrain
