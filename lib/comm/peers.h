// The ranks of a communicator, and how this rank reaches them: endpoints, context numbers, control
// messages.
//
// Thread safety: any thread may read. Only the driver sends messages (lib/engine/driver_seat.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/base/cpu_share.h"
#include "lib/base/status.h"
#include "transports/transport.h"

namespace entrain {

// The counters of a communicator.
struct CommStats {
  uint64_t calls = 0, bytes_sent = 0, bytes_received = 0;
};

// A rank of the communicator, with the path from this rank to it. Does not change after creation.
struct Member {
  PeerId id{};
  std::string host_id;
  Context context = 0;   // the context number of this communicator in the member's process
  int world_rank = 0;    // the member's rank in the communicator at the root of all splits
  int parent_rank = -1;  // the member's rank in the parent communicator; -1: no parent
  // The transport to the rank, as an index in the engine's transports. Not used if the member is
  // this rank.
  size_t transport = 0;
  std::string address;           // the member's address on that transport
  Endpoint* endpoint = nullptr;  // null for this rank
  CpuShare cpus;
  // false: the member's library runs only inside calls of its program (ENTRAIN_PROGRESS_CALLER), so
  // its silence proves nothing.
  bool answers = true;
};

// The state of a rank of a communicator, from the view of another rank.
struct MemberReport {
  enum class State : int32_t { kAlive = 0, kLost = 1, kLeft = 2 };
  PeerId id{};
  int parent_rank = -1;  // the member's rank in the parent communicator; -1: no parent
  State state = State::kAlive;
  absl::Status why;  // if kLost: the error of the lost path
};

// Control messages of a communicator (docs/communicators.md).
enum class ControlKind : uint8_t {
  kAbort = 1,
  kQuery = 2,
  kAnswer = 3,
  kLeave = 4,
  kRefused = 5,
  kBallot = 6,
  kSurvivors = 7,
};

class Peers {
 public:
  // The members must outlive this object. `world`: the name of the communicator at the root of all
  // splits, or `name` if this communicator is not from a split.
  Peers(absl::string_view name, absl::string_view world, int rank,
        const std::vector<Member>& members);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // Returns null for this rank.
  Endpoint* endpoint(int rank) const { return endpoints_[static_cast<size_t>(rank)]; }
  Context context(int rank) const { return contexts_[static_cast<size_t>(rank)]; }
  // Return arrays by rank. Wiring objects refer to these arrays, so Peers must outlive them.
  absl::Span<Endpoint* const> endpoints() const { return endpoints_; }
  absl::Span<const Context> contexts() const { return contexts_; }
  // Returns the rank to which the endpoint leads. -1: it leads to no member.
  int RankOf(const Endpoint* endpoint) const;
  // Returns the rank of the process. -1: the process is no member.
  int RankOf(const PeerId& id) const;
  // Returns the bytes that have come from each rank: Endpoint::received.
  std::vector<uint64_t> Received() const;
  // Returns the longest round trip to a peer, in nanoseconds.
  int64_t SlowestRoundTrip() const;
  // Returns the rank's name in errors: "rank 3 (rank 7 of world, tcp 127.0.0.1:4711)".
  std::string NameOf(int rank) const;

  // [driver] Sends a control message, which may wait behind data. The messages of Send arrive in
  // the order in which they were sent.
  void Send(int to, ControlKind kind, absl::string_view body = {}) const;
  // [driver] Sends a control message that overtakes data, if the transport supports this. Must be
  // used only for messages that do not depend on earlier data, such as queries and answers.
  void SendSoon(int to, ControlKind kind, absl::string_view body) const;
  // [driver] Sends the message twice: by Endpoint::SendUrgent, and as Send does. The first copy
  // does not wait behind data. The second copy arrives before the peer sees the end of the path.
  void SendTwice(int to, ControlKind kind, absl::string_view body) const;

 private:
  std::string Message(int to, ControlKind kind, absl::string_view body) const;

  const std::string name_, world_;
  const int rank_;
  const std::vector<Member>& members_;
  std::vector<Endpoint*> endpoints_;
  std::vector<Context> contexts_;
};

}  // namespace entrain
