#include "bench/frame_pieces.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

namespace entrain {
namespace {

// virtio_net_hdr of <linux/virtio_net.h>, which C++ cannot include.
struct Offload {
  uint8_t flags, gso_type;
  uint16_t header_bytes, gso_size, checksum_from, checksum_at;
};
static_assert(sizeof(Offload) == 10);
constexpr uint8_t kNone = 0, kTcpOverIpv4 = 1, kWithEcn = 0x80;  // gso_type

constexpr size_t kIpAt = sizeof(Offload) + ETH_HLEN;

template <typename T>
T ReadAt(std::string_view frame, size_t at) {
  T value{};
  std::memcpy(&value, frame.data() + at, sizeof(value));
  return value;
}

template <typename T>
void WriteAt(std::string& frame, size_t at, const T& value) {
  std::memcpy(frame.data() + at, &value, sizeof(value));
}

uint16_t EtherType(std::string_view frame) {
  return frame.size() < kIpAt ? 0 : ntohs(ReadAt<ethhdr>(frame, sizeof(Offload)).h_proto);
}

// Where the parts of a TCP super-frame are.
struct Parts {
  size_t tcp_at = 0, payload_at = 0, packet_bytes = 0;
};

// Returns false if the frame is not a TCP super-frame over IPv4.
bool FindParts(std::string_view frame, Parts& parts) {
  if (EtherType(frame) != ETH_P_IP || frame.size() < kIpAt + sizeof(iphdr)) {
    return false;
  }
  const auto offload = ReadAt<Offload>(frame, 0);
  const auto ip = ReadAt<iphdr>(frame, kIpAt);
  parts.tcp_at = kIpAt + size_t{ip.ihl} * 4;
  if ((offload.gso_type & ~kWithEcn) != kTcpOverIpv4 || offload.gso_size == 0 ||
      ip.protocol != IPPROTO_TCP || frame.size() < parts.tcp_at + sizeof(tcphdr)) {
    return false;
  }
  parts.payload_at = parts.tcp_at + size_t{ReadAt<tcphdr>(frame, parts.tcp_at).doff} * 4;
  parts.packet_bytes = offload.gso_size;
  return frame.size() > parts.payload_at;
}

// The sum of the Internet checksum, not complemented, in network byte order.
uint16_t Sum(const void* bytes, size_t count, uint32_t sum) {
  for (size_t i = 0; i + 1 < count; i += 2) {
    uint16_t word = 0;
    std::memcpy(&word, static_cast<const char*>(bytes) + i, sizeof(word));
    sum += word;
  }
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xffff) + (sum >> 16));
}

}  // namespace

size_t PacketsIn(std::string_view frame) {
  Parts parts;
  if (FindParts(frame, parts)) {
    return (frame.size() - parts.payload_at + parts.packet_bytes - 1) / parts.packet_bytes;
  }
  return EtherType(frame) == ETH_P_IP || EtherType(frame) == ETH_P_IPV6 ? 1 : 0;
}

std::string Piece(std::string_view frame, size_t first, size_t count) {
  Parts parts;
  if (!FindParts(frame, parts)) {
    return std::string(frame);
  }
  const size_t begin = parts.payload_at + first * parts.packet_bytes;
  const size_t end = std::min(frame.size(), begin + count * parts.packet_bytes);
  std::string piece(frame.substr(0, parts.payload_at));
  piece.append(frame.substr(begin, end - begin));

  auto ip = ReadAt<iphdr>(piece, kIpAt);
  ip.tot_len = htons(static_cast<uint16_t>(piece.size() - kIpAt));
  ip.id = htons(static_cast<uint16_t>(ntohs(ip.id) + first));
  ip.check = 0;
  WriteAt(piece, kIpAt, ip);
  ip.check = static_cast<uint16_t>(~Sum(piece.data() + kIpAt, parts.tcp_at - kIpAt, 0));
  WriteAt(piece, kIpAt, ip);

  auto tcp = ReadAt<tcphdr>(piece, parts.tcp_at);
  tcp.seq = htonl(ntohl(tcp.seq) + static_cast<uint32_t>(first * parts.packet_bytes));
  if (first > 0) {
    tcp.res2 &= 1;  // CWR is in the first packet only
  }
  if (end < frame.size()) {
    tcp.fin = tcp.psh = 0;  // both are in the last packet only
  }
  // The checksum is left to the receiving interface. Until then the field holds the sum of the
  // pseudo-header.
  const uint32_t rest =
      htons(IPPROTO_TCP) + htons(static_cast<uint16_t>(piece.size() - parts.tcp_at));
  tcp.check = Sum(&ip.saddr, 2 * sizeof(ip.saddr), rest);
  WriteAt(piece, parts.tcp_at, tcp);

  if (end - begin <= parts.packet_bytes) {
    auto offload = ReadAt<Offload>(piece, 0);
    offload.gso_type = kNone;
    offload.gso_size = 0;
    WriteAt(piece, 0, offload);
  }
  return piece;
}

}  // namespace entrain
