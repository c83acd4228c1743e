// Where the ranks of a communicator find out which ways besides staging all of them can go: the first thing its first
// untagged collective on device memory does. Two all_gathers: what each has, and what each made of the others' memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/device_call.h"

namespace entrain {
namespace {

constexpr int64_t kSampleBytes = 256;
constexpr size_t kMostIdBytes = 256;

struct Offer {
  std::array<uint8_t, 16> process;
  std::array<uint8_t, 16> device;
  DeviceExport sample;  // memory to try
  uint8_t direct;
  uint8_t library;
  uint8_t id_bytes_high, id_bytes_low;  // of rank 0
  std::array<char, 32> version;         // of the library; rank 0's must be everybody's
  std::array<char, kMostIdBytes> id;
};

struct Verdict {
  uint8_t direct;
};

// A number of this process, the same for all runtimes that it may have.
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

  absl::StatusOr<bool> Step(bool* moved) override {
    for (;;) {
      if (part_.started()) {
        ENTRAIN_ASSIGN_OR_RETURN(const bool over, part_.Over());
        if (!over) {
          return false;
        }
        part_.Clear();
      }
      *moved = true;
      switch (at_++) {
        case 0:
          ENTRAIN_RETURN_IF_ERROR(MakeOffer());
          ENTRAIN_RETURN_IF_ERROR(Gather(0, offers_));
          break;
        case 1:
          verdicts_[At(core_.rank())].direct = TryMemory() ? 1 : 0;
          ENTRAIN_RETURN_IF_ERROR(Gather(1, verdicts_));
          break;
        default:
          return Conclude();
      }
    }
  }
  bool Quiet() override { return part_.quiet(); }
  const char* WaitsFor() const override { return nullptr; }

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

  absl::Status MakeOffer() {
    Offer& mine = offers_[At(core_.rank())];
    std::memset(static_cast<void*>(&mine), 0, sizeof(mine));
    mine.process = ThisProcess();
    mine.device = call_.device().uuid();
    const DeviceWays& ways = call_.side().ways();
    if (ways.direct && core_.topology().hosts == 1) {
      ENTRAIN_ASSIGN_OR_RETURN(void* const memory, call_.side().Scratch(kSampleBytes));
      const auto sample = call_.device().Export(memory);
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
      mine.library = 1;
      if (core_.rank() == 0) {
        const auto id = ways.library->NewId();
        mine.library = id.ok() && id->size() <= kMostIdBytes ? 1 : 0;
        if (mine.library != 0) {
          id->copy(mine.id.data(), kMostIdBytes);
          mine.id_bytes_high = static_cast<uint8_t>(id->size() >> 8);
          mine.id_bytes_low = static_cast<uint8_t>(id->size());
        } else {
          Note(ways.library->name(), id.status());
        }
      }
    }
    return absl::OkStatus();
  }

  // Whether this rank can open what all others have offered.
  bool TryMemory() {
    for (int r = 0; r < core_.size(); ++r) {
      const Offer& theirs = offers_[At(r)];
      if (theirs.direct == 0) {
        return false;
      }
      if (theirs.process == ThisProcess()) {
        if (theirs.device != call_.device().uuid()) {
          return false;  // two devices of one process
        }
        continue;
      }
      if (const auto opened = call_.side().Address(theirs.sample); !opened.ok()) {
        Note("direct exchange", opened.status());
        return false;
      }
    }
    return true;
  }

  absl::StatusOr<bool> Conclude() {
    const bool direct = std::all_of(verdicts_.begin(), verdicts_.end(),
                                    [](const Verdict& one) { return one.direct != 0; });
    std::unique_ptr<Offload> offload;
    if (AllHaveTheLibrary()) {
      const Offer& first = offers_[0];
      const size_t bytes = std::min<size_t>(
          static_cast<size_t>(first.id_bytes_high) << 8 | first.id_bytes_low, kMostIdBytes);
      ENTRAIN_ASSIGN_OR_RETURN(offload, call_.side().ways().library->Join(
                                            std::string(first.id.data(), bytes), core_.rank(),
                                            core_.size(), call_.device(), call_.deadline()));
    }
    ENTRAIN_LOG(kInfo, core_.config().name, ": device memory: ",
                offload != nullptr ? call_.side().ways().library->name() : "no library",
                direct ? ", direct" : "", ", staged");
    std::vector<bool> here;
    for (const Offer& one : offers_) {
      here.push_back(one.process == ThisProcess());
    }
    call_.side().Met(direct, std::move(here), std::move(offload));
    return true;
  }

  // The same version, and a device each: the library refuses ranks that share one.
  bool AllHaveTheLibrary() const {
    for (const Offer& one : offers_) {
      const auto same_device = [&](const Offer& other) { return other.device == one.device; };
      if (one.library == 0 || one.version != offers_[0].version ||
          std::count_if(offers_.begin(), offers_.end(), same_device) > 1) {
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
  int at_ = 0;
};

}  // namespace

std::unique_ptr<DeviceWay> MakeMeeting(DeviceCall& call) {
  return std::make_unique<Meeting>(call);
}

}  // namespace entrain
