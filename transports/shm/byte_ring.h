// Records from one writer to one reader, in memory that two processes may share.
//
// The memory is a power of two of bytes, cut in lines of 64. A record begins a line and fills whole
// lines:
//
//    0        8                                          64
//    +--------+------------------------------------------+
//    | state  | payload ............                     |  a tiny message is one line:
//    +--------+------------------------------------------+  one transfer between cores
//    | ......................                            |
//    +--------+------------------------------------------+
//    | 0      |  <- where the writer is: the state of the record to come is zero, and the
//    +--------+     reader looks here
//    | old bytes, or records that the reader has not released
//
//    state = payload bytes (low 32 bits) | kind (next 8 bits, never 0) | lines taken (24 bits)
//
// A record never crosses the end of the memory: where it would, a record of kind kPad fills the
// rest. There is no tail index. The state word publishes its record, so that polling an idle ring
// reads one line, and a tiny message travels in the line of its header. The writer zeroes the
// next state before it writes a record, so old bytes are never taken for one.
//
// A long record may be opened before it is published: its state then has the bit kOpen, and instead
// of lines taken how many lines of the payload are written. It is no record yet (Peek, HasNext); but
// a reader that knows what it waits for may copy what is there meanwhile (PeekOpen).
//
// How far the reader has come, the writer learns in two ways. Each record says how far its writer
// has read the ring that comes the other way ("lines taken", modulo 2^24; Publish, Learn): in a
// conversation nothing else is needed, and a writer that asks for it goes back to the front past
// kHotBytes and what is there has been taken, so that both ends stay in lines which their first
// caches have. And `head`, in a line of the reader's own, says how far it has released; the writer
// looks at it when the room that it knows of is used up.
//
// Thread safety: one thread writes, one reads. Memory orders:
//   state   writer stores release, reader loads acquire (Peek): the payload, and the zero in the
//           next state, are there; and the writer's own reads of the other ring are over before
//           its lines are written again (Learn). The full fence behind it pairs with HasNext, see
//           "sleeping" in segment.h. Of an open record: writer stores release, reader loads
//           acquire (PeekOpen): so much of the payload is there.
//   head    reader stores seq_cst (Release), writer loads seq_cst (Reserve): the reader's copies
//           out of the lines are over before the writer overwrites them. seq_cst instead of
//           release/acquire for the same reason.
//
// Both ends check what they read from the other before using it as an index or a length, and are
// broken() for ever after the first thing that cannot be.
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
  // Where a writer may begin at the front again: so many bytes stay in the first cache.
  static constexpr size_t kHotBytes = 4096, kRoomInFront = 2048;
  // At most so much of the next record is taken when one is published.
  static constexpr size_t kTakenAhead = 2048 + kLine;
  static constexpr size_t LinesOf(size_t payload) {
    return (payload + kStateBytes + kLine - 1) & ~(kLine - 1);
  }
  // The largest payload: with its padding and the next state it fits an empty ring.
  static constexpr size_t MaxPayload(size_t ring_bytes) { return ring_bytes / 4; }

  static constexpr uint64_t StateOf(uint8_t kind, size_t payload, uint64_t lines) {
    return payload | uint64_t{kind} << 32 | lines << 40;
  }
  // A state word: in its line, and as the other end sees it.
  static std::atomic_ref<uint64_t> StateAt(std::byte* line) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(line));
  }
};

class RingWriter {
 public:
  // `data` is zero at first, aligned to 64; `bytes` a power of two, at least 4096.
  RingWriter(std::byte* data, size_t bytes, std::atomic<uint64_t>* head)
      : data_(data), bytes_(bytes), head_(head) {}

  // Where to write a payload of at most MaxPayload bytes; null when there is no room (or the ring
  // is broken).
  // `again_in_front`: may begin at the front again long before the end.
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
  // Where that would end, with the next state, from the beginning of the memory.
  size_t EndOf(size_t payload, bool again_in_front) const {
    const size_t lines = RingFormat::LinesOf(payload);
    return (PadFor(lines, again_in_front) > 0 ? 0 : Offset()) + lines + RingFormat::kLine;
  }
  // Opens what the last Reserve gave, of which the first `ready` bytes are filled; again when more is.
  void Open(uint8_t kind, size_t ready) {
    RingFormat::StateAt(data_ + Offset())
        .store(RingFormat::StateOf(static_cast<uint8_t>(kind | RingFormat::kOpen), reserved_,
                                   ready / RingFormat::kLine),
               std::memory_order_release);  // pairs with RingReader::PeekOpen
  }
  // Publishes what the last Reserve gave and the caller has filled. `taken`: RingReader::taken() of
  // the ring that comes the other way.
  void Publish(uint8_t kind, uint64_t taken = 0) { Emit(kind, taken); }
  // What the reader said in a record of the ring that comes the other way. Nonsense is ignored.
  void Learn(uint32_t taken) {
    const uint64_t behind = (tail_ / RingFormat::kLine - taken) & RingFormat::kTakenMask;
    if (behind * RingFormat::kLine < tail_ - known_head_) {
      known_head_ = tail_ - behind * RingFormat::kLine;
    }
  }

