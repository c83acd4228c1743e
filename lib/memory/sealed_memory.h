// Memory that several processes map: a memfd. Its pages are allocated before they are used, so that
// a shortage of memory is an error and not a signal. The memfd is sealed against a change of its
// size, and has no name in any file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace entrain {

// Owns the descriptor and the mapping. After Replace the mapping belongs to the owner of the
// replaced memory. Move-only.
class SealedMemory {
 public:
  enum class Pages { kUsual, kHuge };
  enum class Access { kRead, kReadWrite };
  enum class Exist { kAll, kNone };  // the pages that Create allocates

  // Creates zeroed memory. kHuge: uses reserved huge pages if the system has them (and rounds the
  // size up to whole pages of 2 MiB), else transparent huge pages, else usual pages. If memory is
  // short, returns RESOURCE_EXHAUSTED naming the size.
  static absl::StatusOr<SealedMemory> Create(int64_t bytes, Pages pages = Pages::kUsual,
                                             Exist exist = Exist::kAll);
  // Maps the memory of a descriptor that another process has passed, and owns the descriptor.
  // UNAVAILABLE: the descriptor is not sealed memory. `margin` is the number of bytes, in whole
  // pages, of private memory right before the mapping and right after the mapping.
  static absl::StatusOr<SealedMemory> Adopt(int fd, Access access, int64_t margin = 0);
  // Replaces private memory (IsPrivate), in whole pages from `begin` on, by sealed memory.
  // Addresses and contents stay. No thread may write to the range during the call. After an error
  // (RESOURCE_EXHAUSTED if memory is short) the range is private again. If even that fails, the
  // call logs a warning, and a part of the range stays replaced.
  static absl::StatusOr<SealedMemory> Replace(std::byte* begin, int64_t bytes);
  // Returns true if the whole range is private, readable, writable memory that maps no file.
  static bool IsPrivate(const std::byte* begin, int64_t bytes);

  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Allocates the pages of a range. If memory is short, returns RESOURCE_EXHAUSTED naming the
  // number of bytes.
  absl::Status Reserve(int64_t offset, int64_t bytes) const;
  // Enters the existing pages of a range in this process's page tables at once, if the kernel
  // supports this (5.14). Otherwise the first touch of each page takes a fault.
  void Populate(int64_t offset, int64_t bytes) const;
  // Keeps the mapping out of forked children.
  absl::Status KeepFromChildren() const;
  // Closes the descriptor. The mapping stays.
  void CloseDescriptor();
  // Undoes Replace: puts private memory with the same contents at the same addresses. No thread may
  // write to the range during the call. After an error a part of the range is still sealed memory,
  // and stays so after this object is destroyed.
  absl::Status GiveBack();

 private:
  absl::Status Open(int64_t bytes, unsigned flags);
  absl::Status Map(Access access);
  // After Replace: makes the first `bytes` bytes private memory again.
  absl::Status Restore(int64_t bytes);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t margin_ = 0;
  bool replaces_ = false;  // the mapping belongs to the owner of the replaced memory
};

}  // namespace entrain
