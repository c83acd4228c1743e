// Makes a communicator of ranks that share only a store. Each rank brings a card to a meeting in
// the store (lib/store/store.h) and gets the cards of all ranks, in one round trip. Each rank
// checks the same agreements. Then the ranks connect, and one message between every two ranks
// proves that they reach each other. From the meeting until the communicator is made, a rank that
// ends or fails is reported to all others.
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

// The data that a rank publishes about itself.
struct Card {
  int32_t rank = 0;
  PeerId id{};
  std::string host_id;
  Context context = 0;
  std::string settings;                                        // must be equal on all ranks
  std::string tuning;                                          // the tuning's source, for errors
  std::vector<std::pair<std::string, std::string>> addresses;  // transport, address
  CpuShare cpus;

  // Cuts the card so that ranks of one host, or of one job, have equal parts. A part that many
  // ranks have travels once.
  Parts ToParts() const;
  static absl::StatusOr<Card> FromParts(const Parts& parts);
};

// Blocks until all ranks have come. Returns their cards in rank order, or an error if they
// disagree.
absl::StatusOr<std::vector<Card>> ExchangeCards(StoreMeeting& meeting, const Stop& stop);

// Returns the error that the other ranks are told when creating fails on `rank` because of `why`.
// `members`: when a communicator grows, how many ranks it has before; the ranks from there on are
// newcomers (joining.cc). The members reach each other, so a newcomer that cannot reach a member is
// to blame itself. It may blame another newcomer, and a member that did not come to the meeting,
// unless the newcomer `hurries`: then its own time was up before that of the others.
absl::Status ForOthers(const absl::Status& why, int rank, int members = 0, bool hurries = false);

// Connects to the other ranks. Returns the members as this rank sees them. For each pair, the first
// common transport that reaches the peer is used.
absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank);

}  // namespace entrain
