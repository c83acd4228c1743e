// Limits the bytes under way on a long path. Without a limit, the kernel's windows together hold
// more bytes than the path and the router's queue. Then the router drops packets, and the end of a
// message waits for them to be sent again: a round trip or more, each time. The kernel sees one
// connection at a time, so it cannot know.
//
// The limit is the product of the path's best rate and of a time: a little more than the shortest
// round trip, or the smoothed round trip if that is longer (other traffic, a busy machine), but at
// most 1.5 times the shortest. The rate is measured over a round trip from what the peer has
// acknowledged. While it still grows, the limit is twice the product. (BBR, Cardwell et al. 2016,
// limits its one connection in the same way.) It never falls below kLeast, about the window of one
// connection, so that other traffic cannot push the path aside.
#pragma once

#include <cstdint>

namespace entrain {

class FlightLimit {
 public:
  static constexpr int64_t kLeast = 4 << 20;

  int64_t bytes() const { return limit_; }
  // Reports the time, the bytes that are under way, and the sum of the bytes acknowledged since the
  // path began. smoothed_ns: the shortest smoothed round trip time of the connections that have
  // bytes under way. shortest_ns: the shortest round trip time seen; 0: not known.
  void OnMeasured(int64_t now_ns, int64_t under_way, int64_t acknowledged, int64_t smoothed_ns,
                  int64_t shortest_ns);

 private:
  int64_t limit_ = kLeast;
  double best_ = 0;           // the best rate, in bytes per nanosecond
  int same_ = 0;              // number of measurements since the rate has grown
  int64_t most_ = 0;          // the most bytes under way since the last measurement
  int64_t since_ns_ = 0;      // when this measurement began
  int64_t acknowledged_ = 0;  // at that time
};

}  // namespace entrain
