#include "collectives/draft.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace entrain {
namespace {

size_t At(int index) {
  return static_cast<size_t>(index);
}

}  // namespace

Parts Join(const Pieces& pieces, int first, int last) {
  Parts parts;
  for (int i = first; i < last; ++i) {
    parts.insert(parts.end(), pieces[At(i)].begin(), pieces[At(i)].end());
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

Draft::Draft(ScheduleBuilder* builder, int lane)
    : builder_(builder), lane_(lane), place_(At(builder->spec().size)) {
  builder_->BeginLane();
  for (int part = 0; part < spec().size; ++part) {
    if (InputWindow(spec()).Has(BlockOfPart(part))) {
      place_[At(part)] = {Slot::kIn, BlockOfPart(part)};
    }
  }
}

bool Draft::Follows(const Place& next, const Place& place, int distance) {
  return next.slot == place.slot && next.index == place.index + distance;
}

int Draft::RunAt(const Parts& parts, int begin) const {
  const int first = BlockOfPart(parts[At(begin)]);
  int length = 1;
  while (At(begin + length) < parts.size() &&
         BlockOfPart(parts[At(begin + length)]) == first + length) {
    ++length;
  }
  return length;
}

void Draft::Send(int peer, const Parts& parts) {
  int length = 0;
  for (int i = 0; At(i) < parts.size(); i += length) {
    length = RunAt(parts, i);
    const Place& place = place_[At(parts[At(i)])];
    for (int k = 1; k < length; ++k) {
      // The receiver cuts messages by D alone. So if parts are contiguous in D, their values must
      // be contiguous on this rank too.
      assert(Follows(place_[At(parts[At(i + k)])], place, k));
    }
    builder_->Send(peer, {place.slot, place.index, length});
  }
}

void Draft::Recv(int peer, const Parts& parts) {
  int length = 0;
  for (int i = 0; At(i) < parts.size(); i += length) {
    length = RunAt(parts, i);
    const Place first = HomeOf(parts, i, length);
    builder_->Recv(peer, {first.slot, first.index, length});
    for (int k = 0; k < length; ++k) {
      place_[At(parts[At(i + k)])] = {first.slot, first.index + k};
    }
  }
}

// Returns the place for `length` parts from parts[begin] on, which are contiguous in D and are
// about to be received. The place is in kOut if kOut has all of these parts, else in scratch.
Draft::Place Draft::HomeOf(const Parts& parts, int begin, int length) {
  const BlockRange output = OutputWindow(spec());
  const int block = BlockOfPart(parts[At(begin)]);
  if (output.Has(block) && output.Has(block + length - 1)) {
    return {Slot::kOut, block};
  }
  if (!homes_.empty() && homes_[At(parts[At(begin)])] >= 0) {
    return {Slot::kScratch, homes_[At(parts[At(begin)])]};
  }
  return {Slot::kScratch, AddScratch(parts, begin, length)};
}

int Draft::AddScratch(const Parts& parts, int begin, int length) {
  int first = -1;
  for (int k = 0; k < length; ++k) {
    const int block = builder_->AddScratch(BlockOfPart(parts[At(begin + k)]));
    first = k == 0 ? block : first;
  }
  return first;
}

void Draft::Assemble(const Parts& parts) {
  homes_.assign(At(spec().size), -1);
  const int first = AddScratch(parts, 0, static_cast<int>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const int part = parts[i];
    const int home = first + static_cast<int>(i);
    homes_[At(part)] = home;
    if (place_[At(part)].index >= 0) {
      builder_->Copy({Slot::kScratch, home, 1}, {place_[At(part)].slot, place_[At(part)].index, 1});
      place_[At(part)] = {Slot::kScratch, home};
    }
  }
}

Contribution Draft::RecvContribution(int peer, int order, const Parts& parts) {
  const Contribution contribution{order, parts,
                                  AddScratch(parts, 0, static_cast<int>(parts.size()))};
  int length = 0;
  for (int i = 0; At(i) < parts.size(); i += length) {
    length = RunAt(parts, i);
    builder_->Recv(peer, {Slot::kScratch, contribution.scratch + i, length});
  }
  return contribution;
}

std::vector<Draft::Place> Draft::Operands(int part, int my_order,
                                          const std::vector<Contribution>& from) const {
  std::vector<std::pair<int, Place>> ordered = {{my_order, place_[At(part)]}};
  for (const Contribution& one : from) {
    const auto found = std::lower_bound(one.parts.begin(), one.parts.end(), part);
    if (found != one.parts.end() && *found == part) {
      const int offset = static_cast<int>(found - one.parts.begin());
      ordered.push_back({one.order, {Slot::kScratch, one.scratch + offset}});
    }
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Place> operands;
  for (const auto& [order, place] : ordered) {
    operands.push_back(place);
  }
  return operands;
}

void Draft::Combine(const Parts& parts, int my_order, const std::vector<Contribution>& from,
                    bool last) {
  // If kOut has only some of the parts, only complete sums are written to it.
  const BlockRange output = OutputWindow(spec());
  const bool into_out = (last || output.blocks() == BlockCount(spec())) && !parts.empty() &&
                        std::all_of(parts.begin(), parts.end(),
                                    [&](int part) { return output.Has(BlockOfPart(part)); });
  const auto place_of_result = [&](int i) {
    return into_out ? Place{Slot::kOut, BlockOfPart(parts[At(i)])}
                    : Place{Slot::kScratch, from[0].scratch + i};
  };
  assert(into_out || from[0].parts == parts);
  int length = 0;
  for (int i = 0; At(i) < parts.size(); i += length) {
    const std::vector<Place> operands = Operands(parts[At(i)], my_order, from);
    // Combines several parts in one operation, as long as their operands and results are
    // contiguous.
    const int limit = RunAt(parts, i);
    const auto continues = [&](int k) {
      const std::vector<Place> next = Operands(parts[At(i + k)], my_order, from);
      bool same = next.size() == operands.size();
      for (size_t o = 0; same && o < next.size(); ++o) {
        same = Follows(next[o], operands[o], k);
      }
      return same;
    };
    for (length = 1; length < limit && continues(length);) {
      ++length;
    }
    std::vector<Region> regions;
    for (const Place& place : operands) {
      regions.push_back({place.slot, place.index, length});
    }
    const Place result = place_of_result(i);
    builder_->Combine({result.slot, result.index, length}, regions, last);
  }
  for (int i = 0; At(i) < parts.size(); ++i) {
    place_[At(parts[At(i)])] = place_of_result(i);
  }
}

void Draft::Settle(const Parts& parts) {
  for (int i = 0; At(i) < parts.size();) {
    Place& place = place_[At(parts[At(i)])];
    if (place.slot == Slot::kOut) {
      ++i;
      continue;
    }
    const int block = BlockOfPart(parts[At(i)]);
    const int limit = RunAt(parts, i);
    int length = 1;
    while (length < limit && Follows(place_[At(parts[At(i + length)])], place, length)) {
      ++length;
    }
    builder_->Copy({Slot::kOut, block, length}, {place.slot, place.index, length});
    for (int k = 0; k < length; ++k) {
      place_[At(parts[At(i + k)])] = {Slot::kOut, block + k};
    }
    i += length;
  }
}

Group Everyone(const Spec& spec) {
  return {AllParts(spec), spec.rank};
}

Pieces OwnParts(const Spec& spec) {
  Pieces pieces;
  for (int rank = 0; rank < spec.size; ++rank) {
    pieces.push_back({rank});
  }
  return pieces;
}

Parts AllParts(const Spec& spec) {
  Parts parts(At(spec.size));
  std::iota(parts.begin(), parts.end(), 0);
  return parts;
}

}  // namespace entrain
