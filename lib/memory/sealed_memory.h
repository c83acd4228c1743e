// Memory that several processes map: a memfd. Its pages exist before they are used, so that a shortage is an error
// and never a signal; it is sealed against changing its size; it has no name in any file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace entrain {

// Owns the descriptor and the mapping, unless that has taken the place of somebody else's memory. Move-only.
class SealedMemory {
 public:
  enum class Pages { kUsual, kHuge };
  enum class Access { kRead, kReadWrite };
  enum class Exist { kAll, kNone };  // which pages do from the beginning

  // Zeroed. With kHuge in huge pages, if the system has them to give: reserved ones (the size is then rounded up to whole
  // pages of 2 MiB), else transparent ones; else in usual pages. A shortage is RESOURCE_EXHAUSTED naming the size.
  static absl::StatusOr<SealedMemory> Create(int64_t bytes, Pages pages = Pages::kUsual,
                                             Exist exist = Exist::kAll);
  // Takes over a descriptor that came from elsewhere. UNAVAILABLE: it is not such memory. `margin`: so many bytes, whole
  // pages, of private memory lie right before the mapping and right behind it.
  static absl::StatusOr<SealedMemory> Adopt(int fd, Access access, int64_t margin = 0);
  // Takes the place of private memory (IsPrivate), whole pages from `begin` on: the addresses and what they hold stay.
  // Nobody may write there meanwhile. After an error (a shortage is RESOURCE_EXHAUSTED) all is as it was.
  static absl::StatusOr<SealedMemory> Replace(std::byte* begin, int64_t bytes);
  // Whether all of it is memory of this process alone, to be read and written, that stands for no file.
  static bool IsPrivate(const std::byte* begin, int64_t bytes);

  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Makes the pages of a range exist. A shortage is RESOURCE_EXHAUSTED naming the bytes.
  absl::Status Reserve(int64_t offset, int64_t bytes) const;
  // Enters the pages of a range, which exist, in this process's tables at once, where the kernel can
  // (5.14): else the first touch of each takes a fault.
  void Populate(int64_t offset, int64_t bytes) const;
  // Forked children will not have the mapping.
  absl::Status KeepFromChildren() const;
  // The mapping stays.
  void CloseDescriptor();
  // After Replace: private memory with the same contents takes the place again; nobody may write there meanwhile. After an
  // error some of it is still this memory, which stays in its place when this object goes.
  absl::Status GiveBack();

 private:
  absl::Status Open(int64_t bytes, unsigned flags);
  absl::Status Map(Access access);
  // [0, bytes) of it, which replaces others' memory, is private again.
  absl::Status Restore(int64_t bytes);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t margin_ = 0;
  bool replaces_ = false;  // somebody else's memory: the mapping is theirs
};

}  // namespace entrain
