// Joins the output of several processes line by line. A line is never split, and begins with the
// rank that wrote it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "tools/outlet.h"

namespace entrain {

// One stream of one rank. Not thread-safe.
class LabelledOutput {
 public:
  // Lines go to `to`, which must outlive this object, each after `label` ("[3] ", or empty).
  LabelledOutput(Outlet* to, std::string label);
  // Passes on the lines that `text` completes, and keeps the rest. A line longer than 64 KiB is
  // cut.
  void Add(absl::string_view text);
  // Passes on the kept rest as a line.
  void Finish();
  // Returns true if the caller should wait before it adds more.
  bool full() const { return to_->full(); }

 private:
  Outlet* to_;
  std::string label_, rest_;
};

}  // namespace entrain
