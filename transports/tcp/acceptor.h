// Handles connections before they carry frames: connections that are dialled, accepted connections,
// which are strangers until their handshake is done, and peers that arrive before or after Connect
// was called for them.
//
// A path has two connections: its first connection and its control line (control_line.h). They are
// dialled at once, and the handshake of the second names the first. "Connected" below means both.
//
//   dialled  --handshake, right peer--> its endpoint is connected
//            --cut before that--------> a new path: dialled again after a pause, until its deadline
//            --anything else----------> its endpoint is lost
//   accepted --handshake--> the endpoint that expects this peer is connected
//                       \-> unclaimed until Expect, if no endpoint expects this peer
//            --anything else, or 10 s--> dropped, logged, forgotten
//
// A stranger costs one descriptor and one fixed record, and work only when epoll reports it. A turn
// accepts a few connections; while no peer is expected, AcceptBudget limits them. If there are more
// than kMaxStrangers (PlacesForStrangers), one is closed: the oldest silent stranger if it is in
// the older half, otherwise the oldest stranger. An endpoint that closes early leaves its reason
// here, so that the peer gets it when it arrives.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "lib/net/listener.h"
#include "transports/tcp/accept_budget.h"
#include "transports/tcp/pending_handshake.h"
#include "transports/tcp/tcp_endpoint.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class Acceptor {
 public:
  static constexpr size_t kMaxStrangers = 256, kMaxUnclaimed = 4096;
  static constexpr int kAcceptsPerTurn = 16;
  static constexpr int64_t kHandshakeTime = 10 * kSecond;

  // `shared` gets OnConnected. `config` and `shared` must outlive the object.
  Acceptor(const TransportConfig& config, TcpShared* shared, Listener listener);
  absl::Status Open();

  // Dial is for an endpoint that dials, Expect for an endpoint that is dialled. The endpoint is
  // lost if the connection fails or takes too long.
  void Dial(TcpEndpoint* endpoint, const Address& to);
  // Dials a further connection of a connected endpoint, which gets the result from OnStreamDialled.
  void DialStream(TcpEndpoint* endpoint);
  // Must be called when a connected endpoint ends, because its further connections are not wanted
  // any more.
  void Forget(const TcpEndpoint* endpoint);
  void Expect(TcpEndpoint* endpoint);
  // Must be called when an endpoint closes before its connection is established.
  void Leave(TcpEndpoint* endpoint, const absl::Status& why);

  // Called from Poll for each descriptor that epoll reports: the listener, a connection whose
  // handshake is under way, or another one. Returns the number of events handled.
  int OnReady(int fd);
  // Handles everything that is due by the clock. Must be called after OnReady. Returns the number
  // of events handled.
  int Progress();
  // Returns true if connections of peers are under way or expected.
  bool meeting() const { return !dials_.empty() || !expected_.empty(); }
  // Returns the time at which Progress must be called even if nothing happens.
  Deadline wake_at() const;
  const Address& address() const { return listener_.address; }
  // Returns the number of times that connections under handshake have been checked.
  int64_t looks() const { return looks_; }

 private:
  // A connection that this side opens, with as many attempts as necessary.
  struct Outward {
    TcpEndpoint* endpoint = nullptr;  // null if it has closed meanwhile
    std::string farewell = "";        // the endpoint's reason for closing
    PeerId peer{};                    // expected peer
    Address to = Address();
    Deadline by = Deadline::Never();
    bool further = false;       // a stream of an established path
    ConnectionId further_to{};  // id of that path, for a stream
    PathSockets sockets{};      // established sockets of a path
    // Used between two attempts: the number of cuts, the time of the next attempt, the pause before
    // it, and the error of the last cut.
    int cuts = 0;
    Deadline again = Deadline::Never();
    int64_t pause = 0;
    absl::Status cut = absl::OkStatus();
  };
  // A connection whose handshake is under way.
  struct Guest {
    PendingHandshake pending;
    Outward* outward = nullptr;  // null: accepted
    bool counted = false;        // its token was taken from the budget
    uint32_t interest = 0;
  };
  // A peer that has dialled.
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
  void Evict();

  Guest* AddGuest(std::unique_ptr<Guest> guest);
  absl::Status Watch(Guest* guest);
  // Reads and writes as much as possible. Returns 1 if the handshake is over or was refused; the
  // guest is then gone.
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
  Deadline guests_until_ = Deadline::Never();   // no guest is late before this
  const size_t places_ = PlacesForStrangers(kMaxStrangers);
  size_t strangers_ = 0;  // strangers among the guests
  int64_t looks_ = 0;
  std::vector<std::unique_ptr<Outward>> dials_;
  std::map<PeerId, TcpEndpoint*> expected_;
  // paths of which only one connection has arrived
  std::map<std::pair<PeerId, ConnectionId>, Arrived> half_;
  std::map<PeerId, Arrived> unclaimed_;
  std::map<PeerId, std::string> farewells_;  // reasons for peers that have not dialled yet
  AcceptBudget budget_;
  bool accepting_ = true;
  Deadline accept_again_;  // used while not accepting
};

}  // namespace entrain
