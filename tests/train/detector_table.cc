// Prints a Markdown table: how often the detector of norms rejects noise, and how often it finds a
// spike. Rows are settings and kinds of series, compared with the published rule. `detector_table
// [RUNS]`: runs of each cell, default 2000. Seeded.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "lib/train/edit/anomaly.h"

namespace entrain {
namespace {

constexpr int kJudged = 60;  // norms after warm-up
constexpr int kSpike = 20;   // index of the norm with the spike
constexpr double kTimes[] = {2, 4, 8};

class Random {
 public:
  double Normal() {
    const double u = Uniform(), v = Uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  double Uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 bits_{20261123};
};

// Returns the norm number `i` of a series. The W norms of warm-up count.
struct Series {
  const char* name;
  std::function<double(Random&, int i, int warmup)> norm;
  bool zeros = false;  // W norms of zero come first
};

struct Setting {
  double alpha;
  int warmup;
  double threshold;
};

struct Rule {
  const char* name;
  bool published, ingests;
};

struct Cell {
  double false_share = 0;  // share of judged norms, without a spike
  double found[3] = {};    // by size of the spike
};

AnomalyDetector Make(const Rule& rule, const Setting& setting) {
  return AnomalyDetector({.alpha = setting.alpha,
                          .warmup = setting.warmup,
                          .threshold = setting.threshold,
                          .as_published = rule.published,
                          .ingest_rejected = rule.ingests});
}

bool Show(AnomalyDetector& detector, double norm) {
  const bool outlier = detector.Look(norm).outlier;
  outlier ? detector.Reject(norm) : detector.Accept(norm);
  return outlier;
}

std::vector<double> Norms(const Series& series, const Setting& setting, Random& random) {
  std::vector<double> norms(series.zeros ? static_cast<size_t>(setting.warmup) : 0);
  for (int i = 0; i < setting.warmup + kJudged; ++i) {
    norms.push_back(series.norm(random, i, setting.warmup));
  }
  return norms;
}

Cell Measure(const Rule& rule, const Setting& setting, const Series& series, int runs) {
  Random random;
  Cell cell;
  for (int run = 0; run < runs; ++run) {
    const std::vector<double> norms = Norms(series, setting, random);
    AnomalyDetector plain = Make(rule, setting);
    int rejected = 0;
    for (const double norm : norms) {
      rejected += Show(plain, norm) ? 1 : 0;
    }
    cell.false_share += rejected / static_cast<double>(kJudged) / runs;
    const size_t at = norms.size() - kJudged + kSpike;
    AnomalyDetector before = Make(rule, setting);
    for (size_t i = 0; i < at; ++i) {
      Show(before, norms[i]);
    }
    for (size_t k = 0; k < 3; ++k) {
      cell.found[k] += (before.Look(kTimes[k] * norms[at]).outlier ? 1.0 : 0.0) / runs;
    }
  }
  return cell;
}

// The level triples for good at the position of the spike. Returns how many norms are rejected from
// there on, of kJudged - kSpike.
double RejectedAfterShift(const Rule& rule, const Setting& setting, int runs) {
  Random random;
  double rejected = 0;
  for (int run = 0; run < runs; ++run) {
    AnomalyDetector detector = Make(rule, setting);
    for (int i = 0; i < setting.warmup + kJudged; ++i) {
      const bool shifted = i >= setting.warmup + kSpike;
      const bool outlier = Show(detector, (shifted ? 3 : 1) * (1 + 0.1 * random.Normal()));
      rejected += shifted && outlier ? 1.0 / runs : 0;
    }
  }
  return rejected;
}

const Rule kRules[] = {{"library", false, false},
                       {"published, rejected norms skipped", true, false},
                       {"published, ingested (`compat`)", true, true}};

const Setting kSettings[] = {{0.02, 10, 3}, {0.02, 30, 3}, {0.02, 120, 3}, {0.1, 10, 3},
                             {0.1, 30, 3},  {0.2, 10, 3},  {0.02, 10, 4},  {0.1, 10, 8}};

std::vector<Series> AllSeries() {
  return {
      {"normal noise, deviation 10 %", [](Random& r, int, int) { return 1 + 0.1 * r.Normal(); }},
      {"normal noise, deviation 30 %",
       [](Random& r, int, int) { return std::max(0.05, 1 + 0.3 * r.Normal()); }},
      {"log-normal, deviation of the logarithm 0.3",
       [](Random& r, int, int) { return std::exp(0.3 * r.Normal()); }},
      {"falls by 1 % a norm, noise 10 %",
       [](Random& r, int i, int) { return std::pow(0.99, i) * (1 + 0.1 * r.Normal()); }},
      {"grows by 1 % a norm, noise 10 %",
       [](Random& r, int i, int) { return std::pow(1.01, i) * (1 + 0.1 * r.Normal()); }},
      {"constant", [](Random&, int, int) { return 1.0; }},
      {"constant in warm-up, then normal noise, deviation 0.2 %",
       [](Random& r, int i, int w) { return i < w ? 1.0 : 1 + 0.002 * r.Normal(); }},
      {"W zeros, then normal noise, deviation 10 %",
       [](Random& r, int, int) { return 1 + 0.1 * r.Normal(); }, true},
  };
}

void PrintSeries(const Series& series, int runs) {
  std::printf("\n%s\n\n| alpha | W | kappa |", series.name);
  for (const Rule& rule : kRules) {
    std::printf(" %s: false %% | found %% |", rule.name);
  }
  std::printf("\n|---|---|---|---|---|---|---|---|---|\n");
  for (const Setting& setting : kSettings) {
    std::printf("| %g | %d | %g |", setting.alpha, setting.warmup, setting.threshold);
    for (const Rule& rule : kRules) {
      const Cell cell = Measure(rule, setting, series, runs);
      std::printf(" %.2f | %.0f / %.0f / %.0f |", 100 * cell.false_share, 100 * cell.found[0],
                  100 * cell.found[1], 100 * cell.found[2]);
    }
    std::printf("\n");
  }
}

void PrintShift(int runs) {
  std::printf("\nthe level triples for good, noise 10 %%: norms rejected of the %d after it\n\n",
              kJudged - kSpike);
  std::printf("| alpha | W | kappa |");
  for (const Rule& rule : kRules) {
    std::printf(" %s |", rule.name);
  }
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const Setting& setting : kSettings) {
    std::printf("| %g | %d | %g |", setting.alpha, setting.warmup, setting.threshold);
    for (const Rule& rule : kRules) {
      std::printf(" %.1f |", RejectedAfterShift(rule, setting, runs));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 2000;
  if (argc > 2 || runs < 1) {
    std::fprintf(stderr, "usage: detector_table [RUNS]\n");
    return 2;
  }
  for (const entrain::Series& series : entrain::AllSeries()) {
    entrain::PrintSeries(series, runs);
  }
  entrain::PrintShift(runs);
  return 0;
}
