// Sends newcomers the state that all members have in common. Here the members are called donors.
// Each donor sends its range of every item, so a newcomer receives from all donors at the same
// time. A small item comes from one donor.
//
//   item 0  |donor 0|donor 1|donor 2|     item 1  |donor 0|donor 1|donor 2|     ...
//
// Items are sent one after the other. Each donor hashes all items before the first one is sent. All
// ranks compare these hashes, and so detect donors that differ. At the end, each newcomer hashes
// the received bytes and compares these hashes with those of the donors.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/base/bytes.h"
#include "lib/comm/communicator.h"
#include "lib/train/state/state_list.h"

namespace entrain {

struct TransferItem {
  std::string name;         // for errors: "anchor of layer 3"
  Bytes bytes;              // sent by donors, written by newcomers
  bool of_replica = false;  // replicas have different values; the first donor sends its own
};
// Returns the items of a list. The list must stay valid as long as the items are used.
std::vector<TransferItem> ItemsOf(StateList& list);

// Donors and newcomers, as ranks of a communicator. `replicas` is indexed by rank, and has the
// number of the rank's replica.
struct TransferParties {
  std::vector<int> donors, newcomers;  // ascending
  std::vector<int> replicas;
};

// A range of an item: the bytes [first, first + count), which one donor sends.
struct ItemRange {
  int64_t first = 0, count = 0;
};
// Returns the range of `item` that a donor sends. `index` is the index of the item. `donor` is the
// index of the donor in TransferParties::donors. Together the ranges of all donors are the item.
ItemRange RangeOf(const TransferItem& item, int64_t index, int donor, int donors);

// Returns the time limit of a call that moves `bytes`. `limit_ns` is the time limit of a call
// without data.
int64_t TransferLimit(int64_t limit_ns, int64_t bytes);

// Returns the time limit of a call before which each rank hashes at most `bytes`.
int64_t HashLimit(int64_t limit_ns, int64_t bytes);

// Returns a hash of the bytes. A change of one bit always changes it.
uint64_t StateHash(ConstBytes bytes);

// Collective over `comm`. No other call may be under way on `comm`. All ranks must have the same
// items, by name and size. `limit_ns` is the time limit of a call without data. If donors differ,
// returns kAborted on all ranks; the message names the item and the replicas. If a newcomer has
// received other bytes than the donors have, returns kDataLoss on this newcomer.
absl::Status TransferState(Communicator& comm, const TransferParties& parties,
                           absl::Span<const TransferItem> items, int64_t limit_ns);

}  // namespace entrain
