// Figures as nccl-tests' columns for people and as JSON, one object a line, for programs.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "tools/perf/measure.h"
#include "tools/perf/measured_case.h"

namespace entrain::perf {

// What is printed above the table and said in every JSON object.
struct Setting {
  std::string program;  // "entrain-perf"
  std::string place;    // where ranks meet: "a shared page"
  double budget_s = 0;
};

class Report {
 public:
  // `json`: a file to write, empty for none; `append`: to what it holds.
  static absl::StatusOr<Report> Open(const std::string& json, bool append, bool explain);
  Report(Report&& other) noexcept;
  Report& operator=(Report&&) = delete;
  ~Report();

  void Head(const Setting& setting, const Case& measured, const std::string& transport) const;
  // "# TEXT"
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
