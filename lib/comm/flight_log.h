// Dumps of the flight recorders of this process: on a failure, on a signal, for a local socket and
// for a caller. docs/flight.md describes the settings and the files.
//
// The thread entrain-flight writes all dumps except those that a caller asks for. The first
// communicator of the process starts the thread, and the end of the last runtime ends it. The
// thread never waits for an engine's driver for longer than kDriverNs. So a process whose driver is
// stuck can still write a dump. Such a dump shows the calls, but not the ranks for which they wait.
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pthread.h>
#include <sys/types.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/comm/flight_dump.h"
#include "lib/comm/flight_recorder.h"
#include "lib/net/socket.h"

namespace entrain {

class CommCore;

class FlightLog {
 public:
  // The time that a driver has to report which ranks its calls wait for.
  static constexpr int64_t kDriverNs = 200 * kMillisecond;
  // When the process exits, it waits for at most this time until the dumps of failures are written.
  static constexpr int64_t kExitNs = kSecond;
  // The most files that a process writes because of failures, signals, and calls of DumpTo without
  // a path.
  static constexpr int kMostFiles = 16;

  // Returns the log of this process. Never destroyed.
  static FlightLog& Get();

  // Reads ENTRAIN_FLIGHT_CALLS, _DIR and _SIGNAL. The error names the variable and its value.
  absl::Status Configure() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many calls a new communicator keeps. 0: the recorder is off.
  int calls() const { return calls_.load(std::memory_order_relaxed); }
  // Retain must be called when a runtime begins, Release when it ends. The last Release waits until
  // the dumps of failures are written and the thread has ended.
  void Retain() ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  void Release() ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  // Adds a communicator to the dumps. Starts the thread, if there is a runtime and the thread does
  // not run yet.
  void Add(const std::shared_ptr<CommCore>& core) ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  // [driver] Must be called when the communicator ends because of a failure, before the
  // communicator's calls end. Requests a dump if the settings ask for one.
  void OnFailure(const CommCore& core) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the JSON text of all communicators of this process. Blocks for at most about kDriverNs.
  // The driver must not call it. `why`: the reason of the dump.
  std::string Dump(absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes a dump to a new file. `path` empty: a file in ENTRAIN_FLIGHT_DIR. Returns the file.
  // kFailedPrecondition: the file exists, or ENTRAIN_FLIGHT_DIR is not set. kResourceExhausted:
  // this process has written kMostFiles files in ENTRAIN_FLIGHT_DIR, or no file name is free there.
  absl::StatusOr<std::string> DumpTo(const std::string& path, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A dump to be written by the thread.
  struct Request {
    std::string why;
    // The communicator that has ended, and its calls at that time. Null: none.
    std::shared_ptr<const CommCore> ended;
    FlightLook look;
  };

  FlightLog() = default;
  std::string Dump(const Request& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> DumpTo(const std::string& path, const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<CommCore>> Cores() ABSL_LOCKS_EXCLUDED(mutex_);
  // In a child that was forked, forgets the parent's runtimes, communicators and thread.
  void ForgetParent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  static void* Main(void* log);
  void Serve();
  void WriteRequests() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerConnections();
  void Wake();

  std::atomic<int> calls_{FlightRecorder::kDefaultCalls};
  // Changed only while the thread does not run.
  Fd listener_;
  std::atomic<bool> stopping_{false};

  // Held while the thread starts or ends. Must be locked before mutex_.
  absl::Mutex life_mutex_;
  pid_t process_ ABSL_GUARDED_BY(life_mutex_) = 0;  // the process of the runtimes
  int runtimes_ ABSL_GUARDED_BY(life_mutex_) = 0;
  std::optional<pthread_t> thread_ ABSL_GUARDED_BY(life_mutex_);

  absl::Mutex mutex_;
  std::string directory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<CommCore>> cores_ ABSL_GUARDED_BY(mutex_);
  size_t prune_at_ ABSL_GUARDED_BY(mutex_) = 64;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int files_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace entrain
