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

// A rank of the communicator, with the path to it. Set when the communicator is made.
struct Member {
  PeerId id{};
  std::string host_id;
  Context context = 0;   // the rank's number for this communicator
  int world_rank = 0;    // its rank in the communicator at the root of all splits
  int parent_rank = -1;  // its rank in the communicator from which this one was made; -1: none
  // The transport to the rank, as an index in the engine's transports. Unused if the member is this
  // process's own rank.
  size_t transport = 0;
  std::string address;           // the rank's address on that transport
  Endpoint* endpoint = nullptr;  // null for this rank
  CpuShare cpus;
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
  // The members must outlive this object. `world` is the name of the communicator at the root of
  // all splits, or `name` if this communicator is no split.
  Peers(absl::string_view name, absl::string_view world, int rank,
        const std::vector<Member>& members);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // Returns null for this rank.
  Endpoint* endpoint(int rank) const { return endpoints_[static_cast<size_t>(rank)]; }
  Context context(int rank) const { return contexts_[static_cast<size_t>(rank)]; }
  // Return arrays by rank. Wirings refer to these arrays, so this object must outlive the wirings.
  absl::Span<Endpoint* const> endpoints() const { return endpoints_; }
  absl::Span<const Context> contexts() const { return contexts_; }
  // Returns the rank to which the endpoint leads, or -1 if it leads to no member.
  int RankOf(const Endpoint* endpoint) const;
  // Returns the rank of the process, or -1 if it is no member.
  int RankOf(const PeerId& id) const;
  // Returns the longest round trip to a peer, in nanoseconds.
  int64_t SlowestRoundTrip() const;
  // Returns the rank's name in errors: "rank 3 (rank 7 of world, tcp 127.0.0.1:4711)".
  std::string NameOf(int rank) const;

  // [driver] Sends a control message, which may wait behind data. The messages of Send arrive in
  // the order in which they were sent.
  void Send(int to, ControlKind kind, absl::string_view body = {}) const;
  // [driver] Sends a control message that overtakes data, if the transport can do that. For
  // questions and answers, which do not depend on data that was sent before.
  void SendSoon(int to, ControlKind kind, absl::string_view body) const;
  // [driver] Sends the message once as SendUrgent and once as Send. The first copy does not wait
  // behind data. The second copy arrives before the peer sees that the path has ended.
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
