// One endpoint of UCX: sends packets, orders received packets by their number, and ends the
// endpoint.
//
//   open --Depart--> departing --the peer said CLOSE, failure, or time--> closing --> closed
//
// UCX uses the memory of a send until the send is done, and a send cannot be cancelled. So this
// class never gives the caller's memory to UCX. It copies a payload of up to kSmall bytes. For a
// larger payload, UCX calls a callback that packs the payload into UCX's buffers. The callback
// reads the caller's memory or, after Recall, a copy.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/net/socket.h"
#include "transports/ucx/ucx_packet.h"
#include "transports/ucx/worker.h"

namespace entrain::ucx {

class UcxEndpoint;

constexpr unsigned kPackets = 0;             // id of the library's active message
extern const ucp_generic_dt_ops_t kPacking;  // callbacks of Worker::packed

// The owner of payloads that are lent to a Wire.
class Lender {
 public:
  virtual ~Lender() = default;
  // Worker::Progress calls this when UCX has packed `bytes` bytes of a message's payload.
  virtual void OnTaken(uint64_t message, int64_t bytes) = 0;
};

class Wire {
 public:
  static constexpr size_t kInFlight = 8;  // most packets that UCX is sending at the same time
  static constexpr size_t kSmall = 1024;

  Wire(Worker* worker, const PeerId& peer, Lender* lender, UcxEndpoint* owner);
  // `address` is that of the peer's worker.
  absl::Status Open(const std::string& address);

  const PeerId& peer() const { return peer_; }
  uint64_t path() const { return path_; }  // the number that packets to this side must carry
  UcxEndpoint* owner() const { return owner_; }
  const absl::Status& failure() const { return failure_; }  // error of the connection
  // WatchProcess stores a pidfd of the peer's process. process_fd returns this pidfd, or -1 if
  // there is none. It is readable once the process is dead. ProcessDied makes dead() return true.
  void WatchProcess(Fd fd) { process_ = std::move(fd); }
  int process_fd() const { return process_.get(); }
  void ProcessDied() { process_.Reset(), dead_ = true; }
  bool dead() const { return dead_; }
  bool ready() const { return failure_.ok() && !free_.empty(); }
  bool pending() const { return pending_ > 0; }
  // Sends a packet. Must be called only while ready(). Returns true if the Wire does not need
  // `payload` any more. Otherwise `payload` is lent for `message` until OnTaken or Recall.
  bool Send(const PacketHeader& packet, ConstBytes payload, uint64_t message);
  // Takes back the memory lent for this message (0: for all messages). Copies the bytes that are
  // not yet packed. Afterwards the memory is not touched any more, and no OnTaken follows.
  void Recall(uint64_t message);

  // Must be called with each received packet. Returns true if the packet is the next in order.
  // Otherwise either the packet came too early, and Next will return it in its turn, or the packet
  // breaks the protocol, and the wire has failed.
  bool Arrived(const Header& header, ConstBytes payload);
  bool Next(PacketHeader* header, std::string* payload);
  // Sets the peer's number for this path, from its HELLO.
  void Introduce(uint64_t path) { peer_path_ = path; }
  bool introduced() const { return peer_path_ != 0; }

  // Must be called when the owner has ended. Flush then sends the owner's last control messages and
  // CLOSE with `why`, if that is possible before `by`.
  void Depart(std::deque<std::string> controls, absl::string_view why, Deadline by);
  bool closing() const { return closing_; }
  Deadline depart_by() const { return depart_by_; }
  void PeerClosed() { peer_closed_ = true; }
  void Fail(const absl::Status& why);
  // Makes progress with departing and closing. Returns the number of packets sent.
  int Flush(int64_t now);
  // Returns true if UCX does not use any memory of this wire any more.
  bool closed() const { return closing_ && close_request_ == nullptr && pending_ == 0; }
  // For the destruction of the transport. Returns true if the connection is established, or will
  // never be established.
  bool Connected() const;
  // If necessary, starts a flush of UCX's endpoint for the last messages. Returns true if these
  // messages have been sent as far as possible.
  bool Flushed();
  void StartClose();
  void CheckClose();
  // Frees the UCX requests of the wire. Must be called before the wire is destroyed, because a
  // flush may last longer than the close.
  void Abandon();

 private:
  friend struct Packing;
  struct Packet {
    Header header;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t message = 0;  // 0: no memory is lent
    Wire* wire = nullptr;
    bool busy = false;
    std::unique_ptr<std::byte[]> copy;
    std::array<std::byte, kSmall> small;
  };
  static void OnSent(void* request, ucs_status_t status, void* packet);
  static void OnError(void* wire, ucp_ep_h endpoint, ucs_status_t status);
  void Done(Packet* packet);
  bool said_all() const { return farewell_.empty() && pending_ == 0; }
  bool Finished(void** request) const;

  Worker* const worker_;
  const PeerId peer_;
  Lender* lender_;
  UcxEndpoint* owner_;
  uint64_t path_ = 0, peer_path_ = 0;
  ucp_ep_h endpoint_ = nullptr;
  absl::Status failure_;
  std::vector<std::unique_ptr<Packet>> packets_;
  std::vector<Packet*> free_;
  size_t pending_ = 0;
  uint64_t next_number_ = 0, expected_ = 0;
  std::map<uint64_t, std::pair<PacketHeader, std::string>> ahead_;  // received before their turn
  std::deque<std::pair<PacketType, std::string>> farewell_;
  Deadline depart_by_;
  Fd process_;
  bool dead_ = false, departing_ = false, peer_closed_ = false, closing_ = false;
  bool flushing_ = false;
  void *flush_request_ = nullptr, *close_request_ = nullptr;
};

}  // namespace entrain::ucx
