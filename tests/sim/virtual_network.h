// A network and a clock that exist only in a test: nodes, their messages and their timers, on one thread, in an order that a
// seed decides. Messages of one pair in one direction arrive in the order sent; pairs do not wait for each other. A node can
// crash (also in the middle of sending), stop for a while, or lose the path to another one.
//
// Equal seeds give equal runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace entrain {

// A machine under test on one node. Sends through the network inside these functions.
class VirtualNode {
 public:
  virtual ~VirtualNode() = default;
  virtual void OnMessage(int from, const std::string& text, int64_t now_ns) = 0;
  // Called when the path to a node is lost. `proven`: because the node's process has ended.
  virtual void OnLost(int peer, bool proven, int64_t now_ns) = 0;
  virtual void OnTick(int64_t now_ns) = 0;
  // Returns the time at which the node wants to run next, or INT64_MAX if at none.
  virtual int64_t next_tick() const = 0;
};

class VirtualNetwork {
 public:
  // If both are equal, every message takes this time.
  struct Delays {
    int64_t least_ns = 1000, most_ns = 1000000;
    bool constant() const { return least_ns == most_ns; }
  };

  VirtualNetwork(uint64_t seed, int size, Delays delays)
      : random_(seed), delays_(delays), nodes_(static_cast<size_t>(size)) {
    for (Place& node : nodes_) {
      node.paths.resize(nodes_.size());
    }
  }

  void Attach(int node, VirtualNode* machine) { at(node).machine = machine; }
  int size() const { return static_cast<int>(nodes_.size()); }
  const Delays& delays() const { return delays_; }
  int64_t now() const { return now_; }
  std::mt19937_64& random() { return random_; }
  int64_t Between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool Chance(double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }
  bool alive(int node) const { return !nodes_[static_cast<size_t>(node)].crashed; }

  // Runs `event` at this time, for the test. The event belongs to the network, so a stopped node
  // does not delay it.
  void At(int64_t time_ns, std::function<void()> event) {
    events_.push({time_ns, next_++, -1, std::move(event)});
  }
  // Runs `event` on the node at this time, or when the node continues; never if it has crashed.
  void On(int node, int64_t time_ns, std::function<void()> event) {
    events_.push({time_ns, next_++, node, std::move(event)});
  }

  void Send(int from, int to, std::string text) {
    Place& sender = at(from);
    if (sender.crashed || (sender.sends_left > 0 && --sender.sends_left == 0)) {
      Crash(from);
      return;
    }
    Path& path = sender.paths[static_cast<size_t>(to)];
    if (path.lost) {
      return;
    }
    path.last = std::max({path.last, now_ + Delay(), path.stalled_until});
    On(to, path.last, [this, from, to, arrives = path.last, text = std::move(text)] {
      const Path& by = at(from).paths[static_cast<size_t>(to)];
      if (arrives <= by.ends_ns && !at(to).paths[static_cast<size_t>(from)].closed) {
        at(to).machine->OnMessage(from, text, now_);
      }
    });
  }

