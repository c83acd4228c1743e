// device_bench: measures the kernels of a device, and a copy within device memory. Prints the bytes
// that each kernel reads and writes per second, and the ratio to the copy.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/dtype.h"
#include "lib/base/status.h"
#include "lib/device/registry.h"
#include "lib/kernels/kernels.h"
#include "tools/command_line.h"
#include "tools/perf/statistics.h"

namespace entrain {
namespace {

struct Options {
  int device = 0, rounds = 9, repeats = 20, mebibytes = 256;
};

// Arrays on the device. The destructor frees them.
class Arrays {
 public:
  Arrays(Device& device, int64_t bytes) : device_(device), bytes_(bytes) {}
  ~Arrays() {
    for (void* const array : arrays_) {
      device_.Free(array);
    }
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  absl::Status Make(int count, StreamHandle stream) {
    for (int i = 0; i < count; ++i) {
      ENTRAIN_ASSIGN_OR_RETURN(void* const array, device_.Allocate(bytes_));
      arrays_.push_back(array);
      ENTRAIN_RETURN_IF_ERROR(device_.Fill(array, 0x3c, bytes_, stream));  // 0.0115 in f32
    }
    return absl::OkStatus();
  }
  void* operator[](size_t i) const { return arrays_[i]; }
  float* floats(size_t i) const { return static_cast<float*>(arrays_[i]); }

 private:
  Device& device_;
  const int64_t bytes_;
  std::vector<void*> arrays_;
};

struct Case {
  std::string name;
  int64_t arrays_moved;  // number of arrays read or written, of `bytes` each
  std::function<absl::Status()> enqueue;
  std::vector<double> seconds;
};

std::vector<Case> CasesOf(Device& device, const Arrays& x, int64_t bytes, StreamHandle stream) {
  const Kernels& k = device.kernels();
  std::vector<Case> cases;
  const auto kernel = [&](std::string name, int64_t arrays_moved, std::function<void()> run) {
    cases.push_back({std::move(name),
                     arrays_moved,
                     [run = std::move(run)] {
                       run();
                       return absl::OkStatus();
                     },
                     {}});
  };
  cases.push_back({"copy",
                   2,
                   [&device, &x, bytes, stream] { return device.Copy(x[0], x[1], bytes, stream); },
                   {}});
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    const int64_t count = bytes / SizeOf(dtype);
    const auto combine = [&k, &x, dtype, count](int n) {
      const void* const in[] = {x[1], x[2], x[3], x[4]};
      k.combine(ReduceOp::kSum, dtype, x[0], in, n, count, 1);
    };
    const std::string of(NameOf(dtype));
    kernel(absl::StrCat("reduce 2 ", of), 3, [combine] { combine(2); });
    kernel(absl::StrCat("reduce 4 ", of), 5, [combine] { combine(4); });
  }
  const int64_t count = bytes / 4;
  const SgdArgs outer = {
      .lr = 0.7, .momentum = 0.9, .weight_decay = 0, .nesterov = true, .first_step = false};
  kernel("outer_step", 6, [&k, &x, outer, count] {
    k.outer_step(outer, 1, x.floats(0), x.floats(1), x.floats(2), x.floats(3), count);
  });
  const AdamwArgs adamw = {.lr = 1e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .correction1 = 0.5,
                           .correction2 = 0.5};
  kernel("adamw", 7, [&k, &x, adamw, count] {
    k.adamw(adamw, x.floats(0), x.floats(0), x.floats(3), x.floats(1), x.floats(2), count);
  });
  const SgdArgs sgd = {
      .lr = 1e-3, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .first_step = false};
  kernel("sgd", 5, [&k, &x, sgd, count] {
    k.sgd(sgd, x.floats(0), x.floats(0), x.floats(3), x.floats(1), count);
  });
  kernel("weighted_delta", 3,
         [&k, &x, count] { k.weighted_delta(x.floats(0), x.floats(1), x.floats(2), 0.5f, count); });
  kernel("square_of_delta", 2,
         [&k, &x, count] { k.square_of_delta(x.floats(1), x.floats(2), count); });
  kernel("combine_weighted 4 f32", 5, [&k, &x, count] {
    const void* const in[] = {x[1], x[2], x[3], x[4]};
    const double weights[] = {0.1, 0.2, 0.3, 0.4};
    k.combine_weighted(DType::kF32, x[0], in, weights, 4, count);
  });
  kernel("combine_agreeing 4 f32", 5, [&k, &x, count] {  // reads each source twice
    const void* const in[] = {x[1], x[2], x[3], x[4]};
    const double weights[] = {0.1, 0.2, 0.3, 0.4};
    k.combine_agreeing(Consensus::kSum, true, DType::kF32, x[0], in, weights, 4, count);
  });
  kernel("cast bf16 and back", 3, [&k, &x, count] {  // two casts of one and a half arrays each
    k.cast(x[0], DType::kBF16, x[1], DType::kF32, count);
    k.cast(x[1], DType::kF32, x[0], DType::kBF16, count);
  });
  return cases;
}

// Measures one round of a case: `repeats` runs in a row, including the wait for their end.
absl::Status Measure(Device& device, StreamHandle stream, EventHandle done, int repeats,
                     Case& one) {
  KernelStream bound(device, stream);
  const int64_t begun = Clock::Real().Now();
  for (int i = 0; i < repeats; ++i) {
    ENTRAIN_RETURN_IF_ERROR(one.enqueue());
  }
  ENTRAIN_RETURN_IF_ERROR(device.Record(done, stream));
  ENTRAIN_RETURN_IF_ERROR(device.Wait(done, Deadline::After(60 * kSecond)));
  ENTRAIN_RETURN_IF_ERROR(bound.status());
  one.seconds.push_back(static_cast<double>(Clock::Real().Now() - begun) * 1e-9 / repeats);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  ENTRAIN_ASSIGN_OR_RETURN(Devices* const devices, OpenDevices());
  ENTRAIN_ASSIGN_OR_RETURN(Device* const device, devices->At(options.device));
  ENTRAIN_ASSIGN_OR_RETURN(const StreamHandle stream, device->CreateStream());
  ENTRAIN_ASSIGN_OR_RETURN(const EventHandle done, device->CreateEvent());
  const int64_t bytes = int64_t{options.mebibytes} << 20;
  Arrays arrays(*device, bytes);
  ENTRAIN_RETURN_IF_ERROR(arrays.Make(5, stream));
  std::vector<Case> cases = CasesOf(*device, arrays, bytes, stream);
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    for (Case& one : cases) {
      ENTRAIN_RETURN_IF_ERROR(Measure(*device, stream, done, round < 0 ? 2 : options.repeats, one));
      if (round < 0) {
        one.seconds.clear();
      }
    }
  }
  std::printf("%s, arrays of %lld MiB, median of %d rounds of %d\n", device->name().c_str(),
              static_cast<long long>(options.mebibytes), options.rounds, options.repeats);
  std::printf("%-24s %10s %10s %8s\n", "kernel", "us", "GB/s", "% copy");
  double copy_rate = 0;
  for (const Case& one : cases) {
    const double seconds = perf::Median(one.seconds);
    const double rate = static_cast<double>(one.arrays_moved * bytes) / seconds;
    copy_rate = copy_rate == 0 ? rate : copy_rate;
    std::printf("%-24s %10.1f %10.1f %8.1f\n", one.name.c_str(), seconds * 1e6, rate * 1e-9,
                100 * rate / copy_rate);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  entrain::Options options;
  entrain::CommandLine line("A device's kernels beside its copies", "device_bench");
  line.Whole("--device", options.device, "which", 0, 1000);
  line.Whole("--mebibytes", options.mebibytes, "size of an array", 1, 16384);
  line.Whole("--rounds", options.rounds, "of which the median counts", 1, 1000);
  line.Whole("--repeats", options.repeats, "in a row", 1, 10000);
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  const absl::Status status = entrain::Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "device_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
