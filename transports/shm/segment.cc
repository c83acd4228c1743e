#include "transports/shm/segment.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::shm {
namespace {

constexpr uint64_t kMagic = 0x31'4d'48'53'54'4e'45'00;  // "\0ENTSHM1"
constexpr uint32_t kVersion = 1;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t side_bytes;
  uint64_t ring_bytes;
};

constexpr size_t RingsAt() {
  return Segment::kPage + 2 * Segment::kSideBytes;
}
constexpr size_t TotalBytes(size_t ring_bytes) {
  return RingsAt() + 2 * ring_bytes;
}
bool IsRingSize(uint64_t bytes) {
  return bytes >= Segment::kMinRing && bytes <= Segment::kMaxRing && (bytes & (bytes - 1)) == 0;
}

// What a system call that wanted memory failed with, as a shortage if it is one.
absl::Status MemoryStatus(int error, absl::string_view doing, size_t bytes) {
  const std::string what = absl::StrCat(doing, " ", bytes, " bytes of shared memory");
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {  // EFBIG: over RLIMIT_FSIZE
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", strerror(error)));
  }
  return ErrnoStatus(error, what);
}

// Makes every page exist, so that no later access can run out of memory.
absl::Status ReservePages(int fd, size_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? absl::OkStatus() : MemoryStatus(errno, "reserving", bytes);
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(size_t ring_bytes) {
  if (!IsRingSize(ring_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ring of ", ring_bytes, " bytes: want a power of two, ", kMinRing, " to ", kMaxRing));
  }
  const size_t bytes = TotalBytes(ring_bytes);
  Segment segment;
  segment.memory_.Reset(memfd_create("entrain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.memory_.valid()) {
    return ErrnoStatus(errno, "memfd_create");
  }
  if (ftruncate(segment.fd(), static_cast<off_t>(bytes)) != 0) {
    return MemoryStatus(errno, "sizing", bytes);
  }
  ENTRAIN_RETURN_IF_ERROR(ReservePages(segment.fd(), bytes));
  if (fcntl(segment.fd(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "sealing shared memory");
  }
  ENTRAIN_RETURN_IF_ERROR(segment.Map(bytes));
  segment.ring_bytes_ = ring_bytes;
  *reinterpret_cast<Header*>(segment.base_) = {kMagic, kVersion, kSideBytes, ring_bytes};
  return segment;
}

absl::StatusOr<Segment> Segment::Adopt(Fd memory) {
  struct stat info {};
  if (fstat(memory.get(), &info) != 0) {
    return ErrnoStatus(errno, "looking at the peer's shared memory");
  }
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (!S_ISREG(info.st_mode) || seals < 0 || (seals & kSeals) != kSeals) {
    return absl::UnavailableError("the peer's shared memory is not a sealed memfd");
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < TotalBytes(kMinRing) || !IsRingSize((bytes - RingsAt()) / 2) ||
      bytes != TotalBytes((bytes - RingsAt()) / 2)) {
    return absl::UnavailableError(
        absl::StrCat("the peer's shared memory has an impossible size of ", bytes, " bytes"));
  }
  ENTRAIN_RETURN_IF_ERROR(ReservePages(memory.get(), bytes));
  Segment segment;
  segment.memory_ = std::move(memory);
  ENTRAIN_RETURN_IF_ERROR(segment.Map(bytes));
  segment.ring_bytes_ = (bytes - RingsAt()) / 2;
  Header header;
  std::memcpy(&header, segment.base_, sizeof(header));
  if (header.magic != kMagic || header.version != kVersion || header.side_bytes != kSideBytes ||
      header.ring_bytes != segment.ring_bytes_) {
    return absl::UnavailableError(
        absl::StrCat("the peer's shared memory is laid out differently (version ", header.version,
                     ", ours is ", kVersion, ")"));
  }
  return segment;
}

absl::Status Segment::Map(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
  if (base == MAP_FAILED) {
    return MemoryStatus(errno, "mapping", bytes);
  }
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  // A forked child that wrote here would corrupt its parent's rings.
  if (madvise(base, bytes, MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "keeping shared memory from forked children");
  }
  return absl::OkStatus();
}

Segment::Segment(Segment&& other) noexcept {
  *this = std::move(other);
}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(ring_bytes_, other.ring_bytes_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
}

Side& Segment::side(int number) const {
  return *reinterpret_cast<Side*>(base_ + kPage + static_cast<size_t>(number) * kSideBytes);
}

std::byte* Segment::ring(int writer) const {
  return base_ + RingsAt() + static_cast<size_t>(writer) * ring_bytes_;
}

// The thread sanitizer does not know fences and GCC says so as a warning; it does not see what
// another process or the kernel does to memory either, so nothing is lost by leaving them out
// there.
void FenceAfterRevoking() {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void FenceAfterCopying() {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace entrain::shm
