// Memory that several processes can map: a memfd, which has no name in any file system. The size of
// the memfd is sealed. Pages are allocated before their first use, so a shortage of memory causes
// an error and not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace entrain {

// Owns a descriptor and a mapping. After Replace, the mapping belongs to the owner of the replaced
// memory. Move-only.
class SealedMemory {
 public:
  enum class Pages { kUsual, kHuge };
  enum class Access { kRead, kReadWrite };
  enum class Exist { kAll, kNone };  // whether Create allocates the pages now

  // Creates zeroed memory. kHuge uses the first of these that the system has: reserved huge pages
  // (the size is then rounded up to a multiple of 2 MiB), transparent huge pages, usual pages.
  // Returns RESOURCE_EXHAUSTED if there is not enough memory. The error text contains the size.
  static absl::StatusOr<SealedMemory> Create(int64_t bytes, Pages pages = Pages::kUsual,
                                             Exist exist = Exist::kAll);
  // Maps the memory behind a descriptor that another process has passed. Owns the descriptor, also
  // after an error. Returns UNAVAILABLE if the descriptor is not sealed memory. Maps `margin` bytes
  // of private memory directly before and directly after the memory. `margin` must be a multiple of
  // the page size.
  static absl::StatusOr<SealedMemory> Adopt(int fd, Access access, int64_t margin = 0);
  // Replaces private memory (see IsPrivate) by sealed memory. The range must consist of whole
  // pages. Addresses and contents stay the same. No thread may write to the range during the call.
  //
  // Returns RESOURCE_EXHAUSTED if there is not enough memory. After an error, the range is private
  // again. If that is impossible, a part of the range stays sealed memory, and the call logs a
  // warning.
  static absl::StatusOr<SealedMemory> Replace(std::byte* begin, int64_t bytes);
  // Returns true if the whole range is private memory that is readable and writable and maps no
  // file.
  static bool IsPrivate(const std::byte* begin, int64_t bytes);

  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Allocates the pages of a range. Returns RESOURCE_EXHAUSTED if there is not enough memory. The
  // error text contains the number of bytes.
  absl::Status Reserve(int64_t offset, int64_t bytes) const;
  // Maps all pages of a range into this process now, if the kernel can do so (Linux 5.14).
  // Otherwise the first access to each page causes a page fault.
  void Populate(int64_t offset, int64_t bytes) const;
  // Excludes the mapping from forked children.
  absl::Status KeepFromChildren() const;
  // Closes the descriptor. The mapping stays valid.
  void CloseDescriptor();
  // Gives up the shared memory, and closes the descriptor. The addresses become private memory of
  // zeros, which takes up pages only where it is touched. If that is impossible, the mapping stays.
  // Must not be called after Replace.
  void Drop();
  // Undoes Replace: the addresses become private memory again, with the same contents. No thread
  // may write to the range during the call. After an error, a part of the range is still sealed
  // memory. It stays so after this object is destroyed.
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
  bool replaces_ = false;  // true after Replace: the destructor must not unmap the memory
};

}  // namespace entrain
