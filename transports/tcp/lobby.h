// Connections before they carry frames: those that are dialled, those that were accepted and are
// strangers until their handshake is done, and peers that arrive before or after Connect was called
// for them.
//
//   dialled  --handshake, right peer--> its endpoint is connected
//            --anything else----------> its endpoint is lost
//   accepted --handshake--> the endpoint that expects this peer is connected
//                       \-> unclaimed, when none does, until Expect
//            --anything else, or 10 s--> dropped, logged, forgotten
//
// A stranger costs one descriptor and one fixed record; of more than kMaxStrangers the oldest goes.
// An endpoint that closes early leaves its reason here, so that the peer hears it when it comes.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/net/listener.h"
#include "transports/tcp/greeting.h"
#include "transports/tcp/tcp_endpoint.h"
#include "transports/timed_wait.h"
#include "transports/transport.h"

namespace entrain {

class Lobby {
 public:
  static constexpr size_t kMaxStrangers = 256, kMaxUnclaimed = 4096;
  static constexpr int64_t kHandshakeTime = 10 * kSecond;

  // `shared` hears OnConnected; `config` and `shared` outlive this.
  Lobby(const TransportConfig& config, TcpShared* shared, Listener listener);
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

  // From Poll. `knocked`: the listener is ready. Returns events handled.
  int Progress(bool knocked);
  bool busy() const { return !guests_.empty(); }
  // When Progress wants to be called even if nothing happens.
  Deadline wake_at() const;
  int listener_fd() const { return listener_.fd.get(); }
  const Address& address() const { return listener_.address; }

 private:
  // A connection whose handshake is under way.
  struct Guest {
    Greeting greeting;
    bool dialled = false, further = false;
    PeerId expected{};                // dialled: who should answer
    TcpEndpoint* endpoint = nullptr;  // dialled: for whom; null when it has closed meanwhile
    std::string farewell;             // ... and why
    uint32_t interest = 0;
  };
  struct Unclaimed {
    Fd fd;
    ConnectionId connection;
    Deadline deadline;
  };

  void Watch(std::unique_ptr<Guest> guest);
  void AcceptAll();
  void EvictOldestStranger();
  // True when the guest is gone: greeted, refused or too late.
  bool Greet(Guest* guest);
  void Greeted(Guest* guest);
  void Admit(const PeerId& peer, const ConnectionId& connection, Fd fd);
  void Refuse(Guest* guest, const absl::Status& why);
  // Of one that was dialled: what its endpoint is told.
  static void Fail(const Guest& guest, const absl::Status& why);
  int CheckDeadlines();

  const TransportConfig& config_;
  TcpShared* const shared_;
  const Listener listener_;
  std::vector<std::unique_ptr<Guest>> guests_;
  std::map<PeerId, TcpEndpoint*> expected_;
  std::map<PeerId, Unclaimed> unclaimed_;
  std::map<PeerId, std::string> farewells_;  // to peers that have not dialled yet
  bool accepting_ = true;
  Deadline accept_again_;  // while not accepting
};

}  // namespace entrain
