// One call with its buffers, on one rank, that knows what must come out. Values are whole and small, so that floats hold
// every sum of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/call.h"

namespace entrain {

// The same on all ranks.
struct TrialSpec {
  CallKind kind = CallKind::kBarrier;  // kSend: from the root to the rank behind it
  int64_t count = 0;  // elements of a part where HasParts(kind), else of the buffer
  int root = 0;
  bool in_place = false;
  // Where HasParts(kind): parts of 0 to `count` elements instead.
  bool uneven = false;
  uint32_t number = 0;  // draws the values, their type and, where they are reduced, the operator
};

class Trial {
 public:
  Trial(const TrialSpec& spec, int rank, int size);
  Trial(Trial&&) = default;

  // False: the call is none of this rank's.
  bool takes_part() const { return takes_part_; }
  // After the call: every element of the output is what a loop over the ranks gives.
  // `near`: averages may stray by so much, as a library of others' may add up quotients.
  void Check(float near = 0) const;

  Call call;

 private:
  // Elements that rank `from` has for rank `to`: parts by their owner, but in an all_to_all by both.
  int64_t PartOf(int from, int to) const;
  int64_t PartsOf(int from, int first_to, int last_to) const;
  // In place, `out` is a part of `in`, or `in` one of `out`.
  bool OwnPartIsIn() const;
  bool OwnPartIsOut() const;
  void DrawOperator();
  // A send or receive; false: neither is this rank's.
  bool IsMessage();
  void CountParts();
  int64_t InElements() const;
  int64_t OutElements() const;
  // The sum, or what else `call` asks for, of element i of the first ranks.
  int64_t Combined(int ranks, int64_t i) const;
  // `values`, averaged where that is asked for, in the call's type.
  std::vector<std::byte> Stored(const std::vector<int64_t>& values, int divisor) const;
  std::vector<int64_t> Wanted() const;
  void AppendValues(int from, int64_t first, int64_t count, std::vector<int64_t>* to) const;

  TrialSpec spec_;
  int rank_, size_;
  bool takes_part_ = true;
  std::vector<std::byte> in_, out_;
};

}  // namespace entrain
