#include "examples/trainer/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "examples/trainer/error.h"
#include <boost/timer/progress_display.hpp>
#include <nlohmann/json.hpp>

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void FailToWrite(const std::string& path) {
  throw Error("cannot write '" + path + "': " + std::strerror(errno));
}

// Returns a text, because JSON numbers are exact to 53 bits only.
std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

constexpr double kQuietSeconds = 10.0;  // without a terminal: a line of progress at least this
                                        // often

// Returns "42 s", "7 min" or "3.5 h". An estimate need not be more exact.
std::string Rough(double seconds) {
  char text[32];
  if (seconds < 100) {
    std::snprintf(text, sizeof(text), "%.0f s", seconds);
  } else if (seconds < 6000) {
    std::snprintf(text, sizeof(text), "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof(text), "%.1f h", seconds / 3600);
  }
  return text;
}

}  // namespace

StepLog::StepLog(const std::string& path, bool create) : path_(path) {
  if (path.empty()) {
    return;
  }
  fd_ =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT | (create ? O_TRUNC : 0), 0666);
  if (fd_ < 0) {
    FailToWrite(path);
  }
}

StepLog::~StepLog() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void StepLog::Write(const StepRecord& record) {
  if (fd_ < 0) {
    return;
  }
  Json json = {{"step", record.step},
               {"replica", record.replica},
               {"seconds", record.seconds},
               {"tokens", record.tokens},
               {"loss", record.loss},
               {"lr", record.lr},
               {"synced", record.synced},
               {"exposed_comm_s", record.exposed_comm_s},
               {"bytes_sent", record.bytes_sent}};
  if (record.anchor_checksum) {
    json["anchor_checksum"] = Hex(*record.anchor_checksum);
  }
  if (record.val_loss) {
    json["val_loss"] = *record.val_loss;
  }
  if (record.microbatches) {
    json["microbatches"] = *record.microbatches;
  }
  if (record.adaptive_share) {
    json["adaptive_share"] = *record.adaptive_share;
  }
  const std::string line = json.dump() + "\n";
  const ssize_t written = write(fd_, line.data(), line.size());
  if (written < 0) {
    FailToWrite(path_);
  }
  if (static_cast<size_t>(written) != line.size()) {
    errno = ENOSPC;
    FailToWrite(path_);
  }
}

class Progress::Bar {
 public:
  explicit Bar(int64_t steps) : display_(static_cast<unsigned long>(steps), std::cerr) {}
  void Advance() { ++display_; }

 private:
  boost::timer::progress_display display_;
};

Progress::Progress(int64_t steps, const char* unit, bool silent)
    : steps_(steps), unit_(unit), silent_(silent) {
  if (!silent && isatty(STDERR_FILENO) != 0) {
    bar_ = std::make_unique<Bar>(steps);
  }
}

Progress::~Progress() = default;

void Progress::Resume(int64_t steps, int64_t tokens) {
  steps_before_ = steps;
  tokens_before_ = tokens;
  for (; bar_ != nullptr && shown_ < steps; ++shown_) {
    bar_->Advance();
  }
}

void Progress::Show(const StepRecord& record, int64_t position) {
  if (silent_) {
    return;
  }
  position = std::min(position, steps_);
  for (; bar_ != nullptr && shown_ < position; ++shown_) {
    bar_->Advance();
  }
  const double now = watch_.seconds();
  const bool due = first_ || position == steps_ || now - last_line_s_ >= kQuietSeconds;
  if (bar_ != nullptr || (!due && !record.val_loss)) {
    return;
  }
  first_ = false;
  last_line_s_ = now;
  std::string line(200, '\0');
  line.resize(static_cast<size_t>(std::snprintf(
      line.data(), line.size(), "step %lld/%lld  loss %.4f  lr %.2e  %.0f %ss/s",
      static_cast<long long>(position), static_cast<long long>(steps_), record.loss, record.lr,
      static_cast<double>(record.tokens - tokens_before_) / std::max(record.seconds, 1e-9),
      unit_.c_str())));
  if (position < steps_) {
    const auto done = static_cast<double>(std::max<int64_t>(position - steps_before_, 1));
    line += "  " + Rough(now / done * static_cast<double>(steps_ - position)) + " left";
  }
  if (record.val_loss) {
    char text[40];
    std::snprintf(text, sizeof(text), "  validation %.4f", *record.val_loss);
    line += text;
  }
  Say(line);
}

void Progress::Say(const std::string& line) {
  if (!silent_) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

SummaryFile::SummaryFile(const std::string& path) : path_(path) {
  errno = 0;
  file_.open(path);
  if (!file_) {
    FailToWrite(path_);
  }
}

void SummaryFile::Write(const Summary& s) {
  Json json = {{"task", s.task},
               {"method", s.method},
               {"ranks", s.ranks},
               {"shard_size", s.shard_size},
               {"precision", s.precision},
               {"seed", s.seed},
               {"params", s.params},
               {"steps", s.steps},
               {"tokens", s.tokens},
               {"wall_s", s.wall_s},
               {"tokens_per_s", s.tokens_per_s},
               {"final_train_loss", s.final_train_loss},
               {"val_loss", s.val_loss},
               {"val_accuracy", s.val_accuracy},
               {"unigram_entropy", s.unigram_entropy},
               {"exposed_comm_s", s.exposed_comm_s},
               {"bytes_sent_shard", s.bytes_sent_shard},
               {"bytes_sent_sync", s.bytes_sent_sync},
               {"bytes_sent_init", s.bytes_sent_init},
               {"syncs", s.syncs},
               {"rejections", s.rejections},
               {"replica_steps", s.replica_steps},
               {"idle_share", s.idle_share},
               {"peak_rss_bytes", s.peak_rss_bytes},
               {"failed_saves", s.failed_saves},
               {"anchor_checksum", nullptr},
               {"sharpness", s.sharpness},
               {"sample", s.sample}};
  if (s.anchor_checksum) {
    json["anchor_checksum"] = Hex(*s.anchor_checksum);
  }
  if (!s.replica_microbatches.empty()) {
    json["replica_microbatches"] = s.replica_microbatches;
    json["dropped_microbatches"] = s.dropped_microbatches;
    json["bytes_held"] = s.bytes_held;
  }
  errno = 0;
  // The sample consists of bytes. Bytes that are not UTF-8 are replaced.
  file_ << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  file_.close();
  if (!file_) {
    FailToWrite(path_);
  }
}

uint64_t PeakResidentBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace trainer
