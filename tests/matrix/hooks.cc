#include "tests/matrix/hooks.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

namespace faults {
namespace {

constexpr int64_t kNanos = 1000000000;

std::atomic<Place> place{Place::kNone};
std::atomic<const char*> phase_at_place{nullptr};
std::atomic<bool> stopped{false};
std::atomic<int64_t> jump_ns{0};                // of the clock that shows the time of day
std::array<std::atomic<bool>, 4096> to_peer{};  // descriptors of connections
int proxy_port = 0, proxy_rank = 0;
int driver = STDOUT_FILENO;

template <typename Function>
Function* Libc(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define LIBC(name)                                       \
  ([] {                                                  \
    static const auto real = faults::Libc(&name, #name); \
    return real;                                         \
  }())

void Pass(Place here) {
  if (place.load() == here) {
    Stop(phase_at_place.load());
  }
}

void Mark(int fd, bool is_to_peer) {
  if (fd >= 0 && fd < static_cast<int>(to_peer.size())) {
    to_peer[static_cast<size_t>(fd)].store(is_to_peer);
  }
}
bool IsMarked(int fd) {
  return fd >= 0 && fd < static_cast<int>(to_peer.size()) &&
         to_peer[static_cast<size_t>(fd)].load();
}

bool IsConnection(int fd) {
  int type = 0;
  socklen_t bytes = sizeof(type);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type != SOCK_DGRAM;
}

// Connects to the proxy, and tells it the port that was meant.
int ConnectToProxy(int fd, const sockaddr_in& meant) {
  sockaddr_in proxy{};
  proxy.sin_family = AF_INET;
  proxy.sin_port = htons(static_cast<uint16_t>(proxy_port));
  inet_pton(AF_INET, "127.0.0.2", &proxy.sin_addr);
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const uint16_t port = ntohs(meant.sin_port);
  const uint8_t head[3] = {static_cast<uint8_t>(proxy_rank), static_cast<uint8_t>(port >> 8),
                           static_cast<uint8_t>(port)};
  int result = LIBC(connect)(fd, reinterpret_cast<const sockaddr*>(&proxy), sizeof(proxy));
  if (result == 0 && LIBC(send)(fd, head, sizeof(head), MSG_NOSIGNAL) != sizeof(head)) {
    errno = ECONNREFUSED;
    result = -1;
  }
  const int error = errno;
  fcntl(fd, F_SETFL, flags);
  errno = error;
  return result;
}

int64_t AddressSpace() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

void Limit(int resource, int64_t value) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  limit.rlim_cur = static_cast<rlim_t>(value);
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

// Brings about the faults that only a process itself can have.
void Obey(const char* order) {
  if (std::strncmp(order, "clock", 5) == 0) {
    jump_ns.store(std::atoll(order + 5) * kNanos);
  } else if (std::strncmp(order, "descriptors", 11) == 0) {
    const int lowest_free = dup(0);
    close(lowest_free);
    Limit(RLIMIT_NOFILE, lowest_free);
  } else if (std::strncmp(order, "memory", 6) == 0) {
    Limit(RLIMIT_AS, AddressSpace());
  }
}

void ReadOrder() {
  char order[64] = {};
  for (size_t at = 0; at + 1 < sizeof(order); ++at) {
    ssize_t got = 0;
    do {
      got = read(STDIN_FILENO, &order[at], 1);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
      _exit(9);  // the driver has ended
    }
    if (order[at] == '\n') {
      break;
    }
  }
  Obey(order);
}

}  // namespace

void StopAt(Place where, const char* phase) {
  phase_at_place.store(phase);
  place.store(where);
}

void Stop(const char* phase) {
  if (stopped.exchange(true)) {
    return;
  }
  place.store(Place::kNone);
  Tell((std::string(R"({"at": ")") + phase + "\"}").c_str());
  ReadOrder();
}

void KeepLinesApart() {
  driver = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

void UseProxy(int port, int rank) {
  proxy_port = port;
  proxy_rank = rank;
}

void Tell(const char* line) {
  const std::string text = std::string(line) + "\n";
  (void)!LIBC(write)(driver, text.data(), text.size());
}

int64_t NowNs() {
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanos + now.tv_nsec;
}

}  // namespace faults

// ---- The functions of libc

extern "C" {

using faults::Place;

int connect(int fd, const sockaddr* to, socklen_t bytes) {
  if (!faults::IsConnection(fd)) {
    return LIBC(connect)(fd, to, bytes);
  }
  faults::Pass(Place::kConnection);
  const int result = faults::proxy_port != 0 && to->sa_family == AF_INET
                         ? faults::ConnectToProxy(fd, *reinterpret_cast<const sockaddr_in*>(to))
                         : LIBC(connect)(fd, to, bytes);
  faults::Mark(fd, true);
  return result;
}

int accept4(int listener, sockaddr* from, socklen_t* bytes, int flags) {
  const int fd = LIBC(accept4)(listener, from, bytes, flags);
  if (fd >= 0) {
    faults::Mark(fd, true);
    faults::Pass(Place::kConnection);
  }
  return fd;
}

int accept(int listener, sockaddr* from, socklen_t* bytes) {
  return accept4(listener, from, bytes, 0);
}

int listen(int fd, int backlog) noexcept {
  const int result = LIBC(listen)(fd, backlog);
  sockaddr_in at{};
  socklen_t bytes = sizeof(at);
  if (result == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&at), &bytes) == 0 &&
      at.sin_family == AF_INET) {
    faults::Tell((R"({"listens": )" + std::to_string(ntohs(at.sin_port)) + "}").c_str());
  }
  return result;
}

#define AFTER_SEND(fd, expression)          \
  const auto result = (expression);         \
  if (result > 0 && faults::IsMarked(fd)) { \
    faults::Pass(Place::kFirstSend);        \
  }                                         \
  return result

ssize_t send(int fd, const void* from, size_t bytes, int flags) {
  AFTER_SEND(fd, LIBC(send)(fd, from, bytes, flags));
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  AFTER_SEND(fd, LIBC(sendmsg)(fd, message, flags));
}
ssize_t write(int fd, const void* from, size_t bytes) {
  AFTER_SEND(fd, LIBC(write)(fd, from, bytes));
}
ssize_t writev(int fd, const iovec* parts, int count) {
  AFTER_SEND(fd, LIBC(writev)(fd, parts, count));
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  const int fd = LIBC(open)(path, flags, mode);
  if (fd >= 0 && (flags & O_CREAT) != 0) {
    faults::Pass(Place::kNewFile);
  }
  return fd;
}

int close(int fd) {
  faults::Pass(Place::kClose);
  faults::Mark(fd, false);
  return LIBC(close)(fd);
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = LIBC(clock_gettime)(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += faults::jump_ns.load() / faults::kNanos;
  }
  return result;
}

time_t time(time_t* to) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != nullptr) {
    *to = now.tv_sec;
  }
  return now.tv_sec;
}

int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return 0;
}

}  // extern "C"
