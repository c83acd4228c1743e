#include "transports/shm/peer_regions.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain::shm {
namespace {

absl::StatusOr<SealedMemory> MapRegion(const WireOffer& offer, Fd memory) {
  if (!memory.valid()) {
    return absl::ResourceExhaustedError("its descriptor did not come through");
  }
  ENTRAIN_ASSIGN_OR_RETURN(SealedMemory mapped,
                           SealedMemory::Adopt(memory.Release(), SealedMemory::Access::kRead));
  if (static_cast<uint64_t>(mapped.size()) < offer.bytes) {
    return absl::UnavailableError("it is smaller than the peer says");
  }
  ENTRAIN_RETURN_IF_ERROR(mapped.KeepFromChildren());
  mapped.CloseDescriptor();
  return mapped;
}

}  // namespace

absl::Status PeerRegions::Take(const WireOffer& offer, Fd memory) {
  if (offer.magic != WireOffer::kMagic || regions_.size() >= kMost ||
      offer.bytes > UINT64_MAX - offer.address || regions_.count(offer.region) != 0) {
    return absl::UnavailableError("the peer broke the protocol: it offers impossible memory");
  }
  auto region = std::make_shared<PeerRegion>();
  region->address = offer.address;
  region->bytes = offer.bytes;
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
