// How ranks that share only a store become a communicator: each brings a card to a meeting in the store (lib/store/store.h)
// and gets those of all, in one round trip; all check the same agreements; everybody connects, and one message between
// every two ranks proves it. From the meeting on all ranks learn of one that ends, or fails, before they are done.
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
  int32_t rank = 0;
  PeerId id{};
  std::string host_id;
  Context context = 0;
  std::string settings;  // what must be the same everywhere
  std::string tuning;    // where that is from, for the message that it is not the same
  std::vector<std::pair<std::string, std::string>> addresses;  // transport, address
  CpuShare cpus;

  // Cut so that ranks of one host, and of one job, have equal parts.
  Parts ToParts() const;
  static absl::StatusOr<Card> FromParts(const Parts& parts);
};

// The cards of all ranks, in rank order, once all have come and agree.
absl::StatusOr<std::vector<Card>> ExchangeCards(StoreMeeting& meeting, const Stop& stop);

// What the others are told when creating fails on `rank` by `why`.
absl::Status ForOthers(const absl::Status& why, int rank);

// The members as this rank sees them: of each pair's common transports the first that reaches.
// Connects.
absl::StatusOr<std::vector<Member>> MembersFromCards(Runtime& runtime,
                                                     const std::vector<Card>& cards, int rank);

}  // namespace entrain
