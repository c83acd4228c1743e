// Makes the flight dumps of this process: after a failure, on a signal, for a reader at a local
// socket, and for a caller. docs/flight.md describes the settings and the files.
//
// The thread entrain-flight writes all dumps except the dumps for a caller. The first communicator
// of the process starts the thread. The end of the last runtime ends the thread. The thread waits
// at most kDriverNs for the drivers. So if a driver is stuck, the process can still write a dump.
// Such a dump shows the calls, but not the ranks for which the calls wait.
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
#include "lib/comm/flight/flight_dump.h"
#include "lib/comm/flight/flight_recorder.h"
#include "lib/net/socket.h"

namespace entrain {

class CommCore;

class FlightLog {
 public:
  // The time limit for a driver's report on its open calls.
  static constexpr int64_t kDriverNs = 200 * kMillisecond;
  // When the process exits, it waits at most this time for the dumps of failures.
  static constexpr int64_t kExitNs = kSecond;
  // The largest number of files that a process writes in ENTRAIN_FLIGHT_DIR.
  static constexpr int kMostFiles = 16;

  // Returns the log of this process. Never destroyed.
  static FlightLog& Get();

  // Reads ENTRAIN_FLIGHT_CALLS, _DIR and _SIGNAL. The error names the variable and its value.
  absl::Status Configure() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of calls that the flight recorder of a new communicator keeps. 0: the
  // recorder is off.
  int calls() const { return calls_.load(std::memory_order_relaxed); }
  // Retain must be called when a runtime begins, and Release when the runtime ends. The last
  // Release waits until the dumps of failures are written and the thread has ended.
  void Retain() ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  void Release() ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  // Adds a communicator to the dumps. If there is a runtime and the thread does not run yet, starts
  // the thread.
  void Add(const std::shared_ptr<CommCore>& core) ABSL_LOCKS_EXCLUDED(life_mutex_, mutex_);
  // [driver] Must be called when the communicator ends because of a failure, before its calls end.
  // If the settings ask for a dump, requests a dump.
  void OnFailure(const CommCore& core) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns a dump of all communicators of this process, as JSON text. Blocks for at most about
  // kDriverNs. Must not be called on the driver. `why`: the reason of the dump.
  std::string Dump(absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes a dump to a new file. `path` empty: a file in ENTRAIN_FLIGHT_DIR. Returns the path of
  // the file. kFailedPrecondition: the file exists, or ENTRAIN_FLIGHT_DIR is not set.
  // kResourceExhausted: this process has written kMostFiles files in ENTRAIN_FLIGHT_DIR, or no file
  // name is free there.
  absl::StatusOr<std::string> DumpTo(const std::string& path, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A dump that the thread must write.
  struct Request {
    std::string why;
    // The communicator that has ended, or null.
    std::shared_ptr<const CommCore> ended;
    FlightLook look;  // the calls of `ended` when it ended
  };

  FlightLog() = default;
  std::string Dump(const Request& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> DumpTo(const std::string& path, const Request& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<CommCore>> Cores() ABSL_LOCKS_EXCLUDED(mutex_);
  // In a forked child process, removes the parent's runtimes, communicators and thread from this
  // object.
  void ForgetParent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  static void* Main(void* log);
  void Serve();
  void WriteRequests() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerConnections();
  void Wake();

  std::atomic<int> calls_{FlightRecorder::kDefaultCalls};
  // listener_ is changed only while the thread does not run.
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
