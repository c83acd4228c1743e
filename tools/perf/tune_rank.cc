#include "tools/perf/tune_rank.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "collectives/catalog.h"
#include "lib/base/status.h"
#include "lib/comm/plan/tuning.h"
#include "tools/perf/entrain_subject.h"
#include "tools/perf/measure.h"
#include "tools/perf/tune.h"

namespace entrain::perf {
namespace {

// The best of several rounds is used. The rounds are far apart in time, since other load on the
// machine comes and goes.
constexpr int kRounds = 2;

struct Measured {
  Observation observation;
  size_t subject;  // the communicator on which the library takes this algorithm
};

class Tuner {
 public:
  Tuner(const Options& options, const RankPlace& place, entrain_runtime_t* runtime, int number)
      : options_(options), place_(place), runtime_(runtime), number_(number) {}

  absl::Status Run() {
    ENTRAIN_RETURN_IF_ERROR(AddSubject(""));
    ENTRAIN_RETURN_IF_ERROR(FindPlace());
    ENTRAIN_RETURN_IF_ERROR(List());
    ENTRAIN_ASSIGN_OR_RETURN(
        const auto meeting,
        subjects_[0]->Meet(subjects_[0]->size() > cores_ ? Waiting::kYield : Waiting::kSpin));
    ENTRAIN_ASSIGN_OR_RETURN(const Buffers buffers, Buffers::Allocate(options_.max_bytes));
    // Checks that the file can be read and written before anything is measured.
    absl::Status status = subjects_[0]->rank() == 0 ? PrepareFile() : absl::OkStatus();
    for (int round = 0; round < kRounds && status.ok(); ++round) {
      status = Look(*meeting, buffers);
    }
    if (status.ok()) {
      status = FromC(entrain_barrier(subjects_[0]->comm(), nullptr, nullptr));
    }
    if (!status.ok() && !absl::IsAborted(status)) {
      subjects_[0]->Abort(std::string(status.message()));
    }
    const bool writes = subjects_[0]->rank() == 0;
    return status.ok() && writes ? Write() : status;
  }

 private:
  absl::Status AddSubject(const std::string& algorithms) {
    const std::string name = absl::StrCat("tune", number_, ".", subjects_.size());
    ENTRAIN_ASSIGN_OR_RETURN(CommPtr comm, MakeComm(runtime_, place_, name, algorithms));
    ENTRAIN_ASSIGN_OR_RETURN(EntrainSubject subject, EntrainSubject::Wrap(std::move(comm)));
    subjects_.push_back(std::make_unique<EntrainSubject>(std::move(subject)));
    return absl::OkStatus();
  }

  // Determines the lines of a tuning that apply to these ranks, from the library's own explanation.
  absl::Status FindPlace() {
    if (subjects_[0]->size() < 2) {
      return absl::InvalidArgumentError("--tune needs at least 2 ranks");
    }
    char link[16], crowding[16];
    Case one;
    one.count = 1;
    ENTRAIN_ASSIGN_OR_RETURN(const std::string explained, subjects_[0]->Explain(one));
    ENTRAIN_ASSIGN_OR_RETURN(cores_, subjects_[0]->Cores());
    const size_t line = explained.find("\nfor ");
    if (line == std::string::npos ||
        std::sscanf(explained.c_str() + line, "\nfor %15s ranks %d %15s on ", link, &where_.ranks,
                    crowding) != 3) {
      return absl::InvalidArgumentError(
          "--tune: all ranks must be on one host, or each on a host of its own");
    }
    where_.crowded = std::string(crowding) == "crowded";
    for (int i = 0; i < kLinks; ++i) {
      where_.link = NameOf(static_cast<Link>(i)) == link ? static_cast<Link>(i) : where_.link;
    }
    return absl::OkStatus();
  }

  // Lists the measurements, with one algorithm of each collective per communicator.
  absl::Status List() {
    std::map<size_t, std::string> overrides;
    for (const CallKind collective : kMeasured) {
      Case like = options_.like;
      like.collective = collective;
      like.ranks = subjects_[0]->size();
      const std::vector<const Algorithm*> algorithms = AlgorithmsFor(like);
      for (const Case& one :
           Case::Sweep(like, options_.min_bytes, options_.max_bytes, options_.factor)) {
        for (size_t a = 0; a < algorithms.size(); ++a) {
          measured_.push_back({{one, algorithms[a], std::numeric_limits<double>::infinity()}, a});
        }
      }
      for (size_t a = 0; a < algorithms.size() && algorithms[a] != nullptr; ++a) {
        absl::StrAppend(&overrides[a], overrides[a].empty() ? "" : ",", TitleOf(like.collective),
                        ":", algorithms[a]->name);
      }
    }
    for (const auto& [index, text] : overrides) {
      ENTRAIN_RETURN_IF_ERROR(AddSubject(text));
    }
    return absl::OkStatus();
  }

