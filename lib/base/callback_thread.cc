#include "lib/base/callback_thread.h"

#include <csignal>
#include <deque>
#include <utility>

#include <pthread.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/clock.h"
#include "lib/base/float_environment.h"
#include "lib/base/status.h"

namespace entrain {

// Owned by the CallbackThread and by its thread together, because the thread may outlive all other
// objects.
struct CallbackThread::Queue {
  absl::Mutex mutex;
  struct Named {
    Callback callback;
    std::string name;
  };
  std::deque<Named> waiting ABSL_GUARDED_BY(mutex);
  std::string name ABSL_GUARDED_BY(mutex);  // name of the running callback
  int64_t since_ns ABSL_GUARDED_BY(mutex) = 0;
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

absl::StatusOr<std::shared_ptr<CallbackThread>> CallbackThread::Start(const char* name) {
  auto queue = std::make_shared<Queue>();
  auto share = std::make_unique<std::shared_ptr<Queue>>(queue);
  // Blocks all signals in the new thread. Signals are to be delivered to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, nullptr, &CallbackThread::Main, share.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the thread ", name, ": ", ErrnoStatus(error, "pthread_create").message()));
  }
  share.release();  // the thread owns it now
  pthread_setname_np(thread, name);
  pthread_detach(thread);
  return std::shared_ptr<CallbackThread>(new CallbackThread(std::move(queue)));
}

CallbackThread::~CallbackThread() {
  absl::MutexLock lock(&queue_->mutex);
  queue_->closed = true;
}

void CallbackThread::Post(Callback callback, std::string name) {
  absl::MutexLock lock(&queue_->mutex);
  queue_->waiting.push_back({std::move(callback), std::move(name)});
}

CallbackThread::Running CallbackThread::running() const {
  absl::MutexLock lock(&queue_->mutex);
  return {queue_->name, queue_->since_ns, queue_->waiting.size()};
}

void* CallbackThread::Main(void* share) {
  FloatEnvironment::Set();
  const std::unique_ptr<std::shared_ptr<Queue>> keep(static_cast<std::shared_ptr<Queue>*>(share));
  Queue& queue = **keep;
  const auto called = [&queue]() ABSL_SHARED_LOCKS_REQUIRED(queue.mutex) {
    return queue.closed || !queue.waiting.empty();
  };
  while (true) {
    Callback callback;
    {
      absl::MutexLock lock(&queue.mutex);
      queue.since_ns = 0;
      queue.mutex.Await(absl::Condition(&called));
      if (queue.waiting.empty()) {
        return nullptr;
      }
      callback = std::move(queue.waiting.front().callback);
      queue.name = std::move(queue.waiting.front().name);
      queue.since_ns = Clock::Real().Now();
      queue.waiting.pop_front();
    }
    std::move(callback)();
  }
}

}  // namespace entrain
