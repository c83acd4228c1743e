#include "transports/shm/byte_ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "transports/shm/line_copy.h"

namespace entrain {
namespace {

constexpr uint8_t kKind = 7;
constexpr size_t kBytes = 4096;

// A ring in ordinary memory.
class ByteRing : public testing::Test {
 protected:
  void Write(const std::string& text, uint8_t kind = kKind) {
    std::byte* at = writer.Reserve(text.size());
    ASSERT_NE(at, nullptr) << text.size();
    std::memcpy(at, text.data(), text.size());
    writer.Publish(kind);
  }
  bool TryWrite(const std::string& text) {
    if (writer.Reserve(text.size()) == nullptr) {
      return false;
    }
    Write(text);
    return true;
  }
  // Returns the next record and releases it at once. Returns "(none)" when there is none.
  std::string Read() {
    RingReader::Record record;
    if (!reader.Peek(&record)) {
      return "(none)";
    }
    EXPECT_EQ(record.kind, kKind);
    const std::string text(AsText(record.payload));
    reader.Pop();
    reader.Release();
    return text;
  }
  std::atomic_ref<uint64_t> State(size_t line) { return RingFormat::StateAt(memory + line * 64); }

  alignas(64) std::byte memory[kBytes] = {};
  std::atomic<uint64_t> head{0};
  RingWriter writer{memory, kBytes, &head};
  RingReader reader{memory, kBytes, &head};
};

std::string Text(size_t bytes, size_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(seed * 31 + i * 7 + (i >> 8));
  }
  return text;
}

TEST_F(ByteRing, GivesBackWhatWasWrittenInOrder) {
  EXPECT_EQ(Read(), "(none)");
  EXPECT_FALSE(reader.HasNext());
  Write("first");
  Write("");
  Write(Text(200, 1));
  EXPECT_TRUE(reader.HasNext());
  EXPECT_TRUE(reader.MayHaveNext());
  EXPECT_EQ(Read(), "first");
  EXPECT_EQ(Read(), "");
  EXPECT_EQ(Read(), Text(200, 1));
  EXPECT_EQ(Read(), "(none)");
}

TEST_F(ByteRing, ATinyRecordTakesOneLineAndPublishesItselfThere) {
  EXPECT_EQ(RingFormat::LinesOf(0), 64u);
  EXPECT_EQ(RingFormat::LinesOf(56), 64u);
  EXPECT_EQ(RingFormat::LinesOf(57), 128u);
  EXPECT_EQ(State(0).load(), 0u);
  Write(Text(56, 1));
  EXPECT_NE(State(0).load(), 0u);
  EXPECT_EQ(State(1).load(), 0u);
}

TEST_F(ByteRing, NothingIsSeenBeforePublish) {
  std::byte* at = writer.Reserve(100);
  ASSERT_NE(at, nullptr);
  std::memset(at, 0xff, 100);
  EXPECT_EQ(Read(), "(none)");
}

TEST_F(ByteRing, AnOpenRecordIsThereForWhoLooksForItAndIsNoneYet) {
  Write("first");
  ASSERT_EQ(Read(), "first");
  const std::string text = Text(300, 1);
  std::byte* const at = writer.Reserve(text.size());
  ASSERT_NE(at, nullptr);
  RingReader::Record record;
  size_t all = 0;
  EXPECT_FALSE(reader.PeekOpen(&record, &all));
  size_t written = 0;
  for (const size_t now : {size_t{0}, size_t{100}, size_t{128}, size_t{300}}) {
    std::memcpy(at + written, text.data() + written, now - written);
    written = now;
    writer.Open(kKind, now);
    EXPECT_FALSE(reader.Peek(&record)) << now;
    EXPECT_FALSE(reader.HasNext());
    EXPECT_FALSE(reader.MayHaveNext());
    ASSERT_TRUE(reader.PeekOpen(&record, &all)) << now;
    EXPECT_EQ(record.kind, kKind);
    EXPECT_EQ(all, 300u);
    EXPECT_EQ(record.payload.size(), now / 64 * 64);  // in whole lines
    EXPECT_EQ(AsText(record.payload), text.substr(0, now / 64 * 64));
  }
  writer.Publish(kKind);
  EXPECT_FALSE(reader.PeekOpen(&record, &all));
  EXPECT_TRUE(reader.HasNext());
  EXPECT_EQ(Read(), text);
  EXPECT_EQ(Read(), "(none)");
  EXPECT_FALSE(reader.broken());
}

TEST_F(ByteRing, AnOpenRecordGivesNoMoreThanItsPayload) {
  RingReader::Record record;
  size_t all = 0;
  State(0).store(RingFormat::StateOf(kKind | RingFormat::kOpen, 100, 0xffffff));
  ASSERT_TRUE(reader.PeekOpen(&record, &all));
  EXPECT_EQ(all, 100u);
  EXPECT_EQ(record.payload.size(), 100u);
  State(0).store(RingFormat::StateOf(kKind | RingFormat::kOpen, kBytes, 1));
  EXPECT_FALSE(reader.PeekOpen(&record, &all));
  EXPECT_TRUE(reader.broken());
}

TEST_F(ByteRing, RefusesWhenFullAndGoesOnWhenReleased) {
  int written = 0;
  while (TryWrite(Text(120, static_cast<size_t>(written)))) {
    ++written;
  }
  EXPECT_EQ(written, 4096 / 128 - 1);  // one line is kept for the next state
  EXPECT_FALSE(writer.HasRoomFor(120));
  RingReader::Record record;
  ASSERT_TRUE(reader.Peek(&record));
  reader.Pop();
  EXPECT_EQ(reader.unreleased(), 128u);
  EXPECT_FALSE(writer.HasRoomFor(120)) << "popped is not released";
  reader.Release();
  EXPECT_TRUE(writer.HasRoomFor(120));
  for (int i = 1; i < written; ++i) {
    EXPECT_EQ(Read(), Text(120, static_cast<size_t>(i)));
  }
  EXPECT_FALSE(writer.broken());
  EXPECT_FALSE(reader.broken());
}

TEST_F(ByteRing, TheLargestPayloadFitsAnEmptyRingAtEveryOffset) {
  const size_t most = RingFormat::MaxPayload(kBytes);
  for (size_t offset = 0; offset < 200; ++offset) {
    ASSERT_TRUE(writer.HasRoomFor(most)) << offset;
    Write(Text(most, offset));
    ASSERT_EQ(Read(), Text(most, offset));
    Write("step");
    ASSERT_EQ(Read(), "step");
  }
}

TEST_F(ByteRing, RandomSizesWrapManyTimes) {
  std::mt19937 random(1);
  std::vector<std::string> inside;
  size_t first = 0, count = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const std::string text = Text(random() % (RingFormat::MaxPayload(kBytes) + 1), count);
      if (TryWrite(text)) {
        inside.push_back(text);
        ++count;
      }
    } else if (first < count) {
      ASSERT_EQ(Read(), inside[first]);
      inside[first++].clear();
    } else {
      ASSERT_EQ(Read(), "(none)");
    }
  }
  EXPECT_GT(count, 5000u);
}