  // ---- Faults
  // Crashes the node. Messages under way may be lost from some point on. Each peer learns of the
  // crash after the last message that arrives, with or without a proof. If `notice` is false (the
  // whole host is gone), no peer learns of it.
  void Crash(int node, bool notice = true, double proven = 1) {
    Place& victim = at(node);
    if (std::exchange(victim.crashed, true)) {
      return;
    }
    for (int peer = 0; peer < size(); ++peer) {
      Path& path = victim.paths[static_cast<size_t>(peer)];
      if (peer == node || path.lost) {
        continue;
      }
      const int64_t last = std::max(path.last, now_);
      path.ends_ns = std::min(path.ends_ns, Chance(0.5) ? last : Between(now_, last));
      if (notice) {
        Tell(peer, node, path.ends_ns, Chance(proven));
      }
    }
  }
  // Makes the node crash instead of sending its `sends`-th message from now on.
  void CrashInTheMiddle(int node, int sends) { at(node).sends_left = sends; }
  // Stops the node until `until_ns`: it neither runs nor loses messages.
  void Stop(int node, int64_t until_ns) {
    at(node).stopped_until = std::max(at(node).stopped_until, until_ns);
  }
  // From now on nothing sent in this direction arrives, and messages under way may be lost. With
  // `notice` both nodes are told of the loss, each at its own time, without a proof that the other
  // has ended.
  void Cut(int from, int to, bool notice) {
    Path& path = at(from).paths[static_cast<size_t>(to)];
    if (std::exchange(path.lost, true)) {
      return;
    }
    path.ends_ns = std::min(path.ends_ns, Between(now_, std::max(path.last, now_)));
    if (notice) {
      Tell(to, from, path.ends_ns, false);
    }
  }
  // Tells a node that its path to another one is lost, some time after `after_ns`.
  void Tell(int node, int lost, int64_t after_ns, bool proven) {
    On(node, std::max(after_ns, now_) + Delay(), [this, node, lost, proven] {
      Path& back = at(node).paths[static_cast<size_t>(lost)];
      back.lost = true;
      if (!std::exchange(back.closed, true)) {
        at(node).machine->OnLost(lost, proven, now_);
      }
    });
  }
  // Makes a crashed node run again, without any path, so that it can free its memory.
  void Revive(int node) {
    at(node).crashed = false;
    at(node).stopped_until = 0;
    for (int peer = 0; peer < size(); ++peer) {
      Path& out = at(node).paths[static_cast<size_t>(peer)];
      Path& in = at(peer).paths[static_cast<size_t>(node)];
      out.lost = out.closed = in.lost = in.closed = true;
    }
  }
  // Lets time pass without an event: a node computes.
  void Spend(int64_t ns) { now_ += ns; }
  // Delays the messages of this direction: they arrive at `until_ns` or later.
  void Stall(int from, int to, int64_t until_ns) {
    at(from).paths[static_cast<size_t>(to)].stalled_until = until_ns;
  }

  // Runs the events until this time, or until no event is left.
  void Run(int64_t until_ns) {
    while (true) {
      const auto [tick, node] = NextTick();
      const int64_t event =
          events_.empty() ? std::numeric_limits<int64_t>::max() : events_.top().time;
      if (std::min(tick, event) > until_ns) {
        return;
      }
      if (tick < event || (tick == event && Chance(0.5))) {
        now_ = std::max(now_, tick);
        at(node).machine->OnTick(now_);
        continue;
      }
      Event next = std::move(const_cast<Event&>(events_.top()));  // its key stays, for pop
      events_.pop();
      now_ = std::max(now_, next.time);
      if (next.node >= 0 && at(next.node).stopped_until > now_) {
        next.time = at(next.node).stopped_until;  // keeps its place among the messages of its pair
        events_.push(std::move(next));
      } else if (next.node < 0 || !at(next.node).crashed) {
        next.run();
      }
    }
  }

 private:
  struct Path {
    bool lost = false;    // nothing more is sent
    bool closed = false;  // the receiver knows that the path is lost, and reads nothing more from
                          // it
    int64_t last = 0;     // the latest arrival
    int64_t ends_ns = std::numeric_limits<int64_t>::max();  // messages that would arrive later are
                                                            // lost
    int64_t stalled_until = 0;
  };
  struct Place {
    VirtualNode* machine = nullptr;
    bool crashed = false;
    int64_t stopped_until = 0;
    int sends_left = 0;       // 0: no limit
    std::vector<Path> paths;  // from this node, by destination; `closed` is of the other direction
  };
  struct Event {
    int64_t time;
    uint64_t number;
    int node;
    std::function<void()> run;
    std::pair<int64_t, uint64_t> key() const { return {time, number}; }
    bool operator<(const Event& other) const { return key() > other.key(); }  // the first is on top
  };

  Place& at(int node) { return nodes_[static_cast<size_t>(node)]; }
  int64_t Delay() {
    if (delays_.constant()) {
      return delays_.least_ns;
    }
    // Most messages are fast, some are much slower.
    const int64_t most = Chance(0.1) ? delays_.most_ns : delays_.least_ns * 20;
    return Between(delays_.least_ns, std::max(delays_.least_ns, most));
  }
  std::pair<int64_t, int> NextTick() {
    std::pair<int64_t, int> first{std::numeric_limits<int64_t>::max(), -1};
    for (int node = 0; node < size(); ++node) {
      const Place& place = at(node);
      if (!place.crashed && place.machine != nullptr) {
        first = std::min(first, {std::max(place.machine->next_tick(), place.stopped_until), node});
      }
    }
    return first;
  }

  std::mt19937_64 random_;
  const Delays delays_;
  std::vector<Place> nodes_;
  std::priority_queue<Event> events_;
  uint64_t next_ = 0;
  int64_t now_ = 0;
};

}  // namespace entrain
