// Memory that several processes map: a memfd. Its pages exist before they are used, so that a
// shortage is an error and not a signal. It is sealed against a change of its size, and has no name
// in any file system.
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
  enum class Exist { kAll, kNone };  // the pages that exist from the beginning

  // Creates zeroed memory. kHuge: uses reserved huge pages if the system has them (and rounds the
  // size up to whole pages of 2 MiB), else transparent huge pages, else usual pages. If memory is
  // short, returns RESOURCE_EXHAUSTED naming the size.
  static absl::StatusOr<SealedMemory> Create(int64_t bytes, Pages pages = Pages::kUsual,
                                             Exist exist = Exist::kAll);
  // Takes over a descriptor of another process. UNAVAILABLE: it is not such memory. `margin` is the
  // number of bytes, in whole pages, of private memory right before the mapping and right behind
  // it.
  static absl::StatusOr<SealedMemory> Adopt(int fd, Access access, int64_t margin = 0);
  // Replaces private memory (IsPrivate), in whole pages from `begin` on. Addresses and contents
  // stay. No thread may write there during the call. After an error (RESOURCE_EXHAUSTED if memory
  // is short) nothing has changed.
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
  // bytes.
  absl::Status Reserve(int64_t offset, int64_t bytes) const;
  // Enters the existing pages of a range in this process's page tables at once, if the kernel
  // supports this (5.14). Otherwise the first touch of each page takes a fault.
  void Populate(int64_t offset, int64_t bytes) const;
  // Keeps the mapping out of forked children.
  absl::Status KeepFromChildren() const;
  // Closes the descriptor. The mapping stays.
  void CloseDescriptor();
  // Undoes Replace: private memory with the same contents takes its place again. No thread may
  // write there during the call. After an error a part of the range is still this memory, which
  // stays mapped there after this object is destroyed.
  absl::Status GiveBack();

 private:
  absl::Status Open(int64_t bytes, unsigned flags);
  absl::Status Map(Access access);
  // Makes bytes [0, bytes) private memory again. They had replaced memory of another owner.
  absl::Status Restore(int64_t bytes);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t margin_ = 0;
  bool replaces_ = false;  // the mapping belongs to the owner of the replaced memory
};

}  // namespace entrain
