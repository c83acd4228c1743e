// State in device memory is saved and loaded with the same bytes as in host memory, whole or not at
// all.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/train/checkpoint.h"
#include "lib/train/state_list.h"
#include "tests/device/cuda/on_device.h"
#include "tests/support/ranks.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int64_t kMine = 11;

// The state of a rank: its shards of two layers, an array, and a number.
class State {
 public:
  State(Device* device, int rank, float scale)
      : slab_(*Slab::Make({37, 8}, kRanks, rank)), at_{device, nullptr} {
    if (device != nullptr) {
      stream_ = std::make_unique<TestStream>(*device);
      at_.stream = stream_->get();
    }
    arrays_[0] = *PlacedArray::Allocate(device, slab_.count() * 4);
    arrays_[1] = *PlacedArray::Allocate(device, kMine * 8);
    std::vector<float> shards(static_cast<size_t>(slab_.count()));
    std::vector<double> mine(kMine);
    for (int l = 0; l < slab_.layers(); ++l) {  // padding is not saved
      for (int64_t i = 0; i < slab_.layer(l).valid; ++i) {
        shards[static_cast<size_t>(slab_.layer(l).offset + i)] =
            scale * static_cast<float>(i + 10 * l + 100 * rank);
      }
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i] = scale / static_cast<double>(i + 1);
    }
    Move(arrays_[0].data(), shards.data(), arrays_[0].size());
    Move(arrays_[1].data(), mine.data(), arrays_[1].size());
    step_ = static_cast<int64_t>(scale);
  }
  absl::Status Save(AllRanks& all, const CheckpointOptions& options) {
    StateList list(slab_, options.kind, at_);
    Visit(list);
    return SaveState(all, Part(), options, step_, list);
  }
  absl::Status Load(AllRanks& all, const CheckpointOptions& options) {
    StateList list(slab_, options.kind, at_);
    Visit(list);
    ENTRAIN_RETURN_IF_ERROR(LoadState(all, Part(), options, &list));
    return list.Apply(all.deadline());
  }
  // Returns the whole state as bytes.
  std::string Bytes() {
    std::string all(reinterpret_cast<const char*>(&step_), sizeof(step_));
    for (const PlacedArray& array : arrays_) {
      std::string bytes(static_cast<size_t>(array.size()), '\0');
      Move(bytes.data(), array.data(), array.size());
      all += bytes;
    }
    return all;
  }

 private:
  void Visit(StateList& list) {
    list.Value("steps", Holder::kAll, &step_);
    for (int l = 0; l < slab_.layers(); ++l) {
      list.Layer("anchor", l, reinterpret_cast<float*>(arrays_[0].data()) + slab_.layer(l).offset,
                 DType::kF32);
    }
    list.Array("mine", Holder::kRank, DType::kF64, arrays_[1].data(), kMine);
  }
  ModelPart Part() const {
    ModelPart part;
    part.mesh[static_cast<size_t>(Axis::kShard)] = kRanks;
    part.layers = {{37, false}, {8, false}};
    return part;
  }
  void Move(void* to, const void* from, int64_t bytes) {
    if (at_.device == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    } else {
      EXPECT_EQ(at_.device->Copy(to, from, bytes, at_.stream), absl::OkStatus());
      stream_->Finish();
    }
  }

  const Slab slab_;
  ArraysAt at_;
  std::unique_ptr<TestStream> stream_;
  PlacedArray arrays_[2];
  int64_t step_ = 0;
};

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(DeviceState, ACheckpointOfADeviceIsThatOfTheHostAndBack) {
  Device* const device = &TestDevice();
  for (const CheckpointKind kind : {CheckpointKind::kExact, CheckpointKind::kPortable}) {
    for (const Way way : kWays) {
      const Directory directory;
      RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
        State host(nullptr, comm->rank(), 3), there(device, comm->rank(), 3);
        EXPECT_EQ(host.Bytes(), there.Bytes());
        for (const auto& [state, name] : {std::pair(&host, "host"), {&there, "device"}}) {
          AllRanks all(comm, nullptr, 0);
          ASSERT_EQ(state->Save(all, To(directory, kind, way, name)), absl::OkStatus());
        }
        for (Device* const to : {static_cast<Device*>(nullptr), device}) {
          for (const char* const name : {"host", "device"}) {
            AllRanks all(comm, nullptr, 0);
            State empty(to, comm->rank(), 0);
            ASSERT_EQ(empty.Load(all, To(directory, kind, way, name)), absl::OkStatus());
            std::string want = there.Bytes();
            if (kind == CheckpointKind::kPortable) {  // it has no state of single ranks
              want.resize(want.size() - kMine * 8);
              want.append(kMine * 8, '\0');
            }
            EXPECT_EQ(empty.Bytes(), want) << name << (to == nullptr ? " on the host" : "");
          }
        }
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());  // freeing waits for all streams
      });
      if (way.full) {
        EXPECT_EQ(Read(directory.File("host.ckpt")), Read(directory.File("device.ckpt")));
      }
    }
  }
}

TEST(DeviceState, ACopyThatFailsIsTheErrorOfAllAndNothingIsSaved) {
  ENTRAIN_NEEDS_FAKE();
  for (const Way way : kWays) {
    const Directory directory;
    RunRanks(kRanks, [&](const std::shared_ptr<Communicator>& comm) {
      State state(&TestDevice(), comm->rank(), 3);
      const CheckpointOptions to = To(directory, CheckpointKind::kExact, way);
      {
        AllRanks all(comm, nullptr, 0);
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        if (comm->rank() == 1) {
          FailCall("cuMemcpyAsync", 3, 719);  // CUDA_ERROR_LAUNCH_FAILED
        }
        ASSERT_EQ(comm->Barrier(), absl::OkStatus());
        const absl::Status status = state.Save(all, to);
        EXPECT_THAT(std::string(status.message()), HasSubstr("cuMemcpyAsync")) << way.name();
        EXPECT_FALSE(all.broken());
      }
      AllRanks all(comm, nullptr, 0);
      EXPECT_TRUE(absl::IsFailedPrecondition(state.Load(all, to)));
      EXPECT_EQ(state.Save(all, to), absl::OkStatus());
      ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    });
  }
}

TEST(DeviceState, MemoryOfAnotherDeviceIsRefusedByName) {
  if (TestDevices().count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  const Slab slab = *Slab::Make({4}, 1, 0);
  StateList list(slab, CheckpointKind::kExact, ArraysAt{&TestDevice(0), nullptr});
  TestMemory there(TestDevice(1), 16);
  list.Array("moments", Holder::kRank, DType::kF32, there.get(), 4);
  EXPECT_TRUE(absl::IsInvalidArgument(list.status()));
  EXPECT_EQ(list.status().message(), "moments: is memory of device 1, not of device 0 or the host");
}

}  // namespace
}  // namespace entrain
