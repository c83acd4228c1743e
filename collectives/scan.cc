#include "collectives/scan.h"

namespace entrain::scan {
namespace {

// The blocks of a lane, as one region of each slot.
class Values {
 public:
  Values(ScheduleBuilder* builder, int lane)
      : builder_(builder), first_(lane * builder->spec().size), blocks_(builder->spec().size) {}
  Region In() const { return {Slot::kIn, first_, blocks_}; }
  Region Out() const { return {Slot::kOut, first_, blocks_}; }
  Region NewScratch() const {
    const int first = builder_->AddScratch(first_);
    for (int i = 1; i < blocks_; ++i) {
      builder_->AddScratch(first_ + i);
    }
    return {Slot::kScratch, first, blocks_};
  }

 private:
  ScheduleBuilder* const builder_;
  const int first_, blocks_;
};

}  // namespace

void Doubling(ScheduleBuilder* builder, int lane) {
  const Spec& spec = builder->spec();
  const Values values(builder, lane);
  builder->BeginLane();
  const bool exclusive = spec.kind == CallKind::kExclusiveScan;
  Region current = values.In();
  // Adds a round. A rank from `first` on sends `what` to the rank with its number plus `distance`,
  // and receives `*from_left` from the rank with its number minus `distance`, if these ranks exist.
  // Returns true if this rank receives.
  const auto pass = [&](int first, int distance, Region what, Region* from_left) {
    const int left = spec.rank - distance;
    const int right = spec.rank + distance;
    builder->BeginRound();
    if (spec.rank >= first && left >= first) {
      *from_left = values.NewScratch();
      builder->Recv(left, *from_left);
    }
    if (spec.rank >= first && right < spec.size) {
      builder->Send(right, what);
    }
    return spec.rank >= first && left >= first;
  };
  if (exclusive) {
    Region from_left;
    if (pass(0, 1, current, &from_left)) {
      current = from_left;
    }
  }
  const int first = exclusive ? 1 : 0;
  for (int distance = 1; distance < spec.size - first; distance *= 2) {
    Region from_left;
    if (pass(first, distance, current, &from_left)) {
      builder->Combine(values.Out(), {from_left, current}, /*last=*/false);
      current = values.Out();
    }
  }
  if (current.slot != Slot::kOut && !(exclusive && spec.rank == 0)) {
    builder->Copy(values.Out(), current);
  }
}

void Chain(ScheduleBuilder* builder, int lane) {
  const Spec& spec = builder->spec();
  const Values values(builder, lane);
  builder->BeginLane();
  const bool exclusive = spec.kind == CallKind::kExclusiveScan;
  const bool first = spec.rank == 0;
  const bool last = spec.rank + 1 == spec.size;
  Region passed_on = values.In();
  builder->BeginRound();
  if (!first) {
    const Region prefix = values.NewScratch();
    builder->Recv(spec.rank - 1, prefix);
    if (!exclusive) {
      passed_on = values.Out();
      builder->Combine(passed_on, {prefix, values.In()}, /*last=*/false);
    } else {
      if (!last) {
        passed_on = values.NewScratch();
        builder->Combine(passed_on, {prefix, values.In()}, /*last=*/false);
      }
      builder->Copy(values.Out(), prefix);
    }
  } else if (!exclusive) {
    builder->Copy(values.Out(), values.In());
    passed_on = values.Out();
  }
  builder->BeginRound();
  if (!last) {
    builder->Send(spec.rank + 1, passed_on);
  }
}

}  // namespace entrain::scan
