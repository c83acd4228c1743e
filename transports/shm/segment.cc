#include "transports/shm/segment.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain::shm {
namespace {

constexpr uint64_t kMagic = 0x31'4d'48'53'54'4e'45'00;  // "\0ENTSHM1"
constexpr uint32_t kVersion = 4;
constexpr size_t kFirstSideAt = 128, kSecondSideAt = 2048;

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t rings_at;
  uint64_t ring_bytes;
};

constexpr size_t RingsAt() {
  return Segment::kPage + 2 * Segment::kFurtherBytes;
}
constexpr size_t TotalBytes(size_t ring_bytes) {
  return RingsAt() + 2 * ring_bytes;
}
static_assert(kFirstSideAt >= sizeof(Header) && kFirstSideAt + sizeof(Side) <= kSecondSideAt &&
              kSecondSideAt + sizeof(Side) <= Segment::kPage);
static_assert((Side::kContexts - Side::kFirstContexts) / 8 <= Segment::kFurtherBytes);
bool IsRingSize(uint64_t bytes) {
  return bytes >= Segment::kMinRing && bytes <= Segment::kMaxRing && (bytes & (bytes - 1)) == 0;
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(size_t ring_bytes) {
  if (!IsRingSize(ring_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ring of ", ring_bytes, " bytes: want a power of two, ", kMinRing, " to ", kMaxRing));
  }
  Segment segment;
  ENTRAIN_ASSIGN_OR_RETURN(
      segment.memory_,
      SealedMemory::Create(static_cast<int64_t>(TotalBytes(ring_bytes)),
                           SealedMemory::Pages::kUsual, SealedMemory::Exist::kNone));
  ENTRAIN_RETURN_IF_ERROR(segment.memory_.KeepFromChildren());
  segment.ring_bytes_ = ring_bytes;
  ENTRAIN_RETURN_IF_ERROR(segment.ReserveFirst());
  const Header header{kMagic, kVersion, RingsAt(), ring_bytes};
  std::memcpy(segment.memory_.data(), &header, sizeof(header));
  return segment;
}

absl::StatusOr<Segment> Segment::Adopt(Fd memory) {
  Segment segment;
  ENTRAIN_ASSIGN_OR_RETURN(segment.memory_,
                           SealedMemory::Adopt(memory.Release(), SealedMemory::Access::kReadWrite));
  const auto bytes = static_cast<uint64_t>(segment.memory_.size());
  if (bytes < TotalBytes(kMinRing) || !IsRingSize((bytes - RingsAt()) / 2) ||
      bytes != TotalBytes((bytes - RingsAt()) / 2)) {
    return absl::UnavailableError(
        absl::StrCat("the peer's shared memory has an impossible size of ", bytes, " bytes"));
  }
  // A forked child that used this memory would corrupt its parent's rings.
  ENTRAIN_RETURN_IF_ERROR(segment.memory_.KeepFromChildren());
  segment.ring_bytes_ = (bytes - RingsAt()) / 2;
  ENTRAIN_RETURN_IF_ERROR(segment.ReserveFirst());
  Header header;
  std::memcpy(&header, segment.memory_.data(), sizeof(header));
  if (header.magic != kMagic || header.version != kVersion || header.rings_at != RingsAt() ||
      header.ring_bytes != segment.ring_bytes_) {
    return absl::UnavailableError(
        absl::StrCat("the peer's shared memory is laid out differently (version ", header.version,
                     ", ours is ", kVersion, ")"));
  }
  return segment;
}

absl::Status Segment::ReserveFirst() const {
  ENTRAIN_RETURN_IF_ERROR(memory_.Reserve(0, kPage));
  for (const int number : {0, 1}) {
    ENTRAIN_RETURN_IF_ERROR(Reserve(ring(number), kFirstOfRing));
  }
  return absl::OkStatus();
}

absl::Status Segment::Reserve(const void* part, size_t bytes) const {
  return memory_.Reserve(static_cast<const std::byte*>(part) - memory_.data(),
                         static_cast<int64_t>(bytes));
}

absl::Status Segment::ReserveRing(int writer) const {
  return Reserve(ring(writer), ring_bytes_);
}

void Segment::MapRing(int writer) const {
  memory_.Populate(ring(writer) - memory_.data(), static_cast<int64_t>(ring_bytes_));
}

absl::Status Segment::ReserveWords(int number) const {
  return Reserve(further(number), kFurtherBytes);
}

Side& Segment::side(int number) const {
  return *reinterpret_cast<Side*>(memory_.data() + (number == 0 ? kFirstSideAt : kSecondSideAt));
}

std::atomic<uint64_t>& Segment::revoked(int number, size_t context) const {
  if (context < Side::kFirstContexts) {
    return side(number).revoked[context / 64];
  }
  auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(further(number));
  return words[(context - Side::kFirstContexts) / 64];
}

std::byte* Segment::further(int number) const {
  return memory_.data() + kPage + static_cast<size_t>(number) * kFurtherBytes;
}

std::byte* Segment::ring(int writer) const {
  return memory_.data() + RingsAt() + static_cast<size_t>(writer) * ring_bytes_;
}

// The thread sanitizer does not support fences, so GCC warns about them in builds with this
// sanitizer. These builds omit the fence. The sanitizer loses nothing: it does not see the writes
// of other processes or of the kernel either.
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