// Payload bytes that look like records must never be read as records.
TEST_F(ByteRing, OldPayloadIsNotTakenForARecord) {
  const uint64_t looks_valid = 8 | uint64_t{kKind} << 32;
  std::string evil;
  for (int i = 0; i < 120; ++i) {
    evil.append(reinterpret_cast<const char*>(&looks_valid), sizeof(looks_valid));
  }
  for (int i = 0; i < 100; ++i) {
    Write(evil);
    ASSERT_EQ(Read(), evil);
    ASSERT_EQ(Read(), "(none)");
    Write("x");
    ASSERT_EQ(Read(), "x");
    ASSERT_EQ(Read(), "(none)");
  }
}

TEST_F(ByteRing, AReaderRefusesImpossibleStates) {
  const uint64_t bad[] = {
      uint64_t{kBytes} | uint64_t{kKind} << 32,        // longer than the ring
      uint64_t{0xffffffff} | uint64_t{kKind} << 32,    // longer than any record
      uint64_t{8},                                     // no kind
      uint64_t{8} | uint64_t{RingFormat::kPad} << 32,  // padding that does not end the ring
      ~uint64_t{0},
  };
  for (const uint64_t state : bad) {
    std::atomic<uint64_t> own_head{0};
    RingReader victim(memory, kBytes, &own_head);
    State(0).store(state);
    RingReader::Record record;
    EXPECT_FALSE(victim.Peek(&record)) << std::hex << state;
    EXPECT_TRUE(victim.broken()) << std::hex << state;
    State(0).store(8 | uint64_t{kKind} << 32);
    EXPECT_FALSE(victim.Peek(&record)) << "broken is for ever";
  }
}

