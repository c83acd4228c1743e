// The server of a tcp or local store. One thread with epoll serves the map (request.h) and the
// meetings (gathering.h), after the handshake of lib/net.
//
// Invariants:
//   1 A stranger is a connection whose client has not proved itself yet. A stranger costs about one
//     kilobyte of memory. With TLS, it costs about 50 kilobytes after it has sent its proof
//     (lib/net/handshaker.h). It lasts at most kHandshakeNs. There are at most kMaxStrangers
//     strangers (PlacesForStrangers). At this limit the server accepts no connection until the
//     oldest stranger has had kProofNs to prove itself. Then a new stranger replaces the oldest.
//   2 The server reads at most one request from a connection. While this request waits for its key,
//     or its answer is unsent, the server reads nothing more. So a connection costs at most one
//     request and one answer. Equal answers to many connections share their memory.
//   3 Memory grows with bytes that arrived, never with lengths that were announced.
//   4 A fault of a connection ends only this connection and the meeting that it has joined. If the
//     connection ends before its rank has finished, the rank counts as ended. At a limit of
//     invariant 5 the server refuses only the request that would exceed the limit. A refused join
//     fails its meeting.
//   5 The map is bounded (request.h), and so are the meetings (gathering.h), including their unsent
//     tables. The sum of incomplete requests and all other unsent answers is bounded by
//     kMaxTransitBytes plus kSmallBytes per connection. So there is always room for handshakes and
//     for the messages of a rank in a meeting.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/handshaker.h"
#include "lib/net/keep_alive.h"
#include "lib/net/listener.h"
#include "lib/net/security.h"
#include "lib/store/request.h"

namespace entrain {

class TcpStoreServer {
 public:
  static constexpr int64_t kHandshakeNs = 10 * kSecond;
  static constexpr int64_t kProofNs = kSecond / 2;
  static constexpr size_t kMaxStrangers = 512;
  static constexpr size_t kMaxTransitBytes = size_t{256} << 20;
  static constexpr size_t kSmallBytes = 4 << 10;

  // Begins to serve at once, on a thread of the server.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(Listener listener,
                                                               const Security& security);
  // Answers waiting clients with kUnavailable, closes all connections, and ends the thread.
  ~TcpStoreServer();

 private:
  struct Client;
  using Clients = std::map<uint64_t, std::unique_ptr<Client>>;

  TcpStoreServer(Listener listener, const Security& security);
  // Returns true if the listener is an abstract Unix socket. The server then refuses processes of
  // other users.
  bool local() const;
  std::string name() const;
  absl::Status Prepare();
  void Run();
  int SleepMs() const;
  void AcceptSome();
  void PauseAccepting(int64_t until_ns);
  void ResumeAccepting();
  int64_t PlaceAt() const;  // the time from which the server may take one more stranger
  void DropLateStrangers();
  void Serve(uint64_t id, uint32_t events);
  bool Advance(uint64_t id, Client& client);
  void Keep(Client& client, absl::string_view bytes);
  bool AdvanceHandshake(uint64_t id, Client& client);
  bool ConsumeRequest(uint64_t id, Client& client);
  void Answer(uint64_t id, Client& client, const StoreRequest& request);
  // Handles a request of a client that joins a meeting or has joined a meeting.
  void Meet(uint64_t id, Client& client, const StoreRequest& request);
  void Join(uint64_t id, Client& client, const StoreRequest& request);
  // Tells every rank of the meeting if the meeting has just failed or become complete.
  void Announce(const std::string& key);
  void TellServer(const std::string& key, int32_t rank);
  void WakeParked(const std::string& key);
  // A message to send: its length and its bytes. MakeFrame adds the size to `*account`. The size is
  // subtracted when all connections have sent the message.
  using Frame = std::shared_ptr<const std::string>;
  static Frame MakeFrame(std::string bytes, size_t* account);
  Frame FrameOf(absl::string_view body);  // puts the length before the body
  static absl::Status Full();
  bool HasRoom(size_t had, size_t more) const;
  Frame ReplyOf(const absl::StatusOr<std::string>& answer);
  void Send(uint64_t id, Client& client, Frame frame);
  bool Flush(Client& client);
  void Watch(uint64_t id, Client& client);
  void Drop(uint64_t id);
  void Farewell();

  Listener listener_;
  const Security security_;
  std::array<uint8_t, 16> self_{};
  Fd epoll_, stop_event_;
  bool accepting_ = true;
  int64_t accept_again_ns_ = 0;
  const KeepAlive keep_alive_ = KeepAliveSetting();  // for connections of clients
  uint64_t next_id_ = 2;                             // 0 and 1 are the listener and the stop event
  std::string read_;                                 // the bytes of the last read
  std::set<std::string, std::less<>> refusals_;      // why connections were refused, as far as told
  // The bytes that kMaxTransitBytes bounds (invariant 5). Declared before the members that subtract
  // from it when they are destroyed.
  size_t transit_bytes_ = 0;
  Gatherings meetings_;
  Clients clients_;
  const size_t places_ = PlacesForStrangers(kMaxStrangers);
  std::set<uint64_t> strangers_;                         // the clients that are strangers, by age
  std::map<std::string, std::vector<uint64_t>> parked_;  // key -> the clients that wait for it
  StoreTable table_;
  std::thread thread_;
};

}  // namespace entrain
