// Joins the output of several processes into one, line by line: a line is never torn, and carries
// its rank.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "tools/outlet.h"

namespace entrain {

// One stream of one rank. Not thread-safe.
class LabelledOutput {
 public:
  // Lines go to `to`, which outlives this, each behind `label` ("[3] ", or empty).
  LabelledOutput(Outlet* to, std::string label);
  // Passes on the lines that `text` completes; keeps the rest. A line longer than 64 KiB is cut.
  void Add(absl::string_view text);
  // Passes on what is left, as a line.
  void Finish();
  // The caller should wait before it adds more.
  bool full() const { return to_->full(); }

 private:
  Outlet* to_;
  std::string label_, rest_;
};

}  // namespace entrain
