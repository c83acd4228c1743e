// reduction_bench: measures weighted and task-arithmetic (GTA) all_reduces, and a plain sum of the
// same vector. Also measures GTA as programs without this library compute it: three all_reduces
// (votes, divisors, values) with loops in between. Runs one process per rank, under any launcher.
// One run measures everything, in alternation. Prints the slowest rank's time, and the bytes that a
// rank sent.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "entrain/entrain.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/perf/cores.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

struct Options {
  std::string transport, json;
  int64_t bytes = 0;
  int calls = 9;
};

double Now() {
  return static_cast<double>(Clock::Real().Now()) * 1e-9;
}

// One method to reduce `in` to `out`, and its figures.
struct Way {
  std::string name;
  std::function<absl::Status()> run;
  std::vector<double> seconds = {};  // by call, time of the slowest rank
  uint64_t bytes = 0;                // bytes sent by this rank in the last call
};

class Bench {
 public:
  Bench(entrain_comm_t* comm, int rank, int size, const Options& options)
      : comm_(comm),
        rank_(rank),
        size_(size),
        options_(options),
        in_(static_cast<size_t>(options.bytes) / sizeof(float)),
        out_(in_.size()),
        votes_(in_.size()),
        divisors_(in_.size()) {
    for (int r = 0; r < size_; ++r) {
      weights_.push_back(r % 2 == 0 ? 1 : 0.5);
    }
    for (size_t i = 0; i < in_.size(); ++i) {
      in_[i] = std::sin(static_cast<float>(i) * (static_cast<float>(rank_) + 1.37F));
    }
  }
  ~Bench() {
    for (entrain_reduction_t* reduction : reductions_) {
      entrain_reduction_destroy(reduction);
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  absl::Status Run() {
    ENTRAIN_RETURN_IF_ERROR(AddWays());
    ENTRAIN_RETURN_IF_ERROR(CheckAgainstThree());
    for (int call = 0; call <= options_.calls; ++call) {  // call 0 is a warm-up
      for (Way& way : ways_) {
        ENTRAIN_RETURN_IF_ERROR(Time(way));
      }
    }
    return rank_ == 0 ? Print() : absl::OkStatus();
  }

 private:
  absl::Status AllReduce(const std::vector<float>& in, std::vector<float>& out) {
    return FromC(entrain_all_reduce(comm_, in.data(), out.data(), in.size(), ENTRAIN_F32,
                                    ENTRAIN_SUM, nullptr, nullptr));
  }

  absl::Status AddReduction(const std::string& name, entrain_status_t made,
                            entrain_reduction_t* reduction) {
    ENTRAIN_RETURN_IF_ERROR(FromC(made));
    reductions_.push_back(reduction);
    ways_.push_back({.name = name, .run = [this, reduction] {
                       entrain_call_options_t options;
                       entrain_call_options_init(&options);
                       options.reduction = reduction;
                       return FromC(entrain_all_reduce(comm_, in_.data(), out_.data(), in_.size(),
                                                       ENTRAIN_F32, ENTRAIN_REDUCTION, &options,
                                                       nullptr));
                     }});
    return absl::OkStatus();
  }

  absl::Status AddGta(const std::string& name,
                      const std::function<void(entrain_gta_config_t&)>& set) {
    entrain_gta_config_t config;
    entrain_gta_config_init(&config);
    config.weights = weights_.data();
    config.ranks = size_;
    config.consensus = ENTRAIN_CONSENSUS_SUM;
    set(config);
    entrain_reduction_t* reduction = nullptr;
    const entrain_status_t made = entrain_reduction_gta(&config, &reduction);
    return AddReduction(name, made, reduction);
  }

  absl::Status AddWays() {
    ways_.push_back({.name = "sum", .run = [this] { return AllReduce(in_, out_); }});
    ways_.push_back({.name = "gta by three sums", .run = [this] { return ThreeSums(); }});
    entrain_reduction_t* weighted = nullptr;
    const entrain_status_t made = entrain_reduction_weighted(weights_.data(), size_, &weighted);
    ENTRAIN_RETURN_IF_ERROR(AddReduction("weighted", made, weighted));
    ENTRAIN_RETURN_IF_ERROR(AddGta("gta", [](auto&) {}));
    for (const double density : {0.1, 0.01}) {
      ENTRAIN_RETURN_IF_ERROR(
          AddGta(absl::StrCat("gta, magnitude ", density), [density](auto& config) {
            config.sparsification = ENTRAIN_SPARSIFY_MAGNITUDE;
            config.density = density;
          }));
    }
    ENTRAIN_RETURN_IF_ERROR(AddGta("gta, random 0.1", [](auto& config) {
      config.sparsification = ENTRAIN_SPARSIFY_RANDOM;
      config.density = 0.1;
    }));
    const std::pair<const char*, int32_t> formats[] = {{"gta, bf16", ENTRAIN_WIRE_BF16},
                                                       {"gta, int8", ENTRAIN_WIRE_INT8},
                                                       {"gta, int4", ENTRAIN_WIRE_INT4}};
    for (const auto& [name, format] : formats) {
      ENTRAIN_RETURN_IF_ERROR(
          AddGta(name, [format = format](auto& config) { config.wire_format = format; }));
    }
    return absl::OkStatus();
  }

  // The method of the published code. The first sum decides the sign of each element. If a rank
  // agrees with the sign, its weight goes into the second sum, and its value into the third.
  absl::Status ThreeSums() {
    const auto weight = static_cast<float>(weights_[static_cast<size_t>(rank_)]);
    for (size_t i = 0; i < in_.size(); ++i) {
      out_[i] = weight * in_[i];
    }
    ENTRAIN_RETURN_IF_ERROR(AllReduce(out_, votes_));
    for (size_t i = 0; i < in_.size(); ++i) {
      const bool agrees = votes_[i] >= 0 ? out_[i] > 0 : out_[i] < 0;
      divisors_[i] = agrees ? weight : 0;
      out_[i] = agrees ? out_[i] : 0;
    }
    ENTRAIN_RETURN_IF_ERROR(AllReduce(divisors_, divisors_));
    ENTRAIN_RETURN_IF_ERROR(AllReduce(out_, out_));
    for (size_t i = 0; i < in_.size(); ++i) {
      out_[i] = divisors_[i] == 0 ? out_[i] : out_[i] / divisors_[i];
    }
    return absl::OkStatus();
  }

  // Both methods have the same result, except for elements whose sign depends on rounding.
  absl::Status CheckAgainstThree() {
    const auto find = [&](const char* name) {
      return std::find_if(ways_.begin(), ways_.end(), [&](const Way& w) { return w.name == name; });
    };
    ENTRAIN_RETURN_IF_ERROR(find("gta by three sums")->run());
    const std::vector<float> expected = out_;
    ENTRAIN_RETURN_IF_ERROR(find("gta")->run());
    size_t differ = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      differ += std::abs(out_[i] - expected[i]) > 1e-5F ? 1 : 0;
    }
    return differ <= out_.size() / 1000
               ? absl::OkStatus()
               : absl::DataLossError(absl::StrCat(differ,
                                                  " elements differ between gta and its "
                                                  "three sums"));
  }

  absl::Status Time(Way& way) {
    entrain_comm_stats_t before, after;
    entrain_comm_stats_init(&before);
    entrain_comm_stats_init(&after);
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_barrier(comm_, nullptr, nullptr)));
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_stats(comm_, &before)));
    const double start = Now();
    ENTRAIN_RETURN_IF_ERROR(way.run());
    double seconds = Now() - start;
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_stats(comm_, &after)));
    way.bytes = after.bytes_sent - before.bytes_sent;
    ENTRAIN_RETURN_IF_ERROR(FromC(entrain_all_reduce(comm_, &seconds, &seconds, 1, ENTRAIN_F64,
                                                     ENTRAIN_MAX, nullptr, nullptr)));
    way.seconds.push_back(seconds);
    return absl::OkStatus();
  }

  absl::Status Print() {
    std::FILE* const file =
        options_.json.empty() ? nullptr : std::fopen(options_.json.c_str(), "w");
    if (!options_.json.empty() && file == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("--json: cannot write ", options_.json));
    }
    std::printf("%d ranks, %zu f32, median of %d\n%-20s %10s %8s %12s %8s\n", size_, in_.size(),
                options_.calls, "all_reduce by", "us", "x sum", "bytes sent", "x sum");
    const auto median = [](const Way& way) {
      return Median({way.seconds.begin() + 1, way.seconds.end()});
    };
    for (const Way& way : ways_) {
      const double time = median(way) / median(ways_[0]);
      const double bytes = static_cast<double>(way.bytes) / static_cast<double>(ways_[0].bytes);
      std::printf("%-20s %10.1f %8.2f %12llu %8.3f\n", way.name.c_str(), median(way) * 1e6, time,
                  static_cast<unsigned long long>(way.bytes), bytes);
      if (file != nullptr) {
        const nlohmann::ordered_json line{
            {"way", way.name},         {"ranks", size_},    {"bytes", in_.size() * sizeof(float)},
            {"us", median(way) * 1e6}, {"times_sum", time}, {"bytes_sent", way.bytes},
            {"bytes_times_sum", bytes}};
        std::fprintf(file, "%s\n", line.dump().c_str());
      }
    }
    if (file != nullptr) {
      std::fclose(file);
    }
    return absl::OkStatus();
  }

  entrain_comm_t* const comm_;
  const int rank_, size_;
  const Options options_;
  std::vector<double> weights_;
  std::vector<float> in_, out_, votes_, divisors_;
  std::vector<entrain_reduction_t*> reductions_;
  std::vector<Way> ways_;
};

