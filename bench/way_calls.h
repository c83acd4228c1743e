// This is the common part of the programs that time an exchange between the nodes of cluster.sh
// (plain-sockets, way-bench, gloo-way). It starts all nodes at the same moment, and times the first
// call, later calls and a call after silence. It does not use the connections that are measured. The
// nodes share one clock, because cluster.sh runs them on one machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/command_line.h"

namespace entrain {

// Ends the process with exit code 1.
[[noreturn]] void FailCall(const std::string& what);
// Ends the process with exit code 2, because an argument is wrong.
[[noreturn]] void RefuseArgument(const std::string& name, const std::string& value,
                                 const std::string& why);
// Returns the seconds of the clock that all nodes share.
double SecondsNow();

// These are the nodes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Each has one tcp connection to
// node 0, at the port above MASTER_PORT. A node that fails ends the process.
class Nodes {
 public:
  Nodes();
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }
  int port() const { return port_; }  // MASTER_PORT
  // Returns the IPv4 addresses of all nodes. All nodes call it together.
  std::vector<std::string> Addresses();
  // Returns the longest round trip between node 0 and another, in seconds. It is measured once.
  double round_trip() const { return round_trip_; }

  // Gives all nodes the values of all nodes, node by node. All nodes call it together.
  std::vector<double> AllGather(const std::vector<double>& mine);
  // Waits until all nodes are here and a common moment has come, at least `silence` seconds later.
  // No byte passes between the nodes in these seconds.
  void Start(double silence);

 private:
  void Serve();
  void Connect();
  void MeasureRoundTrip();

  int rank_ = 0, size_ = 1, port_ = 0;
  std::string address_;
  double round_trip_ = 0;
  std::vector<int> peers_;  // on node 0: of nodes 1, 2, ...; else: of node 0
};

// Connects to `address`, and tries again while nobody listens there, at most 60 s.
int ConnectTo(const std::string& address, int port);
// Listens on `address`.
int ListenAt(const std::string& address, int port, int backlog);

struct CallOptions {
  int calls = 3;          // later calls
  double silence = 0;     // seconds before the last call; 0: no such call
  double rate = 0;        // bits per second of a link; 0: no bound
  double round_trip = 0;  // ms; 0: no count of round trips
};
// Declares --calls, --silence, --rate and --round-trip. Parses these options and those that the
// caller has declared. The result is that of CommandLine::Parse.
std::optional<int> ParseCalls(CommandLine& line, int argc, char** argv, CallOptions& options);

// This is an exchange whose calls are timed.
struct Exchange {
  nlohmann::ordered_json facts;  // fields that name it: {{"subject", "all_reduce"}}
  double sent = 0;  // payload bytes that a node sends; the bound is their time at the rate
  std::function<void()> prepare = [] {};  // before each call, untimed
  std::function<void()> call;
  // If this is set, it makes the later calls, one right after the other. It returns the seconds of
  // each.
  std::function<std::vector<double>(int calls)> in_a_row;
  std::function<void()> finish = [] {};  // after each call, untimed
  // Returns more fields. Those of node 0 are written.
  std::function<nlohmann::ordered_json()> found = [] { return nlohmann::ordered_json::object(); };
};

// Times the exchange. Node 0 writes a JSON line for the first call, one for the later calls, and
// one for the call after silence. "seconds" is the time from the moment when the last node began
// until the last node had ended; of later calls it is the median. All nodes call it together.
void TimeCalls(Nodes& nodes, const CallOptions& options, const Exchange& exchange);

}  // namespace entrain
