// The server of a tcp or local store: one thread, epoll, the map of request.h behind the handshake
// of lib/net.
//
// Invariants:
//   1 Before a connection has proved itself it costs a fixed few hundred bytes, at most
//   kHandshakeNs, and one of at most
//     kMaxStrangers places; when those are full the oldest stranger goes.
//   2 A connection is read no further than one request, and not at all while that request is parked
//   or its answer is
//     unsent, so it costs at most one request and one answer.
//   3 Memory grows with bytes that arrived, never with lengths that were announced.
//   4 Whatever one connection does ends at most that connection.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/handshake.h"
#include "lib/net/listener.h"
#include "lib/store/request.h"

namespace entrain {

class TcpStoreServer {
 public:
  static constexpr int64_t kHandshakeNs = 10 * kSecond;
  static constexpr size_t kMaxStrangers = 512;

  // Serves from its own thread at once.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(Listener listener,
                                                               absl::string_view key);
  // Answers clients that wait with kUnavailable, closes all connections, ends the thread.
  ~TcpStoreServer();

 private:
  struct Client;
  using Clients = std::map<uint64_t, std::unique_ptr<Client>>;

  TcpStoreServer(Listener listener, absl::string_view key);
  bool local() const;  // an abstract socket: for this user's processes only
  std::string name() const;
  absl::Status Prepare();
  void Run();
  void AcceptSome();
  void PauseAccepting();
  void ResumeAccepting();
  void DropOldestStranger();
  void DropLateStrangers();
  void Serve(uint64_t id, uint32_t events);
  bool Advance(uint64_t id, Client& client);
  bool ConsumeHandshake(Client& client);
  bool ConsumeRequest(uint64_t id, Client& client);
  void WakeParked(const std::string& key);
  void Reply(Client& client, const absl::StatusOr<std::string>& answer);
  bool Flush(Client& client);
  void Watch(uint64_t id, Client& client);
  void Drop(uint64_t id);
  void Farewell();

  Listener listener_;
  const std::string key_;
  std::array<uint8_t, 16> self_{};
  Fd epoll_, stop_event_;
  bool accepting_ = true;
  int64_t accept_again_ns_ = 0;
  uint64_t next_id_ = 2;  // 0 and 1 are the listener and the stop event
  size_t strangers_ = 0;
  Clients clients_;
  std::map<std::string, std::vector<uint64_t>> parked_;  // key to clients that wait for it
  StoreTable table_;
  std::thread thread_;
};

}  // namespace entrain
