#include "transports/shm/peer_regions.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain::shm {
namespace {

uint64_t PageSize() {
  return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Returns true if the mapped part lies in the offered range, and less than a page of the range lies
// before the mapped part, and less than a page after it.
bool IsPossible(const WireOffer& offer) {
  if (offer.magic != WireOffer::kMagic || offer.bytes > UINT64_MAX - offer.address ||
      offer.mapped_address < offer.address || offer.mapped_bytes > offer.bytes) {
    return false;
  }
  const uint64_t before = offer.mapped_address - offer.address;
  const uint64_t outside = offer.bytes - offer.mapped_bytes;
  return before < PageSize() && before <= outside && outside - before < PageSize();
}

absl::StatusOr<SealedMemory> MapRegion(const WireOffer& offer, Fd memory) {
  if (!memory.valid()) {
    return absl::ResourceExhaustedError("its descriptor did not come through");
  }
  const bool whole = offer.bytes == offer.mapped_bytes;
  ENTRAIN_ASSIGN_OR_RETURN(SealedMemory mapped,
                           SealedMemory::Adopt(memory.Release(), SealedMemory::Access::kRead,
                                               whole ? 0 : static_cast<int64_t>(PageSize())));
  if (static_cast<uint64_t>(mapped.size()) != offer.mapped_bytes) {
    return absl::UnavailableError("its size is not what the peer says");
  }
  ENTRAIN_RETURN_IF_ERROR(mapped.KeepFromChildren());
  mapped.CloseDescriptor();
  return mapped;
}

}  // namespace

absl::Status PeerRegions::Take(const WireOffer& offer, Fd memory) {
  if (!IsPossible(offer) || regions_.size() >= kMost || regions_.count(offer.region) != 0) {
    return absl::UnavailableError("the peer broke the protocol: it offers impossible memory");
  }
  auto region = std::make_shared<PeerRegion>();
  region->address = offer.address;
  region->bytes = offer.bytes;
  region->mapped_address = offer.mapped_address;
  absl::StatusOr<SealedMemory> mapped = MapRegion(offer, std::move(memory));
  if (mapped.ok()) {
    region->memory = *std::move(mapped);
  } else {
    ENTRAIN_LOG(kWarning, "shm: cannot map ", offer.bytes, " bytes of the peer's memory (",
                mapped.status().message(), "); messages from there are copied");
  }
  regions_[offer.region] = std::move(region);
  return absl::OkStatus();
}

std::array<PeerRegion::Range, 2> PeerRegion::Unmapped(uint64_t from, uint64_t count) const {
  const uint64_t until = from + count;
  const uint64_t mapped_until = mapped_address + static_cast<uint64_t>(memory.size());
  const uint64_t head = std::clamp(mapped_address, from, until);
  const uint64_t tail = std::clamp(mapped_until, head, until);
  return {Range{from, head - from}, Range{tail, until - tail}};
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegions::Find(uint64_t id, uint64_t address,
                                                                    uint64_t bytes) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) {
    return absl::UnavailableError(
        "the peer broke the protocol: a message in memory it did not offer");
  }
  const PeerRegion& region = *found->second;
  if (address < region.address || address - region.address > region.bytes ||
      bytes > region.bytes - (address - region.address)) {
    return absl::UnavailableError(
        "the peer broke the protocol: a message beyond the memory it offered");
  }
  return region.memory.data() == nullptr ? nullptr : found->second;
}

absl::Status PeerRegions::Forget(uint64_t id) {
  return regions_.erase(id) == 1
             ? absl::OkStatus()
             : absl::UnavailableError(
                   "the peer broke the protocol: it retires memory it did not offer");
}

}  // namespace entrain::shm
