// What the planner knows of machines: figures of links to estimate by, and ranges where measuring
// has found another algorithm faster than the one with the least estimate. The library has values of
// its own (tuning_builtin.inc); `entrain-perf --tune` measures others and writes them to a file:
//
//   entrain-tuning 1
//   # one line for each kind of link and number of ranks of a host that use it at once
//   link shm ranks 4 crowded call_us 0.5 latency_us 0.3 message_us 0.3 switch_us 0.8 large_us 1
//       eager_kb 4 send_gbs inf receive_gbs 9 host_gbs 20 reduce_gbs 12 cache_mb 64 far_times 2   (all on one line)
//   # in communicators of exactly so many ranks; the rest as in overrides.h
//   choose shm ranks 4 crowded all_reduce:ring@128K-512K,broadcast:tree@8-4K
//
// Kinds of links: see NameOf(Link). "crowded": more ranks of a host than cores; else "free". A file
// takes the place of the library's own lines for the kinds of links that it names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/overrides.h"

namespace entrain {

// How two ranks reach each other; the later, the slower.
enum class Link : uint8_t { kInproc = 0, kShm = 1, kTcpInside = 2, kTcpAcross = 3 };
constexpr int kLinks = 4;
absl::string_view NameOf(Link link);  // "inproc", "shm", "tcp_inside" (a host), "tcp_across"

// Where a line holds.
struct TunedFor {
  Link link = Link::kShm;
  int ranks = 2;
  bool crowded = false;
  friend bool operator==(const TunedFor&, const TunedFor&) = default;
};

std::string ToText(const TunedFor& where);  // "shm ranks 4 crowded"

// What collectives/timeline.h counts in. 1e9 bytes a second; infinite where it costs nothing.
struct LinkFigures {
  TunedFor where;
  double call_us = 0;     // of a call, whatever it does
  double latency_us = 0;  // from having sent to being there
  double message_us = 0;  // work for a message, of either side
  double switch_us = 0;   // a core goes to another rank
  double large_us = 0;    // more for the receiver of a message of more than eager_kb
  double eager_kb = 0;    // KiB; the sender waits until more than this has been taken
  double send_gbs = 1, receive_gbs = 1;  // a rank's own work
  double host_gbs = 1;    // all ranks of a host together: memory, or each direction of its network
  double reduce_gbs = 1;  // combining two operands, bytes of the result
  // MiB: when input and output of all ranks of a host are more, bytes take `far_times` as long.
  double cache_mb = 1, far_times = 1;
};

// "shm ranks 4 crowded call_us 0.5 ..."
std::string ToText(const LinkFigures& figures);

struct MeasuredChoice {
  TunedFor where;
  Override choice;
};

struct Tuning {
  std::string source;  // "the library's own values", a file, ...
  std::vector<LinkFigures> links;
  std::vector<MeasuredChoice> choices;

  // What ParseTuning reads.
  std::string ToText() const;
  // Of everything but the source: what ranks compare.
  std::string Fingerprint() const;
  // Of a host's `ranks` ranks: the line with most ranks of those with no more, else with fewest;
  // lines of the same crowding first. There is always one.
  const LinkFigures& FiguresFor(const TunedFor& where) const;
};

// INVALID_ARGUMENT naming `source`, the line and the value.
absl::StatusOr<Tuning> ParseTuning(absl::string_view text, const std::string& source);
const std::shared_ptr<const Tuning>& BuiltinTuning();
// Empty: the library's own. NOT_FOUND and the like name the file.
absl::StatusOr<std::shared_ptr<const Tuning>> LoadTuning(const std::string& path);

}  // namespace entrain
