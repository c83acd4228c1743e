// Makes a communicator of ranks that have nothing in common but a store. Each rank publishes a card
// at a meeting in the store (lib/store/store.h). In the same round trip it gets the cards of all
// ranks. Each rank compares all cards, so all ranks find the same disagreement. Then the ranks
// connect. One message between every two ranks proves that they reach each other. If a rank exits
// or fails before the communicator is made, the store reports this to all other ranks of the
// meeting.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/base/clock.h"
#include "lib/base/cpu_share.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/create/runtime.h"
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
  bool answers = true;  // Member::answers

  // Returns the card in several parts. Some parts are equal on all ranks of a host or of a job. The
  // store transfers equal parts once.
  Parts ToParts() const;
  static absl::StatusOr<Card> FromParts(const Parts& parts);
};

// Blocks until all ranks have come to the meeting. Returns their cards in rank order, or an error
// if the cards disagree.
absl::StatusOr<std::vector<Card>> ExchangeCards(StoreMeeting& meeting, const Stop& stop);

// Must be called when this rank (`rank`) cannot create the communicator because of the error `why`.
// Returns the error that this rank sends to the other ranks. `members`: if a communicator grows,
// its number of ranks before the growth. Ranks >= `members` are then newcomers (joining.cc). 0: no
// communicator grows.
//
// The members already reach each other. So if a newcomer cannot reach a member, the newcomer is to
// blame. A newcomer may blame another newcomer. If `hurries` is false, a newcomer may also blame a
// member that did not come to the meeting. `hurries`: the newcomer has an earlier time limit than
// the other ranks. If a newcomer blames itself because its time was up before all ranks had met,
// the code is kDeadlineExceeded, and the newcomer may apply again.
absl::Status ForOthers(const absl::Status& why, int rank, int members = 0, bool hurries = false);

// Connects to the other ranks. Returns the members, each with the endpoint from this rank to the
// member. For each peer, uses the first transport of this rank that reaches the peer. The peer must
// have this transport too.
absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank);

}  // namespace entrain
