// Measured values of machines, for the planner: figures of links, and measured choices. The planner
// estimates times from the figures. A measured choice names an algorithm for a range of sizes. In
// this range, that algorithm was faster than the algorithm with the lowest estimate. The library
// has built-in values (tuning_builtin.inc). `entrain-perf --tune` measures new values and writes
// them to a file:
//
//   entrain-tuning 2
//   # one line for each kind of link and each number of ranks of a host that use the link at once
//   link shm ranks 4 crowded call_us 0.5 latency_us 0.3 message_us 0.3 switch_us 0.8 gbs 9 host_gbs 20 reduce_gbs 12
//   # for communicators of exactly this number of ranks; choices as in overrides.h
//   choose shm ranks 4 crowded all_reduce:ring@128K-512K,broadcast:tree@8-4K
//
// Kinds of links: see NameOf(Link). "crowded": a host has more ranks than cores. "free": no host
// has more ranks than cores. If a file names a kind of link, the lines of the file replace all
// built-in lines of this kind. If a kind has no `link` line, its figures are estimated from the
// Traits of its transport.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/plan/overrides.h"

namespace entrain {

// The kind of link between two ranks, inside a host or across hosts. In each of these two groups, a
// later kind is slower.
enum class Link : uint8_t { kInproc, kShm, kFabricInside, kTcpInside, kFabricAcross, kTcpAcross };
constexpr int kLinks = 6;
// Returns "inproc", "shm", "fabric_inside", "tcp_inside", "fabric_across" or "tcp_across".
absl::string_view NameOf(Link link);

// The speed of a link. A transport reports it in Traits. The units are those of LinkFigures.
struct LinkSpeed {
  double latency_us = 10, gbs = 1, host_gbs = 1;
  // Sets each field to the worse of its two values.
  void Worsen(const LinkSpeed& other);
};

// The communicators to which a line applies.
struct TunedFor {
  Link link = Link::kShm;
  int ranks = 2;
  bool crowded = false;
  friend bool operator==(const TunedFor&, const TunedFor&) = default;
};

std::string ToText(const TunedFor& where);  // "shm ranks 4 crowded"

// The figures from which cost_model.h computes estimates. Rates are in 1e9 bytes per second. An
// infinite rate means that the work takes no time.
struct LinkFigures {
  TunedFor where;
  double call_us = 0;     // fixed cost per call
  double latency_us = 0;  // from the end of the send to the arrival
  double message_us = 0;  // work per message, at the sender and at the receiver
  double switch_us = 0;   // switch of a core to another rank
  double gbs = 1;         // rate of receiving; a send costs at most message_us
  // Rate of all ranks of a host together: the rate of the memory, or the rate of the network in
  // each direction.
  double host_gbs = 1;
  // Rate of the reduction of two operands, in bytes of the result.
  double reduce_gbs = 1;
  // True: the figures are from a transport's Traits, not from a line of a tuning.
  bool from_traits = false;
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

  // Returns a text that ParseTuning reads.
  std::string ToText() const;
  // Returns a hash of everything except the source, for the comparison between ranks.
  std::string Fingerprint() const;
  // Returns the figures of the best line for this link. Prefers lines with the same value of
  // `crowded`. Of these lines, prefers lines with at most where.ranks ranks, and takes the line
  // with the most ranks. If all lines have more ranks, takes the line with the fewest ranks. If the
  // link has no line, returns an estimate from `speed`.
  LinkFigures FiguresFor(const TunedFor& where, const LinkSpeed& speed = {}) const;
};

// If the text is malformed, returns INVALID_ARGUMENT. The message names `source`, the line and the
// value.
absl::StatusOr<Tuning> ParseTuning(absl::string_view text, const std::string& source);
const std::shared_ptr<const Tuning>& BuiltinTuning();
// Reads a tuning from a file. `path` empty: returns the built-in values. Errors, for example
// NOT_FOUND, name the file.
absl::StatusOr<std::shared_ptr<const Tuning>> LoadTuning(const std::string& path);

}  // namespace entrain
