// Connections before they carry frames: those that are dialled, those that were accepted and are
// strangers until their handshake is done, and peers that arrive before or after Connect was called
// for them.
//
// A path has two connections, its first one and its control line (control_line.h), which are dialled at once; the
// second names the first. "Connected" below means both.
//
//   dialled  --handshake, right peer--> its endpoint is connected
//            --cut before that--------> dialled again after a pause, until its deadline (but a stream)
//            --anything else----------> its endpoint is lost
//   accepted --handshake--> the endpoint that expects this peer is connected
//                       \-> unclaimed, when none does, until Expect
//            --anything else, or 10 s--> dropped, logged, forgotten
//
// A stranger costs one descriptor and one fixed record, and work only when epoll names it. A turn accepts a few; while
// no peer is expected, AcceptBudget bounds how many a second. Of more than kMaxStrangers (PlacesForStrangers) one goes:
// the oldest that has said nothing, if it is of the older half, else the oldest.
// An endpoint that closes early leaves its reason here, so that the peer hears it when it comes.
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

  // `shared` hears OnConnected; `config` and `shared` outlive this.
  Acceptor(const TransportConfig& config, TcpShared* shared, Listener listener);
  absl::Status Open();

  // An endpoint that dials, one that is dialled. They are lost when it fails or takes too long.
  void Dial(TcpEndpoint* endpoint, const Address& to);
  // A further connection of an endpoint that is connected; it hears by OnStreamDialled.
  void DialStream(TcpEndpoint* endpoint);
  // An endpoint that was connected is going: its further connections are not wanted any more.
  void Forget(const TcpEndpoint* endpoint);
  void Expect(TcpEndpoint* endpoint);
  // The endpoint closes before its connection stood.
  void Leave(TcpEndpoint* endpoint, const absl::Status& why);

  // From Poll. Epoll names `fd`: the listener, or a connection whose handshake is under way, or none of them. Returns
  // events handled.
  int OnReady(int fd);
  // After that: what is due by the clock. Returns events handled.
  int Progress();
  // Connections of peers are under way or expected.
  bool meeting() const { return !dials_.empty() || !expected_.empty(); }
  // When Progress wants to be called even if nothing happens.
  Deadline wake_at() const;
  const Address& address() const { return listener_.address; }
  // How often a connection whose handshake is under way has been looked at.
  int64_t looks() const { return looks_; }

 private:
  // A connection that this side opens, by as many attempts as it takes.
  struct Outward {
    TcpEndpoint* endpoint = nullptr;  // null when it has closed meanwhile,
    std::string farewell = "";        // for this reason
    PeerId peer{};                    // who should answer
    Address to = Address();
    Deadline by = Deadline::Never();
    bool further = false;       // a stream of a path that stands,
    ConnectionId further_to{};  // this one
    PathSockets sockets{};      // of a path: what stands by now
    // Between two attempts: when, after how long a pause, and how the last one was cut.
    int cuts = 0;
    Deadline again = Deadline::Never();
    int64_t pause = 0;
    absl::Status cut = absl::OkStatus();
  };
  // A connection whose handshake is under way.
  struct Guest {
    PendingHandshake pending;
    Outward* outward = nullptr;  // null: accepted
    bool counted = false;        // ... from the budget
    uint32_t interest = 0;
  };
  // Of a peer that has dialled.
  struct Arrived {
    PathSockets sockets;
    Deadline deadline;
  };

  void Attempt(Outward* outward);
  absl::Status Attempt(Outward* outward, const ConnectionId& further_to, ConnectionId* connection);
  void Cut(Outward* outward, const absl::Status& why);
  // The endpoint is told that its connection cannot be had.
  void Fail(Outward* outward, const absl::Status& why);
  std::unique_ptr<Outward> TakeOutward(const Outward* outward);
  void DropGuests(const Outward* outward);

  int Accept();
  void StopAccepting(Deadline until);
  void Evict();

  Guest* AddGuest(std::unique_ptr<Guest> guest);
  absl::Status Watch(Guest* guest);
  // Reads and writes what can be. The guest is gone afterwards if its handshake is over or was refused: then 1.
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
  std::vector<std::unique_ptr<Guest>> guests_;  // by age
  absl::flat_hash_map<int, Guest*> by_fd_;      // the same
  Deadline guests_until_ = Deadline::Never();   // none of them is late before
  const size_t places_ = PlacesForStrangers(kMaxStrangers);
  size_t strangers_ = 0;  // of them
  int64_t looks_ = 0;
  std::vector<std::unique_ptr<Outward>> dials_;
  std::map<PeerId, TcpEndpoint*> expected_;
  std::map<std::pair<PeerId, ConnectionId>, Arrived> half_;  // one of the two connections is here
  std::map<PeerId, Arrived> unclaimed_;
  std::map<PeerId, std::string> farewells_;  // to peers that have not dialled yet
  AcceptBudget budget_;
  bool accepting_ = true;
  Deadline accept_again_;  // while not accepting
};

}  // namespace entrain
