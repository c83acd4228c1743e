#include "tools/perf/options.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "collectives/catalog.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/device/registry.h"
#include "transports/registry.h"
#include <CLI/CLI.hpp>

namespace entrain::perf {
namespace {

constexpr int kBadUsage = 2;
constexpr int kMostRanks = 1024;

constexpr char kDescription[] =
    R"(Measures one collective of Entrain over a range of sizes and checks every result.

COLLECTIVE: all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, all_to_all, scan,
exclusive_scan, barrier, or send_recv (a ping-pong between ranks 0 and 1, 2 and 3, ...; the time is that of one way).

With -n the ranks are started here: as processes, or over inproc as threads. Without it, start the same command
once a rank under any launcher: entrain-run, torchrun, mpirun, srun.

Each call is timed from a barrier outside the library to its return; the slowest rank counts; "time" is the median.
"loop" is the time of a call when calls follow each other without a barrier. size, algbw and busbw are nccl-tests':
size is the larger buffer of one rank, count the call's count argument. Sizes take K, M, G (1024). A barrier has no
size: it gives one line. On several machines ranks meet by the library's own barrier instead of a shared page; the
line above the table says which.)";

constexpr char kFooter[] =
    R"(--json writes one object a line: collective, bytes, count, dtype, op, ranks, transport, algorithm, median_us, min_us,
p95_us, loop_us, algbw_gbs, busbw_gbs, meet_us (the ranks meeting outside the library, where they spin), wrong.

Exit code: 0 when all went well and no element was wrong; 1 otherwise; 2 for wrong options.)";

// The words of the command line, before they are parsed.
struct Words {
  std::string collective, min_bytes = "8", max_bytes = "64M", dtype = "f32", op = "sum";
  std::string memory = "private";
  std::string transports, algorithms, local_transport;
  bool pin = false, no_pin = false;
  std::optional<double> budget_s;
};

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string name) const override {
    return absl::StrCat("Usage: ", name, " COLLECTIVE [-n N] [options]\n");
  }
};

void Declare(CLI::App& app, Words& words, Options& options) {
  app.add_option("collective", words.collective, "what to measure")->option_text("COLLECTIVE");
  app.add_option("-n,--ranks", options.local_ranks, "start N ranks on this machine")
      ->option_text("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--min-bytes", words.min_bytes, "smallest size (8)")->option_text("SIZE");
  app.add_option("--max-bytes", words.max_bytes, "largest size (64M)")->option_text("SIZE");
  app.add_option("--factor", options.factor, "from one size to the next (4)")
      ->option_text("F")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--dtype", words.dtype,
                 "element type: f32 f64 bf16 f16 f8_e4m3 i8 ... f32_i32 ... (f32)")
      ->option_text("TYPE");
  app.add_option("--op", words.op,
                 "reduction: sum prod min max avg band bor bxor land lor lxor minloc maxloc, or "
                 "user: a sum of "
                 "f32 by a function of the program's (sum)")
      ->option_text("OP");
  app.add_option("--root", options.like.root, "root of broadcast, reduce, gather and scatter (0)")
      ->option_text("RANK")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--transport", words.transports,
         "which transport; several, with commas, are measured one after the other (the best "
         "for each pair)")
      ->option_text("NAMES");
  app.add_option(
         "--algorithm", words.algorithms,
         "which algorithm; several, with commas, are measured one after the other; auto: by "
         "cost (auto)")
      ->option_text("NAMES");
  app.add_option("--budget", words.budget_s,
                 "seconds of timed calls a size (0.15; with --tune 0.02)")
      ->option_text("SECONDS")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option(
         "--memory", words.memory,
         "what the buffers are: private; shared: of entrain_mem_alloc; huge: the same in huge "
         "pages; registered: private, and given to entrain_mem_register; device: in device memory, "
         "the ranks' devices in turn (private)")
      ->option_text("KIND");
  app.add_option("--json", options.json, "write the figures to FILE too")->option_text("FILE");
  app.add_flag("--append", options.append, "add to the file of --json instead of replacing it");
  app.add_flag("--explain", options.explain,
               "print which algorithm each size takes, why, and what all of them are estimated to "
               "take");
  app.add_option(
         "--tune", options.tune,
         "instead of COLLECTIVE: measure all of them by every algorithm, and put figures of the "
         "links and choices into FILE, for ENTRAIN_TUNING")
      ->option_text("FILE");
  app.add_option("--flight", options.flight,
                 "instead of COLLECTIVE: merge the flight dumps of the ranks into one page that "
                 "names the culprit (docs/flight.md); --json FILE gets the same as JSON")
      ->option_text("FILES");
  app.add_option("--flight-of", options.flight_of,
                 "instead of COLLECTIVE: print the flight dump of a running process of this user")
      ->option_text("PID")
      ->check(CLI::PositiveNumber);
  app.add_flag("--pin", words.pin,
               "with -n: a core for each rank, taken in turn where ranks are more (default)");
  app.add_flag("--no-pin", words.no_pin, "with -n: let ranks wander between cores");
  app.add_flag("--list", options.list,
               "list the transports, with why one is absent, and the algorithms");
  // For the ranks of -n. An option without a group is not in --help.
  app.add_option("--local-rank", options.local_rank)->group("");
  app.add_option("--local-store", options.local_store)->group("");
  app.add_option("--local-transport", words.local_transport)->group("");
}

