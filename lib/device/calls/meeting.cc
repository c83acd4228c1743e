// The meeting. In the meeting, the ranks of a communicator find out whether all of them can join
// the library. The first untagged collective on device memory begins with the meeting: an
// all_gather, in which each rank describes itself. Then the ranks join the library.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/device/calls/device_call.h"

namespace entrain {
namespace {

constexpr size_t kMostIdBytes = 256;

struct Offer {
  std::array<uint8_t, 16> device;
  uint8_t joins;                 // 1: the rank would use the library
  std::array<char, 32> version;  // version of the library; must be equal on all ranks
  uint16_t id_size;              // made by rank 0
  std::array<char, kMostIdBytes> id;
};

class Meeting final : public DeviceWay {
 public:
  explicit Meeting(DeviceCall& call)
      : call_(call), core_(call.core()), offers_(static_cast<size_t>(core_.size())) {}

  ~Meeting() override {
    if (offload_ != nullptr) {
      offload_->Abort();
    }
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    if (!part_.started()) {
      *moved = true;
      MakeOffer();
      ENTRAIN_RETURN_IF_ERROR(Gather());
    }
    if (!gathered_) {
      ENTRAIN_ASSIGN_OR_RETURN(gathered_, part_.Over());
      if (!gathered_) {
        return false;
      }
      *moved = true;
      ENTRAIN_RETURN_IF_ERROR(Join());
    }
    if (offload_ != nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(const bool joined, offload_->Begun());
      if (!joined) {
        return false;
      }
      *moved = true;
    }
    ENTRAIN_LOG(kInfo, core_.config().name, ": device memory: ",
                offload_ != nullptr ? call_.side().library()->name() : "no library", ", staged");
    call_.side().Met(std::move(offload_));
    return true;
  }
  bool Quiet() override { return part_.quiet(); }
  const char* WaitsFor() const override { return gathered_ ? "the other ranks in NCCL" : nullptr; }

 private:
  Offer& mine() { return offers_[static_cast<size_t>(core_.rank())]; }

  void MakeOffer() {
    std::memset(static_cast<void*>(&mine()), 0, sizeof(Offer));
    mine().device = call_.device().uuid();
    OffloadLibrary* const library = call_.side().library();
    if (library == nullptr) {
      return;
    }
    const std::string version = library->version();
    version.copy(mine().version.data(), mine().version.size());
    mine().joins = core_.rank() > 0 || MakeId(*library) ? 1 : 0;
  }

  bool MakeId(OffloadLibrary& library) {
    const auto id = library.NewId();
    if (!id.ok() || id->size() > kMostIdBytes) {
      ENTRAIN_LOG(kInfo, core_.config().name, ": ", library.name(),
                  " is left out: ", id.status().message());
      return false;
    }
    mine().id_size = static_cast<uint16_t>(id->size());
    id->copy(mine().id.data(), kMostIdBytes);
    return true;
  }

  absl::Status Gather() {
    Call part;
    part.kind = CallKind::kAllGather;
    part.count = sizeof(Offer);
    part.in = {&mine(), part.count, MemoryKind::kHost};
    part.out = {offers_.data(), part.count * core_.size(), MemoryKind::kHost};
    ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, call_.Launch(0, std::move(part)));
    part_.Set(std::move(work));
    return absl::OkStatus();
  }

  absl::Status Join() {
    if (AllCanJoin()) {
      const Offer& first = offers_.front();
      const std::string id(first.id.data(), std::min<size_t>(first.id_size, kMostIdBytes));
      ENTRAIN_ASSIGN_OR_RETURN(
          offload_, call_.side().library()->Join(id, core_.rank(), core_.size(), call_.device()));
    }
    return absl::OkStatus();
  }

  // Returns true if all ranks have offered to join, have the same version of the library, and have
  // different devices. The library refuses ranks that share a device.
  bool AllCanJoin() const {
    return std::all_of(offers_.begin(), offers_.end(), [this](const Offer& one) {
      const auto same_device = [&](const Offer& other) { return other.device == one.device; };
      return one.joins != 0 && one.version == offers_.front().version &&
             std::count_if(offers_.begin(), offers_.end(), same_device) == 1;
    });
  }

  DeviceCall& call_;
  CommCore& core_;
  std::vector<Offer> offers_;  // by rank
  PartUnderWay part_;
  bool gathered_ = false;
  std::unique_ptr<Offload> offload_;  // being joined
};

}  // namespace

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call) {
  return std::make_unique<Meeting>(call);
}

}  // namespace entrain