  // Whether Reserve would succeed. Ordered after whatever seq_cst store the caller made before.
  bool HasRoomFor(size_t payload) {
    const size_t lines = RingFormat::LinesOf(payload);
    const size_t to_end = bytes_ - Offset();
    return HasRoom(lines > to_end ? to_end + lines : lines);
  }
  bool broken() const { return broken_; }
  // Lines of the next record are taken ahead behind records whose payload is at most this.
  void TakeAheadUpTo(size_t payload) { longest_alike_ = RingFormat::LinesOf(payload); }

 private:
  size_t Offset() const { return static_cast<size_t>(tail_) & (bytes_ - 1); }

  // Whether to begin at the front again, long before the end: the reader has taken what is there.
  // Until it has followed there is room for kRoomInFront, so that what ends other messages need not
  // wait.
  bool MayTurnBack(size_t lines) const {
    return Offset() >= RingFormat::kHotBytes && static_cast<size_t>(tail_ - known_head_) + lines +
                                                        RingFormat::kLine +
                                                        RingFormat::kRoomInFront <=
                                                    Offset();
  }

  // What is left empty before a record of so many lines.
  size_t PadFor(size_t lines, bool again_in_front) const {
    const size_t to_end = bytes_ - Offset();
    return lines > to_end || (again_in_front && MayTurnBack(lines)) ? to_end : 0;
  }

  bool HasRoom(size_t lines) {
    const size_t needed = lines + RingFormat::kLine;  // and the next state
    if (needed <= bytes_ - static_cast<size_t>(tail_ - known_head_)) {
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
    asm volatile("prefetchw %0" : : "m"(*line));  // the builtin means this only with -mprfchw
#else
    __builtin_prefetch(line, 1);
#endif
  }

  // The state after what is reserved. Before the payload: its line may have to come from the reader,
  // and between payload and state nothing may have to be waited for (Emit).
  void ClearNext() {
    const size_t next = (Offset() + RingFormat::LinesOf(reserved_)) & (bytes_ - 1);
    // relaxed: Emit publishes it.
    RingFormat::StateAt(data_ + next).store(0, std::memory_order_relaxed);
  }

  void Emit(uint8_t kind, uint64_t taken) {
    taken_ = taken;
    std::byte* line = data_ + Offset();
    tail_ += RingFormat::LinesOf(reserved_);
    // Pairs with RingReader::Peek (release) and, with the fence, RingReader::HasNext (seq_cst). Not an
    // exchange: that takes the line once more, which a reader who looks at it has got meanwhile.
    RingFormat::StateAt(line).store(RingFormat::StateOf(kind, reserved_, taken),
                                    std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    // The record to come is likely to be like this one, and its lines and the zero behind it are
    // where the reader has been last. Taking them now, off the path, saves it the wait.
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
  uint64_t tail_ = 0, known_head_ = 0, released_ = 0;  // released_: as last read
  size_t reserved_ = 0, longest_alike_ = RingFormat::kTakenAhead;
  uint64_t taken_ = 0;  // as last published
  bool broken_ = false;
};

class RingReader {
 public:
  struct Record {
    uint8_t kind = 0;
    uint32_t taken = 0;  // for RingWriter::Learn
    ConstBytes payload;  // in the ring: the writer may still change it; check only copies
  };

  RingReader(std::byte* data, size_t bytes, std::atomic<uint64_t>* head)
      : data_(data), bytes_(bytes), head_(head) {}

  // The next record; false when there is none (or the ring is broken). Ends with Pop.
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
  // The record that is open where the next one will be, with so much of its payload as is there;
  // false when none is. After Peek has said that there is no next.
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
  // Moves on behind what Peek gave. The writer learns of it by Release.
  void Pop() { head_at_ += RingFormat::LinesOf(payload_); }
  // Gives the lines of all popped records back to the writer.
  void Release() {
    if (released_ != head_at_) {
      released_ = head_at_;
      head_->store(released_, std::memory_order_seq_cst);  // pairs with RingWriter::HasRoom
    }
  }
  // Lines popped, for RingWriter::Publish.
  uint64_t taken() const { return head_at_ / RingFormat::kLine; }
  // Popped and not yet released.
  size_t unreleased() const { return static_cast<size_t>(head_at_ - released_); }

  // Whether there is something to Peek. Ordered after whatever seq_cst store the caller made
  // before.
  bool HasNext() { return IsRecord(Load(std::memory_order_seq_cst)); }
  // The same, without the order; for looking often.
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
