// Cuts Ethernet frames as a PACKET_VNET_HDR socket gives them. With segmentation offload, a frame
// may be a super-frame: up to 64 KiB of one TCP connection, which a real link carries as many
// packets.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace entrain {

// Returns the number of packets that a real link would carry for this frame: above 1 for a TCP
// super-frame over IPv4, 1 for any other frame with an IP packet, 0 for a frame without one (ARP).
// `frame` begins with a virtio_net_hdr.
size_t PacketsIn(std::string_view frame);

// Returns a frame with the packets [first, first + count) of a super-frame, as if the sender had
// sent these alone. Requires first + count <= PacketsIn(frame), which must be above 1.
std::string Piece(std::string_view frame, size_t first, size_t count);

}  // namespace entrain
