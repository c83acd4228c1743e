// The data that ranks send, the expected results, and the count of wrong elements.
//
// Element i of rank r's buffer is a small integer, periodic in i. It is chosen so that sums over
// all ranks stay exact in every type. Only averages of floats are compared with a tolerance. The
// location of a pair is the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/perf/measured_case.h"

namespace entrain::perf {

class Pattern {
 public:
  explicit Pattern(const Case& measured);

  // Fills `rank`'s contribution: in_count() elements (broadcast: the root's data; other ranks get
  // Spoil).
  void FillInput(int rank, void* in) const;
  // Fills `out` with bytes that no correct result contains.
  static void Spoil(void* out, int64_t bytes);
  // Returns the number of elements of `out` on `rank` that are wrong.
  int64_t CountWrong(int rank, const void* out) const;

 private:
  double Contribution(int rank, int64_t i) const;
  double Reduced(int64_t i, int ranks) const;
  // Returns a block that is compared as a whole: the elements `value(i)` of one period, repeated.
  template <typename Value>
  std::vector<std::byte> Block(Value value) const;
  void Store(std::byte* at, double value) const;
  double Load(const std::byte* at) const;
  bool Close(const std::byte* got, const std::byte* want) const;
  // Compares out[0 .. count) with a block whose element 0 has index `first`.
  int64_t Compare(const std::byte* out, int64_t count, int64_t first,
                  const std::vector<std::byte>& block) const;
  void Copy(std::byte* out, int64_t count, const std::vector<std::byte>& block) const;

  const Case case_;
  const int64_t width_;
  const int64_t period_;
  const int64_t chunk_;  // elements compared at once: a multiple of the period
};

}  // namespace entrain::perf
