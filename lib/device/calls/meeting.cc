// The meeting. In the meeting, the ranks of a communicator find out which methods all of them can
// use besides the staged method. The first untagged collective on device memory begins with the
// meeting. It consists of two all_gathers. In the first one, each rank describes itself. In the
// second one, each rank says whether it could open the memory of the other ranks.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/device/calls/device_call.h"

namespace entrain {
namespace {

constexpr size_t kMostIdBytes = 256;

struct LibraryId {
  uint16_t size;
  std::array<char, kMostIdBytes> bytes;
  std::string text() const {
    return std::string(bytes.data(), std::min<size_t>(size, kMostIdBytes));
  }
};

struct Offer {
  std::array<uint8_t, 16> process;
  std::array<uint8_t, 16> device;
  DeviceExport sample;  // memory that other ranks try to open
  uint8_t direct;
  uint8_t whole, node_groups;    // the methods for which the rank would use the library
  std::array<char, 32> version;  // version of the library; must be equal on all ranks that join
  LibraryId id;                  // made by rank 0, and by the first rank of each node group
};

struct Verdict {
  uint8_t direct;
};

// Returns a random number that is the same for all runtimes of this process.
std::array<uint8_t, 16> ThisProcess() {
  static const std::array<uint8_t, 16> number = [] {
    std::random_device random;
    std::array<uint8_t, 16> bytes;
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
    return bytes;
  }();
  return number;
}

size_t At(int rank) {
  return static_cast<size_t>(rank);
}

class Meeting final : public DeviceWay {
 public:
  explicit Meeting(DeviceCall& call)
      : call_(call), core_(call.core()), offers_(At(core_.size())), verdicts_(At(core_.size())) {}

  ~Meeting() override {
    if (offload_ != nullptr) {
      offload_->Abort();
    }
  }

  absl::StatusOr<bool> Step(bool* moved) override {
    for (;;) {
      if (part_.started()) {
        ENTRAIN_ASSIGN_OR_RETURN(const bool over, part_.Over());
        if (!over) {
          return false;
        }
        part_.Clear();
      }
      ENTRAIN_ASSIGN_OR_RETURN(const bool joined, Joined());
      if (!joined) {
        return false;
      }
      *moved = true;
      switch (at_++) {
        case 0:
          MakeOffer();
          ENTRAIN_RETURN_IF_ERROR(Gather(0, offers_));
          break;
        case 1:
          verdicts_[At(core_.rank())].direct = TryMemory() ? 1 : 0;
          ENTRAIN_RETURN_IF_ERROR(Gather(1, verdicts_));
          break;
        case 2:
          ENTRAIN_RETURN_IF_ERROR(Join());
          break;
        default:
          Conclude();
          return true;
      }
    }
  }
  bool Quiet() override { return part_.quiet(); }
  const char* WaitsFor() const override {
    return part_.started() ? nullptr : "the other ranks in NCCL";
  }

 private:
  template <typename Record>
  absl::Status Gather(size_t number, std::vector<Record>& all) {
    Call part;
    part.kind = CallKind::kAllGather;
    part.count = sizeof(Record);
    part.in = {&all[At(core_.rank())], part.count, MemoryKind::kHost};
    part.out = {all.data(), part.count * core_.size(), MemoryKind::kHost};
    ENTRAIN_ASSIGN_OR_RETURN(RefPtr<Work> work, call_.Launch(number, std::move(part)));
    part_.Set(std::move(work));
    return absl::OkStatus();
  }

  void MakeOffer() {
    Offer& mine = offers_[At(core_.rank())];
    std::memset(static_cast<void*>(&mine), 0, sizeof(mine));
    mine.process = ThisProcess();
    mine.device = call_.device().uuid();
    const DeviceWays& ways = call_.side().ways();
    if (ways.direct && core_.topology().hosts == 1) {
      const auto sample = call_.device().Export(call_.side().sample());
      mine.direct = sample.ok() ? 1 : 0;
      if (sample.ok()) {
        mine.sample = *sample;
      } else {
        Note("direct exchange", sample.status());
      }
    }
    if (ways.library != nullptr) {
      const std::string version = ways.library->version();
      version.copy(mine.version.data(), mine.version.size());
      const auto& shape = call_.side().shape();
      const bool groups = ways.node_groups && shape;
      const bool first = core_.rank() == 0 || (groups && shape->inside.me == 0);
      const bool well = !first || MakeId(&mine.id);
      mine.whole = well && ways.whole ? 1 : 0;
      mine.node_groups = well && groups ? 1 : 0;
    }
  }

