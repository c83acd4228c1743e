#include "tools/perf/report.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "nlohmann/json.hpp"

namespace entrain::perf {
namespace {

std::string OpName(const Case& measured) {
  return Reduces(measured.collective) ? std::string(NameOf(measured.op)) : "none";
}

}  // namespace

absl::StatusOr<Report> Report::Open(const std::string& json, bool append, bool explain) {
  std::FILE* file = nullptr;
  if (!json.empty()) {
    file = std::fopen(json.c_str(), append ? "ae" : "we");
    if (file == nullptr) {
      return ErrnoStatus(errno, absl::StrCat("--json: cannot write \"", json, "\""));
    }
  }
  return Report(file, json, explain);
}

Report::Report(Report&& other) noexcept
    : json_(std::exchange(other.json_, nullptr)),
      path_(std::move(other.path_)),
      explain_(other.explain_) {}

Report::~Report() {
  if (json_ != nullptr) {
    std::fclose(json_);
  }
}

void Report::Head(const Setting& setting, const Case& measured,
                  const std::string& transport) const {
  std::printf("# %s %s: %d rank%s, transport %s; ranks meet in %s; %.3g s of calls a size\n",
              setting.program.c_str(), std::string(TitleOf(measured.collective)).c_str(),
              measured.ranks, measured.ranks == 1 ? "" : "s", transport.c_str(),
              setting.place.c_str(), setting.budget_s);
  std::printf("#%11s %12s %8s %6s %6s %10s %8s %8s %6s %10s%s\n", "size", "count", "type", "redop",
              "root", "time", "algbw", "busbw", "#wrong", "loop", explain_ ? "  algorithm" : "");
  std::printf("#%11s %12s %8s %6s %6s %10s %8s %8s %6s %10s\n", "(B)", "(elements)", "", "", "",
              "(us)", "(GB/s)", "(GB/s)", "", "(us)");
  std::fflush(stdout);
}

void Report::Note(const std::string& text) const {
  std::printf("# %s\n", text.c_str());
}

absl::Status Report::Add(const Case& measured, const std::string& transport,
                         const std::string& algorithm, const Figures& figures) const {
  const bool rooted = HasRoot(measured.collective);
  const std::string wrong = figures.wrong < 0 ? "N/A" : absl::StrCat(figures.wrong);
  std::printf("%12lld %12lld %8s %6s %6d %10.2f %8.2f %8.2f %6s %10.2f%s%s\n",
              static_cast<long long>(measured.bytes), static_cast<long long>(measured.count),
              std::string(NameOf(measured.dtype)).c_str(), OpName(measured).c_str(),
              rooted ? measured.root : -1, figures.median_us, figures.algbw_gbs, figures.busbw_gbs,
              wrong.c_str(), figures.loop_us, explain_ ? "  " : "",
              explain_ ? algorithm.c_str() : "");
  std::fflush(stdout);
  if (json_ == nullptr) {
    return absl::OkStatus();
  }
  nlohmann::ordered_json line{{"collective", std::string(TitleOf(measured.collective))},
                              {"bytes", measured.bytes},
                              {"count", measured.count},
                              {"dtype", std::string(NameOf(measured.dtype))},
                              {"op", OpName(measured)},
                              {"ranks", measured.ranks},
                              {"transport", transport},
                              {"algorithm", algorithm},
                              {"median_us", figures.median_us},
                              {"min_us", figures.min_us},
                              {"p95_us", figures.p95_us},
                              {"loop_us", figures.loop_us},
                              {"algbw_gbs", figures.algbw_gbs},
                              {"busbw_gbs", figures.busbw_gbs}};
  if (figures.meet_us < 0) {
    line["meet_us"] = nullptr;
  } else {
    line["meet_us"] = figures.meet_us;
  }
  if (figures.wrong < 0) {
    line["wrong"] = nullptr;
  } else {
    line["wrong"] = figures.wrong;
  }
  const std::string text = line.dump() + "\n";
  if (std::fputs(text.c_str(), json_) < 0 || std::fflush(json_) != 0) {
    return ErrnoStatus(errno, absl::StrCat("--json: cannot write \"", path_, "\""));
  }
  return absl::OkStatus();
}

}  // namespace entrain::perf
