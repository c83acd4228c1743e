// Chooses the number of streams of a path by measurement. If the network limits each connection (a
// cloud's limit per flow, a long route with small windows), two connections are twice as fast as
// one. If the link itself is the limit, more connections gain nothing. So while much is being sent,
// the object tries twice the number of streams. It keeps this number if the rate rises by at least
// a tenth. It repeats the attempt after some measurements.
#pragma once

#include <cstdint>

namespace entrain {

class StreamChoice {
 public:
  static constexpr int kMost = 8;
  static constexpr double kPays = 1.1;

  // Returns the number of streams to use now; 0: payloads use the path's first connection.
  int streams() const { return trying_; }
  // Reports a measurement with streams() streams: the number of bytes acknowledged, and the time
  // during which bytes were under way. The object adds up short measurements until they are
  // significant. `round_trip_ns` is the path's round trip time when no bytes wait in queues.
  void OnMeasured(int64_t bytes, int64_t busy_ns, int64_t round_trip_ns);

 private:
  static constexpr int kFirstBackoff = 32, kMostBackoff = 1024;  // measurements

  void OnRate(double bytes_per_ns);
  void Try(int streams);
  void Settle();

  int trying_ = 0, best_ = 0;
  double best_rate_ = 0;  // rate with best_ streams
  bool skip_ = true;      // true: ignores the next measurement, because it includes the start of
                          // new streams
  int wait_ = 0, backoff_ = kFirstBackoff;
  int64_t bytes_ = 0, busy_ns_ = 0;
};

}  // namespace entrain
