// layer_sync_bench: measures how long EDiT takes to exchange a layer, how long the caller waits for
// it, and how long an all_reduce of the same bytes takes. Runs one process per rank, under any
// launcher. --help has the details. One run measures all of these, in alternation:
//
//   alone     all_reduces of a layer's shard across the replicas, one after the other, and nothing
//             else
//   by hand   the all_reduces of alone, and the other work of an exchange in plain loops: the norms
//             of all layers, a gather of the norms, then for each layer K2, the all_reduce, K3 (if
//             it clips) and K4 of the kernel plan (docs/training.md)
//   sync      a whole exchange (begin_forward, wait_layer of each layer) without compute, per layer
//   exposed   the same exchange, with compute between the layers that takes longer than sync: the
//             time that the caller spends in begin_forward and wait_layer. There is one figure for
//             the first layer, which nothing can hide, and one for each other layer.
//   slower    the additional time of the compute during the exchange, relative to its time alone
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "bench/layer_sync_ways.h"
#include "entrain/entrain.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "tools/command_line.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

constexpr int kWarm = 2, kEstimates = 3;
constexpr double kLeastCompute = 50e-6;

struct Options {
  std::string transport, csv;
  std::vector<const Variant*> variants;
  std::vector<int64_t> bytes;  // size of a rank's shard of a layer
  std::vector<int> prefetch;
  int shards = 1, layers = 8, calls = 5;
  double longer = 1.5;  // time of the compute relative to sync
  bool spins = true;
};

// The compute between layers. Either arithmetic in registers, which takes the same time on all
// ranks, or a sleep, as if an accelerator computed.
class Compute {
 public:
  explicit Compute(bool spins) : spins_(spins) {}

  absl::Status Prepare(Meeting& meeting, double seconds) {
    seconds_ = seconds;
    for (int i = 0; spins_ && i < kEstimates; ++i) {
      ENTRAIN_RETURN_IF_ERROR(meeting.Barrier());
      const double start = Now();
      Run();
      double took = Now() - start;
      ENTRAIN_RETURN_IF_ERROR(meeting.Slowest({&took, 1}));
      rounds_ =
          std::max<int64_t>(1000, std::llround(static_cast<double>(rounds_) * seconds / took));
    }
    return absl::OkStatus();
  }

  void Run() {
    if (!spins_) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
      return;
    }
    int64_t rounds = rounds_;
    __asm__ volatile("" : "+r"(rounds));  // keeps the compiler from merging equal calls
    double a = 1.0, b = 1.1;
    for (int64_t i = 0; i < rounds; ++i) {
      a = a * 0.9999995 + 1e-7;
      b = b * 0.9999990 + 1e-7;
    }
    sink_ = a + b;
  }

 private:
  const bool spins_;
  double seconds_ = 0;
  int64_t rounds_ = 100000;
  volatile double sink_ = 0;
};

// The slowest rank's times in seconds, one per call. All are per layer, except `first`.
struct Times {
  std::vector<double> alone, by_hand, sync, compute, first, later, beside;
};

struct Row {
  const Variant* variant;
  int replicas, shards, prefetch;
  int64_t bytes;
  double alone = 0, by_hand = 0, sync = 0, compute = 0, first = 0;  // seconds
  double exposed = 0, slower = 0;                                   // shares
  // bytes per layer, across replicas
  uint64_t sent = 0;
};

class Meter {
 public:
  Meter(Ranks& ranks, Meeting& meeting, const Options& options, Row row)
      : meeting_(meeting),
        options_(options),
        row_(row),
        shape_{.layers = options.layers, .count = row.bytes / 4, .shards = options.shards},
        alone_(ranks, shape_),
        by_hand_(ranks, shape_, *row.variant),
        edit_(ranks, shape_, *row.variant, row.prefetch),
        compute_(options.spins) {}

  absl::StatusOr<Row> Run() {
    ENTRAIN_RETURN_IF_ERROR(by_hand_.Create());
    ENTRAIN_RETURN_IF_ERROR(edit_.Create());
    for (int i = 0; i < kWarm + kEstimates; ++i) {
      ENTRAIN_RETURN_IF_ERROR(Round(nullptr));
      if (i == kWarm - 1) {
        times_ = {};
      }
    }
    ENTRAIN_RETURN_IF_ERROR(
        compute_.Prepare(meeting_, std::max(kLeastCompute, options_.longer * Median(times_.sync))));
    times_ = {};
    const uint64_t before = edit_.bytes_sent();
    for (int i = 0; i < options_.calls; ++i) {
      ENTRAIN_RETURN_IF_ERROR(Round(&compute_));
    }
    // Each round has two exchanges: without and with compute.
    row_.sent =
        (edit_.bytes_sent() - before) / static_cast<uint64_t>(2 * options_.calls * options_.layers);
    ENTRAIN_RETURN_IF_ERROR(edit_.Check());
    row_.alone = Median(times_.alone);
    row_.by_hand = Median(times_.by_hand);
    row_.sync = Median(times_.sync);
    row_.compute = Median(times_.compute);
    row_.first = Median(times_.first);
    row_.exposed = Median(times_.later) / row_.sync;
    row_.slower = Median(times_.beside) / row_.compute - 1;
    return row_;
  }

