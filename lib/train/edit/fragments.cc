#include "lib/train/edit/fragments.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

// Returns the fragment of each layer. Sequential: each fragment gets consecutive layers that train,
// and the numbers of layers of two fragments differ by at most one. Strided: the k-th layer that
// trains goes to fragment k modulo the number of fragments. A layer that does not train goes to
// fragment 0.
std::vector<int> FragmentOf(const EditOptions& options, const Slab& slab) {
  std::vector<int> result(static_cast<size_t>(slab.layers()), 0);
  if (!options.fragment_of_layer.empty()) {
    std::copy(options.fragment_of_layer.begin(), options.fragment_of_layer.end(), result.begin());
    return result;
  }
  const auto training = static_cast<int64_t>(slab.training().size());
  for (int64_t k = 0; k < training; ++k) {
    const int64_t fragment = options.fragment_pattern == FragmentPattern::kStrided
                                 ? k % options.fragments
                                 : k * options.fragments / training;
    result[static_cast<size_t>(slab.training()[static_cast<size_t>(k)])] =
        static_cast<int>(fragment);
  }
  return result;
}

}  // namespace

FragmentSchedule::FragmentSchedule(const EditOptions& options, const Slab& slab)
    : all_(slab.training()),
      fragment_of_(FragmentOf(options, slab)),
      caller_(options.use_async ? nullptr : options.interval_schedule),
      user_(options.interval_schedule_user),
      least_(std::max<int64_t>(1, options.overlap_steps)) {
  for (int32_t p = 0; p < options.fragments; ++p) {
    const auto at = static_cast<size_t>(p);
    Fragment fragment;
    fragment.interval = options.fragment_intervals.empty() ? options.local_sgd_sync_interval
                                                           : options.fragment_intervals[at];
    fragment.offset = options.fragment_offsets.empty()
                          // Spreads the fragments evenly over the interval. The last fragment is at
                          // the end of the interval.
                          ? fragment.interval / options.fragments * (p + 1) +
                                fragment.interval % options.fragments * (p + 1) / options.fragments
                          : options.fragment_offsets[at];
    fragments_.push_back(fragment);
  }
}

absl::Status FragmentSchedule::status() const {
  const absl::MutexLock lock(&mutex_);
  return status_;
}

bool FragmentSchedule::DueByCaller(int64_t steps) const {
  const absl::MutexLock lock(&mutex_);
  if (steps <= begin_) {  // the state was replaced
    number_ = -1;
    begin_ = end_ = 0;
  }
  while (status_.ok() && end_ < steps) {
    const double interval = caller_(user_, number_ + 1, end_);
    if (!(interval >= static_cast<double>(least_) && interval <= 1e15 &&
          interval == std::floor(interval))) {
      status_ = absl::AbortedError(absl::StrCat("interval_schedule: ", interval, " steps after ",
                                                number_ + 1,
                                                " exchanges; expected an integer of at least ",
                                                least_, least_ > 1 ? ", overlap_steps" : ""));
      break;
    }
    ++number_;
    begin_ = end_;
    end_ += static_cast<int64_t>(interval);
  }
  return steps > 0 && (end_ == steps || !status_.ok());
}

std::vector<int> FragmentSchedule::Due(int64_t steps) const {
  if (caller_ != nullptr) {
    return DueByCaller(steps) ? all_ : std::vector<int>();
  }
  std::vector<int> due;
  for (const int layer : all_) {
    const auto p = static_cast<size_t>(fragment_of_[static_cast<size_t>(layer)]);
    if (fragments_[p].Due(steps)) {
      due.push_back(layer);
    }
  }
  return due;
}

std::vector<int> FragmentSchedule::DueFragments(int64_t steps) const {
  std::vector<int> due;
  for (int p = 0; p < fragments(); ++p) {
    if (fragments_[static_cast<size_t>(p)].Due(steps)) {
      due.push_back(p);
    }
  }
  return due;
}

std::vector<int> FragmentSchedule::LayersOf(int fragment) const {
  std::vector<int> layers;
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(layers),
               [&](int layer) { return fragment_of_[static_cast<size_t>(layer)] == fragment; });
  return layers;
}

std::vector<NamedValue> FragmentSchedule::Named() const {
  std::vector<NamedValue> named;
  for (size_t l = 0; l < fragment_of_.size(); ++l) {
    named.push_back(
        {absl::StrCat("fragment_of_layer[", l, "]"), static_cast<double>(fragment_of_[l])});
  }
  for (size_t p = 0; p < fragments_.size(); ++p) {
    named.push_back(
        {absl::StrCat("fragment_intervals[", p, "]"), static_cast<double>(fragments_[p].interval)});
    named.push_back(
        {absl::StrCat("fragment_offsets[", p, "]"), static_cast<double>(fragments_[p].offset)});
  }
  return named;
}

absl::Status CheckFragments(const EditOptions& options, const Slab& slab) {
  const auto layers = static_cast<size_t>(slab.layers());
  if (!options.fragment_of_layer.empty() && options.fragment_of_layer.size() != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("fragment_of_layer: ", options.fragment_of_layer.size(), " numbers for ",
                     layers, " layers"));
  }
  std::vector<bool> used(static_cast<size_t>(options.fragments), false);
  const std::vector<int> fragment_of = FragmentOf(options, slab);
  for (const int layer : slab.training()) {
    const int fragment = fragment_of[static_cast<size_t>(layer)];
    if (fragment < 0 || fragment >= options.fragments) {
      return absl::InvalidArgumentError(absl::StrCat("fragment_of_layer: ", fragment, " of layer ",
                                                     layer, " is not one of ", options.fragments,
                                                     " fragments"));
    }
    used[static_cast<size_t>(fragment)] = true;
  }
  for (size_t p = 0; p < used.size(); ++p) {
    if (!used[p]) {
      return absl::InvalidArgumentError(
          absl::StrCat("fragments: ", options.fragments, " of ", slab.training().size(),
                       " layers that train leave fragment ", p, " without any; set fewer"));
    }
  }
  return absl::OkStatus();
}

}  // namespace entrain
