#include "tools/perf/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

#include "collectives/catalog.h"

namespace entrain::perf {
namespace {

// Another algorithm must be faster by this to be chosen against the estimates.
constexpr double kWorth = 1.05;
// Rates are those of the largest calls up to here, which the caches hold.
constexpr int64_t kLargeBytes = 1 << 20;

// Microseconds for bytes to 1e9 bytes a second.
double Gbs(double bytes, double us) {
  return bytes * 1e-3 / us;
}

// The calls that figures are taken from. Zero: not measured.
class Times {
 public:
  explicit Times(const std::vector<Observation>& observations) : observations_(observations) {}

  // Of the smallest, and of a large size.
  double Small(CallKind kind, const char* algorithm) const { return Find(kind, algorithm, 0).us; }
  double Large(CallKind kind, const char* algorithm) const {
    return Find(kind, algorithm, kLargeBytes).us;
  }
  int64_t LargeBytes(CallKind kind, const char* algorithm) const {
    return Find(kind, algorithm, kLargeBytes).measured.bytes;
  }

 private:
  // The last size that is no larger than `bytes`, else the first.
  Observation Find(CallKind kind, const char* algorithm, int64_t bytes) const {
    Observation found;
    for (const Observation& one : observations_) {
      const bool like = one.measured.collective == kind &&
                        (one.algorithm == nullptr ? *algorithm == '\0'
                                                  : one.algorithm->name == std::string(algorithm));
      if (like && (found.us == 0 || one.measured.bytes <= bytes)) {
        found = one;
      }
    }
    return found;
  }

  const std::vector<Observation>& observations_;
};

void Set(double value, double* figure) {
  if (std::isfinite(value) && value > 0) {
    // As many digits as are worth writing.
    *figure = std::strtod(absl::StrFormat("%.3g", value).c_str(), nullptr);
  }
}

LinkFigures Measured(const Times& times, const TunedFor& where, int cores,
                     const LinkFigures& from) {
  LinkFigures figures = from;
  figures.where = where;
  figures.from_traits = false;
  const int n = where.ranks;
  const double small = times.Small(CallKind::kSend, "");
  // A hop more: a chain beside a star, or two steps beside one.
  const double hop = n > 2 ? (times.Small(CallKind::kBroadcast, "ring") -
                              times.Small(CallKind::kBroadcast, "direct")) /
                                 (n - 2)
                           : times.Small(CallKind::kAllReduce, "two_step") -
                                 times.Small(CallKind::kAllReduce, "direct");
  const double one = std::clamp(hop, small / 10, small);  // of a message alone, without the call
  Set(small - one, &figures.call_us);
  // More messages to one rank at the same time. What two ranks do not show is taken for a quarter.
  const double more = n > 2 ? (times.Small(CallKind::kGather, "direct") - small) / (n - 2) : 0;
  Set(std::clamp(more, one / 20, one / 4), &figures.message_us);
  Set(one - 2 * figures.message_us, &figures.latency_us);
  if (where.crowded) {
    Set(std::max(hop - small, 0.01), &figures.switch_us);
  }
  Set(Gbs(static_cast<double>(times.LargeBytes(CallKind::kSend, "")),
          times.Large(CallKind::kSend, "") - small),
      &figures.gbs);
  // All ranks to all others, at once: what crosses the memory of a host, or enters one.
  const double gathered = static_cast<double>(times.LargeBytes(CallKind::kAllGather, "direct"));
  const double together = times.Large(CallKind::kAllGather, "direct");
  Set(Gbs(gathered * (where.link >= Link::kFabricAcross ? 1.0 / n : 1) * (n - 1),
          together - times.Small(CallKind::kAllGather, "direct")),
      &figures.host_gbs);
  // The same bytes, and combined: n operands and the result are touched, of two three.
  const double turns = where.crowded ? static_cast<double>(n) / cores : 1;
  Set(Gbs(gathered / n * (n + 1) / 3 * turns,
          times.Large(CallKind::kReduceScatter, "direct") - together),
      &figures.reduce_gbs);
  return figures;
}

class Ranges {
 public:
  Ranges(const std::vector<Observation>& observations, const TunedFor& where, int cores,
         TuneResult* result)
      : observations_(observations), where_(where), result_(result) {
    std::vector<int> hosts;
    for (int rank = 0; rank < where.ranks; ++rank) {
      hosts.push_back(where.link >= Link::kFabricAcross ? rank : 0);
    }
    Paths paths;
    paths.cores = cores;
    const CostModel model(Crowd::Of(hosts), paths, result->figures, result->figures);
    for (const Observation& one : observations) {
      const Spec spec{one.measured.collective, 0, one.measured.ranks, one.measured.root, 1};
      estimates_.push_back(one.algorithm == nullptr
                               ? 0
                               : static_cast<double>(model.Picoseconds(*one.algorithm, spec, hosts,
                                                                       one.measured.bytes)) *
                                     1e-6);
    }
  }

