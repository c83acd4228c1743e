#include "tools/perf/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "collectives/catalog.h"
#include "tools/perf/statistics.h"

namespace entrain::perf {
namespace {

// Another algorithm must be faster by this to be chosen against the model; by more where the model
// sees no difference, since there mostly is none, unless the size before had it too.
constexpr double kWorth = 1.05, kWorthOfTwins = 1.15;
constexpr double kTwins = 1.01;  // times estimated within this
constexpr double kNear = 0.1;
constexpr double kSteps[] = {2, 1.4, 1.15, 1.05};
constexpr int kMostSweeps = 20;  // by one step
// What is looked for, and between what: nothing is 0 or infinite that is stepped through by factors.
struct Unknown {
  double LinkFigures::*field;
  double least, most;
};
constexpr Unknown kUnknowns[] = {
    {&LinkFigures::call_us, 0.01, 1e4},      {&LinkFigures::latency_us, 0.01, 1e5},
    {&LinkFigures::message_us, 0.01, 1e4},   {&LinkFigures::switch_us, 0.01, 1e4},
    {&LinkFigures::large_us, 0.01, 1e4},     {&LinkFigures::eager_kb, 0.25, 1024},
    {&LinkFigures::send_gbs, 1e-3, 1000},    {&LinkFigures::receive_gbs, 1e-3, 1000},
    {&LinkFigures::host_gbs, 1e-3, 1000},    {&LinkFigures::reduce_gbs, 0.1, 1000},
    {&LinkFigures::cache_mb, 0.25, 1 << 20}, {&LinkFigures::far_times, 1, 20},
};

// A ping-pong of neighbours.
Rehearsal RehearsePingPong(const Case& measured, absl::Span<const int> hosts) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < measured.ranks; ++rank) {
    Schedule schedule;
    schedule.spec = {CallKind::kBroadcast, rank, measured.ranks, 0, 1};
    const int peer = rank ^ 1;
    for (const bool first : {true, false}) {
      const bool sends = (rank < peer) == first;
      schedule.transfers.push_back(
          {sends ? Direction::kSend : Direction::kRecv, peer, {Slot::kIn, 0, 1}});
      schedule.rounds.push_back({first ? 0u : 1u, peer < measured.ranks ? 1u : 0u, 0, 0});
    }
    schedule.lanes.push_back({0, 2, 0, 0});
    schedules.push_back(std::move(schedule));
  }
  return Rehearsal(std::move(schedules), hosts, Layout{{0, measured.count}}, measured.bytes);
}

Spec SpecOf(const Case& measured) {
  return {measured.collective, 0, measured.ranks, measured.root, 1};
}

