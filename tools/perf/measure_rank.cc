#include "tools/perf/measure_rank.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/base/config.h"
#include "lib/base/status.h"
#include "tools/perf/cores.h"
#include "tools/perf/device_buffers.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/measure.h"
#include "tools/perf/report.h"

namespace entrain::perf {
namespace {

class RankRun {
 public:
  RankRun(const Options& options, const RankPlace& place) : options_(options), place_(place) {}

  absl::Status All() {
    PinIfAsked(options_, place_);
    for (const std::string& transport : options_.transports) {
      ENTRAIN_ASSIGN_OR_RETURN(const RuntimePtr runtime, MakeRuntime(transport));
      for (const std::string& algorithm : options_.algorithms) {
        ENTRAIN_RETURN_IF_ERROR(One(runtime.get(), algorithm));
      }
    }
    if (wrong_ > 0) {
      return absl::DataLossError(absl::StrCat(wrong_, " wrong elements"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status One(entrain_runtime_t* runtime, const std::string& algorithm) {
    const std::string algorithms =
        algorithm.empty() ? "" : absl::StrCat(TitleOf(options_.like.collective), ":", algorithm);
    ENTRAIN_ASSIGN_OR_RETURN(CommPtr comm,
                             MakeComm(runtime, place_, absl::StrCat("perf", ++comms_), algorithms));
    ENTRAIN_ASSIGN_OR_RETURN(EntrainSubject subject, EntrainSubject::Wrap(std::move(comm)));
    absl::Status status = MeasureAll(subject, algorithm);
    if (!status.ok() && !absl::IsAborted(status)) {
      subject.Abort(std::string(status.message()));
    }
    return status;
  }

  // Refuses an algorithm that the library would not take for this case. Figures of another
  // algorithm would mislead.
  static absl::Status CheckTaken(const EntrainSubject& subject, const std::string& asked,
                                 const std::vector<Case>& cases) {
    for (const Case& one : cases) {
      const std::string taken = subject.algorithm(one);
      if (!asked.empty() && taken != asked) {
        return absl::InvalidArgumentError(absl::StrCat("--algorithm: ", asked, " cannot serve ",
                                                       one.ranks, " ranks here for ", one.bytes,
                                                       " bytes; the library would take ", taken));
      }
    }
    return absl::OkStatus();
  }

  // Prints the text of --explain: the model and the paths once, and the choice for each case.
  // Prints nothing without that option.
  enum class Explained { kModelAndPaths, kChoice };
  absl::Status Note(const EntrainSubject& subject, const Case& of, Explained what) const {
    if (!options_.explain) {
      return absl::OkStatus();
    }
    ENTRAIN_ASSIGN_OR_RETURN(const std::string text, subject.Explain(of));
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    if (lines.size() < 2) {
      return absl::OkStatus();
    }
    lines[1] = absl::StrCat("estimates ", lines[1]);
    const auto second = lines.begin() + 1;
    const bool choice = what == Explained::kChoice;
    std::for_each(choice ? lines.begin() : second, choice ? second : lines.end(),
                  [this](const std::string& line) { report_->Note(line); });
    return absl::OkStatus();
  }

  absl::Status MeasureAll(EntrainSubject& subject, const std::string& algorithm) {
    if (options_.like.collective == CallKind::kSend && subject.size() < 2) {
      return absl::InvalidArgumentError("send_recv needs at least 2 ranks");
    }
    if (options_.like.root >= subject.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--root: ", options_.like.root, " is no rank of ", subject.size()));
    }
    Case like = options_.like;
    like.ranks = subject.size();
    const std::vector<Case> cases =
        Case::Sweep(like, options_.min_bytes, options_.max_bytes, options_.factor);
    ENTRAIN_RETURN_IF_ERROR(CheckTaken(subject, algorithm, cases));
    ENTRAIN_ASSIGN_OR_RETURN(const int cores, subject.Cores());
    ENTRAIN_ASSIGN_OR_RETURN(
        const auto meeting,
        subject.Meet(subject.size() > cores ? Waiting::kYield : Waiting::kSpin));
    if (subject.rank() == 0) {
      if (!report_.has_value()) {
        ENTRAIN_ASSIGN_OR_RETURN(Report report,
                                 Report::Open(options_.json, options_.append, options_.explain));
        report_.emplace(std::move(report));
      }
      ENTRAIN_RETURN_IF_ERROR(Note(subject, cases[0], Explained::kModelAndPaths));
      report_->Head({"entrain-perf", meeting->place(), options_.budget_s}, cases[0],
                    subject.transport());
      if (const auto fault = GetEnv("ENTRAIN_FAULT")) {
        report_->Note("ENTRAIN_FAULT=" + *fault);
      }
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Buffers buffers, Allocate(subject, cases.back().bytes));
    for (const Case& one : cases) {
      ENTRAIN_ASSIGN_OR_RETURN(const Figures figures,
                               Measure(subject, *meeting, one, buffers, options_.budget_s));
      wrong_ += std::max<int64_t>(figures.wrong, 0);
      if (subject.rank() == 0) {
        ENTRAIN_RETURN_IF_ERROR(
            report_->Add(one, subject.transport(), subject.algorithm(one), figures));
        ENTRAIN_RETURN_IF_ERROR(Note(subject, one, Explained::kChoice));
      }
    }
    // No rank may leave while other ranks still wait in the page, because leaving unmaps it.
    return FromC(entrain_barrier(subject.comm(), nullptr, nullptr));
  }

  absl::StatusOr<Buffers> Allocate(EntrainSubject& subject, int64_t bytes) {
    const auto note = [&](const std::string& text) {
      if (subject.rank() == 0) {
        report_->Note(text);
      }
    };
    if (options_.memory == Options::Memory::kPrivate) {
      return Buffers::Allocate(bytes);
    }
    if (options_.memory == Options::Memory::kDevice) {
      std::string name;
      ENTRAIN_ASSIGN_OR_RETURN(Buffers buffers, AllocateOnDevice(subject.rank(), bytes, &name));
      subject.UseDeviceMemory();
      note("buffers in device memory: " + name);
      return buffers;
    }
    if (options_.memory == Options::Memory::kRegistered) {
      note("buffers of entrain_mem_register");
      return subject.RegisterBuffers(bytes);
    }
    note("buffers of entrain_mem_alloc");
    return subject.AllocateBuffers(bytes, options_.memory == Options::Memory::kHuge);
  }

  const Options& options_;
  const RankPlace place_;
  int comms_ = 0;
  int64_t wrong_ = 0;
  std::optional<Report> report_;
};

}  // namespace

void PinIfAsked(const Options& options, const RankPlace& place) {
  if (options.local_ranks > 0 && options.pin.value_or(true)) {
    PinToCore(place.rank);
  }
}

absl::StatusOr<RuntimePtr> MakeRuntime(const std::string& transport) {
  entrain_runtime_config_t config;
  entrain_runtime_config_init(&config);
  config.transports = transport.empty() ? nullptr : transport.c_str();
  entrain_runtime_t* runtime = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(entrain_runtime_create(&config, &runtime)));
  return RuntimePtr(runtime);
}

absl::StatusOr<CommPtr> MakeComm(entrain_runtime_t* runtime, const RankPlace& place,
                                 const std::string& name, const std::string& algorithms) {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = runtime;
  config.store = place.store;
  config.name = name.c_str();
  config.rank = place.rank;
  config.world_size = place.size;
  config.algorithms = algorithms.empty() ? nullptr : algorithms.c_str();
  entrain_comm_t* comm = nullptr;
  ENTRAIN_RETURN_IF_ERROR(FromC(place.store == nullptr
                                    ? entrain_comm_create_from_env(&config, &comm)
                                    : entrain_comm_create(&config, &comm)));
  return CommPtr(comm);
}

absl::Status MeasureRank(const Options& options, const RankPlace& place) {
  return RankRun(options, place).All();
}

}  // namespace entrain::perf
