#include "lib/memory/sealed_memory.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace entrain {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int64_t kHugePage = 2 << 20;
// Memory is replaced in pieces of this size, because a piece exists twice while it is replaced.
constexpr int64_t kPiece = 32 << 20;

// Converts the errno of a system call that allocates memory.
absl::Status MemoryStatus(int error, absl::string_view doing, int64_t bytes) {
  const std::string what = absl::StrCat(doing, " ", bytes, " bytes of shared memory");
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {  // EFBIG: above RLIMIT_FSIZE
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", strerror(error)));
  }
  return ErrnoStatus(error, what);
}

// Returns RESOURCE_EXHAUSTED for more memory than the machine has. The kernel would not return an
// error; it would kill processes to get the memory.
absl::Status CheckAgainstMachine(int64_t bytes) {
  struct sysinfo machine {};
  if (sysinfo(&machine) != 0) {
    return absl::OkStatus();
  }
  const double all =
      (static_cast<double>(machine.totalram) + static_cast<double>(machine.totalswap)) *
      machine.mem_unit;
  return static_cast<double>(bytes) <= all ? absl::OkStatus()
                                           : MemoryStatus(ENOMEM, "reserving", bytes);
}

// Requests transparent huge pages. With the kernel setting "advise", a huge page is allocated at
// the first access, but not by fallocate. So this function populates all pages now. Before Linux
// 5.14 it cannot, and Reserve then allocates usual pages.
void AskForHugePages(std::byte* data, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (madvise(data, size, MADV_HUGEPAGE) != 0 ||
      (madvise(data, size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)) {
    ENTRAIN_LOG(kInfo, "memory: no huge pages for ", bytes, " bytes: ", strerror(errno));
  }
}

// Maps private memory at `at` and copies `contents` into it. After an error, the old mapping is
// unchanged.
absl::Status PutPrivate(std::byte* at, const std::byte* contents, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const fresh =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) {
    return MemoryStatus(errno, "restoring", bytes);
  }
  std::memcpy(fresh, contents, size);
  if (mremap(fresh, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
    const int error = errno;
    munmap(fresh, size);
    return MemoryStatus(error, "restoring", bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SealedMemory> SealedMemory::Create(int64_t bytes, Pages pages, Exist exist) {
  ENTRAIN_RETURN_IF_ERROR(CheckAgainstMachine(bytes));
  SealedMemory memory;
  if (pages == Pages::kHuge) {
    const int64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    if (memory.Open(rounded, MFD_HUGETLB | MFD_HUGE_2MB).ok() &&
        memory.Map(Access::kReadWrite).ok()) {
      return memory;
    }
    memory = SealedMemory();
  }
  ENTRAIN_RETURN_IF_ERROR(memory.Open(bytes, 0));
  ENTRAIN_RETURN_IF_ERROR(memory.Map(Access::kReadWrite));
  if (pages == Pages::kHuge) {
    AskForHugePages(memory.data_, bytes);
  }
  if (exist == Exist::kAll) {
    ENTRAIN_RETURN_IF_ERROR(memory.Reserve(0, bytes));
  }
  return memory;
}

// Reserved huge pages (flags != 0) are allocated here, because none may be left later.
absl::Status SealedMemory::Open(int64_t bytes, unsigned flags) {
  fd_ = memfd_create("entrain", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd_ < 0) {
    return ErrnoStatus(errno, "memfd_create");
  }
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    return MemoryStatus(errno, "sizing", bytes);
  }
  size_ = bytes;
  if (flags != 0) {
    ENTRAIN_RETURN_IF_ERROR(Reserve(0, bytes));
  }
  if (fcntl(fd_, F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing shared memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<SealedMemory> SealedMemory::Adopt(int fd, Access access, int64_t margin) {
  SealedMemory memory;
  memory.fd_ = fd;
  memory.margin_ = margin;
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return ErrnoStatus(errno, "looking at the peer's shared memory");
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (!S_ISREG(info.st_mode) || seals < 0 || (seals & kSeals) != kSeals || info.st_size == 0) {
    return absl::UnavailableError("the peer's shared memory is not a sealed memfd");
  }
  memory.size_ = info.st_size;
  ENTRAIN_RETURN_IF_ERROR(memory.Map(access));
  return memory;
}

absl::Status SealedMemory::Map(Access access) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const auto size = static_cast<size_t>(size_);
  if (margin_ == 0) {
    void* const data = mmap(nullptr, size, protection, MAP_SHARED, fd_, 0);
    if (data == MAP_FAILED) {
      return MemoryStatus(errno, "mapping", size_);
    }
    data_ = static_cast<std::byte*>(data);
    return absl::OkStatus();
  }
  const size_t all = size + 2 * static_cast<size_t>(margin_);
  void* const place =
      mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) {
    return MemoryStatus(errno, "mapping", size_);
  }
  std::byte* const data = static_cast<std::byte*>(place) + margin_;
  if (mmap(data, size, protection, MAP_SHARED | MAP_FIXED, fd_, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(place, all);
    return MemoryStatus(error, "mapping", size_);
  }
  data_ = data;
  return absl::OkStatus();
}

// A thread that reads the range during the call may be blocked by the kernel for a moment. It never
// finds the range unmapped, because mmap with MAP_FIXED replaces a mapping atomically.
absl::StatusOr<SealedMemory> SealedMemory::Replace(std::byte* begin, int64_t bytes) {
  SealedMemory source;  // a second mapping of the same memfd
  ENTRAIN_RETURN_IF_ERROR(source.Open(bytes, 0));
  ENTRAIN_RETURN_IF_ERROR(source.Map(Access::kReadWrite));
  SealedMemory memory;
  memory.data_ = begin;
  memory.size_ = bytes;
  memory.replaces_ = true;
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int64_t piece = std::min(kPiece, bytes - at);
    const auto size = static_cast<size_t>(piece);
    absl::Status status = source.Reserve(at, piece);
    if (status.ok()) {
      std::memcpy(source.data_ + at, begin + at, size);
      if (mmap(begin + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               source.fd_, static_cast<off_t>(at)) != MAP_FAILED) {
        continue;
      }
      status = MemoryStatus(errno, "replacing", piece);
      // The failed mmap may have removed the old mapping.
      if (const absl::Status put = PutPrivate(begin + at, source.data_ + at, piece); !put.ok()) {
        ENTRAIN_LOG(kError, "memory: ", piece,
                    " bytes of this process cannot be put back in place: ", put.message());
        std::abort();
      }
    }
    if (const absl::Status restored = memory.Restore(at); !restored.ok()) {
      ENTRAIN_LOG(kWarning, "memory: ", restored.message(), "; what was replaced stays so");
    }
    return status;
  }
  memory.fd_ = std::exchange(source.fd_, -1);
  return memory;
}

absl::Status SealedMemory::Restore(int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPiece) {
    ENTRAIN_RETURN_IF_ERROR(PutPrivate(data_ + at, data_ + at, std::min(kPiece, bytes - at)));
  }
  return absl::OkStatus();
}

absl::Status SealedMemory::GiveBack() {
  const absl::Status status = Restore(size_);
  data_ = nullptr;
  CloseDescriptor();
  return status;
}

bool SealedMemory::IsPrivate(const std::byte* begin, int64_t bytes) {
  auto from = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t until = from + static_cast<uintptr_t>(bytes);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; from < until && std::getline(maps, line);) {
    uintptr_t low = 0, high = 0;
    unsigned long inode = 0;
    char may[5] = "";
    int end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu %n", &low, &high, may,
                    &inode, &end) < 4 ||
        high <= from) {
      continue;
    }
    const std::string name = line.substr(std::min(line.size(), static_cast<size_t>(end)));
    if (low > from || std::string(may) != "rw-p" || inode != 0 ||
        !(name.empty() || name == "[heap]" || name.rfind("[anon", 0) == 0)) {
      return false;
    }
    from = high;
  }
  return from >= until;
}

