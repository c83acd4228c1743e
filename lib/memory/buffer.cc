#include "lib/memory/buffer.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

#include "lib/memory/best_fit.h"

namespace entrain {
namespace {

constexpr int64_t kPage = 4096, kLarge = 64 << 10, kHugePage = 2 << 20;

int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The size that is allocated for `bytes`. The last huge page is completed only if that adds at most
// an eighth.
int64_t AllocatedSize(int64_t bytes, int64_t alignment) {
  const int64_t whole = RoundUp(bytes, alignment);
  return whole - bytes <= bytes / 8 ? whole : RoundUp(bytes, std::min(alignment, kPage));
}

}  // namespace

absl::StatusOr<OwnedBuffer> OwnedBuffer::Allocate(int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer: ", bytes, " bytes cannot be asked for"));
  }
  if (bytes > std::numeric_limits<int64_t>::max() / 2) {  // otherwise rounding up would overflow
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: ", bytes, " bytes could not be had"));
  }
  OwnedBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  const int64_t alignment = bytes >= kHugePage ? kHugePage : bytes >= kLarge ? kPage : 64;
  const auto size = static_cast<size_t>(AllocatedSize(bytes, alignment));
  void* data = nullptr;
  if (posix_memalign(&data, static_cast<size_t>(alignment), size) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: ", bytes, " bytes could not be had"));
  }
  if (alignment == kHugePage) {
    // A fault for each page of 4 KiB costs more than a pass over the memory. Where the system has no
    // huge pages, the call changes nothing.
    madvise(data, size, MADV_HUGEPAGE);
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

OwnedBuffer::OwnedBuffer(OwnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

OwnedBuffer& OwnedBuffer::operator=(OwnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

OwnedBuffer::~OwnedBuffer() {
  std::free(data_);
}

absl::StatusOr<OwnedBuffer> BufferPool::Take(int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    auto buffer = TakeBestFit(&idle_, [bytes](const OwnedBuffer& one) {
      return one.size() >= bytes && one.size() / 2 <= bytes;
    });
    if (buffer.has_value()) {
      idle_bytes_ -= buffer->size();
      return *std::move(buffer);
    }
  }
  return OwnedBuffer::Allocate(bytes);
}

void BufferPool::Give(OwnedBuffer buffer) {
  if (buffer.size() == 0) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (idle_bytes_ + buffer.size() > cap_bytes_) {
    return;  // the buffer is freed after the lock is released
  }
  idle_bytes_ += buffer.size();
  idle_.push_back(std::move(buffer));
}

void BufferPool::Clear() {
  // Declared before the lock, so that the buffers are freed after the lock is released. Other
  // threads need not wait for that.
  std::vector<OwnedBuffer> idle;
  absl::MutexLock lock(&mutex_);
  idle.swap(idle_);
  idle_bytes_ = 0;
}

int64_t BufferPool::idle_bytes() const {
  absl::MutexLock lock(&mutex_);
  return idle_bytes_;
}

}  // namespace entrain