  std::vector<const Algorithm*> AlgorithmsFor(const Case& like) const {
    if (like.collective == CallKind::kSend) {
      return {nullptr};
    }
    std::vector<int> hosts;
    for (int rank = 0; rank < like.ranks; ++rank) {
      hosts.push_back(where_.link >= Link::kFabricAcross ? rank : 0);
    }
    std::vector<const Algorithm*> algorithms;
    std::vector<std::string> drawn;
    for (const Algorithm& algorithm : Catalog()) {
      Spec spec{like.collective, 0, like.ranks, like.root, 1};
      if (algorithm.kind != like.collective || !algorithm.fits(spec, hosts)) {
        continue;
      }
      std::string drawing;
      for (; spec.rank < spec.size; ++spec.rank) {
        absl::StrAppend(&drawing, ToString(algorithm.build(spec, hosts)));
      }
      // On few ranks many algorithms have equal schedules.
      if (std::find(drawn.begin(), drawn.end(), drawing) == drawn.end()) {
        algorithms.push_back(&algorithm);
        drawn.push_back(std::move(drawing));
      }
    }
    return algorithms;
  }

  absl::Status Look(Meeting& meeting, const Buffers& buffers) {
    for (Measured& one : measured_) {
      Observation& seen = one.observation;
      ENTRAIN_ASSIGN_OR_RETURN(
          const Figures figures,
          Measure(*subjects_[one.subject + 1], meeting, seen.measured, buffers, options_.budget_s));
      if (figures.wrong > 0) {
        return absl::DataLossError(absl::StrCat(figures.wrong, " wrong elements"));
      }
      seen.us = std::min(seen.us, figures.median_us);
    }
    return absl::OkStatus();
  }

  absl::Status Write() {
    std::vector<Observation> observations;
    for (const Measured& one : measured_) {
      observations.push_back(one.observation);
    }
    const TuneResult result = Tune(observations, where_, cores_, tuning_.FiguresFor(where_));
    Merge(result, &tuning_);
    std::printf("# %s on %d cores: us by each algorithm (estimated); * chosen\n%s",
                ToText(where_).c_str(), cores_, result.report.c_str());
    std::printf("# %zu ranges go against the estimates\n# %s\n", result.choices.size(),
                ToText(result.figures).c_str());
    return WriteWhole(tuning_.ToText());
  }

  absl::Status PrepareFile() {
    const bool exists = access(options_.tune.c_str(), F_OK) == 0;
    ENTRAIN_ASSIGN_OR_RETURN(const auto had, LoadTuning(exists ? options_.tune : ""));
    tuning_ = *had;
    std::FILE* const file = std::fopen(PartName().c_str(), "we");
    if (file == nullptr) {
      return CannotWrite();
    }
    std::fclose(file);
    unlink(PartName().c_str());
    return absl::OkStatus();
  }

  std::string PartName() const { return options_.tune + ".part"; }
  absl::Status CannotWrite() const {
    return ErrnoStatus(errno, absl::StrCat("--tune: cannot write \"", options_.tune, "\""));
  }

  // Writes the file so that a reader gets either the whole old file or the whole new one.
  absl::Status WriteWhole(const std::string& text) const {
    const std::string part = PartName();
    std::FILE* const file = std::fopen(part.c_str(), "we");
    const bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
    if ((file != nullptr && std::fclose(file) != 0) || !written ||
        std::rename(part.c_str(), options_.tune.c_str()) != 0) {
      return CannotWrite();
    }
    return absl::OkStatus();
  }

  const Options& options_;
  const RankPlace place_;
  entrain_runtime_t* const runtime_;
  const int number_;
  std::vector<std::unique_ptr<EntrainSubject>> subjects_;  // the first uses the library's choices
  TunedFor where_;
  int cores_ = 1;
  std::vector<Measured> measured_;
  Tuning tuning_;  // on rank 0: the file's, or the library's own
};

}  // namespace

absl::Status TuneRank(const Options& options, const RankPlace& place) {
  PinIfAsked(options, place);
  int number = 0;
  for (const std::string& transport : options.transports) {
    ENTRAIN_ASSIGN_OR_RETURN(const RuntimePtr runtime, MakeRuntime(transport));
    ENTRAIN_RETURN_IF_ERROR(Tuner(options, place, runtime.get(), ++number).Run());
  }
  return absl::OkStatus();
}

}  // namespace entrain::perf
