// Prints figures in the columns of nccl-tests, and writes them as JSON for programs, one object per
// line.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "tools/perf/measure.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

// The setting of a measurement. It is printed above the table, and is part of every JSON object.
struct Setting {
  std::string program;  // "entrain-perf"
  std::string place;    // place of the ranks' meetings: "a shared page"
  double budget_s = 0;
};

class Report {
 public:
  // `json` is the file to write, empty for none. `append`: keeps the contents of the file.
  static absl::StatusOr<Report> Open(const std::string& json, bool append, bool explain);
  Report(Report&& other) noexcept;
  Report& operator=(Report&&) = delete;
  ~Report();

  void Head(const Setting& setting, const Case& measured, const std::string& transport) const;
  // Prints "# TEXT".
  void Note(const std::string& text) const;
  absl::Status Add(const Case& measured, const std::string& transport, const std::string& algorithm,
                   const Figures& figures) const;

 private:
  Report(std::FILE* json, std::string path, bool explain)
      : json_(json), path_(std::move(path)), explain_(explain) {}
  std::FILE* json_;
  std::string path_;
  bool explain_;
};

}  // namespace entrain::perf
