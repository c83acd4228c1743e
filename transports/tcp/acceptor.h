// Handles connections before they carry frames. This process has dialled or accepted these
// connections. An accepted connection is a *stranger* until its handshake is done. A peer may dial
// before or after this process calls Connect for it.
//
// A path has two connections: its first connection and its control line (control_line.h). The
// dialer dials both at the same time, and the handshake of the control line names the first
// connection. "Connected" below means that both connections are established.
//
//   dialled  --handshake, right peer--> its endpoint is connected
//            --cut before that--------> a new path: dialled again after a pause, until its deadline
//            --anything else----------> its endpoint is lost
//   accepted --handshake--> the endpoint that expects this peer is connected
//                       \-> unclaimed until Expect, if no endpoint expects this peer
//            --anything else, or 10 s--> dropped, logged, forgotten
//
// A stranger costs one descriptor and one record of fixed size. It costs time only when epoll
// reports it. A call of OnReady accepts at most kAcceptsPerTurn connections. While no peer is
// expected, AcceptBudget also limits the number of accepted connections. A silent stranger is one
// that has sent nothing. If there are too many strangers (kMaxStrangers, PlacesForStrangers), one
// is closed: the oldest silent stranger if it is in the older half, otherwise the oldest stranger.
// If an endpoint closes early, the object keeps the endpoint's reason, and tells the peer the
// reason when the peer has dialled.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"

#include "lib/net/listener.h"
#include "transports/tcp/pending_handshake.h"
#include "transports/tcp/tcp_endpoint.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"
#include "lib/base/clock.h"

namespace entrain {

// A token bucket for connections accepted from strangers. It limits these connections
// to a burst and a rate. So a flood of connections costs only a bounded part of the engine's time.
// Further connections wait in the kernel's queue, or the kernel refuses them. A connection that
// proves to be from a peer costs no token. This class reads no clock.
class AcceptBudget {
 public:
  static constexpr int64_t kBurst = 1024, kPerSecond = 500;
  // When the tokens are used up, the caller must accept no connection until there are kBatch
  // tokens.
  static constexpr int64_t kBatch = 16;

  // Takes a token for a connection that the caller is about to accept. Returns false if there is no
  // token. The caller must then wait until ready_at().
  bool Take(int64_t now_ns) {
    if (paid_at_ - now_ns > (kBurst - 1) * kIntervalNs) {
      return false;
    }
    paid_at_ = std::max(paid_at_, now_ns) + kIntervalNs;
    return true;
  }
  // Gives back the token of a connection that proved to be from a peer.
  void GiveBack() { paid_at_ -= kIntervalNs; }
  Deadline ready_at() const { return {paid_at_ - (kBurst - kBatch) * kIntervalNs}; }

 private:
  static constexpr int64_t kIntervalNs = kSecond / kPerSecond;
  int64_t paid_at_ = 0;  // the time at which all taken tokens are back in the bucket
};

class Acceptor {
 public:
  static constexpr size_t kMaxStrangers = 256, kMaxUnclaimed = 4096;
  static constexpr int kAcceptsPerTurn = 16;
  static constexpr int64_t kHandshakeTime = 10 * kSecond;

  // The object calls OnConnected and OnFurther of `shared`. `config` and `shared` must outlive the
  // object.
  Acceptor(const TransportConfig& config, TcpShared* shared, Listener listener);
  absl::Status Open();

  // Dial dials the peer of an endpoint. Expect waits until the peer of an endpoint dials. If the
  // connection fails or takes too long, the endpoint is lost.
  void Dial(TcpEndpoint* endpoint, const Address& to);
  // Dials a stream of a connected endpoint. Reports the result to the endpoint's OnStreamDialled.
  void DialStream(TcpEndpoint* endpoint);
  // Must be called when a connected endpoint ends. Its streams are then not wanted any more.
  void Forget(const TcpEndpoint* endpoint);
  void Expect(TcpEndpoint* endpoint);
  // Must be called when an endpoint closes before its connection is established.
  void Leave(TcpEndpoint* endpoint, const absl::Status& why);

