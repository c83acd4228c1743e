// Memory that several processes map: a memfd. All its pages exist from the beginning, so that a shortage is an error
// when it is made and never a SIGBUS later; it is sealed against changing its size; it has no name in any file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace entrain {

// Owns the descriptor and the mapping. Move-only.
class SealedMemory {
 public:
  enum class Pages { kUsual, kHuge };
  enum class Access { kRead, kReadWrite };

  // Zeroed. With kHuge in huge pages, if the system has them to give: reserved ones (the size is then rounded up to whole
  // pages of 2 MiB), else transparent ones; else in usual pages. A shortage is RESOURCE_EXHAUSTED naming the size.
  static absl::StatusOr<SealedMemory> Create(int64_t bytes, Pages pages = Pages::kUsual);
  // Takes over a descriptor that came from elsewhere. UNAVAILABLE: it is not such memory.
  static absl::StatusOr<SealedMemory> Adopt(int fd, Access access);

  SealedMemory() = default;
  SealedMemory(SealedMemory&& other) noexcept { *this = std::move(other); }
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Makes every page exist: for memory made by others, who may not have.
  absl::Status Reserve() const;
  // Forked children will not have the mapping.
  absl::Status KeepFromChildren() const;
  // The mapping stays.
  void CloseDescriptor();

 private:
  absl::Status Open(int64_t bytes, unsigned flags);
  absl::Status Map(Access access);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace entrain
