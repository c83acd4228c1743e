// Chooses the number of streams of a path by measurement. If the network limits each connection (a
// cloud's limit per flow, a long route with small windows), two connections are twice as fast as
// one. If the link itself is the limit, more connections gain nothing. So while much is being sent,
// the object tries twice the number of streams. It keeps this number if the rate rises by at least
// a tenth. It repeats the attempt after some measurements.
//
// On a long path it begins with as many streams as the path's windows need (Begin), and tries more
// only if something holds the streams back (`held`).
#pragma once

#include <cstdint>

namespace entrain {

class StreamChoice {
 public:
  static constexpr int kMost = 8;
  static constexpr double kPays = 1.1;

  // Must be called before all other functions if the path is long. `streams`: the number to begin
  // with; `most`: the largest number.
  void Begin(int streams, int most) {
    trying_ = best_ = streams;
    most_ = most;
    if_held_ = true;
  }
  // Returns the number of streams to use now; 0: payloads use the path's first connection.
  int streams() const { return trying_; }
  // Reports a measurement with streams() streams: the number of bytes acknowledged, and the time
  // during which bytes were under way. The object adds up short measurements until they are
  // significant. `round_trip_ns` is the path's round trip time when no bytes wait in queues. `held`
  // is true if the hosts' buffers, or losses without a queue, have held the streams back.
  void OnMeasured(int64_t bytes, int64_t busy_ns, int64_t round_trip_ns, bool held = false);

 private:
  static constexpr int kFirstBackoff = 32, kMostBackoff = 1024;  // measurements

  // `may_pay`: more streams may be faster.
  void OnRate(double bytes_per_ns, bool may_pay);
  void Try(int streams);
  void Settle();

  int trying_ = 0, best_ = 0, most_ = kMost;
  bool if_held_ = false;  // true: tries more streams only if `held`
  bool held_ = false;     // a short measurement since the last significant one was held back
  double best_rate_ = 0;  // rate with best_ streams
  bool skip_ = true;      // true: ignores the next measurement, because it includes the start of
                          // new streams
  int wait_ = 0, backoff_ = kFirstBackoff;
  int64_t bytes_ = 0, busy_ns_ = 0;
};

}  // namespace entrain
