// What the planner knows of machines: figures of links to estimate by, and ranges where measuring
// has found another algorithm faster than the one with the least estimate. The library has values of
// its own (tuning_builtin.inc); `entrain-perf --tune` measures others and writes them to a file:
//
//   entrain-tuning 2
//   # one line for each kind of link and number of ranks of a host that use it at once
//   link shm ranks 4 crowded call_us 0.5 latency_us 0.3 message_us 0.3 switch_us 0.8 gbs 9 host_gbs 20 reduce_gbs 12
//   # in communicators of exactly so many ranks; the rest as in overrides.h
//   choose shm ranks 4 crowded all_reduce:ring@128K-512K,broadcast:tree@8-4K
//
// Kinds of links: see NameOf(Link). "crowded": more ranks of a host than cores; else "free". A file
// takes the place of the library's own lines for the kinds of links that it names. A kind without a
// link line is estimated by what its transport says of itself (Traits).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/overrides.h"

namespace entrain {

// How two ranks reach each other: inside a host, or across hosts. Of each, the later, the slower.
enum class Link : uint8_t { kInproc, kShm, kFabricInside, kTcpInside, kFabricAcross, kTcpAcross };
constexpr int kLinks = 6;
// "inproc", "shm", "fabric_inside", "tcp_inside", "fabric_across", "tcp_across"
absl::string_view NameOf(Link link);

// What a transport says of its links: Traits in the units of a tuning.
struct LinkSpeed {
  double latency_us = 10, gbs = 1, host_gbs = 1;
  // The worse of each figure.
  void Worsen(const LinkSpeed& other);
};

// Where a line holds.
struct TunedFor {
  Link link = Link::kShm;
  int ranks = 2;
  bool crowded = false;
  friend bool operator==(const TunedFor&, const TunedFor&) = default;
};

std::string ToText(const TunedFor& where);  // "shm ranks 4 crowded"

// What cost_model.h counts in. 1e9 bytes a second; infinite where it costs nothing.
struct LinkFigures {
  TunedFor where;
  double call_us = 0;     // of a call, whatever it does
  double latency_us = 0;  // from having sent to being there
  double message_us = 0;  // work for a message, of either side
  double switch_us = 0;   // a core goes to another rank
  double gbs = 1;         // receiving; sending costs no more than message_us
  double host_gbs = 1;    // all ranks of a host together: memory, or each direction of its network
  double reduce_gbs = 1;  // combining two operands, bytes of the result
  bool from_traits = false;  // and not from a line of a tuning
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
  // lines of the same crowding first. Of a link without a line: estimated from `speed`.
  LinkFigures FiguresFor(const TunedFor& where, const LinkSpeed& speed = {}) const;
};

// INVALID_ARGUMENT naming `source`, the line and the value.
absl::StatusOr<Tuning> ParseTuning(absl::string_view text, const std::string& source);
const std::shared_ptr<const Tuning>& BuiltinTuning();
// Empty: the library's own. NOT_FOUND and the like name the file.
absl::StatusOr<std::shared_ptr<const Tuning>> LoadTuning(const std::string& path);

}  // namespace entrain
