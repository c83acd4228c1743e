// The memory that two processes share: one memfd per pair, made by the side that dials, mapped by
// both.
//
//   0                 header: magic, version, sizes
//   128               words of side 0 (dialer)        Side, below
//   2048              words of side 1 (listener)
//   4096              revocation words of side 0 that Side has no room for
//   4096 + 8 KiB      ... of side 1
//   20 KiB            ring written by side 0
//   ... + ring bytes  ring written by side 1
//
// lib/memory/sealed_memory.h says what memory that is. Forked children do not have it.
//
// Sleeping. A side that is about to sleep stores what it wants to be woken for in its `sleeping`
// word and then looks once more whether that is there already; the other side publishes and then
// looks at the word:
//
//     sleeper   sleeping = kForData            |   peer   state = record  (or head = released)
//               look at the state (or head)    |          look at sleeping: not kAwake? ring the
//               doorbell
//
// All four accesses are seq_cst, or have a full fence between them (a record's state), so they have one
// order for both, and at least one of the two sees the other's store: either the sleeper sees the
// record, or the peer rings.
//
// Revocation. A side that takes back a buffer that it named in an RTS sets the bit of that context in its
// `revoked` words, then passes a full fence, and only then gives the buffer back to its owner. A
// peer that reads the buffer's memory looks at the bit after the copy, behind a fence: if it has
// read anything that the owner wrote afterwards, it sees the bit. Contexts are never reused, so
// bits are never cleared. `closed` is the same for all contexts at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

#include "lib/memory/sealed_memory.h"
#include "lib/net/socket.h"

namespace entrain::shm {

enum Sleeping : uint32_t { kAwake = 0, kForData = 1, kForDataOrRoom = 2 };

// What one side tells the other besides records. The owner writes; the peer reads (and puts
// `sleeping` to kAwake when it rings, so that it rings once).
struct Side {
  static constexpr size_t kContexts = 1 << 16, kFirstContexts = 13824;

  alignas(64) std::atomic<uint32_t> sleeping;
  // How far the owner has released the ring that the peer writes, and the cost of the eager
  // messages it has taken.
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint64_t> consumed;
  alignas(64) std::atomic<uint32_t> closed;
  alignas(64) std::atomic<uint64_t> revoked[kFirstContexts / 64];  // Segment::revoked has all
};
static_assert(sizeof(Side) == 2048 - 128, "the first page holds the header and two");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's own");

class Segment {
 public:
  static constexpr size_t kPage = 4096;
  // Of each ring, what exists from the beginning: enough for conversations of small messages.
  static constexpr size_t kFirstOfRing = 2 * kPage;
  // Further revocation words of a side.
  static constexpr size_t kFurtherBytes = 2 * kPage;
  static constexpr size_t kMinRing = 32 << 10, kMaxRing = 64 << 20;

  // A new one; `ring_bytes` is a power of two in the limits above. A shortage is
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<Segment> Create(size_t ring_bytes);
  // One that came from a peer: nothing of it is used before type, size, seals and header are found
  // as they must be.
  static absl::StatusOr<Segment> Adopt(Fd memory);

  int fd() const { return memory_.fd(); }
  size_t ring_bytes() const { return ring_bytes_; }
  // Makes the whole ring exist, not only its first bytes. By its writer, before it goes beyond
  // them.
  absl::Status ReserveRing(int writer) const;
  // A ring that exists as a whole: its pages are entered here at once (SealedMemory::Populate), as the
  // first copies would take a fault a page, longer than the copy. By its writer and by its reader.
  void MapRing(int writer) const;
  // Makes the revocation words of all contexts exist, not only of the first Side::kFirstContexts.
  // By their side, before it uses one beyond.
  absl::Status ReserveWords(int number) const;
  Side& side(int number) const;
  // The word of a context, and of 63 others.
  std::atomic<uint64_t>& revoked(int number, size_t context) const;
  std::byte* ring(int writer) const;

 private:
  absl::Status ReserveFirst() const;
  std::byte* further(int number) const;
  absl::Status Reserve(const void* part, size_t bytes) const;

  SealedMemory memory_;
  size_t ring_bytes_ = 0;
};

// Between setting a revocation and giving the memory back.
void FenceAfterRevoking();
// Between reading a peer's memory and looking for revocation.
void FenceAfterCopying();

}  // namespace entrain::shm
