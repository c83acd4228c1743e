// entrain-train: trains a small language model on a text, alone or with other ranks.
// docs/trainer.md is its manual.
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/trainer/error.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/session.h"
#include "examples/trainer/task.h"
#include "examples/trainer/train.h"

namespace {

using trainer::Error;

int Complain(const Error& error) {
  // An empty line means that another rank prints the error.
  if (*error.what() != '\0') {
    std::fprintf(stderr, "entrain-train: %s\n", error.what());
  }
  return error.exit_code();
}

void Work(const trainer::Options& options) {
  trainer::Session session(options.admits(), options.shard_size, !options.save_dir.empty());
  session.MakeMesh();
  std::unique_ptr<trainer::Task> task;
  session.Agree([&] { task = trainer::MakeTask(options); });
  trainer::Train(options, *task, &session);
  session.NoteEnd();
}

// Moments of parameters that are never used, and probabilities of bytes that never occur, decay
// into denormal numbers. An operation on such a number costs about a hundred cycles. Without this
// setting, training would be three times slower after a few hundred steps. Threads that start later
// inherit the setting. Calls of the library do not use it: the library computes in an environment
// of its own, so that all ranks get the same bits.
void TakeDenormalsForZero() {
#if defined(__SSE__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  TakeDenormalsForZero();
  std::optional<trainer::Options> options;
  try {
    options = trainer::ParseFlags({argv + 1, argv + argc});
  } catch (const Error& error) {
    // Every rank has the same arguments, so only one of them prints the error.
    if (trainer::LauncherRank() != 0) {
      return error.exit_code();
    }
    if (error.exit_code() == 0) {
      std::fputs(error.what(), stdout);
      return 0;
    }
    return Complain(error);
  }
  for (const std::string& warning : options->warnings) {
    if (trainer::LauncherRank() == 0) {
      std::fprintf(stderr, "entrain-train: warning: %s\n", warning.c_str());
    }
  }
  try {
    while (true) {
      try {
        Work(*options);
        break;
      } catch (const trainer::AllLost&) {
        // All ranks meet in the next life of the run.
      }
    }
  } catch (const Error& error) {
    return Complain(error);
  } catch (const std::bad_alloc&) {
    return Complain(Error("out of memory"));
  }
  return 0;
}
