// Records from one writer to one reader, in memory that two processes may share.
//
// The memory is a power of two of bytes, divided into lines of 64 bytes. A record begins at a line
// and fills whole lines:
//
//    0        8                                          64
//    +--------+------------------------------------------+
//    | state  | payload ............                     |  a tiny message is one line:
//    +--------+------------------------------------------+  one transfer between cores
//    | ......................                            |
//    +--------+------------------------------------------+
//    | 0      |  <- the writer's position: the state of the next record is zero, and the
//    +--------+     reader polls it
//    | old bytes, or records that the reader has not released
//
//    state = payload bytes (low 32 bits) | kind (next 8 bits, never 0) | lines taken (24 bits)
//
// A record never crosses the end of the memory: if it would, a record of kind kPad fills the rest.
// There is no tail index. The state word publishes its record, so polling an idle ring reads one
// line, and a tiny message travels in the line of its header. The writer zeroes the next state
// before it writes a record, so the reader never takes old bytes for a record.
//
// A long record may be opened before it is published. Its state then has the bit kOpen and, in
// place of "lines taken", the number of payload lines that are written. An open record is not a
// record yet (Peek, HasNext), but a reader that expects it may already copy the written part
// (PeekOpen).
//
// The writer learns the reader's position in two ways. First, each record says how far its own
// writer has read the ring in the other direction ("lines taken", modulo 2^24; Publish, Learn). In
// a conversation this suffices. A writer in a conversation may ask to return to the front of the
// ring (`again_in_front`), so that both ends use only lines that their first-level caches hold. It
// returns if it is beyond kHotBytes and the reader has taken the records in front. Second, the word
// `head`, in a line of the reader's own, holds the position up to which the reader has released
// lines. The writer reads it when it has used up the room it knows of.
//
// Thread safety: one thread writes, one reads. Memory orders:
//   state   writer stores release, reader loads acquire (Peek): the reader sees the payload, and
//           the zero in the next state; and the writer's own reads of the other ring are over
//           before its lines are written again (Learn). The full fence behind the store pairs
//           with HasNext, see "sleeping" in segment.h. For an open record, writer stores release
//           and reader loads acquire (PeekOpen): the part of the payload that the state announces
//           is there.
//   head    reader stores seq_cst (Release), writer loads seq_cst (Reserve): the reader's copies
//           out of the lines are over before the writer overwrites them. seq_cst instead of
//           release/acquire for the same reason.
//
// Both ends check every value from the other end before they use it as an index or a length. After
// the first impossible value broken() is true for ever.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/bytes.h"

namespace entrain {

struct RingFormat {
  static constexpr size_t kLine = 64, kStateBytes = 8;
  static constexpr uint8_t kPad = 1;  // kinds of records begin at 2, below kOpen
  static constexpr uint8_t kOpen = 0x80;
  static constexpr uint64_t kTakenMask = 0xffffff;  // lines; far more than a ring has
  // A writer may return to the front once it is beyond kHotBytes. So the bytes in use stay in the
  // first-level cache. kRoomInFront: see MayTurnBack.
  static constexpr size_t kHotBytes = 4096, kRoomInFront = 2048;
  // When a record is published, at most this much of the next one is prefetched for writing.
  static constexpr size_t kTakenAhead = 2048 + kLine;
  static constexpr size_t LinesOf(size_t payload) {
    return (payload + kStateBytes + kLine - 1) & ~(kLine - 1);
  }
  // The largest payload. It fits an empty ring together with padding and the next state.
  static constexpr size_t MaxPayload(size_t ring_bytes) { return ring_bytes / 4; }

  static constexpr uint64_t StateOf(uint8_t kind, size_t payload, uint64_t lines) {
    return payload | uint64_t{kind} << 32 | lines << 40;
  }
  // Returns a state word as an atomic. It lies in its line, and the other process sees it there.
  static std::atomic_ref<uint64_t> StateAt(std::byte* line) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(line));
  }
};

class RingWriter {
 public:
  // `data` must be zero at first and aligned to 64. `bytes` must be a power of two of at least
  // 4096.
  RingWriter(std::byte* data, size_t bytes, std::atomic<uint64_t>* head)
      : data_(data), bytes_(bytes), head_(head) {}

