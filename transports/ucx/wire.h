// One endpoint of UCX: packets out, packets in by their number, and its end.
//
//   open --Depart--> departing --the peer said CLOSE, failure, or time--> closing --> closed
//
// UCX cannot give back memory that it was lent for a send before the send is done. So it is never
// lent the caller's: a payload up to kSmall is copied here, a larger one is packed by UCX calling
// back, from the caller's memory or, once that has been recalled, from a copy.
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

constexpr unsigned kPackets = 0;             // the number of our active message
extern const ucp_generic_dt_ops_t kPacking;  // what Worker::packed stands for

// Who lends payloads.
class Lender {
 public:
  virtual ~Lender() = default;
  // UCX has packed so many bytes of a message's payload. From Worker::Progress.
  virtual void OnTaken(uint64_t message, int64_t bytes) = 0;
};

class Wire {
 public:
  static constexpr size_t kInFlight = 8;  // packets that UCX has not taken yet
  static constexpr size_t kSmall = 1024;

  Wire(Worker* worker, const PeerId& peer, Lender* lender, UcxEndpoint* owner);
  // `address`: of the peer's worker.
  absl::Status Open(const std::string& address);

  const PeerId& peer() const { return peer_; }
  uint64_t path() const { return path_; }  // what packets to here carry
  UcxEndpoint* owner() const { return owner_; }
  const absl::Status& failure() const { return failure_; }  // of the connection
  // Readable once the peer's process is dead; -1: not to be had. Dead: whether that was seen.
  void WatchProcess(Fd fd) { process_ = std::move(fd); }
  int process_fd() const { return process_.get(); }
  void ProcessDied() { process_.Reset(), dead_ = true; }
  bool dead() const { return dead_; }
  bool ready() const { return failure_.ok() && !free_.empty(); }
  bool pending() const { return pending_ > 0; }
  // Only while ready(). True: `payload` is not needed any more. False: it is lent for `message`
  // until OnTaken or Recall.
  bool Send(const PacketHeader& packet, ConstBytes payload, uint64_t message);
  // Nothing lent for this message (0: for any) is touched any more, and no OnTaken comes: what was
  // not packed yet is copied.
  void Recall(uint64_t message);

  // What came. True: it is next in its order. False: it was kept (then Next gives it), or nobody
  // can make sense of it.
  bool Arrived(const Header& header, ConstBytes payload);
  bool Next(PacketHeader* header, std::string* payload);
  // The peer's number for this path; from its hello.
  void Introduce(uint64_t path) { peer_path_ = path; }
  bool introduced() const { return peer_path_ != 0; }

  // The owner has gone: its last control messages and `why` are sent if that is possible until
  // `by`.
  void Depart(std::deque<std::string> controls, absl::string_view why, Deadline by);
  bool closing() const { return closing_; }
  Deadline depart_by() const { return depart_by_; }
  void PeerClosed() { peer_closed_ = true; }
  void Fail(const absl::Status& why);
  // Goes on with departing and closing; the number of packets sent.
  int Flush(int64_t now);
  // Nothing of it is left in UCX.
  bool closed() const { return closing_ && close_request_ == nullptr && pending_ == 0; }
  // For the last act of the transport. Whether the peer has come, or will not.
  bool Connected() const;
  // Whether what was said has left as far as it can; starts
  // that.
  bool Flushed();
  void StartClose();
  void CheckClose();
  // Requests that nobody will ask for any more, before it goes: one for a flush may outlast the close.
  void Abandon();

 private:
  friend struct Packing;
  struct Packet {
    Header header;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t message = 0;  // 0: nothing is lent
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
  std::map<uint64_t, std::pair<PacketHeader, std::string>> ahead_;  // came before their turn
  std::deque<std::pair<PacketType, std::string>> farewell_;
  Deadline depart_by_;
  Fd process_;
  bool dead_ = false, departing_ = false, peer_closed_ = false, closing_ = false;
  bool flushing_ = false;
  void *flush_request_ = nullptr, *close_request_ = nullptr;
};

}  // namespace entrain::ucx
