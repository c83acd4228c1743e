#include "lib/engine/work.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/callback_scope.h"
#include "lib/base/callback_thread.h"
#include "lib/base/status.h"
#include "lib/engine/engine.h"

namespace entrain {

std::string WorkInfo::Name() const {
  return absl::StrCat(operation, tag < 0 ? "" : absl::StrCat(" tag ", tag),
                      sequence == 0 ? "" : absl::StrCat(" #", sequence));
}

void Work::Discard() {
  for (Node* node = continuations_.load(std::memory_order_relaxed);
       node != nullptr && node != Closed();) {
    delete std::exchange(node, node->next);
  }
  if (const int fd = descriptor_.load(std::memory_order_relaxed); fd >= 0) {
    close(fd);
  }
}

Work::Node* Work::Closed() {
  static Node closed;
  return &closed;
}

bool Work::Wait(Deadline give_up, bool background) {
  return done() || (engine_ != nullptr && engine_->seat().Await(*this, give_up, background));
}

bool Work::Test() {
  if (!done() && engine_ != nullptr) {
    engine_->seat().PollOnce();
  }
  return done();
}

void Work::Then(Continuation then) {
  auto* const node = new Node{std::move(then), continuations_.load(std::memory_order_acquire)};
  while (node->next != Closed()) {
    // Release: the thread that takes the list must see the node. Acquire: if the list is closed,
    // this thread must see status_.
    if (continuations_.compare_exchange_weak(node->next, node, std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
      return;
    }
  }
  std::move(node->then)(status_);
  delete node;
}

absl::Status Work::Notify(Continuation done) {
  std::string name = absl::StrCat("the done() of ", Info().Name());
  auto call = [name, done = std::move(done)](const absl::Status& status) mutable {
    const CallbackScope scope(name, Does::kStart);
    std::move(done)(status);
  };
  if (this->done()) {
    call(status_);
    return absl::OkStatus();
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto thread, engine_->functions().Thread());
  Then([thread = std::move(thread), call = std::move(call),
        name = std::move(name)](const absl::Status& status) mutable {
    thread->Post([call = std::move(call), status]() mutable { call(status); }, std::move(name));
  });
  return absl::OkStatus();
}

absl::StatusOr<int> Work::Descriptor() {
  if (const int fd = descriptor_.load(std::memory_order_acquire); fd >= 0) {
    return fd;
  }
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return ErrnoStatus(errno, "eventfd");
  }
  // The thread that calls Finish writes to a descriptor of its own. The caller's descriptor may be
  // closed before that write, because the caller may destroy the handle at any time.
  const int signal = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (signal < 0) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, "fcntl F_DUPFD_CLOEXEC");
  }
  int already = -1;
  if (!descriptor_.compare_exchange_strong(already, fd, std::memory_order_acq_rel)) {
    close(fd);
    close(signal);
    return already;
  }
  Then([signal](const absl::Status&) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(signal, &one, sizeof(one));
    close(signal);
  });
  return fd;
}

void Work::Finish(absl::Status status) {
  if (done()) {
    return;
  }
  status_ = std::move(status);
  Node* const given = continuations_.exchange(Closed(), std::memory_order_acq_rel);
  const absl::Status result = given == nullptr ? absl::OkStatus() : status_;
  // Read engine_ now: a waiter may free the work as soon as done_ is set. After that, `self` is
  // only compared, never dereferenced. Release: pairs with the acquire in done().
  Engine* engine = engine_;
  const Work* self = this;
  done_.store(1, std::memory_order_release);
  if (engine != nullptr) {
    engine->seat().WakeWaiters(self);
  }
  std::vector<Node*> in_order;
  for (Node* node = given; node != nullptr; node = node->next) {
    in_order.push_back(node);
  }
  std::for_each(in_order.rbegin(), in_order.rend(), [&](Node* node) {
    std::move(node->then)(result);
    delete node;
  });
}

}  // namespace entrain