  // Called from Poll for each descriptor that epoll reports. Handles the listener and connections
  // whose handshake is under way; ignores other descriptors. Returns the number of events handled.
  int OnReady(int fd);
  // Handles all time-outs and delayed actions that are due. Must be called after OnReady. Returns
  // the number of events handled.
  int Progress();
  // Returns true if this side is dialling, or expects a peer to dial.
  bool meeting() const { return !dials_.empty() || !expected_.empty(); }
  // Returns the time at which Progress must be called even if nothing happens.
  Deadline wake_at() const;
  const Address& address() const { return listener_.address; }
  // Returns the total number of calls of PendingHandshake::Progress.
  int64_t looks() const { return looks_; }

 private:
  // A path or a stream that this side dials, with as many attempts as necessary.
  struct Outward {
    TcpEndpoint* endpoint = nullptr;  // null if it has closed meanwhile
    std::string farewell = "";        // the endpoint's reason for closing
    PeerId peer{};                    // expected peer
    Address to = Address();
    Deadline by = Deadline::Never();
    bool further = false;       // true: a stream of a connected path
    ConnectionId further_to{};  // for a stream: id of the path's first connection
    PathSockets sockets{};      // established sockets of a path
    // Used between two attempts. A cut is the loss of a connection before its handshake has a
    // result. `cuts`: the number of cuts. `again`: the time of the next attempt. `pause`: the pause
    // before that attempt. `cut`: the error of the last cut.
    int cuts = 0;
    Deadline again = Deadline::Never();
    int64_t pause = 0;
    absl::Status cut = absl::OkStatus();
  };
  // A connection whose handshake is under way.
  struct Guest {
    PendingHandshake pending;
    Outward* outward = nullptr;  // null: accepted
    bool counted = false;        // a token of budget_ was taken for this connection
    uint32_t interest = 0;
  };
  // The connections of a peer that has dialled.
  struct Arrived {
    PathSockets sockets;
    Deadline deadline;
  };

  void Attempt(Outward* outward);
  absl::Status Attempt(Outward* outward, const ConnectionId& further_to, ConnectionId* connection);
  void Cut(Outward* outward, const absl::Status& why);
  // Tells the endpoint that its connection failed.
  void Fail(Outward* outward, const absl::Status& why);
  std::unique_ptr<Outward> TakeOutward(const Outward* outward);
  void DropGuests(const Outward* outward);

  int Accept();
  void StopAccepting(Deadline until);
  // Must be called when accept has failed. Returns the number of paths that have ended.
  int OnShortage(const absl::Status& why, int64_t now);
  void Evict();

  Guest* AddGuest(std::unique_ptr<Guest> guest);
  absl::Status Watch(Guest* guest);
  // Reads and writes as much as possible. Returns 1 if the handshake is done or has failed. The
  // guest is then destroyed.
  int Greet(Guest* guest);
  std::unique_ptr<Guest> Take(const Guest* guest);
  void Greeted(std::unique_ptr<Guest> guest);
  void EndHandshakeOutward(Outward* outward, PendingHandshake* pending);
  void Admit(const PeerId& peer, PathSockets sockets);
  // Ends a connection before its handshake is done.
  void Refuse(std::unique_ptr<Guest> guest, const absl::Status& why);
  int CheckGuests(int64_t now);
  int CheckPeers(int64_t now);

  const TransportConfig& config_;
  TcpShared* const shared_;
  const Listener listener_;
  std::vector<std::unique_ptr<Guest>> guests_;  // ordered by age
  absl::flat_hash_map<int, Guest*> by_fd_;      // the guests by descriptor
  Deadline guests_until_ = Deadline::Never();   // no guest's deadline is earlier
  const size_t places_ = PlacesForStrangers(kMaxStrangers);
  size_t strangers_ = 0;  // number of guests that were accepted
  int64_t looks_ = 0;
  std::vector<std::unique_ptr<Outward>> dials_;
  int64_t short_since_ns_ = 0;  // accept has failed since this time; 0: it has not
  std::map<PeerId, TcpEndpoint*> expected_;
  // paths of which only one connection has arrived
  std::map<std::pair<PeerId, ConnectionId>, Arrived> half_;
  std::map<PeerId, Arrived> unclaimed_;
  std::map<PeerId, std::string> farewells_;  // reasons for peers that have not dialled yet
  AcceptBudget budget_;
  bool accepting_ = true;
  // while accepting_ is false: the time at which to accept again
  Deadline accept_again_;
};

}  // namespace entrain
