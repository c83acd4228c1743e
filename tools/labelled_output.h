// Joins the output of several processes into one, line by line: a line is never torn, and carries
// its rank.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

// One stream of one rank. Not thread-safe.
class LabelledOutput {
 public:
  // Lines go to descriptor `to`, each behind `label` ("[3] ", or empty).
  LabelledOutput(int to, std::string label);
  // Writes the lines that `text` completes; keeps the rest. A line longer than 64 KiB is cut.
  void Add(absl::string_view text);
  // Writes what is left, as a line.
  void Finish();

 private:
  void Write(absl::string_view text) const;

  int to_;
  std::string label_, rest_;
};

}  // namespace entrain
