// The system calls of the library, replaced for fibers of a VirtualWorld. The linker's --wrap turns
// the library's calls of NAME into calls of __wrap_NAME (CMakeLists.txt). Outside fibers,
// __wrap_NAME calls the real function.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <thread>

#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/base/internal/thread_identity.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/internal/kernel_timeout.h"
#include "absl/synchronization/internal/per_thread_sem.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "lib/store/brought.h"
#include "tests/sim/virtual_world.h"

using entrain::kMicrosecond;
using entrain::kMillisecond;
using entrain::kSecond;
using entrain::ProcessName;
using entrain::VirtualWorld;

namespace {

// Reading the clock takes this time, so that a thread that spins until an instant reaches it.
constexpr int64_t kLookNs = 300;

VirtualWorld* World() {
  return VirtualWorld::OfFiber();
}
// The key of a sleep that Poke ends.
const void* Descriptors(VirtualWorld& world) {
  return &world.description(world.process());
}
int64_t Nanoseconds(const timespec* time) {
  return time == nullptr ? std::numeric_limits<int64_t>::max()
                         : int64_t{time->tv_sec} * kSecond + time->tv_nsec;
}

long Futex(VirtualWorld& world, uint32_t* word, int operation, uint32_t value,
           const timespec* time) {
  if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE) {
    world.Wake(world.process(), word);
    return 1;
  }
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
    errno = EAGAIN;
    return -1;
  }
  if (world.Block(word, Nanoseconds(time))) {
    return 0;
  }
  errno = ETIMEDOUT;
  return -1;
}

}  // namespace

// ---- Abseil's blocking, which is in shared libraries: the program's definitions come before theirs.

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace base_internal {
ThreadIdentity* CurrentThreadIdentityIfPresent() {
  VirtualWorld* const world = World();
  if (world != nullptr) {
    return static_cast<ThreadIdentity*>(
        world->Identity(sizeof(ThreadIdentity), PerThreadSynch::kAlignment));
  }
  static const auto next = reinterpret_cast<ThreadIdentity* (*)()>(
      dlsym(RTLD_NEXT, "_ZN4absl7debian313base_internal30CurrentThreadIdentityIfPresentEv"));
  return next();
}
}  // namespace base_internal

Time Now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);  // the process's own clock in a fiber
  return TimeFromTimespec(now);
}
ABSL_NAMESPACE_END
}  // namespace absl

extern "C" {

void ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemPost)(
    absl::base_internal::ThreadIdentity* identity) {
  static const auto next = reinterpret_cast<void (*)(absl::base_internal::ThreadIdentity*)>(
      dlsym(RTLD_NEXT, "AbslInternalPerThreadSemPost_debian3"));
  if (World() == nullptr || !World()->Post(identity)) {
    next(identity);
  }
}

bool ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait)(
    absl::synchronization_internal::KernelTimeout timeout) {
  static const auto next =
      reinterpret_cast<bool (*)(absl::synchronization_internal::KernelTimeout)>(
          dlsym(RTLD_NEXT, "AbslInternalPerThreadSemWait_debian3"));
  if (World() == nullptr) {
    return next(timeout);
  }
  const int64_t until = timeout.has_timeout()
                            ? absl::ToUnixNanos(absl::TimeFromTimespec(timeout.MakeAbsTimespec()))
                            : std::numeric_limits<int64_t>::max();
  const int64_t left = timeout.has_timeout() ? until - absl::ToUnixNanos(absl::Now()) : until;
  return World()->AwaitPost(std::max<int64_t>(left, 0));
}

// Abseil computes the ends of its waits for a duration from this clock. The program's definition comes
// before that of the C library.
int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);  // the process's own clock in a fiber
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}

// ---- The system

int __real_clock_gettime(clockid_t id, timespec* time);
int __wrap_clock_gettime(clockid_t id, timespec* time) {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    return __real_clock_gettime(id, time);
  }
  world->network().Spend(kLookNs);
  const int64_t now = world->LocalNow(world->process());
  *time = {static_cast<time_t>(now / kSecond), static_cast<long>(now % kSecond)};
  return 0;
}

int __real_poll(pollfd* fds, nfds_t count, int timeout_ms);
int __wrap_poll(pollfd* fds, nfds_t count, int timeout_ms) {
  VirtualWorld* const world = World();
  if (world == nullptr || count > 0) {
    return __real_poll(fds, count, timeout_ms);
  }
  world->Sleep(timeout_ms * kMillisecond);
  return 0;
}

int __real_sched_yield();
int __wrap_sched_yield() {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    return __real_sched_yield();
  }
  world->Block(Descriptors(*world), 200 * kMicrosecond);
  return 0;
}

int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags) {
  return World() == nullptr ? __real_epoll_create1(flags) : World()->OpenDescriptor();
}

int __real_eventfd(unsigned int count, int flags);
int __wrap_eventfd(unsigned int count, int flags) {
  return World() == nullptr ? __real_eventfd(count, flags) : World()->OpenDescriptor();
}