absl::StatusOr<int64_t> Size(const char* flag, const std::string& text) {
  auto size = ParseSize(text);
  if (!size.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", size.status().message()));
  }
  return size;
}

absl::StatusOr<ReduceOp> OpFromName(const std::string& name) {
  std::vector<absl::string_view> names;
  for (int i = 0; i < kBuiltinOps; ++i) {
    names.push_back(NameOf(static_cast<ReduceOp>(i)));
    if (names.back() == name) {
      return static_cast<ReduceOp>(i);
    }
  }
  names.push_back("user");
  if (names.back() == name) {
    return ReduceOp::kCustom;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--op: \"", name, "\" is not one of ", absl::StrJoin(names, ", ")));
}

absl::Status UnderstandCase(const Words& words, Case& like) {
  if (words.collective.empty()) {
    return absl::InvalidArgumentError("no COLLECTIVE given; see entrain-perf --help");
  }
  const auto collective = CollectiveFromTitle(words.collective);
  if (!collective.has_value()) {
    std::vector<absl::string_view> titles;
    for (const CallKind one : kMeasured) {
      titles.push_back(TitleOf(one));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "COLLECTIVE: \"", words.collective, "\" is not one of ", absl::StrJoin(titles, ", ")));
  }
  like.collective = *collective;
  const auto dtype = DTypeFromName(words.dtype);
  if (!dtype.has_value()) {
    std::vector<std::string> names;
    for (int i = 0; i < kDTypes; ++i) {
      names.emplace_back(NameOf(static_cast<DType>(i)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype: \"", words.dtype, "\" is not one of ", absl::StrJoin(names, ", ")));
  }
  like.dtype = *dtype;
  ENTRAIN_ASSIGN_OR_RETURN(like.op, OpFromName(words.op));
  if (like.op == ReduceOp::kCustom && like.dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("--op ", words.op, " takes --dtype f32, not ", words.dtype));
  }
  return Reduces(*collective) ? Annotate(CheckReduction(like.op, like.dtype), "--op, --dtype")
                              : absl::OkStatus();
}

absl::StatusOr<Options::Memory> MemoryFromName(const std::string& name) {
  using enum Options::Memory;
  for (const auto& [known, kind] :
       {std::pair("private", kPrivate), std::pair("shared", kShared), std::pair("huge", kHuge),
        std::pair("registered", kRegistered), std::pair("device", kDevice)}) {
    if (name == known) {
      return kind;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--memory: \"", name, "\" is not one of private, shared, huge, registered, device"));
}

absl::Status UnderstandLists(const Words& words, Options& options) {
  const std::string& transports =
      words.local_transport.empty() ? words.transports : words.local_transport;
  if (!transports.empty()) {
    options.transports = absl::StrSplit(transports, ',');
    for (const std::string& name : options.transports) {
      const auto known = ParseTransports(name);
      if (!known.ok() || name.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--transport: ", known.ok() ? "an empty name" : std::string(known.status().message())));
      }
    }
  }
  if (words.algorithms.empty()) {
    return absl::OkStatus();
  }
  options.algorithms = absl::StrSplit(words.algorithms, ',');
  for (std::string& name : options.algorithms) {
    if (name == "auto") {
      name.clear();
      continue;
    }
    if (options.like.collective == CallKind::kSend) {
      return absl::InvalidArgumentError("--algorithm: send_recv has none to choose from");
    }
    ENTRAIN_RETURN_IF_ERROR(
        Annotate(FindAlgorithm(options.like.collective, name).status(), "--algorithm"));
  }
  return absl::OkStatus();
}

absl::Status UnderstandTune(const Words& words, const Options& options) {
  if (options.tune.empty()) {
    return absl::OkStatus();
  }
  for (const auto& [name, given] :
       {std::pair("COLLECTIVE", !words.collective.empty()),
        std::pair("--algorithm", !words.algorithms.empty()),
        std::pair("--json", !options.json.empty()), std::pair("--explain", options.explain),
        std::pair("--memory", options.memory != Options::Memory::kPrivate)}) {
    if (given) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": not with --tune"));
    }
  }
  return absl::OkStatus();
}

