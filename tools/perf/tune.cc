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
  const double more =
      n > 2 ? (times.Small(CallKind::kGather, "direct") - small) / (n - 2) : one / 4;
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

int64_t Middle(int64_t a, int64_t b) {
  return std::llround(std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
}

// Lengthens the range before, if that ends where this begins.
void Add(const MeasuredChoice& range, std::vector<MeasuredChoice>* ranges) {
  const Override& choice = range.choice;
  if (!ranges->empty()) {
    Override& last = ranges->back().choice;
    if (last.kind == choice.kind && last.algorithm == choice.algorithm &&
        last.high == choice.low - 1) {
      last.high = choice.high;
      return;
    }
  }
  ranges->push_back(range);
}

// Of one size, [begin, end): whether its fastest algorithm is one to choose against the least estimate, and a line of
// the report.
void Judge(const std::vector<Observation>& all, const std::vector<double>& estimates, size_t begin,
           size_t end, TuneResult* result) {
  const Case& of = all[begin].measured;
  size_t fastest = begin, least = begin;
  for (size_t i = begin; i < end; ++i) {
    fastest = all[i].us < all[fastest].us ? i : fastest;
    least = estimates[i] < estimates[least] ? i : least;
  }
  const size_t chosen = all[fastest].us * kWorth < all[least].us ? fastest : least;
  if (chosen != least) {
    // To the middle between this size and its neighbours, as the eye sees it on a logarithmic scale.
    const bool first = begin == 0 || all[begin - 1].measured.collective != of.collective;
    const bool last = end == all.size() || all[end].measured.collective != of.collective;
    const int64_t low = first ? 0 : Middle(all[begin - 1].measured.bytes, of.bytes);
    const int64_t high =
        last ? std::numeric_limits<int64_t>::max() : Middle(of.bytes, all[end].measured.bytes) - 1;
    Add({result->where, {of.collective, all[chosen].algorithm->name, low, high}}, &result->choices);
  }
  absl::StrAppendFormat(&result->report, "%-15s %10d ", TitleOf(of.collective), of.bytes);
  for (size_t i = begin; i < end; ++i) {
    absl::StrAppendFormat(&result->report, " %s%s %.4g (%.4g)", i == chosen ? "*" : "",
                          all[i].algorithm->name, all[i].us, estimates[i]);
  }
  result->report += "\n";
}

void FindRanges(const std::vector<Observation>& all, int cores, TuneResult* result) {
  std::vector<int> hosts;
  for (int rank = 0; rank < result->where.ranks; ++rank) {
    hosts.push_back(result->where.link >= Link::kFabricAcross ? rank : 0);
  }
  Paths paths;
  paths.cores = cores;
  const CostModel model(Crowd::Of(hosts), paths, result->figures, result->figures);
  std::vector<double> estimates;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const Case& of = all[begin].measured;
    for (; end < all.size() && all[end].measured.collective == of.collective &&
           all[end].measured.bytes == of.bytes;
         ++end) {
      const Spec spec{of.collective, 0, of.ranks, of.root, 1};
      const Algorithm* const algorithm = all[end].algorithm;
      const int64_t time =
          algorithm == nullptr ? 0 : model.Picoseconds(*algorithm, spec, hosts, of.bytes);
      estimates.push_back(static_cast<double>(time) * 1e-6);
    }
    if (all[begin].algorithm != nullptr) {
      Judge(all, estimates, begin, end, result);
    }
  }
}

}  // namespace

TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                const LinkFigures& from) {
  TuneResult result;
  result.where = where;
  result.figures = Measured(Times(observations), where, cores, from);
  FindRanges(observations, cores, &result);
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
