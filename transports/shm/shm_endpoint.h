// One side of a pair of processes that share a segment. The endpoint establishes the connection and
// ends it. TxQueue and RxQueue handle the messages.
//
//   kConnecting --introduced--> kUp --Close, or lost--> kEnded
//
// A peer that closes or dies leaves its last records in the ring. The endpoint reads these records
// before it reports the loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cpu_share.h"
#include "transports/matching.h"
#include "transports/shm/channel.h"
#include "transports/shm/introduction.h"
#include "transports/shm/rx_queue.h"
#include "transports/shm/tx_queue.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain::shm {

// The state that the endpoints of one transport share. Must outlive them.
struct Shared {
  Events* events = nullptr;
  TimedWait* wait = nullptr;
  Self self;
  Limits limits;
  std::shared_ptr<const SharedRegions> regions;
  CompletionList completions;
  const Clock* clock = nullptr;
  std::vector<class ShmEndpoint*> endpoints;  // null if destroyed, until the next Poll
  // Introductions of endpoints that were closed while they dialled. They continue until the peers
  // are told (Introduction::Leave).
  std::vector<std::unique_ptr<Introduction>> leaving;
};

class ShmEndpoint final : public Endpoint {
 public:
  // If `dial` is true, this side dials. Otherwise it waits for Arrive. Meanwhile it checks from
  // time to time whether a process still listens at `name`.
  ShmEndpoint(Shared* shared, const PeerId& peer, int published_pid, absl::string_view name,
              bool dial, Deadline connect_by);
  ~ShmEndpoint() override;

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override;
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override;
  absl::Status Release(Loan* loan) override;
  bool HasEarly(Tag tag) const override { return rx_.HasEarly(tag); }
  Sent TrySend(const Envelope& envelope, ConstBytes bytes, SendRequest* request) override;
  Next TryTaken(SendRequest request) override;
  void Await(SendRequest request, Completion* done) override;
  Next TryRecv(const Envelope& envelope, Bytes into, const std::byte** where) override;
  void SendControl(absl::string_view message) override;
  void Revoke(Context mine, Context theirs, const absl::Status& why) override;
  void Close(const absl::Status& why) override;
  std::string peer_address() const override;
  std::string Explain() const override;

  const PeerId& peer() const { return peer_; }
  // Takes over a connection from the peer. The introduction must have proved the peer's identity.
  // Returns false if this endpoint does not wait for a connection.
  bool Arrive(std::unique_ptr<Introduction> introduction);
  // See Transport::Retire.
  void Retire(const SharedRegion& region);
  // Makes progress. Returns the number of events.
  int Poll();
  // Arm: see Transport::Arm. Disarm undoes Arm.
  bool Arm();
  void Disarm();
  bool connecting() const { return stage_ == Stage::kConnecting; }
  // Called from Poll if the watched descriptor `fd` is ready. Returns false if it does not belong
  // to this endpoint.
  bool OnReady(int fd);

 private:
  enum class Stage { kConnecting, kUp, kEnded };
  int Connecting();
  absl::StatusOr<bool> Introduce();
  void Stand();
  void Watch(int fd, uint32_t events);
  void Unwatch();
  absl::Status PeerEnded() const;
  int Move();
  // Must be called after a connection was established or ended.
  void CountCores();
  void End(const absl::Status& why);
  void Lose(const absl::Status& why);

  Shared* const shared_;
  const PeerId peer_;
  const std::string name_;
  const Deadline connect_by_;
  int pid_;  // published by the peer; replaced when the kernel has reported it
  std::unique_ptr<Introduction> introduction_;
  int64_t knock_at_ = 0;
  std::optional<Channel> channel_;
  TxQueue tx_;
  RxQueue rx_;
  CpuShare cpus_;  // CPU share of the peer
  std::vector<int> watched_;
  Stage stage_ = Stage::kConnecting;
  bool dropped_ = false;     // after the end: the channel has given up its memory
  bool peer_ended_ = false;  // the peer closed or died. The ring's last records are still read
  absl::Status end_;         // reason of kEnded
};

}  // namespace entrain::shm