TEST_F(ByteRing, AWriterRefusesImpossibleHeads) {
  for (const uint64_t bad : {uint64_t{1} << 40, uint64_t{4096 + 64}, uint64_t{65}, ~uint64_t{0}}) {
    std::memset(memory, 0, sizeof(memory));
    std::atomic<uint64_t> their_head{0};
    RingWriter victim(memory, kBytes, &their_head);
    while (victim.Reserve(500) != nullptr) {
      victim.Publish(kKind);
    }
    EXPECT_FALSE(victim.broken());
    their_head = bad;
    EXPECT_EQ(victim.Reserve(500), nullptr) << bad;
    EXPECT_TRUE(victim.broken()) << bad;
    EXPECT_EQ(victim.Reserve(1), nullptr) << "there was room, but the ring is broken";
  }
}

TEST_F(ByteRing, AWriterRefusesAHeadThatGoesBack) {
  while (TryWrite(Text(500, 1))) {
  }
  while (Read() != "(none)") {
  }
  while (TryWrite(Text(500, 1))) {
  }
  head = 0;
  EXPECT_EQ(writer.Reserve(500), nullptr);
  EXPECT_TRUE(writer.broken());
}

// Two rings, as between two processes. Each record tells how far the other ring has been read.
TEST(TwoRings, AConversationStaysInTheFirstLines) {
  constexpr size_t kLarge = 64 << 10;
  struct Ring {
    alignas(64) std::byte memory[kLarge] = {};
    std::atomic<uint64_t> head{0};
  };
  const auto rings = std::make_unique<std::array<Ring, 2>>();
  const auto use = [&](int i) { return &(*rings)[static_cast<size_t>(i)]; };
  RingWriter writers[] = {{use(0)->memory, kLarge, &use(0)->head},
                          {use(1)->memory, kLarge, &use(1)->head}};
  RingReader readers[] = {{use(1)->memory, kLarge, &use(1)->head},
                          {use(0)->memory, kLarge, &use(0)->head}};
  size_t furthest = 0;
  for (size_t i = 0; i < 5000; ++i) {
    for (const int side : {0, 1}) {
      const std::string text = Text(i % 700, i + static_cast<size_t>(side));
      std::byte* const at = writers[side].Reserve(text.size(), true);
      ASSERT_NE(at, nullptr);
      furthest = std::max(furthest, static_cast<size_t>(at - use(side)->memory));
      std::memcpy(at, text.data(), text.size());
      writers[side].Publish(kKind, readers[side].taken());
    }
    for (const int side : {0, 1}) {
      RingReader::Record record;
      ASSERT_TRUE(readers[side].Peek(&record)) << i;
      writers[side].Learn(record.taken);
      ASSERT_EQ(AsText(record.payload), Text(i % 700, i + static_cast<size_t>(1 - side)));
      readers[side].Pop();
    }
  }
  EXPECT_EQ(use(0)->head, 0u) << "nothing was released";
  EXPECT_LT(furthest, RingFormat::kHotBytes + RingFormat::kRoomInFront + 2048);
}

// The numbers of lines in a record wrap around every 2^24 lines. A ring that is never released is
// full when unread records fill it, also at the wrap-around.
TEST(TwoRings, LearnFollowsTheReaderRoundAllNumbersOfLines) {
  constexpr size_t kLarge = 32 << 10, kPayload = 4000;
  const auto memory = std::make_unique<std::array<std::byte, kLarge + 64>>();
  void* at = memory->data();
  size_t space = memory->size();
  auto* const ring = static_cast<std::byte*>(std::align(64, kLarge, at, space));
  std::fill(memory->begin(), memory->end(), std::byte{});
  std::atomic<uint64_t> head{0};
  RingWriter writer(ring, kLarge, &head);
  RingReader reader(ring, kLarge, &head);
  std::mt19937 random(5);
  uint64_t written = 0, read = 0;
  while (reader.taken() < (uint64_t{1} << 24) + 10000) {
    while (std::byte* const to = writer.Reserve(kPayload, random() % 2 == 0)) {
      ++written;
      std::memcpy(to, &written, sizeof(written));
      writer.Publish(kKind);
    }
    ASSERT_FALSE(writer.broken());
    ASSERT_GT(written, read);
    for (uint64_t some = 1 + random() % (written - read); some > 0; --some) {
      RingReader::Record record;
      ASSERT_TRUE(reader.Peek(&record));
      uint64_t number;
      std::memcpy(&number, record.payload.data(), sizeof(number));
      ASSERT_EQ(number, ++read);
      reader.Pop();
    }
    writer.Learn(static_cast<uint32_t>(reader.taken() & RingFormat::kTakenMask));
  }
}

