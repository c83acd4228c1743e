// The server of a tcp or local store: one thread, epoll, the map of request.h behind the handshake
// of lib/net.
//
// Invariants:
//   1 Before a connection has proved itself it costs a fixed kilobyte or so, at most kHandshakeNs, and one of at most
//     kMaxStrangers places (PlacesForStrangers). When those are full the oldest stranger goes, but each has kProofNs to
//     prove itself: until then nobody else is accepted.
//   2 A connection is read no further than one request, and not at all while that request is parked or its answer is
//     unsent, so it costs at most one request and one answer. Equal answers to many are one.
//   3 Memory grows with bytes that arrived, never with lengths that were announced.
//   4 Whatever one connection does ends at most that connection, and the meeting that it has joined: a connection that
//     ends before its rank has finished is a rank that has ended. At a limit of 5, whoever adds to it is refused, a rank
//     that joins with its meeting, and nobody else.
//   5 The map and the meetings are bounded (request.h, gathering.h), the latter with their tables that have not left. So
//     are requests that have not come whole and other answers that have not left, together: kMaxTransitBytes, and
//     kSmallBytes for each connection. So handshakes, and what ranks say in a meeting, have room always.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/net/handshake.h"
#include "lib/net/keep_alive.h"
#include "lib/net/listener.h"
#include "lib/store/request.h"

namespace entrain {

class TcpStoreServer {
 public:
  static constexpr int64_t kHandshakeNs = 10 * kSecond;
  static constexpr int64_t kProofNs = kSecond / 2;
  static constexpr size_t kMaxStrangers = 512;
  static constexpr size_t kMaxTransitBytes = size_t{256} << 20;
  static constexpr size_t kSmallBytes = 4 << 10;

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
  int SleepMs() const;
  void AcceptSome();
  void PauseAccepting(int64_t until_ns);
  void ResumeAccepting();
  int64_t PlaceAt() const;  // from when on there is a place for one more stranger
  void DropLateStrangers();
  void Serve(uint64_t id, uint32_t events);
  bool Advance(uint64_t id, Client& client);
  void Keep(Client& client, absl::string_view bytes);
  bool ConsumeHandshake(uint64_t id, Client& client);
  bool ConsumeRequest(uint64_t id, Client& client);
  void Answer(uint64_t id, Client& client, const StoreRequest& request);
  // Of a client that joins, or has joined, a meeting.
  void Meet(uint64_t id, Client& client, const StoreRequest& request);
  void Join(uint64_t id, Client& client, const StoreRequest& request);
  // Tells every rank of the meeting that it has failed, or that all have come: when that has just happened.
  void Announce(const std::string& key);
  void TellServer(const std::string& key, int32_t rank);
  void WakeParked(const std::string& key);
  // Bytes that leave as they are; counted until they have, in `account`.
  using Frame = std::shared_ptr<const std::string>;
  static Frame MakeFrame(std::string bytes, size_t* account);
  Frame FrameOf(absl::string_view body);  // behind its length
  static absl::Status Full();
  bool HasRoom(size_t had, size_t more) const;
  Frame ReplyOf(const absl::StatusOr<std::string>& answer);
  void Send(uint64_t id, Client& client, Frame frame);
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
  const KeepAlive keep_alive_ = KeepAliveSetting();  // of clients
  uint64_t next_id_ = 2;                             // 0 and 1 are the listener and the stop event
  std::string read_;                                 // what has just arrived
  // Of invariant 5; declared before what counts on them.
  size_t transit_bytes_ = 0;
  Gatherings meetings_;
  Clients clients_;
  const size_t places_ = PlacesForStrangers(kMaxStrangers);
  std::set<uint64_t> strangers_;                         // of them, by age
  std::map<std::string, std::vector<uint64_t>> parked_;  // key to clients that wait for it
  StoreTable table_;
  std::thread thread_;
};

}  // namespace entrain
