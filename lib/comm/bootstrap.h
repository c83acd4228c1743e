// How ranks that share only a store become a communicator: every rank publishes who it is and how
// it can be reached, rank 0 checks that all agree and publishes the table, everybody connects, and
// one barrier over all pairs proves it.
//
//   key (under PREFIX = "entrain/NAME#USE/")
//   claim/R   every rank, by Add   1; more: rank R has come before, now or in an earlier run
//   rank/R    every rank           its card: id, host, context number, addresses, and the
//                                  settings that must agree
//   table     rank 0               all cards
//   met       rank 0               empty, at the end: the communicator was made. Stays, so that a
//                                  second run with a store that was kept can be told so
//   poison    whoever finds one    the error; everybody who waits looks for it
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/base/cpu_share.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/runtime.h"
#include "lib/store/store.h"

namespace entrain {

// What a rank publishes about itself.
struct Card {
  int32_t rank = 0, size = 0;
  PeerId id{};
  std::string host_id;
  Context context = 0;
  std::string settings;  // what must be the same everywhere
  std::string tuning;    // where that is from, for the message that it is not the same
  std::vector<std::pair<std::string, std::string>> addresses;  // transport, address
  CpuShare cpus;

  std::string Encode() const;
  static absl::StatusOr<Card> Decode(absl::string_view bytes);
};

// The cards of all ranks, in rank order. `mine.rank` of `mine.size`.
absl::StatusOr<std::vector<Card>> ExchangeCards(Store& store, const std::string& prefix,
                                                const Card& mine, const Stop& stop);

// The members as this rank sees them: of each pair's common transports the first that reaches.
// Connects.
absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank);

}  // namespace entrain