  // Returns the place for a payload of at most MaxPayload bytes, or null if there is no room (or
  // the ring is broken). With `again_in_front` the record may begin at the front again although the
  // writer is not near the end.
  std::byte* Reserve(size_t payload, bool again_in_front = false) {
    const size_t lines = RingFormat::LinesOf(payload);
    const size_t pad = PadFor(lines, again_in_front);
    if (!HasRoom(pad + lines)) {
      return nullptr;
    }
    if (pad > 0) {
      reserved_ = pad - RingFormat::kStateBytes;
      ClearNext();
      Emit(RingFormat::kPad, taken_);
    }
    reserved_ = payload;
    ClearNext();
    return data_ + Offset() + RingFormat::kStateBytes;
  }
  // Returns the end of the record that Reserve would make with these arguments, including the state
  // of the record behind it, in bytes from the beginning of the memory.
  size_t EndOf(size_t payload, bool again_in_front) const {
    const size_t lines = RingFormat::LinesOf(payload);
    return (PadFor(lines, again_in_front) > 0 ? 0 : Offset()) + lines + RingFormat::kLine;
  }
  // Opens the record of the last Reserve, of which the first `ready` bytes are filled. May be
  // called again when more is filled.
  void Open(uint8_t kind, size_t ready) {
    RingFormat::StateAt(data_ + Offset())
        .store(RingFormat::StateOf(static_cast<uint8_t>(kind | RingFormat::kOpen), reserved_,
                                   ready / RingFormat::kLine),
               std::memory_order_release);  // pairs with RingReader::PeekOpen
  }
  // Publishes the record of the last Reserve, which the caller has filled. `taken` is
  // RingReader::taken() of the ring in the other direction.
  void Publish(uint8_t kind, uint64_t taken = 0) { Emit(kind, taken); }
  // Takes the position that the reader has written in a record of the other ring. Ignores
  // impossible values.
  void Learn(uint32_t taken) {
    const uint64_t behind = (tail_ / RingFormat::kLine - taken) & RingFormat::kTakenMask;
    if (behind * RingFormat::kLine < tail_ - known_head_) {
      known_head_ = tail_ - behind * RingFormat::kLine;
    }
  }

  // Returns true if Reserve would succeed. Ordered after the caller's last seq_cst store.
  bool HasRoomFor(size_t payload) {
    const size_t lines = RingFormat::LinesOf(payload);
    const size_t to_end = bytes_ - Offset();
    return HasRoom(lines > to_end ? to_end + lines : lines);
  }
  bool broken() const { return broken_; }
  // Sets a length. After each record with a payload of at most this length, the lines of the next
  // record are prefetched.
  void TakeAheadUpTo(size_t payload) { longest_alike_ = RingFormat::LinesOf(payload); }

 private:
  size_t Offset() const { return static_cast<size_t>(tail_) & (bytes_ - 1); }

  // Returns true if the writer may return to the front long before the end, because the reader has
  // taken the records there. kRoomInFront stays free until the reader has followed, so that records
  // that end other messages need not wait.
  bool MayTurnBack(size_t lines) const {
    return Offset() >= RingFormat::kHotBytes && static_cast<size_t>(tail_ - known_head_) + lines +
                                                        RingFormat::kLine +
                                                        RingFormat::kRoomInFront <=
                                                    Offset();
  }

  // Returns the number of bytes left empty before a record that fills `lines` bytes.
  size_t PadFor(size_t lines, bool again_in_front) const {
    const size_t to_end = bytes_ - Offset();
    return lines > to_end || (again_in_front && MayTurnBack(lines)) ? to_end : 0;
  }

  bool HasRoom(size_t lines) {
    const size_t needed = lines + RingFormat::kLine;  // includes the next state
    if (!broken_ && needed <= bytes_ - static_cast<size_t>(tail_ - known_head_)) {
      return true;
    }
    const uint64_t head = head_->load(std::memory_order_seq_cst);  // pairs with RingReader::Release
    if (head < released_ || head > tail_ || head % RingFormat::kLine != 0) {
      broken_ = true;
      return false;
    }
    released_ = head;
    known_head_ = std::max(known_head_, head);  // Learn may be ahead
    return !broken_ && needed <= bytes_ - static_cast<size_t>(tail_ - known_head_);
  }

  static void TakeLine(const std::byte* line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*line));  // the builtin does this only with -mprfchw
#else
    __builtin_prefetch(line, 1);
#endif
  }

  // Zeroes the state after the reserved record. Must precede the writing of the payload: the line
  // may have to come from the reader's core, and there must be no wait between payload and state
  // (Emit).
  void ClearNext() {
    const size_t next = (Offset() + RingFormat::LinesOf(reserved_)) & (bytes_ - 1);
    // Relaxed order, because Emit publishes it.
    RingFormat::StateAt(data_ + next).store(0, std::memory_order_relaxed);
  }

  void Emit(uint8_t kind, uint64_t taken) {
    taken_ = taken;
    std::byte* line = data_ + Offset();
    tail_ += RingFormat::LinesOf(reserved_);
    // Pairs with RingReader::Peek (release) and, with the fence, with RingReader::HasNext
    // (seq_cst). An exchange instead of the fence would have to fetch the line again if a polling
    // reader has fetched it meanwhile.
    RingFormat::StateAt(line).store(RingFormat::StateOf(kind, reserved_, taken),
                                    std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // The next record probably resembles this one; its lines and the zero behind it are in the
    // cache of the reader's core. Prefetching them now, off the critical path, saves the next
    // record that wait.
    const size_t lines = RingFormat::LinesOf(reserved_);
    const size_t ahead = lines <= longest_alike_ ? lines : RingFormat::kLine;
    for (size_t at = RingFormat::kLine; at <= std::min(ahead, RingFormat::kTakenAhead);
         at += RingFormat::kLine) {
      TakeLine(data_ + ((static_cast<size_t>(tail_) + at) & (bytes_ - 1)));
    }
  }

  std::byte* const data_;
  const size_t bytes_;
  std::atomic<uint64_t>* const head_;
  uint64_t tail_ = 0, known_head_ = 0, released_ = 0;  // released_: value of *head_ last read
  size_t reserved_ = 0, longest_alike_ = RingFormat::kTakenAhead;
  uint64_t taken_ = 0;  // value last published
  bool broken_ = false;
};

