// One call with its buffers on one rank, and the expected result. Values are whole and small, so
// that floats hold every sum of them exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/call.h"

namespace entrain {

// The parameters of a trial, equal on all ranks.
struct TrialSpec {
  CallKind kind = CallKind::kBarrier;  // kSend: from the root to the next rank
  int64_t count = 0;                   // elements of a part if HasParts(kind), else of the buffer
  int root = 0;
  bool in_place = false;
  // If HasParts(kind): parts have 0 to `count` elements.
  bool uneven = false;
  // Seed for the values, their type and, for reductions, the operator.
  uint32_t number = 0;
};

class Trial {
 public:
  Trial(const TrialSpec& spec, int rank, int size);
  Trial(Trial&&) = default;

  // Returns false if this rank does not take part in the call.
  bool takes_part() const { return takes_part_; }
  // Checks, after the call, that every element of the output equals the result of a loop over the
  // ranks. `near`: allowed error of averages, because another library may add up quotients.
  void Check(float near = 0) const;

  Call call;

 private:
  // Returns the number of elements that rank `from` has for rank `to`. It depends on the owner of
  // the part; in an all_to_all, on both ranks.
  int64_t PartOf(int from, int to) const;
  int64_t PartsOf(int from, int first_to, int last_to) const;
  // Returns true if, in place, `out` is a part of `in`, or `in` is a part of `out`.
  bool OwnPartIsIn() const;
  bool OwnPartIsOut() const;
  void DrawOperator();
  // Makes this rank's send or receive. Returns false if this rank has neither.
  bool IsMessage();
  void CountParts();
  int64_t InElements() const;
  int64_t OutElements() const;
  // Appends elements of the first ranks' contributions, combined as `call` asks.
  void AppendCombined(int ranks, int64_t first, int64_t count, std::vector<int64_t>* to) const;
  // Returns `values` in the call's type, averaged if the call asks for it.
  std::vector<std::byte> Stored(const std::vector<int64_t>& values, int divisor) const;
  std::vector<int64_t> Wanted() const;
  // Appends elements `first` to `first` + `count` - 1 of rank `from`: element i is
  // (131 number + 17 from + i) mod 1009 - 300. Tests spend much of their time here.
  void AppendValues(int from, int64_t first, int64_t count, std::vector<int64_t>* to) const;

  TrialSpec spec_;
  int rank_, size_;
  bool takes_part_ = true;
  std::vector<std::byte> in_, out_;
};

}  // namespace entrain
