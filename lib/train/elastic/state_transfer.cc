#include "lib/train/elastic/state_transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/kernels/array_hash.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// In bytes per second. Time limits assume that the network and the hash are at least this fast. The
// first kFirst bytes of the first large item are moved under the limit of a very slow network. They
// show how fast the network is; later limits assume a quarter of that.
constexpr int64_t kSlowestNetwork = 4 << 20, kVerySlowNetwork = 64 << 10, kSlowestHash = 64 << 20;
constexpr int64_t kFirst = 512 << 10, kShare = 4;
constexpr int64_t kWhole = 4096;  // an item of at most this size is sent by one donor
constexpr int64_t kAligned = 64;

int64_t TimeFor(int64_t bytes, int64_t rate) {
  return bytes / rate * kSecond + kSecond;
}

int64_t SizeOfAll(absl::Span<const TransferItem> items) {
  int64_t bytes = 0;
  for (const TransferItem& item : items) {
    bytes += static_cast<int64_t>(item.bytes.size());
  }
  return bytes;
}

bool Has(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

class Transfer {
 public:
  Transfer(Communicator& comm, const TransferParties& parties, absl::Span<const TransferItem> items,
           int64_t limit_ns)
      : comm_(comm), parties_(parties), items_(items), limit_ns_(limit_ns) {}

  // Gathers the hashes of all donors. They must be equal.
  absl::Status CompareDonors();
  // Sends or receives one item. All ranks move the items in the same order.
  absl::Status Move(size_t index);
  // On a newcomer: compares the item with the donors' hash.
  absl::Status Verify(size_t index) const;

 private:
  uint64_t Hash(int rank, size_t index) const {
    return hashes_[static_cast<size_t>(rank) * items_.size() + index];
  }
  int ReplicaOf(int rank) const { return parties_.replicas[static_cast<size_t>(rank)]; }
  absl::Status MovePart(size_t index, const TransferItem& part);
  int64_t Limit(int64_t bytes) const { return limit_ns_ + TimeFor(bytes, rate_); }
  absl::StatusOr<RefPtr<Work>> Start(CallKind kind, size_t index, Bytes bytes, int peer);

  Communicator& comm_;
  const TransferParties& parties_;
  const absl::Span<const TransferItem> items_;
  const int64_t limit_ns_;
  int64_t rate_ = kSlowestNetwork;  // bytes per second that limits assume
  bool measured_ = false;           // the same on all ranks
  std::vector<uint64_t> hashes_;    // by rank and item
};

absl::Status Transfer::CompareDonors() {
  std::vector<uint64_t> mine(items_.size(), 0);
  const int64_t limit_ns = HashLimit(limit_ns_, SizeOfAll(items_));
  Worker::Doing("newcomers: hashes of the state", 2 * limit_ns);
  if (Has(parties_.donors, comm_.rank())) {
    std::transform(items_.begin(), items_.end(), mine.begin(),
                   [](const TransferItem& item) { return StateHash(item.bytes); });
  }
  hashes_.resize(mine.size() * static_cast<size_t>(comm_.size()));
  ENTRAIN_RETURN_IF_ERROR(comm_.AllGather(mine.data(), hashes_.data(),
                                          static_cast<int64_t>(mine.size()), DType::kU64,
                                          TimedCall(limit_ns, -1, true)));
  const int first = parties_.donors[0];
  for (size_t i = 0; i < items_.size(); ++i) {
    for (const int donor : parties_.donors) {
      if (!items_[i].of_replica && Hash(donor, i) != Hash(first, i)) {
        const std::string differ = absl::StrFormat(
            "newcomers: %s has hash %016x on replica %d and %016x on replica %d", items_[i].name,
            Hash(first, i), ReplicaOf(first), Hash(donor, i), ReplicaOf(donor));
        if (Has(parties_.donors, comm_.rank())) {
          ENTRAIN_LOG(kWarning, differ);
        }
        // The newcomer is not at fault. With kAborted it applies again, because the anchors of the
        // donors may be repaired meanwhile.
        return absl::AbortedError(differ);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RefPtr<Work>> Transfer::Start(CallKind kind, size_t index, Bytes bytes, int peer) {
  Call call;
  call.kind = kind;
  call.count = static_cast<int64_t>(bytes.size());
  call.root = peer;
  (kind == CallKind::kSend ? call.in : call.out) = {bytes.data(), call.count};
  call.options = TimedCall(Limit(call.count), static_cast<int64_t>(index), true);
  return comm_.Start(call);
}

absl::Status Transfer::Move(size_t index) {
  TransferItem rest = items_[index];
  if (std::exchange(measured_, measured_ || rest.bytes.size() > kFirst) == measured_) {
    return MovePart(index, rest);
  }
  TransferItem first = rest;
  first.bytes = rest.bytes.subspan(0, kFirst);
  rest.bytes.remove_prefix(kFirst);
  rate_ = kVerySlowNetwork;
  const int64_t begun_ns = Clock::Real().Now();
  ENTRAIN_RETURN_IF_ERROR(MovePart(index, first));
  const double seconds =
      static_cast<double>(std::max<int64_t>(Clock::Real().Now() - begun_ns, kMillisecond)) /
      static_cast<double>(kSecond);
  rate_ = std::clamp(static_cast<int64_t>(kFirst / seconds) / kShare, kVerySlowNetwork / kShare,
                     kSlowestNetwork);
  return MovePart(index, rest);
}

// `item` may be a part of an item.
absl::Status Transfer::MovePart(size_t index, const TransferItem& item) {
  Worker::Doing(absl::StrCat("newcomers: ", item.name),
                Limit(static_cast<int64_t>(item.bytes.size())));
  const bool receives = Has(parties_.newcomers, comm_.rank());
  std::vector<RefPtr<Work>> under_way;
  absl::Status status;
  const auto donors = static_cast<int>(parties_.donors.size());
  for (int donor = 0; donor < donors && status.ok(); ++donor) {
    const ItemRange range = RangeOf(item, static_cast<int64_t>(index), donor, donors);
    const int rank = parties_.donors[static_cast<size_t>(donor)];
    if (range.count == 0 || (!receives && rank != comm_.rank())) {
      continue;
    }
    const std::vector<int> peers = receives ? std::vector<int>{rank} : parties_.newcomers;
    for (const int peer : peers) {
      auto work = Start(
          receives ? CallKind::kRecv : CallKind::kSend, index,
          item.bytes.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.count)),
          peer);
      status.Update(work.status());
      if (work.ok()) {
        under_way.push_back(*std::move(work));
      }
    }
  }
  for (const RefPtr<Work>& work : under_way) {  // the calls use the item's memory
    work->Wait(Deadline::Never());
    status.Update(work->status());
  }
  return Annotate(status, item.name);
}

absl::Status Transfer::Verify(size_t index) const {
  const uint64_t got = StateHash(items_[index].bytes), want = Hash(parties_.donors[0], index);
  if (got == want) {
    return absl::OkStatus();
  }
  std::string donors;
  for (const int donor : parties_.donors) {
    absl::StrAppend(&donors, donors.empty() ? "" : ", ", ReplicaOf(donor));
  }
  return absl::DataLossError(
      absl::StrFormat("newcomers: %s was received with hash %016x, and replicas %s have %016x",
                      items_[index].name, got, donors, want));
}

}  // namespace

std::vector<TransferItem> ItemsOf(StateList& list) {
  std::vector<TransferItem> items;
  for (StateItem& item : list.items()) {
    items.push_back({.name = item.layer < 0
                                 ? item.name
                                 : absl::StrCat(item.name, " of layer ", item.layer,
                                                item.first > 0 ? absl::StrCat(" from ", item.first)
                                                               : std::string()),
                     .bytes = Bytes(item.live, static_cast<size_t>(item.bytes())),
                     .of_replica = item.holder == Holder::kReplica});
  }
  return items;
}

ItemRange RangeOf(const TransferItem& item, int64_t index, int donor, int donors) {
  const auto bytes = static_cast<int64_t>(item.bytes.size());
  if (item.of_replica || bytes <= kWhole) {
    const int64_t sender = item.of_replica ? 0 : index % donors;
    return {0, sender == donor ? bytes : 0};
  }
  const auto cut = [&](int64_t at) {
    return at == donors ? bytes : bytes / donors * at / kAligned * kAligned;
  };
  return {cut(donor), cut(donor + 1) - cut(donor)};
}

int64_t TransferLimit(int64_t limit_ns, int64_t bytes) {
  return limit_ns + TimeFor(bytes, kSlowestNetwork);
}

int64_t HashLimit(int64_t limit_ns, int64_t bytes) {
  return limit_ns + TimeFor(bytes, kSlowestHash);
}

uint64_t StateHash(ConstBytes bytes) {
  const size_t words = bytes.size() / sizeof(float);
  uint64_t total =
      HashArray(reinterpret_cast<const float*>(bytes.data()), static_cast<int64_t>(words));
  for (size_t i = words * sizeof(float); i < bytes.size(); ++i) {
    total = (total ^ static_cast<uint64_t>(bytes[i])) * 0x100000001b3u;
  }
  return total;
}

absl::Status TransferState(Communicator& comm, const TransferParties& parties,
                           absl::Span<const TransferItem> items, int64_t limit_ns) {
  Transfer transfer(comm, parties, items, limit_ns);
  ENTRAIN_RETURN_IF_ERROR(transfer.CompareDonors());
  for (size_t i = 0; i < items.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(transfer.Move(i));
  }
  absl::Status status;
  if (Has(parties.newcomers, comm.rank())) {
    for (size_t i = 0; i < items.size() && status.ok(); ++i) {
      status = transfer.Verify(i);
    }
  }
  return status;
}

}  // namespace entrain
