#include "tools/job_output.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"

namespace entrain {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// The largest number of reads from a pipe after its rank has ended. They cover the capacity of a
// pipe (1 MiB) and no more, since a process that outlives its rank could write for ever.
constexpr size_t kLastReads = (1 << 20) / kReadBytes;
constexpr int64_t kLineNs = 100 * kMillisecond;

}  // namespace

std::string OwnLine(const std::string& text) {
  return absl::StrCat("entrain-run: ", text, "\n");
}

// Uses one thread for both streams if they are one pipe or terminal, so that no line splits
// another.
JobOutput::JobOutput()
    : out_(std::make_shared<Outlet>(STDOUT_FILENO)),
      err_(SameFile(STDOUT_FILENO, STDERR_FILENO) ? out_
                                                  : std::make_shared<Outlet>(STDERR_FILENO)) {}

void JobOutput::Add(Fd out, Fd err, const std::string& label) {
  streams_.push_back({std::move(out), LabelledOutput(out_.get(), label)});
  streams_.push_back({std::move(err), LabelledOutput(err_.get(), label)});
}

void JobOutput::Say(const std::string& text) {
  err_->Add(OwnLine(text));
}

void JobOutput::Watch(std::vector<pollfd>* waited) const {
  waited->push_back({out_->progress_fd(), POLLIN, 0});
  waited->push_back({err_->progress_fd(), POLLIN, 0});
  for (const Stream& stream : streams_) {
    // poll ignores negative descriptors: streams that have ended, or that must wait until the
    // output was read.
    waited->push_back({stream.to.full() ? -1 : stream.from.get(), POLLIN, 0});
  }
}

void JobOutput::Take(const std::vector<pollfd>& waited, size_t first) {
  size_t at = first + 2;
  for (Stream& stream : streams_) {
    if (waited[at++].revents != 0) {
      TakeOnce(&stream);
    }
  }
  ForgetProgress();
}

// Reads once, since a rank that writes without end must not delay other ranks and the timeouts.
// Returns true if it has read something.
bool JobOutput::TakeOnce(Stream* stream) {
  char buffer[kReadBytes];
  const ssize_t got = read(stream->from.get(), buffer, sizeof(buffer));
  if (got > 0) {
    stream->to.Add({buffer, static_cast<size_t>(got)});
  } else if (got == 0) {
    stream->from.Reset();
  }
  return got > 0;
}

void JobOutput::Finish(int64_t quiet_ns, int interrupted) {
  for (Stream& stream : streams_) {
    for (size_t i = 0; i < kLastReads && stream.from.valid() && TakeOnce(&stream); ++i) {
    }
    stream.to.Finish();
  }
  const bool read = out_->Drain(quiet_ns, interrupted);
  if (const Outlet::Loss lost = out_->lost(!read); lost.bytes > 0) {
    const std::string why = lost.error == 0       ? "nobody reads it"
                            : lost.error == EPIPE ? "its reader has gone"
                                                  : std::strerror(lost.error);
    Say(absl::StrCat("dropped ", lost.bytes, " bytes of standard output (", lost.lines,
                     " lines): ", why));
  }
  // While this function waited for the reader of standard output, the reader of standard error had
  // the same time. So it gets only a short time for the line above.
  if (err_ != out_) {
    err_->Drain(read ? quiet_ns : kLineNs, interrupted);
  }
}

void JobOutput::ForgetProgress() {
  out_->ForgetProgress();
  err_->ForgetProgress();
}

}  // namespace entrain
