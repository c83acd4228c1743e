// Used only in builds with the thread sanitizer. The system's Abseil is not built with the
// sanitizer. So the sanitizer does not see that Abseil's mutexes order accesses, and would report
// every guarded member as a race. The linker replaces calls of the mutexes by the functions here
// (--wrap, see EntrainUnits.cmake). The functions here tell the sanitizer what is locked.
//
// Abseil's own deadlock detection is switched off here; Debian's build enables it. The sanitizer
// would see accesses to Abseil's tables, but not the spin lock that guards the tables. The
// sanitizer has a deadlock detection of its own.
//
// Copies of a Status share one text, and count the references to it. The thread that drops the last
// reference sees what all other threads did with the text. The functions here tell this to the
// sanitizer.
//
// Await polls here instead of calling Abseil: Abseil may evaluate the condition at a place where
// the sanitizer does not see that the lock is held.
#include <cstdint>

#include <unistd.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

// Names that --wrap uses. `name` is a mangled name.
#define ENTRAIN_REAL(name) __asm__("__real_" name)
#define ENTRAIN_WRAP(name) __asm__("__wrap_" name)
#define ENTRAIN_MUTEX(member) "_ZN4absl7debian35Mutex" member

using absl::Condition;
using absl::Mutex;
using absl::Notification;

static const bool kNoSearchForCycles = [] {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}();

extern "C" {

void RealLock(Mutex* mutex) ENTRAIN_REAL(ENTRAIN_MUTEX("4LockEv"));
void RealUnlock(Mutex* mutex) ENTRAIN_REAL(ENTRAIN_MUTEX("6UnlockEv"));
bool RealTryLock(Mutex* mutex) ENTRAIN_REAL(ENTRAIN_MUTEX("7TryLockEv"));
void RealReaderLock(Mutex* mutex) ENTRAIN_REAL(ENTRAIN_MUTEX("10ReaderLockEv"));
void RealReaderUnlock(Mutex* mutex) ENTRAIN_REAL(ENTRAIN_MUTEX("12ReaderUnlockEv"));
void RealNotify(Notification* n) ENTRAIN_REAL("_ZN4absl7debian312Notification6NotifyEv");
void RealWait(const Notification* n)
    ENTRAIN_REAL("_ZNK4absl7debian312Notification19WaitForNotificationEv");
bool RealWaitFor(const Notification* n, absl::Duration timeout)
    ENTRAIN_REAL("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
bool RealWaitUntil(const Notification* n, absl::Time deadline)
    ENTRAIN_REAL("_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE");

void RealUnref(uintptr_t rep) ENTRAIN_REAL("_ZN4absl7debian36Status15UnrefNonInlinedEm");

void WrapUnref(uintptr_t rep) ENTRAIN_WRAP("_ZN4absl7debian36Status15UnrefNonInlinedEm");
void WrapLock(Mutex* mutex) ENTRAIN_WRAP(ENTRAIN_MUTEX("4LockEv"));
void WrapUnlock(Mutex* mutex) ENTRAIN_WRAP(ENTRAIN_MUTEX("6UnlockEv"));
bool WrapTryLock(Mutex* mutex) ENTRAIN_WRAP(ENTRAIN_MUTEX("7TryLockEv"));
void WrapReaderLock(Mutex* mutex) ENTRAIN_WRAP(ENTRAIN_MUTEX("10ReaderLockEv"));
void WrapReaderUnlock(Mutex* mutex) ENTRAIN_WRAP(ENTRAIN_MUTEX("12ReaderUnlockEv"));
void WrapAwait(Mutex* mutex, const Condition& condition)
    ENTRAIN_WRAP(ENTRAIN_MUTEX("5AwaitERKNS0_9ConditionE"));
bool WrapAwaitFor(Mutex* mutex, const Condition& condition, absl::Duration timeout)
    ENTRAIN_WRAP(ENTRAIN_MUTEX("16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
void WrapNotify(Notification* n) ENTRAIN_WRAP("_ZN4absl7debian312Notification6NotifyEv");
void WrapWait(const Notification* n)
    ENTRAIN_WRAP("_ZNK4absl7debian312Notification19WaitForNotificationEv");
bool WrapWaitFor(const Notification* n, absl::Duration timeout)
    ENTRAIN_WRAP("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
bool WrapWaitUntil(const Notification* n, absl::Time deadline)
    ENTRAIN_WRAP("_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE");

void WrapUnref(uintptr_t rep) {
  __tsan_release(reinterpret_cast<void*>(rep));
  __tsan_acquire(reinterpret_cast<void*>(rep));
  RealUnref(rep);
}

void WrapLock(Mutex* mutex) {
  RealLock(mutex);
  __tsan_acquire(mutex);
}

void WrapUnlock(Mutex* mutex) {
  __tsan_release(mutex);
  RealUnlock(mutex);
}

bool WrapTryLock(Mutex* mutex) {
  const bool locked = RealTryLock(mutex);
  if (locked) {
    __tsan_acquire(mutex);
  }
  return locked;
}

void WrapReaderLock(Mutex* mutex) {
  RealReaderLock(mutex);
  __tsan_acquire(mutex);
}

void WrapReaderUnlock(Mutex* mutex) {
  __tsan_release(mutex);
  RealReaderUnlock(mutex);
}

void WrapAwait(Mutex* mutex, const Condition& condition) {
  WrapAwaitFor(mutex, condition, absl::InfiniteDuration());
}

bool WrapAwaitFor(Mutex* mutex, const Condition& condition, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (!condition.Eval() && absl::Now() < end) {
    WrapUnlock(mutex);
    usleep(200);
    WrapLock(mutex);
  }
  return condition.Eval();
}

void WrapNotify(Notification* n) {
  __tsan_release(n);
  RealNotify(n);
}

void WrapWait(const Notification* n) {
  RealWait(n);
  __tsan_acquire(const_cast<Notification*>(n));
}

bool WrapWaitFor(const Notification* n, absl::Duration timeout) {
  const bool notified = RealWaitFor(n, timeout);
  if (notified) {
    __tsan_acquire(const_cast<Notification*>(n));
  }
  return notified;
}

bool WrapWaitUntil(const Notification* n, absl::Time deadline) {
  const bool notified = RealWaitUntil(n, deadline);
  if (notified) {
    __tsan_acquire(const_cast<Notification*>(n));
  }
  return notified;
}

}  // extern "C"
