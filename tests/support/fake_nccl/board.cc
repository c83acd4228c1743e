#include "tests/support/fake_nccl/board.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fake_nccl {
namespace {

constexpr uint32_t kMagic = 0x4c43434e;

struct Id {
  uint32_t magic;
  int32_t pid, fd;
  uint64_t inode;
};

// Returns whether the process has ended, by the state letter of proc(5). An ended process is a
// zombie until its parent waits for it.
bool HasEnded(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || stat.size() < name_end + 3 || stat[name_end + 2] == 'Z' ||
         stat[name_end + 2] == 'X';
}

}  // namespace

size_t Pipe::Write(const char* from, size_t count) {
  const uint64_t at = written.load(std::memory_order_relaxed);
  // Acquire: bytes that the reader has read may be overwritten.
  const size_t room = kPipeBytes - static_cast<size_t>(at - read.load(std::memory_order_acquire));
  const size_t first = static_cast<size_t>(at % kPipeBytes);
  const size_t bytes = std::min({count, room, kPipeBytes - first});
  std::memcpy(ring + first, from, bytes);
  written.store(at + bytes, std::memory_order_release);  // with Read's acquire
  return bytes;
}

size_t Pipe::Read(char* to, size_t count) {
  const uint64_t at = read.load(std::memory_order_relaxed);
  const size_t there = static_cast<size_t>(written.load(std::memory_order_acquire) - at);
  const size_t first = static_cast<size_t>(at % kPipeBytes);
  const size_t bytes = std::min({count, there, kPipeBytes - first});
  std::memcpy(to, ring + first, bytes);
  read.store(at + bytes, std::memory_order_release);  // with Write's acquire
  return bytes;
}

int Board::Count(Presence at_least) const {
  int count = 0;
  for (const auto& one : presence) {
    count += one.load() >= at_least ? 1 : 0;
  }
  return count;
}

bool Board::Lost(int rank) const {
  const Presence now = presence[rank].load();
  return now == Presence::kAborted || (now == Presence::kHere && HasEnded(process[rank].load()));
}

entrain::nccl::UniqueId Board::Make() {
  entrain::nccl::UniqueId id{};
  const int fd = memfd_create("fake_nccl", MFD_CLOEXEC);  // open as long as the process lives
  struct stat info {};
  if (fd < 0 || ftruncate(fd, sizeof(Board)) != 0 || fstat(fd, &info) != 0) {
    return id;
  }
  const Id made{kMagic, getpid(), fd, info.st_ino};
  std::memcpy(id.bytes, &made, sizeof(made));
  return id;
}

std::shared_ptr<Board> Board::Open(const entrain::nccl::UniqueId& id) {
  Id made;
  std::memcpy(&made, id.bytes, sizeof(made));
  const std::string path = "/proc/" + std::to_string(made.pid) + "/fd/" + std::to_string(made.fd);
  const int fd = made.magic == kMagic ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_ino != made.inode) {
    if (fd >= 0) {
      close(fd);
    }
    return nullptr;
  }
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  // The board holds only atomics and bytes, which begin as the zeros of a new file.
  return {static_cast<Board*>(memory), [](Board* board) { munmap(board, sizeof(Board)); }};
}

}  // namespace fake_nccl