class RingReader {
 public:
  struct Record {
    uint8_t kind = 0;
    uint32_t taken = 0;  // for RingWriter::Learn
    ConstBytes payload;  // in the ring, where the writer may still change it: copy before checking
  };

  RingReader(std::byte* data, size_t bytes, std::atomic<uint64_t>* head)
      : data_(data), bytes_(bytes), head_(head) {}

  // Returns the next record, or false if there is none (or the ring is broken). Pop ends it.
  bool Peek(Record* record) {
    uint64_t state = Load(std::memory_order_acquire);  // pairs with RingWriter::Emit
    if (state != 0 && KindOf(state) == RingFormat::kPad) {
      if (!Check(state) || (state & 0xffffffff) + RingFormat::kStateBytes != bytes_ - Offset()) {
        broken_ = true;
        return false;
      }
      head_at_ += bytes_ - Offset();
      state = Load(std::memory_order_acquire);
    }
    if (state == 0 || !Check(state) || IsOpen(state)) {
      return false;
    }
    payload_ = static_cast<size_t>(state & 0xffffffff);
    *record = {KindOf(state),
               static_cast<uint32_t>(state >> 40),
               {data_ + Offset() + RingFormat::kStateBytes, payload_}};
    return true;
  }
  // Returns the open record at the place of the next record, with the part of its payload that is
  // written; false if there is none. Must be called after Peek has returned false.
  bool PeekOpen(Record* record, size_t* payload) {
    const uint64_t state = Load(std::memory_order_acquire);  // pairs with RingWriter::Open
    if (!IsOpen(state) || !Check(state)) {
      return false;
    }
    *payload = static_cast<size_t>(state & 0xffffffff);
    const auto ready = std::min(*payload, static_cast<size_t>(state >> 40) * RingFormat::kLine);
    *record = {static_cast<uint8_t>(KindOf(state) & ~RingFormat::kOpen),
               0,
               {data_ + Offset() + RingFormat::kStateBytes, ready}};
    return true;
  }
  // Moves behind the record of Peek. The writer learns it from Release.
  void Pop() { head_at_ += RingFormat::LinesOf(payload_); }
  // Gives the lines of all popped records back to the writer.
  void Release() {
    if (released_ != head_at_) {
      released_ = head_at_;
      head_->store(released_, std::memory_order_seq_cst);  // pairs with RingWriter::HasRoom
    }
  }
  // Returns the lines popped, for RingWriter::Publish.
  uint64_t taken() const { return head_at_ / RingFormat::kLine; }
  // Returns the bytes popped but not released.
  size_t unreleased() const { return static_cast<size_t>(head_at_ - released_); }

  // Returns true if Peek would find a record. Ordered after the caller's last seq_cst store.
  bool HasNext() { return IsRecord(Load(std::memory_order_seq_cst)); }
  // Does the same without the ordering, for frequent polls.
  bool MayHaveNext() { return IsRecord(Load(std::memory_order_relaxed)); }
  bool broken() const { return broken_; }

 private:
  size_t Offset() const { return static_cast<size_t>(head_at_) & (bytes_ - 1); }
  static uint8_t KindOf(uint64_t state) { return static_cast<uint8_t>(state >> 32); }
  static bool IsOpen(uint64_t state) { return (KindOf(state) & RingFormat::kOpen) != 0; }
  uint64_t Load(std::memory_order order) {
    return RingFormat::StateAt(data_ + Offset()).load(order);
  }
  static bool IsRecord(uint64_t state) { return state != 0 && !IsOpen(state); }

  bool Check(uint64_t state) {
    const size_t payload = static_cast<size_t>(state & 0xffffffff);
    if (broken_ || KindOf(state) == 0 || RingFormat::LinesOf(payload) > bytes_ - Offset()) {
      broken_ = true;
    }
    return !broken_;
  }

  std::byte* const data_;
  const size_t bytes_;
  std::atomic<uint64_t>* const head_;
  uint64_t head_at_ = 0, released_ = 0;
  size_t payload_ = 0;
  bool broken_ = false;
};

}  // namespace entrain
