// How many streams a path uses, by what it measures: a network that limits each connection (a cloud's flows, a long
// way with small windows) gives two of them twice as much, one whose link is the limit gives them nothing. So: while
// much is being sent, twice as many are tried, and kept where they bring a tenth more; then, after a while, again.
#pragma once

#include <cstdint>

namespace entrain {

class StreamChoice {
 public:
  static constexpr int kMost = 8;
  static constexpr double kPays = 1.1;

  // To be used now; 0: payloads go by the path's first connection.
  int streams() const { return trying_; }
  // What went by those that streams() says: how many bytes were acknowledged, and for how long some were on their
  // way. Short measurements add up until they say something. `round_trip_ns`: of the way, when nothing waits on it.
  void OnMeasured(int64_t bytes, int64_t busy_ns, int64_t round_trip_ns);

 private:
  static constexpr int kFirstBackoff = 32, kMostBackoff = 1024;  // measurements

  void OnRate(double bytes_per_ns);
  void Try(int streams);
  void Settle();

  int trying_ = 0, best_ = 0;
  double best_rate_ = 0;  // of best_
  bool skip_ = true;      // the first measurement of a number has its beginning in it
  int wait_ = 0, backoff_ = kFirstBackoff;
  int64_t bytes_ = 0, busy_ns_ = 0;
};

}  // namespace entrain
