#include "lib/device/nccl/communicator_handle.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/library_thread.h"
#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain::nccl {
namespace {

constexpr int64_t kFinalizeNs = 10 * kSecond;    // limit for the delivery of data
constexpr int64_t kCallNs = 100 * kMillisecond;  // wait for a running call, before an abort
constexpr int64_t kStopNs =
    kSecond;  // limit for work on streams after an abort; NCCL's kernels look for the abort
constexpr int64_t kExitNs = 5 * kSecond;  // limit for threads that end communicators at exit

// Counts the threads that end communicators.
struct Ends {
  absl::Mutex mutex;
  int under_way ABSL_GUARDED_BY(mutex) = 0;

  static Ends& OfThisProcess() {
    static auto* const ends = [] {
      std::atexit([] { CommunicatorHandle::AwaitEnds(Deadline::After(kExitNs)); });
      return new Ends;
    }();
    return *ends;
  }
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return under_way == 0; }
};

// Makes the device current for the calling thread while the object lives.
class OnDevice {
 public:
  explicit OnDevice(Device& device) : device_(device), entered_(device.Enter()) {}
  ~OnDevice() {
    if (entered_.ok()) {
      device_.Leave();
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const absl::Status& status() const { return entered_; }

 private:
  Device& device_;
  const absl::Status entered_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CommunicatorHandle>> CommunicatorHandle::Join(
    const Functions& functions, const UniqueId& id, int rank, int size, Device& device) {
  std::shared_ptr<CommunicatorHandle> handle(new CommunicatorHandle(functions, device));
  const OnDevice on_device(device);
  ENTRAIN_RETURN_IF_ERROR(on_device.status());
  Config config;
  config.blocking = 0;
  Comm comm = nullptr;
  const Result result = functions.ncclCommInitRankConfig(&comm, size, id, rank, &config);
  {
    absl::MutexLock lock(&handle->mutex_);
    handle->comm_ = comm;
  }
  if (const absl::Status joining = functions.Check(result, "ncclCommInitRankConfig");
      !joining.ok()) {
    handle->Abort();
    return joining;
  }
  return handle;
}

absl::Status CommunicatorHandle::With(absl::FunctionRef<absl::Status(Comm)> f) {
  const OnDevice on_device(device_);
  ENTRAIN_RETURN_IF_ERROR(on_device.status());
  Comm comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (aborted_) {
      return absl::AbortedError("NCCL: the communicator was aborted");
    }
    comm = comm_;
    in_call_ = true;
  }
  const absl::Status done = f(comm);
  absl::MutexLock lock(&mutex_);
  in_call_ = false;
  return aborted_ ? absl::AbortedError("NCCL: the communicator was aborted") : done;
}

absl::StatusOr<bool> CommunicatorHandle::Begun() {
  Result now = kInProgress;
  const absl::Status status = With([&](Comm comm) {
    ENTRAIN_RETURN_IF_ERROR(
        functions_.Check(functions_.ncclCommGetAsyncError(comm, &now), "ncclCommGetAsyncError"));
    return functions_.Check(now, "NCCL");
  });
  ENTRAIN_RETURN_IF_ERROR(status);
  return now != kInProgress;
}

void CommunicatorHandle::Abort() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(aborted_, true)) {
      return;
    }
    aborted_ns_ = Clock::Real().Now();
  }
  Start(&CommunicatorHandle::EndAborted);
}

// When NCCL ends a communicator, it frees memory, and for that it waits for all streams of the
// device. One of these streams may wait for the caller of this function. Therefore there is a time
// limit.
bool CommunicatorHandle::Gone() {
  absl::MutexLock lock(&mutex_);
  return Ended() || (aborted_ && Clock::Real().Now() - aborted_ns_ >= kStopNs);
}

void CommunicatorHandle::Close() {
  Start(&CommunicatorHandle::EndClosed);
}

void CommunicatorHandle::Start(void (CommunicatorHandle::*end)()) {
  Ends& ends = Ends::OfThisProcess();
  {
    absl::MutexLock lock(&ends.mutex);
    ++ends.under_way;
  }
  LibraryThread([self = shared_from_this(), end, &ends] {
    ((*self).*end)();
    absl::MutexLock lock(&ends.mutex);
    --ends.under_way;
  }).detach();
}

// NCCL allows an abort during a call, and the call then returns. This function gives a running call
// a short time to return by itself.
void CommunicatorHandle::EndAborted() {
  Comm comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &CommunicatorHandle::Idle),
                            absl::Nanoseconds(kCallNs));
    comm = comm_;
  }
  const OnDevice on_device(device_);
  if (comm != nullptr && on_device.status().ok()) {
    const absl::Status aborted = functions_.Check(functions_.ncclCommAbort(comm), "ncclCommAbort");
    if (!aborted.ok()) {
      ENTRAIN_LOG(kInfo, aborted.message());
    }
  }
  absl::MutexLock lock(&mutex_);
  comm_ = nullptr;
}

void CommunicatorHandle::EndClosed() {
  Comm comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (aborted_) {
      mutex_.Await(absl::Condition(this, &CommunicatorHandle::Ended));
    }
    comm = comm_;
  }
  const OnDevice on_device(device_);
  if (comm != nullptr && on_device.status().ok() && !Finalize(comm)) {
    functions_.ncclCommAbort(comm);
  }
}

// Returns false if the communicator still exists.
bool CommunicatorHandle::Finalize(Comm comm) {
  Result now = functions_.ncclCommFinalize(comm);
  const Clock& clock = Clock::Real();
  const int64_t begun = clock.Now();
  while (now == kInProgress && clock.Now() - begun < kFinalizeNs) {
    PauseAfter(clock.Now() - begun);
    Result asked = kSuccess;
    const Result answered = functions_.ncclCommGetAsyncError(comm, &asked);
    now = answered == kSuccess ? asked : answered;
  }
  if (now != kSuccess) {
    ENTRAIN_LOG(kInfo, "NCCL: a communicator could not be finalized: result ", now);
    return false;
  }
  // The communicator must not be used any more, whatever the result.
  if (const Result destroyed = functions_.ncclCommDestroy(comm); destroyed != kSuccess) {
    ENTRAIN_LOG(kInfo, "NCCL: ncclCommDestroy of a communicator that was finalized: result ",
                destroyed);
  }
  return true;
}

bool CommunicatorHandle::AwaitEnds(Deadline give_up) {
  Ends& ends = Ends::OfThisProcess();
  absl::MutexLock lock(&ends.mutex);
  return ends.mutex.AwaitWithTimeout(absl::Condition(&ends, &Ends::None),
                                     absl::Nanoseconds(give_up.Left(Clock::Real().Now())));
}

}  // namespace entrain::nccl
