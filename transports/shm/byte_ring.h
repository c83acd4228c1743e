// A ring that carries records from one writer to one reader. Its memory may be shared by two
// processes.
//
// The memory is a power of two of bytes, divided into lines of 64 bytes, the size of a cache line.
// A record begins at the start of a line and fills whole lines:
//
//    0        8                                          64
//    +--------+------------------------------------------+
//    | state  | payload ............                     |  a tiny message is one line:
//    +--------+------------------------------------------+  one cache line moves between cores
//    | ......................                            |
//    +--------+------------------------------------------+
//    | 0      |  <- the writer's position: the state of the next record is zero, and the
//    +--------+     reader polls it
//    | old bytes, or records that the reader has not released
//
//    state = payload bytes (low 32 bits) | kind (next 8 bits, never 0) | lines taken (24 bits)
//
// A record never crosses the end of the memory. If the next record does not fit before the end, a
// record of kind kPad fills the rest. There is no tail index: a record is published by its state
// word. So a poll of an idle ring reads one line, and a tiny message is in the same line as its
// state. Before the writer writes a record, it zeroes the state word after the record. So the
// reader never mistakes old bytes for a record.
//
// A long record may be opened before it is published. Its state then has the bit kOpen. The field
// "lines taken" then has the number of payload lines that are written. Peek and HasNext ignore an
// open record. But a reader that expects the record may copy the written part (PeekOpen).
//
// The writer learns the reader's position by two methods. First, each record reports how far its
// writer has read the ring of the other direction ("lines taken", modulo 2^24; see Publish and
// Learn). If both ends send records all the time, these reports suffice. Second, the word `head`
// holds the position up to which the reader has released lines. It is in a line that only the
// reader writes. The writer reads `head` when it knows of no more room.
//
// If messages and their answers alternate, a caller may set `again_in_front`. The writer then
// returns to the beginning of the memory before it reaches the end, so that both ends use only
// lines in their first-level caches. It does so if it is beyond kHotBytes and the reader has taken
// the records at the beginning.
//
// Thread safety: one thread writes, one reads. Memory orders:
//   state   writer stores release, reader loads acquire (Peek). So the reader sees the payload, and
//           the zero in the next state. Also, the writer has finished its reads of the other ring's
//           lines before the reader writes these lines again (Learn). The full fence after the
//           store pairs with HasNext; see "Sleeping" in segment.h. For an open record, writer
//           stores release and reader loads acquire (PeekOpen). So the reader sees as much of the
//           payload as the state announces.
//   head    reader stores seq_cst (Release), writer loads seq_cst (Reserve). So the reader has
//           copied out of the lines before the writer overwrites them. The order is seq_cst, not
//           release/acquire, because of "Sleeping" in segment.h.
//
// Each end checks every value from the other end before it uses the value as an index or a length.
// After the first impossible value broken() returns true for ever.
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
  // kHotBytes: the bytes in use should fit the first-level cache. So beyond this position, a writer
  // may return to the beginning. kRoomInFront: see MayTurnBack.
  static constexpr size_t kHotBytes = 4096, kRoomInFront = 2048;
  // When a record is published, the writer prefetches at most this much memory for the next record.
  static constexpr size_t kTakenAhead = 2048 + kLine;
  static constexpr size_t LinesOf(size_t payload) {
    return (payload + kStateBytes + kLine - 1) & ~(kLine - 1);
  }
  // Returns the largest payload of a record. A record of this size fits an empty ring together with
  // padding and the next state.
  static constexpr size_t MaxPayload(size_t ring_bytes) { return ring_bytes / 4; }

  static constexpr uint64_t StateOf(uint8_t kind, size_t payload, uint64_t lines) {
    return payload | uint64_t{kind} << 32 | lines << 40;
  }
  // Returns the state word at the beginning of `line` as an atomic.
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

  // Returns where to write a payload of at most MaxPayload bytes. Returns null if there is no room,
  // or if the ring is broken. `again_in_front`: the record may be put at the beginning of the
  // memory, even if the writer is not near the end.
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
  // Returns the end of the record that Reserve would make with these arguments, in bytes from the
  // beginning of the memory. The line of the next state belongs to the record here.
  size_t EndOf(size_t payload, bool again_in_front) const {
    const size_t lines = RingFormat::LinesOf(payload);
    return (PadFor(lines, again_in_front) > 0 ? 0 : Offset()) + lines + RingFormat::kLine;
  }
  // Opens the record of the last Reserve. The caller has written the first `ready` bytes of the
  // payload. May be called again with more bytes.
  void Open(uint8_t kind, size_t ready) {
    RingFormat::StateAt(data_ + Offset())
        .store(RingFormat::StateOf(static_cast<uint8_t>(kind | RingFormat::kOpen), reserved_,
                                   ready / RingFormat::kLine),
               std::memory_order_release);  // pairs with RingReader::PeekOpen
  }
  // Publishes the record of the last Reserve, which the caller has filled. `taken` is
  // RingReader::taken() of the ring in the other direction.
  void Publish(uint8_t kind, uint64_t taken = 0) { Emit(kind, taken); }
  // Stores the position that the reader has reported in a record of the other ring. Ignores
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
  // Sets a length. After each record with a payload of at most this length, the writer prefetches
  // the lines of the next record.
  void TakeAheadUpTo(size_t payload) { longest_alike_ = RingFormat::LinesOf(payload); }

 private:
  size_t Offset() const { return static_cast<size_t>(tail_) & (bytes_ - 1); }

  // Returns true if the writer may return to the beginning before it reaches the end, because the
  // reader has taken the records there. After the next record, kRoomInFront bytes must still be
  // free there. So short records (such as kDone) need not wait for the reader.
  bool MayTurnBack(size_t lines) const {
    return Offset() >= RingFormat::kHotBytes && static_cast<size_t>(tail_ - known_head_) + lines +
                                                        RingFormat::kLine +
                                                        RingFormat::kRoomInFront <=
                                                    Offset();
  }

  // Returns the number of bytes that stay unused before a record that fills `lines` bytes.
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
    // __builtin_prefetch prefetches for writing only with the compiler option -mprfchw.
    asm volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
  }

  // Zeroes the state word after the reserved record. Must be called before the payload is written.
  // The line of this word may have to come from the reader's core, and this wait must not delay
  // Emit.
  void ClearNext() {
    const size_t next = (Offset() + RingFormat::LinesOf(reserved_)) & (bytes_ - 1);
    // Relaxed order, because Emit publishes this store.
    RingFormat::StateAt(data_ + next).store(0, std::memory_order_relaxed);
  }

  void Emit(uint8_t kind, uint64_t taken) {
    taken_ = taken;
    std::byte* line = data_ + Offset();
    tail_ += RingFormat::LinesOf(reserved_);
    // The release pairs with RingReader::Peek, the fence with RingReader::HasNext (seq_cst). An
    // exchange could replace store and fence. But if a polling reader has fetched the line
    // meanwhile, the exchange would have to fetch the line back first.
    RingFormat::StateAt(line).store(RingFormat::StateOf(kind, reserved_, taken),
                                    std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // The next record is probably as long as this one. The lines that it will fill are now in the
    // cache of the reader's core. This prefetch is off the critical path, and saves the wait for
    // these lines when the next record is written.
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
    ConstBytes payload;  // in the ring, where the writer may change it: copy before checking
  };

  RingReader(std::byte* data, size_t bytes, std::atomic<uint64_t>* head)
      : data_(data), bytes_(bytes), head_(head) {}

  // Stores the next record in `*record` and returns true, or returns false if there is none (or the
  // ring is broken). The record stays until Pop.
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
  // If the next record is open, returns true and stores it in `*record`, with the part of its
  // payload that is written; `*payload` is the length of the whole payload. Returns false if it is
  // not open. Must be called after Peek has returned false.
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
  // Removes the record of the last Peek. Only Release tells the writer that its lines are free.
  void Pop() { head_at_ += RingFormat::LinesOf(payload_); }
  // Tells the writer that the lines of all popped records are free.
  void Release() {
    if (released_ != head_at_) {
      released_ = head_at_;
      head_->store(released_, std::memory_order_seq_cst);  // pairs with RingWriter::HasRoom
    }
  }
  // Returns the number of lines popped, for RingWriter::Publish.
  uint64_t taken() const { return head_at_ / RingFormat::kLine; }
  // Returns the number of bytes popped but not released.
  size_t unreleased() const { return static_cast<size_t>(head_at_ - released_); }

  // Returns true if Peek would find a record. Ordered after the caller's last seq_cst store.
  bool HasNext() { return IsRecord(Load(std::memory_order_seq_cst)); }
  // Does the same as HasNext, but without the ordering. For frequent polls.
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