// Whatever position the reader claims, the writer overwrites no more than the reader could have
// read.
TEST_F(ByteRing, AReaderThatTalksNonsenseHarmsOnlyItself) {
  std::mt19937 random(3);
  for (int i = 0; i < 10000; ++i) {
    writer.Learn(static_cast<uint32_t>(random()));
    if (writer.Reserve(random() % 900, random() % 2 == 0) != nullptr) {
      writer.Publish(kKind);
    }
    ASSERT_FALSE(writer.broken());
  }
}

// Checks the memory orders, also under the thread sanitizer.
TEST_F(ByteRing, TwoThreadsPassEverythingOn) {
  constexpr int kRecords = 10000;
  std::thread other([&] {
    std::mt19937 random(2);
    for (int i = 0; i < kRecords;) {
      const std::string text = Text(random() % 300, static_cast<size_t>(i));
      std::byte* at;
      while ((at = writer.Reserve(text.size())) == nullptr) {
        ASSERT_FALSE(writer.broken());
        std::this_thread::yield();
      }
      std::memcpy(at, text.data(), text.size());
      writer.Publish(kKind);
      ++i;
    }
  });
  std::mt19937 random(2);
  for (int i = 0; i < kRecords; ++i) {
    RingReader::Record record;
    while (!reader.Peek(&record)) {
      ASSERT_FALSE(reader.broken());
      std::this_thread::yield();
    }
    ASSERT_EQ(AsText(record.payload), Text(random() % 300, static_cast<size_t>(i)));
    reader.Pop();
    if (i % 3 == 0) {
      reader.Release();
    }
    if (i % 3 != 0 && reader.unreleased() > kBytes / 2) {
      reader.Release();
    }
  }
  other.join();
}

// Long records are written in pieces, and some pieces are read before the record is complete.
TEST_F(ByteRing, TwoThreadsReadWhatIsBeingWritten) {
  constexpr int kRecords = 3000;
  constexpr size_t kPiece = 128;
  std::thread other([&] {
    std::mt19937 random(4);
    for (int i = 0; i < kRecords; ++i) {
      const std::string text = Text(random() % 1000, static_cast<size_t>(i));
      std::byte* at;
      while ((at = writer.Reserve(text.size())) == nullptr) {
        ASSERT_FALSE(writer.broken());
        std::this_thread::yield();
      }
      for (size_t done = 0; done < text.size(); done += kPiece) {
        const size_t piece = std::min(kPiece, text.size() - done);
        std::memcpy(at + done, text.data() + done, piece);
        writer.Open(kKind, done + piece);
      }
      writer.Publish(kKind);
    }
  });
  std::mt19937 random(4);
  for (int i = 0; i < kRecords; ++i) {
    const std::string expected = Text(random() % 1000, static_cast<size_t>(i));
    std::string text;
    RingReader::Record record;
    while (!reader.Peek(&record)) {
      ASSERT_FALSE(reader.broken());
      size_t all = 0;
      if (reader.PeekOpen(&record, &all)) {
        ASSERT_EQ(all, expected.size());
        const absl::string_view now = AsText(record.payload);
        text.append(now.data() + text.size(), now.size() - text.size());
      }
      std::this_thread::yield();
    }
    const absl::string_view whole = AsText(record.payload);
    text.append(whole.data() + text.size(), whole.size() - text.size());
    ASSERT_EQ(text, expected) << i;
    reader.Pop();
    reader.Release();
  }
  other.join();
}

TEST(LineCopy, AnyLengthAtAnyPlaceAndNothingBeside) {
  constexpr std::byte kUntouched{0xee};
  std::array<std::byte, 400> from{}, to{};
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i % 199);
  }
  for (const auto copy : {shm::CopyIntoLines, shm::CopyOutOfLines}) {
    for (size_t bytes = 0; bytes <= 260; ++bytes) {
      for (const size_t at : {0, 1, 32, 63}) {
        to.fill(kUntouched);
        copy(to.data() + at, from.data() + 7, bytes);
        shm::FetchLines(from.data() + at, bytes);
        for (size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= at && i < at + bytes;
          ASSERT_EQ(to[i], inside ? from[i - at + 7] : kUntouched) << bytes << " at " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace entrain