 private:
  absl::Status Round(Compute* compute) {
    ENTRAIN_RETURN_IF_ERROR(Time(&times_.alone, alone_));
    ENTRAIN_RETURN_IF_ERROR(Time(&times_.by_hand, by_hand_));
    ENTRAIN_RETURN_IF_ERROR(Time(&times_.sync, edit_));
    return compute == nullptr ? absl::OkStatus() : TimeBeside(*compute);
  }

  absl::Status Time(std::vector<double>* times, Way& way) {
    way.Refill();
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    const double start = Now();
    ENTRAIN_RETURN_IF_ERROR(way.Run());
    double took = (Now() - start) / options_.layers;
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest({&took, 1}));
    times->push_back(took);
    return absl::OkStatus();
  }

  absl::Status TimeBeside(Compute& compute) {
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    double start = Now();
    for (int l = 0; l < options_.layers; ++l) {
      compute.Run();
    }
    double all[4] = {(Now() - start) / options_.layers};  // compute, first, later, beside
    edit_.Refill();
    ENTRAIN_RETURN_IF_ERROR(meeting_.Barrier());
    start = Now();
    ENTRAIN_RETURN_IF_ERROR(edit_.Begin());
    for (int l = 0; l < options_.layers; ++l) {
      ENTRAIN_RETURN_IF_ERROR(edit_.Wait(l));
      const double waited = Now();
      all[l == 0 ? 1 : 2] += waited - start;
      compute.Run();
      start = Now();
      all[3] += (start - waited) / options_.layers;
    }
    ENTRAIN_RETURN_IF_ERROR(edit_.End());
    all[2] /= std::max(1, options_.layers - 1);
    ENTRAIN_RETURN_IF_ERROR(meeting_.Slowest(absl::MakeSpan(all)));
    times_.compute.push_back(all[0]);
    times_.first.push_back(all[1]);
    times_.later.push_back(all[2]);
    times_.beside.push_back(all[3]);
    return absl::OkStatus();
  }

  Meeting& meeting_;
  const Options& options_;
  Row row_;
  const Shape shape_;
  Alone alone_;
  ByHand by_hand_;
  Edit edit_;
  Compute compute_;
  Times times_;
};

