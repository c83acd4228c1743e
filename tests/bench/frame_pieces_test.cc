#include "bench/frame_pieces.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace entrain {
namespace {

// Offsets in a frame: 10 bytes for offloads, 14 of Ethernet, 20 of IPv4, 20 of TCP.
constexpr size_t kIp = 24, kTcp = 44, kPayload = 64, kPacket = 100;

void Set(std::string& frame, size_t at, int bytes, uint64_t value) {  // in network byte order
  for (int i = bytes - 1; i >= 0; --i, value >>= 8) {
    frame[at + static_cast<size_t>(i)] = static_cast<char>(value);
  }
}

uint64_t Get(std::string_view frame, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value = value << 8 | static_cast<uint8_t>(frame[at + static_cast<size_t>(i)]);
  }
  return value;
}

uint16_t Sum(std::string_view bytes, uint64_t sum) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    sum += Get(bytes, i, 2);
  }
  while (sum >> 16 != 0) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<uint16_t>(sum);
}

// A TCP super-frame with packets of 100 bytes, whose payload counts upwards.
std::string SuperFrame(size_t payload) {
  std::string frame(kPayload, '\0');
  frame[0] = 1;                           // the checksum is left to the receiver
  frame[1] = 1;                           // TCP over IPv4
  frame[4] = static_cast<char>(kPacket);  // in host byte order
  Set(frame, 10 + 12, 2, 0x0800);
  Set(frame, kIp, 1, 0x45);
  Set(frame, kIp + 2, 2, 40 + payload);
  Set(frame, kIp + 4, 2, 0xffff);  // identification
  Set(frame, kIp + 9, 1, 6);
  Set(frame, kIp + 12, 8, 0x0a4d00010a4d0002);
  Set(frame, kTcp + 4, 4, 0xffffff9c);  // the sequence number wraps after 100 bytes
  Set(frame, kTcp + 12, 2, 0x5099);     // 20 bytes; CWR, ACK, PSH, FIN
  for (size_t i = 0; i < payload; ++i) {
    frame.push_back(static_cast<char>(i));
  }
  return frame;
}

TEST(FramePieces, CountsThePacketsOfARealLink) {
  EXPECT_EQ(PacketsIn(SuperFrame(1)), 1u);
  EXPECT_EQ(PacketsIn(SuperFrame(100)), 1u);
  EXPECT_EQ(PacketsIn(SuperFrame(101)), 2u);
  EXPECT_EQ(PacketsIn(SuperFrame(350)), 4u);
  std::string single = SuperFrame(350);
  single[1] = 0;
  EXPECT_EQ(PacketsIn(single), 1u);
  std::string arp = SuperFrame(28);
  Set(arp, 10 + 12, 2, 0x0806);
  EXPECT_EQ(PacketsIn(arp), 0u);
  EXPECT_EQ(PacketsIn(std::string(12, '\0')), 0u);
}

TEST(FramePieces, PiecesAreWhatTheSenderWouldHaveSentAlone) {
  const std::string whole = SuperFrame(350);
  for (size_t first = 0; first < 4; ++first) {
    for (size_t count = 1; first + count <= 4; ++count) {
      const std::string piece = Piece(whole, first, count);
      const size_t payload = first + count == 4 ? 350 - first * 100 : count * 100;
      ASSERT_EQ(piece.size(), kPayload + payload);
      EXPECT_EQ(piece.substr(kPayload), whole.substr(kPayload + first * 100, payload));
      EXPECT_EQ(Get(piece, kIp + 2, 2), 40 + payload);
      EXPECT_EQ(Get(piece, kIp + 4, 2), (0xffff + first) & 0xffff);
      EXPECT_EQ(Sum(std::string_view(piece).substr(kIp, 20), 0), 0xffff);
      EXPECT_EQ(Get(piece, kTcp + 4, 4), (0xffffff9c + first * 100) & 0xffffffff);
      const bool last = first + count == 4;
      EXPECT_EQ(Get(piece, kTcp + 13, 1), (first == 0 ? 0x80u : 0u) | 0x10u | (last ? 0x09u : 0u));
      // Of the pseudo-header: addresses, protocol, length.
      EXPECT_EQ(Get(piece, kTcp + 16, 2),
                Sum(std::string_view(piece).substr(kIp + 12, 8), 6 + 20 + payload));
      EXPECT_EQ(piece[0], 1);
      EXPECT_EQ(piece[1], payload > 100 ? 1 : 0);
      EXPECT_EQ(piece[4], payload > 100 ? 100 : 0);
      EXPECT_EQ(PacketsIn(piece), count);
    }
  }
}

}  // namespace
}  // namespace entrain