absl::Status Measure(const Options& options) {
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.transports = options.transport.empty() ? nullptr : options.transport.c_str();
  entrain_runtime_t* made = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_runtime_create(&runtime_config, &made)));
  const RuntimePtr runtime(made);
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime.get();
  config.timeout_ns = 60 * kSecond;
  entrain_comm_t* comm = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_create_from_env(&config, &comm)));
  const CommPtr owned(comm);
  int32_t rank = 0, size = 0;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_rank(comm, &rank)));
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_comm_size(comm, &size)));
  if (size < 2) {
    return absl::InvalidArgumentError("needs at least 2 ranks, under a launcher");
  }
  PinToCore(rank);
  return Bench(comm, rank, size, options).Run();
}

int Main(int argc, char** argv) {
  Options options;
  std::string bytes = "16M";
  CommandLine line(
      "Weighted and task-arithmetic (GTA) all_reduces beside a plain sum, and beside GTA made of "
      "three sums. Start it once a rank under any launcher: entrain-run -n 4 reduction_bench",
      "reduction_bench");
  line.Text("--transport", options.transport, "as ENTRAIN_TRANSPORTS (all that work)");
  line.Text("--bytes", bytes, "the vector of a rank (16M)");
  line.Whole("--calls", options.calls, "of which the median counts (9)", 1, 10000);
  line.Text("--json", options.json, "write the figures to FILE too");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  const auto size = ParseSize(bytes);
  absl::Status status = size.ok() && *size >= 4096
                            ? absl::OkStatus()
                            : absl::InvalidArgumentError(absl::StrCat(
                                  "--bytes: \"", bytes, "\" is not a size of 4K or more"));
  const int code = status.ok() ? 1 : 2;
  if (status.ok()) {
    options.bytes = *size;
    status = Measure(options);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "reduction_bench: %s\n", std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : code;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