int __real_epoll_ctl(int set, int operation, int fd, epoll_event* event);
int __wrap_epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  if (!VirtualWorld::IsVirtual(set)) {
    return __real_epoll_ctl(set, operation, fd, event);
  }
  World()->Watch(set, fd);
  return 0;
}

int __real_epoll_wait(int set, epoll_event* events, int most, int timeout_ms);
int __wrap_epoll_wait(int set, epoll_event* events, int most, int timeout_ms) {
  if (!VirtualWorld::IsVirtual(set)) {
    return __real_epoll_wait(set, events, most, timeout_ms);
  }
  VirtualWorld& world = *World();
  if (world.Ready(set) == 0 && timeout_ms > 0) {
    world.Block(Descriptors(world), timeout_ms * kMillisecond);
  }
  return world.Ready(set);
}

ssize_t __real_read(int fd, void* into, size_t bytes);
ssize_t __wrap_read(int fd, void* into, size_t bytes) {
  if (!VirtualWorld::IsVirtual(fd)) {
    return __real_read(fd, into, bytes);
  }
  uint64_t& count = World()->CountOf(fd);
  if (count == 0) {
    errno = EAGAIN;
    return -1;
  }
  std::memcpy(into, &count, sizeof(count));
  count = 0;
  return sizeof(count);
}

ssize_t __real_write(int fd, const void* from, size_t bytes);
ssize_t __wrap_write(int fd, const void* from, size_t bytes) {
  if (!VirtualWorld::IsVirtual(fd)) {
    return __real_write(fd, from, bytes);
  }
  VirtualWorld& world = *World();
  ++world.CountOf(fd);
  world.Poke(world.process());
  return static_cast<ssize_t>(bytes);
}

int __real_close(int fd);
int __wrap_close(int fd) {
  if (!VirtualWorld::IsVirtual(fd)) {
    return __real_close(fd);
  }
  World()->CloseDescriptor(fd);
  return 0;
}

// Ignored in fibers: a new fiber would inherit the mask and keep it.
int __real_pthread_sigmask(int how, const sigset_t* set, sigset_t* before);
int __wrap_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  return World() == nullptr ? __real_pthread_sigmask(how, set, before) : 0;
}

int __real_pthread_setname_np(pthread_t thread, const char* name);
int __wrap_pthread_setname_np(pthread_t thread, const char* name) {
  return World() == nullptr ? __real_pthread_setname_np(thread, name) : 0;
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long args[6];
  for (long& arg : args) {
    arg = va_arg(list, long);
  }
  va_end(list);
  VirtualWorld* const world = World();
  return world != nullptr && number == SYS_futex
             ? Futex(*world, reinterpret_cast<uint32_t*>(args[0]), static_cast<int>(args[1]),
                     static_cast<uint32_t>(args[2]), reinterpret_cast<const timespec*>(args[3]))
             : __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

// std::thread::_M_start_thread and join
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* self, std::unique_ptr<std::thread::_State> state, void (*depend)());
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* self, std::unique_ptr<std::thread::_State> state, void (*depend)()) {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
        self, std::move(state), depend);
    return;
  }
  const std::shared_ptr<std::thread::_State> body = std::move(state);
  *reinterpret_cast<uint64_t*>(self) = world->StartThread([body] { body->_M_run(); });
}

void __real__ZNSt6thread4joinEv(std::thread* self);
void __wrap__ZNSt6thread4joinEv(std::thread* self) {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    __real__ZNSt6thread4joinEv(self);
    return;
  }
  world->JoinThread(std::exchange(*reinterpret_cast<uint64_t*>(self), 0));
}

// pthread_create and pthread_detach, by which CallbackThread makes its thread
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*),
                          void* argument);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*),
                          void* argument) {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    return __real_pthread_create(thread, attributes, main, argument);
  }
  *thread = world->StartThread([main, argument] { main(argument); });
  return 0;
}

int __real_pthread_detach(pthread_t thread);
int __wrap_pthread_detach(pthread_t thread) {
  return World() == nullptr ? __real_pthread_detach(thread) : 0;
}

// entrain::RandomBytes
void __real__ZN7entrain11RandomBytesEPvm(void* out, size_t bytes);
void __wrap__ZN7entrain11RandomBytesEPvm(void* out, size_t bytes) {
  VirtualWorld* const world = World();
  if (world == nullptr) {
    __real__ZN7entrain11RandomBytesEPvm(out, bytes);
    return;
  }
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(world->network().random()());
  }
}

// ProcessName::Own, IsHere, HasEnded: processes of a virtual host see each other.
ProcessName __wrap__ZN7entrain11ProcessName3OwnEv() {
  VirtualWorld& world = *World();
  return {absl::StrCat("host ", world.description(world.process()).host),
          absl::StrCat(world.process()), "1"};
}
bool __wrap__ZNK7entrain11ProcessName6IsHereEv(const ProcessName* self) {
  VirtualWorld& world = *World();
  return self->space == absl::StrCat("host ", world.description(world.process()).host);
}
bool __wrap__ZNK7entrain11ProcessName8HasEndedEv(const ProcessName* self) {
  return World()->HasEnded(std::stoi(self->pid));
}

}  // extern "C"