class Table {
 public:
  static absl::StatusOr<Table> Open(const std::string& csv) {
    Table table;
    if (!csv.empty()) {
      table.file_.reset(std::fopen(csv.c_str(), "we"));
      if (table.file_ == nullptr) {
        return ErrnoStatus(errno, absl::StrCat("--csv: cannot write \"", csv, "\""));
      }
      std::fprintf(
          table.file_.get(),
          "variant,replicas,shards,layer_bytes,prefetch,alone_us,by_hand_us,sync_us,compute_us,"
          "first_us,exposed_share,slower,bytes_sent\n");
    }
    return table;
  }
  static void Head(const Options& options) {
    std::printf(
        "# us a layer; %d layers, %d calls, compute %s\n%-14s %2s %2s %9s %2s %9s %9s %9s %7s %7s "
        "%9s "
        "%9s %8s %7s %10s\n",
        options.layers, options.calls, options.spins ? "spins" : "sleeps", "# variant", "N", "M",
        "bytes", "pf", "alone", "by hand", "sync", "/alone", "/hand", "compute", "first", "exposed",
        "slower", "sent");
  }
  void Add(const Row& r) {
    std::printf(
        "%-14s %2d %2d %9lld %2d %9.1f %9.1f %9.1f %7.2f %7.2f %9.1f %9.1f %7.1f%% %6.1f%% "
        "%10llu\n",
        r.variant->name, r.replicas, r.shards, static_cast<long long>(r.bytes), r.prefetch,
        r.alone * 1e6, r.by_hand * 1e6, r.sync * 1e6, r.sync / r.alone, r.sync / r.by_hand,
        r.compute * 1e6, r.first * 1e6, r.exposed * 100, r.slower * 100,
        static_cast<unsigned long long>(r.sent));
    std::fflush(stdout);
    if (file_ != nullptr) {
      std::fprintf(file_.get(), "%s,%d,%d,%lld,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.4f,%.4f,%llu\n",
                   r.variant->name, r.replicas, r.shards, static_cast<long long>(r.bytes),
                   r.prefetch, r.alone * 1e6, r.by_hand * 1e6, r.sync * 1e6, r.compute * 1e6,
                   r.first * 1e6, r.exposed, r.slower, static_cast<unsigned long long>(r.sent));
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

absl::Status MeasureAll(const Options& options) {
  ENTRAIN_ASSIGN_OR_RETURN(const RuntimePtr runtime, MakeRuntime(options.transport));
  ENTRAIN_ASSIGN_OR_RETURN(CommPtr comm, MakeComm(runtime.get()));
  ENTRAIN_ASSIGN_OR_RETURN(EntrainSubject subject, EntrainSubject::Wrap(std::move(comm)));
  if (subject.size() % options.shards != 0 || subject.size() / options.shards < 2) {
    return absl::InvalidArgumentError(absl::StrCat("--shards: ", options.shards,
                                                   " does not make 2 or more replicas of ",
                                                   subject.size(), " ranks"));
  }
  ENTRAIN_ASSIGN_OR_RETURN(const auto meeting, subject.Meet(Waiting::kYield));
  ENTRAIN_ASSIGN_OR_RETURN(Ranks ranks, Ranks::Create(subject.comm(), options.shards));
  const bool speaks = subject.rank() == 0;
  ENTRAIN_ASSIGN_OR_RETURN(Table table, Table::Open(speaks ? options.csv : ""));
  if (speaks) {
    Table::Head(options);
  }
  for (const Variant* variant : options.variants) {
    for (const int64_t bytes : options.bytes) {
      for (const int prefetch : options.prefetch) {
        const Row row{.variant = variant,
                      .replicas = subject.size() / options.shards,
                      .shards = options.shards,
                      .prefetch = prefetch,
                      .bytes = bytes};
        ENTRAIN_ASSIGN_OR_RETURN(const Row measured, Meter(ranks, *meeting, options, row).Run());
        if (speaks) {
          table.Add(measured);
        }
      }
    }
  }
  return FromC(entrain_barrier(subject.comm(), nullptr, nullptr));
}

absl::Status Understand(const std::string& variants, const std::string& bytes,
                        const std::string& prefetch, const std::string& compute, Options& options) {
  for (const absl::string_view name : absl::StrSplit(variants, ',')) {
    const Variant* const variant = FindVariant(name);
    if (variant == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--variants: \"", name, "\" is not one of ", VariantNames()));
    }
    options.variants.push_back(variant);
  }
  for (const absl::string_view text : absl::StrSplit(bytes, ',')) {
    const auto size = ParseSize(text);
    if (!size.ok() || *size < 4096 || *size % 4 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bytes: \"", text, "\" is not a size of 4K or more, of whole f32"));
    }
    options.bytes.push_back(*size);
  }
  for (const absl::string_view text : absl::StrSplit(prefetch, ',')) {
    int ahead = 0;
    if (!absl::SimpleAtoi(text, &ahead) || ahead < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prefetch: \"", text, "\" is not a number of 0 or more"));
    }
    options.prefetch.push_back(ahead);
  }
  if (compute != "spin" && compute != "sleep") {
    return absl::InvalidArgumentError(
        absl::StrCat("--compute: \"", compute, "\" is not spin or sleep"));
  }
  options.spins = compute == "spin";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  std::string variants = "edit", bytes = "256K,1M,4M,16M", prefetch = "0,1,2", compute = "spin";
  bool no_pin = false;
  CommandLine line(
      absl::StrCat("What EDiT's exchange of a layer takes, and how much of it the caller sees "
                   "behind compute, beside an "
                   "all_reduce of the same bytes and beside the same arithmetic by hand. Start it "
                   "once a rank under any "
                   "launcher: entrain-run -n 2 layer_sync_bench --transport shm\n\nVariants:\n",
                   DescribeVariants(),
                   "\nFirst: how long begin_forward and the first wait_layer keep the caller. "
                   "Exposed: how long each later "
                   "wait_layer does, as a share of sync."),
      "layer_sync_bench");
  line.Text("--transport", options.transport, "as ENTRAIN_TRANSPORTS (all that work)");
  line.Whole("--shards", options.shards, "M, ranks that hold a replica between them (1)", 1, 4096);
  line.Text("--variants", variants, "comma separated (edit)");
  line.Text("--bytes", bytes, "a rank's shard of a layer, f32; comma separated (256K,1M,4M,16M)");
  line.Whole("--layers", options.layers, "(8)", 2, 1000);
  line.Text("--prefetch", prefetch, "layers ahead of use, comma separated (0,1,2)");
  line.Text("--compute", compute,
            "spin: a loop in registers on the rank's core; sleep: as while an accelerator "
            "computes, for more "
            "ranks than cores (spin)");
  line.Real("--longer", options.longer, "a layer's compute beside its sync (1.5)", 0.1, 100);
  line.Whole("--calls", options.calls, "of which the median counts (5)", 1, 10000);
  line.Flag("--no-pin", no_pin, "let a rank wander between cores, instead of one for each");
  line.Text("--csv", options.csv, "write the figures to FILE too");
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    return *code;
  }
  absl::Status status = Understand(variants, bytes, prefetch, compute, options);
  const int code = status.ok() ? 1 : 2;
  if (status.ok()) {
    if (!no_pin) {
      PinToOwnCore();
    }
    status = MeasureAll(options);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "layer_sync_bench: %s\n", std::string(status.message()).c_str());
  }
  return status.ok() ? 0 : code;
}

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  return entrain::perf::Main(argc, argv);
}
