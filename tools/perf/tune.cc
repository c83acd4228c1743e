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

// A choice that contradicts the estimates must be faster by this factor.
constexpr double kWorth = 1.05;
// Rates are computed from the largest calls up to this size, because such calls fit into the
// caches.
constexpr int64_t kLargeBytes = 1 << 20;

// Converts bytes in microseconds to units of 1e9 bytes per second.
double Gbs(double bytes, double us) {
  return bytes * 1e-3 / us;
}

// Looks up the calls from which figures are computed. Zero means that a call was not measured.
class Times {
 public:
  explicit Times(const std::vector<Observation>& observations) : observations_(observations) {}

  // Return the time at the smallest size, and at a large size.
  double Small(CallKind kind, const char* algorithm) const { return Find(kind, algorithm, 0).us; }
  double Large(CallKind kind, const char* algorithm) const {
    return Find(kind, algorithm, kLargeBytes).us;
  }
  int64_t LargeBytes(CallKind kind, const char* algorithm) const {
    return Find(kind, algorithm, kLargeBytes).measured.bytes;
  }

 private:
  // Returns the last size that is at most `bytes`, else the first.
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
    // More digits than these mean nothing.
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
  // The time of one more hop: the difference between a chain and a star, or between two steps and
  // one.
  const double hop = n > 2 ? (times.Small(CallKind::kBroadcast, "ring") -
                              times.Small(CallKind::kBroadcast, "direct")) /
                                 (n - 2)
                           : times.Small(CallKind::kAllReduce, "two_step") -
                                 times.Small(CallKind::kAllReduce, "direct");
  const double one = std::clamp(hop, small / 10, small);  // one message, without the cost of the
                                                          // call
  Set(small - one, &figures.call_us);
  // The time of one more message to the same rank. With two ranks this time cannot be measured, so
  // it is assumed to be a quarter of a hop.
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
  // All ranks send to all other ranks at once. Counts the bytes that cross the memory of a host, or
  // that enter one host.
  const double gathered = static_cast<double>(times.LargeBytes(CallKind::kAllGather, "direct"));
  const double together = times.Large(CallKind::kAllGather, "direct");
  Set(Gbs(gathered * (where.link >= Link::kFabricAcross ? 1.0 / n : 1) * (n - 1),
          together - times.Small(CallKind::kAllGather, "direct")),
      &figures.host_gbs);
  // A reduce_scatter moves the same bytes, and combines them. Combining n operands accesses n + 1
  // buffers. Combining two operands accesses three.
  const double turns = where.crowded ? static_cast<double>(n) / cores : 1;
  Set(Gbs(gathered / n * (n + 1) / 3 * turns,
          times.Large(CallKind::kReduceScatter, "direct") - together),
      &figures.reduce_gbs);
  return figures;
}

int64_t Middle(int64_t a, int64_t b) {
  return std::llround(std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
}

// Appends `range`. If the last range has the same algorithm and ends where `range` begins, extends
// the last range instead.
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

// Judges one size, the observations [begin, end). Decides whether the fastest algorithm must be
// chosen although another one has the least estimate. Writes a line of the report.
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
    // The range reaches to the geometric mean of this size and its neighbours.
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
  // A `link` line of a tuning file names the number of ranks per host. For a link between hosts,
  // this number is 1.
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
