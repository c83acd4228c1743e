// The ranks of a communicator, and how this one reaches them: endpoints, context numbers, control messages.
//
// Thread safety: any thread reads; messages are sent [driver] (lib/engine/driver_seat.h).
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

// A rank of the communicator, as bootstrap or split found it.
struct Member {
  PeerId id{};
  std::string host_id;
  Context context = 0;           // the number it uses for this communicator
  int world_rank = 0;            // in the communicator that all of this was split from
  size_t transport = 0;          // index in the engine's transports; unused for oneself
  std::string address;           // by that transport
  Endpoint* endpoint = nullptr;  // null for oneself
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
};

class Peers {
 public:
  // The members outlive it. `world`: the name of the communicator that this one was split from in the end, or `name`.
  Peers(absl::string_view name, absl::string_view world, int rank,
        const std::vector<Member>& members);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const Member& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // Null for oneself.
  Endpoint* endpoint(int rank) const { return endpoints_[static_cast<size_t>(rank)]; }
  Context context(int rank) const { return contexts_[static_cast<size_t>(rank)]; }
  // By rank; for wirings, which this outlives.
  absl::Span<Endpoint* const> endpoints() const { return endpoints_; }
  absl::Span<const Context> contexts() const { return contexts_; }
  // -1: it is no member's.
  int RankOf(const Endpoint* endpoint) const;
  // The rank of the process; -1: it is no member.
  int RankOf(const PeerId& id) const;
  int64_t SlowestRoundTrip() const;
  // As in errors: "rank 3 (rank 7 of world, tcp 127.0.0.1:4711)".
  std::string NameOf(int rank) const;

  // [driver] Behind what was sent before.
  void Send(int to, ControlKind kind, absl::string_view body = {}) const;
  // [driver] Need not wait behind data, where the transport can: for questions and answers, which say nothing of data
  // that is on its way.
  void SendSoon(int to, ControlKind kind, absl::string_view body) const;
  // [driver] Both: it must not wait behind data, and must come before the path's end.
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
