// Holds what the planner knows about machines: figures of links, and measured choices. The planner
// estimates times from the figures. A measured choice is a range of sizes in which a measurement
// found another algorithm faster than the one with the least estimate. The library has built-in
// values (tuning_builtin.inc). `entrain-perf --tune` measures others and writes them to a file:
//
//   entrain-tuning 2
//   # one line for each kind of link and number of ranks of a host that use it at once
//   link shm ranks 4 crowded call_us 0.5 latency_us 0.3 message_us 0.3 switch_us 0.8 gbs 9 host_gbs 20 reduce_gbs 12
//   # for communicators of exactly this number of ranks; choices as in overrides.h
//   choose shm ranks 4 crowded all_reduce:ring@128K-512K,broadcast:tree@8-4K
//
// Kinds of links: see NameOf(Link). "crowded": a host has more ranks than cores. "free": no host
// has. If a file names a kind of link, its lines replace all built-in lines of this kind. The
// figures of a kind without a link line are estimated from what its transport reports (Traits).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/overrides.h"

namespace entrain {

// How two ranks reach each other, inside a host or across hosts. Within each of these two groups a
// later kind is slower.
enum class Link : uint8_t { kInproc, kShm, kFabricInside, kTcpInside, kFabricAcross, kTcpAcross };
constexpr int kLinks = 6;
// "inproc", "shm", "fabric_inside", "tcp_inside", "fabric_across", "tcp_across"
absl::string_view NameOf(Link link);

// The speed of links, as a transport reports it in Traits, but in the units of LinkFigures.
struct LinkSpeed {
  double latency_us = 10, gbs = 1, host_gbs = 1;
  // Takes the worse value of each figure.
  void Worsen(const LinkSpeed& other);
};

// The communicators for which a line holds.
struct TunedFor {
  Link link = Link::kShm;
  int ranks = 2;
  bool crowded = false;
  friend bool operator==(const TunedFor&, const TunedFor&) = default;
};

std::string ToText(const TunedFor& where);  // "shm ranks 4 crowded"

// The figures of cost_model.h. Rates are in 1e9 bytes a second. An infinite rate means that the
// work costs nothing.
struct LinkFigures {
  TunedFor where;
  double call_us = 0;     // per call, whatever it does
  double latency_us = 0;  // from the end of a send to its arrival
  double message_us = 0;  // work per message, on each side
  double switch_us = 0;   // a core switches to another rank
  double gbs = 1;         // rate of receiving; a send costs at most message_us
  // Rate of all ranks of a host together: of the memory, or of each direction of the network.
  double host_gbs = 1;
  // Rate of combining two operands, in bytes of the result.
  double reduce_gbs = 1;
  // The figures are from a transport's Traits, not from a line of a tuning.
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
  // Returns the figures of one line for this link. Lines of the same crowding come first. Among
  // them, prefers the line with the most ranks that has at most where.ranks, else the line with the
  // fewest ranks. If the link has no line, estimates from `speed`.
  LinkFigures FiguresFor(const TunedFor& where, const LinkSpeed& speed = {}) const;
};

// On an error returns INVALID_ARGUMENT. The message names `source`, the line and the value.
absl::StatusOr<Tuning> ParseTuning(absl::string_view text, const std::string& source);
const std::shared_ptr<const Tuning>& BuiltinTuning();
// An empty path stands for the built-in values. NOT_FOUND and other errors name the file.
absl::StatusOr<std::shared_ptr<const Tuning>> LoadTuning(const std::string& path);

}  // namespace entrain