  bool MakeId(LibraryId* out) {
    const auto id = call_.side().ways().library->NewId();
    if (!id.ok() || id->size() > kMostIdBytes) {
      Note(call_.side().ways().library->name(), id.status());
      return false;
    }
    out->size = static_cast<uint16_t>(id->size());
    id->copy(out->bytes.data(), kMostIdBytes);
    return true;
  }

  // Returns true if this rank can open the samples of all other ranks.
  bool TryMemory() {
    for (int r = 0; r < core_.size(); ++r) {
      const Offer& theirs = offers_[At(r)];
      if (theirs.direct == 0) {
        return false;
      }
      if (theirs.process == ThisProcess()) {
        if (theirs.device != call_.device().uuid()) {
          return false;  // two ranks of one process on different devices
        }
        continue;
      }
      if (const auto opened = call_.side().Address(r, theirs.sample); !opened.ok()) {
        Note("direct exchange", opened.status());
        return false;
      }
    }
    return true;
  }

  // Joins a communicator of the library: for all ranks or, if that is impossible, for the ranks of
  // this node group.
  absl::Status Join() {
    OffloadLibrary* const library = call_.side().ways().library;
    std::vector<int> all(offers_.size());
    std::iota(all.begin(), all.end(), 0);
    whole_ = CanJoin(all, &Offer::whole);
    if (whole_) {
      ENTRAIN_ASSIGN_OR_RETURN(offload_, library->Join(offers_[0].id.text(), core_.rank(),
                                                       core_.size(), call_.device()));
    } else if (NodeGroupsCanJoin()) {
      const Group& inside = call_.side().shape()->inside;
      ENTRAIN_ASSIGN_OR_RETURN(offload_, library->Join(offers_[At(inside.ranks[0])].id.text(),
                                                       inside.me, inside.size(), call_.device()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Joined() {
    return offload_ == nullptr ? absl::StatusOr<bool>(true) : offload_->Begun();
  }

  void Conclude() {
    DeviceSide::Ways ways;
    ways.direct = std::all_of(verdicts_.begin(), verdicts_.end(),
                              [](const Verdict& one) { return one.direct != 0; });
    const bool library = offload_ != nullptr;
    ENTRAIN_LOG(kInfo, core_.config().name,
                ": device memory: ", library ? call_.side().ways().library->name() : "no library",
                !library ? ""
                : whole_ ? " for all"
                         : " for node groups",
                ways.direct ? ", direct" : "", ", staged");
    for (const Offer& one : offers_) {
      ways.here.push_back(one.process == ThisProcess());
    }
    if (library && !whole_) {
      ways.across = core_.funnel().AddGroup(call_.side().shape()->across);
    }
    ways.offload = std::move(offload_);
    ways.whole = whole_;
    call_.side().Met(std::move(ways));
  }

  // Returns true if all ranks have offered the method, have the same version of the library, and
  // have different devices. The library refuses ranks that share a device.
  bool CanJoin(const std::vector<int>& ranks, uint8_t Offer::*offered) const {
    for (const int rank : ranks) {
      const Offer& one = offers_[At(rank)];
      const auto same_device = [&](int other) { return offers_[At(other)].device == one.device; };
      if (one.*offered == 0 || one.version != offers_[At(ranks[0])].version ||
          std::count_if(ranks.begin(), ranks.end(), same_device) > 1) {
        return false;
      }
    }
    return true;
  }

  bool NodeGroupsCanJoin() const {
    for (int r = 0; r < core_.size(); ++r) {
      if (!call_.side().shape() || !CanJoin(core_.topology().Local(r).ranks, &Offer::node_groups)) {
        return false;
      }
    }
    return true;
  }

  void Note(absl::string_view what, const absl::Status& why) const {
    ENTRAIN_LOG(kInfo, core_.config().name, ": ", what, " is left out: ", why.message());
  }

  DeviceCall& call_;
  CommCore& core_;
  std::vector<Offer> offers_;
  std::vector<Verdict> verdicts_;
  PartUnderWay part_;
  std::unique_ptr<Offload> offload_;  // being joined
  bool whole_ = false;                // `offload_` has all ranks
  int at_ = 0;
};

}  // namespace

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call) {
  return std::make_unique<Meeting>(call);
}

}  // namespace entrain