// Allocates in small pieces. On older kernels, such as 6.1, a signal undoes everything that the
// current fallocate has allocated. If a profiler sends signals at intervals, one large fallocate
// would never finish.
absl::Status SealedMemory::Reserve(int64_t offset, int64_t bytes) const {
  const int64_t end = offset + bytes;
  while (offset < end) {
    const int64_t piece = std::min(end - offset, kHugePage);
    if (fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(piece)) == 0) {
      offset += piece;
    } else if (errno != EINTR) {
      return MemoryStatus(errno, "reserving", bytes);
    }
  }
  return absl::OkStatus();
}

void SealedMemory::Populate(int64_t offset, int64_t bytes) const {
  [[maybe_unused]] const int ignored =
      madvise(data_ + offset, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
}

absl::Status SealedMemory::KeepFromChildren() const {
  return madvise(data_ - margin_, static_cast<size_t>(size_ + 2 * margin_), MADV_DONTFORK) == 0
             ? absl::OkStatus()
             : ErrnoStatus(errno, "keeping shared memory from forked children");
}

void SealedMemory::CloseDescriptor() {
  if (const int fd = std::exchange(fd_, -1); fd >= 0) {
    close(fd);
  }
}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(margin_, other.margin_);
  std::swap(replaces_, other.replaces_);
  return *this;
}

void SealedMemory::Drop() {
  if (data_ != nullptr) {
    (void)mmap(data_, static_cast<size_t>(size_), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  CloseDescriptor();
}

SealedMemory::~SealedMemory() {
  if (data_ != nullptr && !replaces_) {
    munmap(data_ - margin_, static_cast<size_t>(size_ + 2 * margin_));
  }
  CloseDescriptor();
}

}  // namespace entrain
