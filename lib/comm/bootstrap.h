// Makes a communicator of ranks that share only a store. Each rank brings a card to a meeting in
// the store (lib/store/store.h) and gets the cards of all ranks, in one round trip. Each rank
// compares all cards, so all ranks find the same disagreement. Then the ranks connect. One message
// between every two ranks proves that they reach each other. If a rank ends or fails before the
// communicator is made, the store reports this to all other ranks of the meeting.
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

  // Returns the card in several parts. Some parts are equal on all ranks of a host or of a job. If
  // many ranks have the same part, the store transfers it only once.
  Parts ToParts() const;
  static absl::StatusOr<Card> FromParts(const Parts& parts);
};

// Blocks until all ranks have come to the meeting. Returns their cards in rank order, or an error
// if the cards disagree.
absl::StatusOr<std::vector<Card>> ExchangeCards(StoreMeeting& meeting, const Stop& stop);

// Returns the error that this rank tells the other ranks if its creation of the communicator fails
// because of `why`. `rank` is this rank. `members`: if a communicator grows, its number of ranks
// before the growth. The ranks from `members` on are newcomers then (joining.cc). 0: no
// communicator grows.
//
// The members already reach each other. So if a newcomer cannot reach a member, the newcomer is to
// blame. A newcomer may blame another newcomer. If `hurries` is false, it may also blame a member
// that did not come to the meeting. `hurries`: the newcomer's own time limit is earlier than that
// of the other ranks.
absl::Status ForOthers(const absl::Status& why, int rank, int members = 0, bool hurries = false);

// Connects to the other ranks. Returns the members, each with the path from this rank to it. For
// each peer, uses the first transport of this rank that the peer also has and that reaches the
// peer.
absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank);

}  // namespace entrain
