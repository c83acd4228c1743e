// One side of a pair of processes that share a segment: connecting, the life of the connection, and
// its end. What moves on it is the business of TxQueue and RxQueue.
//
//   kConnecting --introduced--> kUp --Close, or lost--> kEnded
//
// A peer that closes or dies leaves its last records in the ring; they are read before the loss is
// reported.
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

// What the endpoints of one transport share. Outlives them.
struct Shared {
  Events* events = nullptr;
  TimedWait* wait = nullptr;
  Self self;
  Limits limits;
  std::shared_ptr<const SharedRegions> regions;
  CompletionList completions;
  const Clock* clock = nullptr;
  std::vector<class ShmEndpoint*> endpoints;  // null once destroyed, until the next Poll
  // Of endpoints that were closed while they dialled: their peers must learn of it.
  std::vector<std::unique_ptr<Introduction>> leaving;
};

class ShmEndpoint final : public Endpoint {
 public:
  // With `dial`: this side dials. Without: it waits for Arrive; `name` is then only knocked at now
  // and then, to see whether the peer is still there to dial.
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
  // The peer has dialled and proved who it is. False: this endpoint does not wait for that.
  bool Arrive(std::unique_ptr<Introduction> introduction);
  // As Transport::Retire.
  void Retire(const SharedRegion& region);
  // Progress; returns events.
  int Poll();
  // As Transport::Arm; Disarm undoes it.
  bool Arm();
  void Disarm();
  bool connecting() const { return stage_ == Stage::kConnecting; }
  // A watched descriptor of this endpoint is ready (`fd`: which). False: not one of this
  // endpoint's. From Poll.
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
  // After a connection has come or gone.
  void CountCores();
  void End(const absl::Status& why);
  void Lose(const absl::Status& why);

  Shared* const shared_;
  const PeerId peer_;
  const std::string name_;
  const Deadline connect_by_;
  int pid_;  // as published, until the kernel has said
  std::unique_ptr<Introduction> introduction_;
  int64_t knock_at_ = 0;
  std::optional<Channel> channel_;
  TxQueue tx_;
  RxQueue rx_;
  CpuShare cpus_;  // the peer's
  std::vector<int> watched_;
  Stage stage_ = Stage::kConnecting;
  bool peer_ended_ = false;  // closed or died; what it left in the ring comes first
  absl::Status end_;         // why it is kEnded
};

}  // namespace entrain::shm
