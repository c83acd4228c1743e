// Gives newcomers the state that all replicas have in common. Every donor sends its range of every
// item, so that a newcomer receives from all donors at once. Small items come from one donor only.
//
//   item 0  |donor 0|donor 1|donor 2|     item 1  |donor 0|donor 1|donor 2|     ...
//
// Items are sent one after the other. A donor hashes its items before it sends any item, and all
// ranks compare the hashes to detect donors that differ. The newcomers compare the hash of the
// bytes that they have received.
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
#include "lib/train/state_list.h"

namespace entrain {

struct TransferItem {
  std::string name;         // for errors: "anchor of layer 3"
  Bytes bytes;              // sent by donors, written by newcomers
  bool of_replica = false;  // replicas have different values; the first donor sends its own
};
// Returns the items of a list. The list must stay valid as long as the items are used.
std::vector<TransferItem> ItemsOf(StateList& list);

// The ranks of a communicator. `replicas` has their replicas' numbers.
struct TransferParties {
  std::vector<int> donors, newcomers;  // ascending
  std::vector<int> replicas;
};

// The bytes [first, first + count) of an item that a donor sends.
struct ItemRange {
  int64_t first = 0, count = 0;
};
// Returns the range of `item` that a donor sends. `index` is the index of the item, and `donor`
// that of the donor. The ranges of all donors make up the item.
ItemRange RangeOf(const TransferItem& item, int64_t index, int donor, int donors);

// Returns the time limit of a call that moves `bytes`; `limit_ns` is that of a call without data.
int64_t TransferLimit(int64_t limit_ns, int64_t bytes);

// Returns the time limit of a call that each rank makes after it has hashed at most `bytes`.
int64_t HashLimit(int64_t limit_ns, int64_t bytes);

// Returns a hash of the bytes. A change of one bit always changes it.
uint64_t StateHash(ConstBytes bytes);

// Collective over `comm`, which must have no other calls under way. All ranks must have the same
// items, by name and size. `limit_ns` is the time limit of a call without data. If donors differ,
// returns kAborted on all ranks, naming the item and the replicas. Returns kDataLoss on a newcomer
// that has received other bytes than the donors have.
absl::Status TransferState(Communicator& comm, const TransferParties& parties,
                           absl::Span<const TransferItem> items, int64_t limit_ns);

}  // namespace entrain