// Refuses options that cannot be combined with --flight or --flight-of.
absl::Status UnderstandFlight(const Words& words, const Options& options) {
  const char* const name = options.flight_of > 0 ? "--flight-of" : "--flight";
  for (const auto& [other, given] :
       {std::pair("COLLECTIVE", !words.collective.empty()),
        std::pair("--tune", !options.tune.empty()), std::pair("-n", options.local_ranks > 0),
        std::pair("--flight", options.flight_of > 0 && !options.flight.empty()),
        std::pair("--json", options.flight_of > 0 && !options.json.empty())}) {
    if (given) {
      return absl::InvalidArgumentError(absl::StrCat(other, ": not with ", name));
    }
  }
  return absl::OkStatus();
}

absl::Status Understand(const Words& words, Options& options) {
  if (options.flight_of > 0 || !options.flight.empty()) {
    return UnderstandFlight(words, options);
  }
  ENTRAIN_ASSIGN_OR_RETURN(options.memory, MemoryFromName(words.memory));
  ENTRAIN_RETURN_IF_ERROR(UnderstandTune(words, options));
  if (options.tune.empty()) {
    ENTRAIN_RETURN_IF_ERROR(UnderstandCase(words, options.like));
  }
  options.budget_s = words.budget_s.value_or(options.tune.empty() ? 0.15 : 0.02);
  ENTRAIN_ASSIGN_OR_RETURN(options.min_bytes, Size("--min-bytes", words.min_bytes));
  ENTRAIN_ASSIGN_OR_RETURN(options.max_bytes, Size("--max-bytes", words.max_bytes));
  if (options.min_bytes > options.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-bytes: ", words.min_bytes, " is above --max-bytes ", words.max_bytes));
  }
  ENTRAIN_RETURN_IF_ERROR(UnderstandLists(words, options));
  if ((words.pin || words.no_pin) && options.local_ranks == 0) {
    return absl::InvalidArgumentError("--pin, --no-pin: need -n");
  }
  if (words.pin && words.no_pin) {
    return absl::InvalidArgumentError("--pin, --no-pin: one or the other");
  }
  if (words.pin || words.no_pin) {
    options.pin = words.pin;
  }
  if (options.local_ranks > 0 && options.like.root >= options.local_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root: ", options.like.root, " is no rank of ", options.local_ranks));
  }
  if (options.append && options.json.empty()) {
    return absl::InvalidArgumentError("--append: needs --json");
  }
  return absl::OkStatus();
}

// Ignores the events of a transport that is only created and destroyed.
struct NoEvents final : Events {
  bool Accepts(Context) override { return false; }
  void OnEarly(Endpoint&, const Envelope&) override {}
  void OnControl(Endpoint&, absl::string_view) override {}
  void OnLost(Endpoint&, const absl::Status&) override {}
};

// Returns a description of the transport's use, or the reason why it is absent.
std::string Describe(const TransportFactory& factory) {
  const absl::Status absence = factory.Absence(/*named=*/true);
  if (!absence.ok()) {
    return absl::StrCat("absent: ", absence.message());
  }
  NoEvents nobody;
  const auto transport = factory.create(TransportConfig(), &nobody);
  if (!transport.ok()) {
    return absl::StrCat("absent: ", transport.status().message());
  }
  const Traits traits = (*transport)->traits();
  const absl::Status unnamed = factory.Absence(/*named=*/false);
  return absl::StrCat("about ", static_cast<double>(traits.latency_ns) / 1e3, " us, ",
                      traits.bytes_per_second / 1e9, " GB/s",
                      unnamed.ok() ? "" : "; not taken by itself: ", unnamed.message());
}

void List() {
  for (const TransportFactory& transport : TransportRegistry()) {
    std::printf("transport %s (%s)\n", transport.name, Describe(transport).c_str());
  }
  const absl::Status nccl = OpenOffloadLibrary().status();
  std::printf("transport nccl (%s)\n", nccl.ok()
                                           ? "for calls on device memory"
                                           : absl::StrCat("absent: ", nccl.message()).c_str());
  for (const Algorithm& algorithm : Catalog()) {
    std::printf("algorithm %s:%s\n", std::string(NameOf(algorithm.kind)).c_str(), algorithm.name);
  }
}

}  // namespace

std::optional<int> ParseOptions(int argc, char** argv, Options* options) {
  Words words;
  CLI::App app(kDescription, "entrain-perf");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.set_version_flag("--version", "entrain-perf " ENTRAIN_PROGRAM_VERSION, "print the version");
  Declare(app, words, *options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // for help or the version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "entrain-perf: %s\n", error.what());
    return kBadUsage;
  }
  if (options->list) {
    List();
    return 0;
  }
  const absl::Status understood = Understand(words, *options);
  if (!understood.ok()) {
    std::fprintf(stderr, "entrain-perf: %s\n", std::string(understood.message()).c_str());
    return kBadUsage;
  }
  return std::nullopt;
}

}  // namespace entrain::perf