class Fit {
 public:
  Fit(const std::vector<Observation>& observations, const TunedFor& where, int cores)
      : observations_(observations), where_(where) {
    const int ranks = observations[0].measured.ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      hosts_.push_back(where.link == Link::kTcpAcross ? rank : 0);
    }
    paths_.inside = where.link == Link::kTcpAcross ? Link::kTcpInside : where.link;
    paths_.cores = cores;
    for (const Observation& one : observations) {
      rehearsals_.push_back(
          one.algorithm == nullptr
              ? RehearsePingPong(one.measured, hosts_)
              : Rehearsal(*one.algorithm, SpecOf(one.measured), hosts_, one.measured.bytes));
      weights_.push_back(1);
    }
    ForEachSize([&](size_t begin, size_t end) {
      const double least = observations_[Fastest(begin, end)].us;
      for (size_t i = begin; i < end; ++i) {
        weights_[i] = std::pow(least / observations_[i].us, 2);
      }
    });
  }

  void Run(LinkFigures from) {
    figures_ = from;
    figures_.where = where_;
    for (const Unknown& one : kUnknowns) {
      figures_.*one.field = std::clamp(figures_.*one.field, one.least, one.most);
    }
    error_ = Error(figures_);
    for (const double step : kSteps) {
      bool better = true;
      for (int sweep = 0; better && sweep < kMostSweeps; ++sweep) {
        better = false;
        for (const Unknown& one : kUnknowns) {
          better |= Improve(one, step);
        }
      }
    }
  }

  TuneResult Result() {
    TuneResult result;
    for (const Unknown& one : kUnknowns) {
      // As many digits as are worth writing.
      figures_.*one.field =
          std::strtod(absl::StrFormat("%.3g", figures_.*one.field).c_str(), nullptr);
    }
    result.figures = figures_;
    // A link's line counts the ranks of a host.
    result.figures.where.ranks = where_.link == Link::kTcpAcross ? 1 : where_.ranks;
    result.where = where_;
    const CostModel model(Crowd::Of(hosts_), paths_, figures_, figures_);
    std::vector<double> off;
    for (size_t i = 0; i < observations_.size(); ++i) {
      estimates_.push_back(static_cast<double>(rehearsals_[i].Picoseconds(model)) * 1e-6 *
                           observations_[i].measured.time_share());
      off.push_back(std::exp(std::abs(std::log(estimates_[i] / observations_[i].us))));
    }
    result.off = Median(std::move(off));
    const Algorithm* before = nullptr;
    ForEachSize([&](size_t begin, size_t end) { Choose(begin, end, &before, &result); });
    return result;
  }

 private:
  template <typename Function>
  void ForEachSize(Function function) const {
    for (size_t begin = 0, end = 0; begin < observations_.size(); begin = end) {
      const Case& of = observations_[begin].measured;
      for (end = begin; end < observations_.size(); ++end) {
        const Case& other = observations_[end].measured;
        if (other.collective != of.collective || other.bytes != of.bytes) {
          break;
        }
      }
      function(begin, end);
    }
  }

  size_t Fastest(size_t begin, size_t end) const {
    return static_cast<size_t>(
        std::min_element(observations_.begin() + static_cast<ptrdiff_t>(begin),
                         observations_.begin() + static_cast<ptrdiff_t>(end),
                         [](const auto& a, const auto& b) { return a.us < b.us; }) -
        observations_.begin());
  }

  double Error(const LinkFigures& figures) const {
    const CostModel model(Crowd::Of(hosts_), paths_, figures, figures);
    double error = 0;
    for (size_t i = 0; i < observations_.size(); ++i) {
      const Observation& one = observations_[i];
      const double us =
          static_cast<double>(rehearsals_[i].Picoseconds(model)) * 1e-6 * one.measured.time_share();
      // Squares near the truth; farther off, once is once: what was disturbed does not lead.
      const double off = std::log(us / one.us) / kNear;
      error += weights_[i] * (std::sqrt(1 + off * off) - 1);
    }
    return error;
  }

  bool Improve(const Unknown& one, double step) {
    for (const double factor : {step, 1 / step}) {
      LinkFigures tried = figures_;
      tried.*one.field = std::clamp(tried.*one.field * factor, one.least, one.most);
      const double error = Error(tried);
      if (error < error_ * 0.9999) {
        figures_ = tried;
        error_ = error;
        return true;
      }
    }
    return false;
  }

  // The model's choice where that is nearly the fastest, else that of the size before, else the fastest.
  void Choose(size_t begin, size_t end, const Algorithm** before, TuneResult* result) const {
    const Case& of = observations_[begin].measured;
    if (observations_[begin].algorithm == nullptr) {
      return;
    }
    const bool first = begin == 0 || observations_[begin - 1].measured.collective != of.collective;
    const bool last =
        end == observations_.size() || observations_[end].measured.collective != of.collective;
    *before = first ? nullptr : *before;
    const size_t fastest = Fastest(begin, end);
    size_t model = begin, same = end;
    for (size_t i = begin; i < end; ++i) {
      model = estimates_[i] < estimates_[model] ? i : model;
      same = observations_[i].algorithm == *before ? i : same;
    }
    const auto within = [&](size_t i, double worth) {
      return i < end && observations_[i].us <= observations_[fastest].us * worth;
    };
    const bool twins = estimates_[model] * kTwins > estimates_[fastest];
    const size_t chosen = within(model, kWorth)                   ? model
                          : within(same, kWorth)                  ? same
                          : twins && within(model, kWorthOfTwins) ? model
                                                                  : fastest;
    if (chosen != model) {
      // To the middle between this size and its neighbours, as the eye sees it on a logarithmic scale.
      const int64_t low = first ? 0 : Middle(observations_[begin - 1].measured.bytes, of.bytes);
      const int64_t high = last ? std::numeric_limits<int64_t>::max()
                                : Middle(of.bytes, observations_[end].measured.bytes) - 1;
      Add(*observations_[chosen].algorithm, low, high, result);
    }
    *before = observations_[chosen].algorithm;
    Describe(begin, end, chosen, model, result);
  }

  static int64_t Middle(int64_t a, int64_t b) {
    return std::llround(std::sqrt(static_cast<double>(a) * static_cast<double>(b)));
  }

  void Add(const Algorithm& algorithm, int64_t low, int64_t high, TuneResult* result) const {
    if (!result->choices.empty()) {
      Override& previous = result->choices.back().choice;
      if (previous.kind == algorithm.kind && previous.algorithm == algorithm.name &&
          previous.high == low - 1) {
        previous.high = high;
        return;
      }
    }
    result->choices.push_back({where_, {algorithm.kind, algorithm.name, low, high}});
  }

  void Describe(size_t begin, size_t end, size_t chosen, size_t model, TuneResult* result) const {
    absl::StrAppendFormat(&result->report, "%-15s %10d ",
                          TitleOf(observations_[begin].measured.collective),
                          observations_[begin].measured.bytes);
    for (size_t i = begin; i < end; ++i) {
      absl::StrAppendFormat(&result->report, " %s%s %.4g (%.4g)%s", i == chosen ? "*" : "",
                            observations_[i].algorithm->name, observations_[i].us, estimates_[i],
                            i == model ? "m" : "");
    }
    result->report += "\n";
  }

  const std::vector<Observation>& observations_;
  const TunedFor where_;
  std::vector<int> hosts_;
  Paths paths_;
  std::vector<Rehearsal> rehearsals_;
  std::vector<double> weights_, estimates_;
  LinkFigures figures_;
  double error_ = 0;
};

}  // namespace

TuneResult Tune(const std::vector<Observation>& observations, const TunedFor& where, int cores,
                LinkFigures from) {
  Fit fit(observations, where, cores);
  fit.Run(from);
  return fit.Result();
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
