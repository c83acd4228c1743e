// The memory that two processes share: one memfd per pair of processes. The dialling side creates
// the memfd, and both sides map it.
//
//   0                 header: magic, version, sizes
//   128               words of side 0 (dialer)        Side, below
//   2048              words of side 1 (listener)
//   4096              further revocation words of side 0 (Side has room only for the first
//                     contexts)
//   4096 + 8 KiB      further revocation words of side 1
//   20 KiB            ring written by side 0
//   ... + ring bytes  ring written by side 1
//
// lib/memory/sealed_memory.h describes this kind of memory. Forked children do not inherit the
// mapping.
//
// Sleeping. Before a side sleeps, it stores in its `sleeping` word for which events it must be
// woken. Then it checks once more for these events. The other side publishes an event, and then
// reads the word:
//
//     sleeper   sleeping = kForData            |   peer   state = record  (or head = released)
//               read state (or head)           |          if sleeping != kAwake: ring the doorbell
//
// All four accesses are seq_cst, with one exception: the store of a record's state is followed by a
// full fence, before the load of `sleeping`. So both sides see the same order, and at least one
// side sees the store of the other side. Either the sleeper sees the record, or the peer rings.
//
// Revocation. To take back a buffer that an RTS has named, a side first sets the bit of the context
// in its `revoked` words. Then it passes a full fence, and only then returns the buffer to the
// caller. A peer that copies out of the buffer passes a fence after the copy, and then checks the
// bit. If the peer has read any byte that was written after the revocation, it sees the bit.
// Contexts are never reused, so bits are never cleared. `closed` revokes all contexts at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

#include "lib/memory/sealed_memory.h"
#include "lib/net/socket.h"

namespace entrain::shm {

enum Sleeping : uint32_t { kAwake = 0, kForData = 1, kForDataOrRoom = 2 };

// The words by which one side, the owner, informs its peer without records. The owner writes the
// words, and the peer reads them. There is one exception: when the peer rings, it sets `sleeping`
// to kAwake, so that it rings only once.
struct Side {
  static constexpr size_t kContexts = 1 << 16, kFirstContexts = 13824;

  alignas(64) std::atomic<uint32_t> sleeping;
  // head: the position up to which the owner has released the peer's ring. consumed: the cost of
  // the eager messages that the owner has taken.
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint64_t> consumed;
  alignas(64) std::atomic<uint32_t> closed;
  // The words of the first contexts. Segment::revoked returns the word of any context.
  alignas(64) std::atomic<uint64_t> revoked[kFirstContexts / 64];
};
static_assert(sizeof(Side) == 2048 - 128, "the first page holds the header and two");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would be one process's own");

class Segment {
 public:
  static constexpr size_t kPage = 4096;
  // The part of each ring that is allocated at first. It is enough for small messages that
  // alternate with their answers.
  static constexpr size_t kFirstOfRing = 2 * kPage;
  // Size of those revocation words of a side that do not fit in Side.
  static constexpr size_t kFurtherBytes = 2 * kPage;
  static constexpr size_t kMinRing = 32 << 10, kMaxRing = 64 << 20;

  // Creates a segment. `ring_bytes` must be a power of two within the limits above.
  // RESOURCE_EXHAUSTED: memory is short.
  static absl::StatusOr<Segment> Create(size_t ring_bytes);
  // Maps a segment that a peer has created. Checks type, size, seals and header before it uses
  // anything else.
  static absl::StatusOr<Segment> Adopt(Fd memory);

  int fd() const { return memory_.fd(); }
  size_t ring_bytes() const { return ring_bytes_; }
  // Allocates the whole ring that `writer` writes, not only its first kFirstOfRing bytes. The
  // writer must call this function before it writes beyond these bytes.
  absl::Status ReserveRing(int writer) const;
  // Enters all pages of a ring in this process's page tables (SealedMemory::Populate). The whole
  // ring must be allocated. Without this call, the first copies take one page fault per page, and a
  // fault costs more than the copy of a page. The ring's writer and its reader each call this
  // function.
  void MapRing(int writer) const;
  // Allocates the revocation words of all contexts of a side, not only of the first
  // Side::kFirstContexts. A side must call this before it revokes a later context.
  absl::Status ReserveWords(int number) const;
  // Gives up the memory, for which the peer has no use any more. This side then reads zeros.
  void Drop() { memory_.Drop(); }
  Side& side(int number) const;
  // Returns the word that holds the bit of `context` (and the bits of 63 other contexts).
  std::atomic<uint64_t>& revoked(int number, size_t context) const;
  std::byte* ring(int writer) const;

 private:
  absl::Status ReserveFirst() const;
  std::byte* further(int number) const;
  absl::Status Reserve(const void* part, size_t bytes) const;

  SealedMemory memory_;
  size_t ring_bytes_ = 0;
};

// Must be called after a revocation was set, and before the memory is given back.
void FenceAfterRevoking();
// Must be called after a peer's memory was read, and before the check for a revocation.
void FenceAfterCopying();

}  // namespace entrain::shm