  void Run() {
    const Algorithm* before = nullptr;
    for (size_t begin = 0, end = 0; begin < observations_.size(); begin = end) {
      const Case& of = observations_[begin].measured;
      for (end = begin; end < observations_.size() &&
                        observations_[end].measured.collective == of.collective &&
                        observations_[end].measured.bytes == of.bytes;) {
        ++end;
      }
      if (observations_[begin].algorithm != nullptr) {
        before = Choose(begin, end, before);
      }
    }
  }

 private:
  // The least estimate where that is nearly the fastest, else the choice of the size before, else the fastest.
  const Algorithm* Choose(size_t begin, size_t end, const Algorithm* before) {
    const Case& of = observations_[begin].measured;
    const bool first = begin == 0 || observations_[begin - 1].measured.collective != of.collective;
    const bool last =
        end == observations_.size() || observations_[end].measured.collective != of.collective;
    size_t fastest = begin, model = begin, same = end;
    for (size_t i = begin; i < end; ++i) {
      fastest = observations_[i].us < observations_[fastest].us ? i : fastest;
      model = estimates_[i] < estimates_[model] ? i : model;
      same = !first && observations_[i].algorithm == before ? i : same;
    }
    const auto near = [&](size_t i) {
      return i < end && observations_[i].us <= observations_[fastest].us * kWorth;
    };
    const size_t chosen = near(model) ? model : near(same) ? same : fastest;
    if (chosen != model) {
      // To the middle between this size and its neighbours, as the eye sees it on a logarithmic scale.
      const int64_t low = first ? 0 : Middle(observations_[begin - 1].measured.bytes, of.bytes);
      const int64_t high = last ? std::numeric_limits<int64_t>::max()
                                : Middle(of.bytes, observations_[end].measured.bytes) - 1;
      Add(*observations_[chosen].algorithm, low, high);
    }
    Describe(begin, end, chosen, model);
    return observations_[chosen].algorithm;
  }

  static int64_t Middle(int64_t a, int64_t b) {
    return std::llround(std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
  }

  void Add(const Algorithm& algorithm, int64_t low, int64_t high) {
    if (!result_->choices.empty()) {
      Override& previous = result_->choices.back().choice;
      if (previous.kind == algorithm.kind && previous.algorithm == algorithm.name &&
          previous.high == low - 1) {
        previous.high = high;
        return;
      }
    }
    result_->choices.push_back({where_, {algorithm.kind, algorithm.name, low, high}});
  }

  void Describe(size_t begin, size_t end, size_t chosen, size_t model) {
    const Case& of = observations_[begin].measured;
    absl::StrAppendFormat(&result_->report, "%-15s %10d ", TitleOf(of.collective), of.bytes);
    for (size_t i = begin; i < end; ++i) {
      absl::StrAppendFormat(&result_->report, " %s%s %.4g (%.4g)%s", i == chosen ? "*" : "",
                            observations_[i].algorithm->name, observations_[i].us, estimates_[i],
                            i == model ? "e" : "");
    }
    result_->report += "\n";
  }

  const std::vector<Observation>& observations_;
  const TunedFor where_;
  TuneResult* const result_;
  std::vector<double> estimates_;
};

}  // namespace

TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                const LinkFigures& from) {
  TuneResult result;
  result.where = where;
  result.figures = Measured(Times(observations), where, cores, from);
  Ranges(observations, where, cores, &result).Run();
  // A link's line counts the ranks of a host.
  result.figures.where.ranks = where.link >= Link::kFabricAcross ? 1 : where.ranks;
  return result;
}

void Merge(const TuneResult& result, Tuning* tuning) {
  auto& links = tuning->links;
  auto& choices = tuning->choices;
  std::erase_if(links, [&](const auto& one) { return one.where == result.figures.where; });
  std::erase_if(choices, [&](const auto& one) { return one.where == result.where; });
  links.push_back(result.figures);
  choices.insert(choices.end(), result.choices.begin(), result.choices.end());
}

}  // namespace entrain::perf
