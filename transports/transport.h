// The contract between the engine and the transports. The engine runs schedules. The transports
// (inproc, shm, tcp, ucx) move bytes. A *path* connects this process with one peer process over one
// transport.
//
// Thread safety: none. Only the driver calls these functions. The driver is the one thread that
// polls at the moment: a caller that waits, or the engine's own thread. The engine makes sure that
// there is one driver at a time, and that each driver sees the writes of the previous driver. If a
// transport has threads of its own, the transport must synchronise with these threads.
//
// Invariants (tests/transports/endpoint_contract_test.cc cites them by number):
//   1 Messages with the same tag to the same peer arrive in the order sent. Messages with different
//     tags may arrive in any order.
//   2 A message is *early* if its receive is not posted. Any number of early messages never delays
//     messages of other tags or control messages. The receiver keeps small early messages in
//     bounded memory. Other early messages wait at the sender. (On a long path of tcp, the receiver
//     lends more memory, and also keeps the beginning of large messages.)
//   3 A completion runs exactly once, and only inside Poll, never inside the Post, Revoke or Close
//     that caused it. This rule also holds after Close, and for messages of 0 bytes.
//   4 After its first failure an endpoint fails every transfer; it never recovers. Poll calls
//     OnLost once. Exception: messages that had arrived entirely before the failure are still
//     delivered, because the peer may have sent all its messages and ended.
//   5 Every value from a peer is checked before it is used as an index or a length.
//   6 Every message carries its descriptor. If the receive of the same tag has another descriptor
//     or another length, the receive fails with MISMATCH, and nothing is written to its buffer. The
//     error names the descriptors and lengths of both sides. The path continues to work.
//   7 After Revoke(context) returns, neither this process nor the peer uses a buffer of that
//     context again. One exception is allowed: a peer in the middle of a copy may still read the
//     buffer. After the copy, this peer notices the revocation and discards the copy. The next Poll
//     runs the completions of the context's pending transfers with the status given to Revoke.
//   8 A thread that polls, or that sleeps on wait_fd, notices the death of the peer's process
//     within 1 s, even without traffic.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"
#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/memory/shared_regions.h"
#include "lib/net/security.h"

namespace entrain {

// The number of a communicator in one process. Every process chooses its own number, and tells its
// peers the number during bootstrap. A message carries the number of its *receiver*. Numbers are
// not reused.
using Context = uint16_t;

// The tag of a message: the receiver's context (16 bits), user tag (20), call (20), lane (8). Only
// this class knows the layout. `call` counts the calls of one user tag in one communicator, modulo
// 2^20. At most 2^16 of these calls are unfinished at a time.
class Tag {
 public:
  static constexpr uint32_t kUntagged = (1u << 20) - 1;
  static constexpr uint32_t kCallMask = (1u << 20) - 1;
  static constexpr uint8_t kPointToPoint = 255;  // the lane of send and recv

  Tag() = default;
  Tag(Context context, uint32_t user_tag, uint32_t call, uint8_t lane)
      : bits_((uint64_t{context} << 48) | (uint64_t{user_tag & kUntagged} << 28) |
              (uint64_t{call & kCallMask} << 8) | lane) {}
  static Tag FromBits(uint64_t bits) {
    Tag tag;
    tag.bits_ = bits;
    return tag;
  }
  uint64_t bits() const { return bits_; }
  Context context() const { return static_cast<Context>(bits_ >> 48); }
  uint32_t user_tag() const { return static_cast<uint32_t>(bits_ >> 28) & kUntagged; }
  uint32_t call() const { return static_cast<uint32_t>(bits_ >> 8) & kCallMask; }
  uint8_t lane() const { return static_cast<uint8_t>(bits_); }
  friend bool operator==(Tag, Tag) = default;

 private:
  uint64_t bits_ = 0;
};

// The header of every message.
struct Envelope {
  Tag tag;
  Descriptor descriptor;
};

// A callback for the end of one transfer. The caller owns the object, and must keep it until `done`
// runs. (The executor reuses its objects, so posting allocates nothing.) `bytes`: the number of
// bytes moved, if `status` is OK.
struct Completion {
  void (*done)(Completion* self, const absl::Status& status, int64_t bytes) = nullptr;
};

// A received message that stays in the sender's memory. This process has mapped that memory.
struct Loan {
  const std::byte* lent = nullptr;  // null: the bytes are in the receive's buffer
  uint64_t handle = 0;              // for the endpoint's own use
};

// Hints about the receiver's use of the bytes. A transport may ignore the hints, but it must empty
// `loan`.
struct RecvHint {
  // If not null, the receiver promises not to write to the bytes, and to read them soon. When
  // `done` runs, the bytes are at loan->lent, or in the receive's buffer if loan->lent is null. The
  // bytes stay at loan->lent until the receiver calls Release. The Loan must live as long as the
  // Completion.
  Loan* loan = nullptr;
};

using PeerId = std::array<uint8_t, 16>;  // entrain_peer_id_t: random, one for each runtime

class Endpoint;

// The events of a transport, except the ends of transfers, which a Completion reports. The engine
// implements this class. Only Poll calls these functions.
class Events {
 public:
  virtual ~Events() = default;
  // `context` is a context of this process. Returns true if the engine wants messages for this
  // context. Returns false if the context was revoked or never assigned. The transport then drops
  // the messages.
  virtual bool Accepts(Context context) = 0;
  // Called when a message, or its RTS, arrives before its receive is posted. The transport keeps
  // the message. From this event, the engine notices that ranks have called different things.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  // Called when the path is gone: the peer died, closed it, or broke the protocol. The pending
  // transfers fail too, by their completions.
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
};

constexpr int64_t kMaxControlBytes = 4096;

// A message that TrySend has sent by RTS and that the peer has not taken yet.
struct SendRequest {
  uint64_t number = 0;  // for the transport's own use
  int64_t bytes = 0;
};

// This process's end of a path to one peer process. The path carries whole messages reliably.
// Transport::Connect creates the endpoint. Must be closed before it is destroyed.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  // frees, never blocks

  // ---- Functions that move data. (The fast path below has four more.)

  // Sends `bytes`. The caller must keep the buffer unchanged until `done` runs. `done` means that
  // the buffer may be reused, not that the peer has received the message. May be called before the
  // connection is established.
  virtual void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) = 0;
  // Receives a message with an equal envelope and exactly bytes.size() bytes.
  virtual void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done,
                        RecvHint hint = {}) = 0;
  // Returns a loan to the sender, and empties `*loan`. The send completes only after this call.
  // Must be called once for each loan, even after Revoke and Close. May be called wherever PostRecv
  // may be called. An error means that the sender took its memory back before this call (invariant
  // 7). The bytes that were read at loan->lent are then perhaps not the message.
  virtual absl::Status Release(Loan*) { return absl::OkStatus(); }

  // Returns true if there is an early message of this tag: the whole message, its first bytes or
  // its RTS has arrived, and no receive has taken it. OnEarly has reported each early message.
  virtual bool HasEarly(Tag tag) const = 0;

  // ---- Non-blocking fast path, for a caller that does not call Poll meanwhile. By default, these
  // functions do nothing.
  enum class Sent { kNo, kCopied, kRtsSent };
  // Sends the message if that is possible without waiting. kCopied: the message was sent, and the
  // buffer may be reused. kRtsSent: the peer will read the message from the buffer.
  // TryTaken(*request) returns whether the peer has read it. kNo: nothing was done, because the
  // message would have to wait.
  virtual Sent TrySend(const Envelope&, ConstBytes, SendRequest*) { return Sent::kNo; }
  enum class Next { kNothing, kPart, kThis, kOther };
  // Takes a complete message with exactly this envelope and length. kThis: the message was taken
  // and lies in `into`. If `where` is not null, the message may instead stay in the endpoint's
  // memory. `*where` is then its address, valid until the next call of this endpoint or of Poll.
  // kNothing: nothing has arrived. kPart: a part of the message has arrived, and the peer is
  // writing the rest. kOther: nothing was done, because only Poll can handle the case. (Another
  // message has arrived, or a receive of this tag is posted.)
  virtual Next TryRecv(const Envelope&, Bytes, const std::byte** = nullptr) { return Next::kOther; }
  // Returns whether the peer has taken a message sent by RTS. kThis: the peer has taken the
  // message. The buffer may be reused, and the request must not be used again. kNothing: the peer
  // has not taken the message yet. kOther: only Poll can handle this case, and the caller must call
  // Await.
  virtual Next TryTaken(SendRequest) { return Next::kOther; }
  // Turns a message sent by RTS into a posted message: Poll runs the completion when the peer has
  // taken the message.
  virtual void Await(SendRequest, Completion*) {}

  // Sends a control message of at most kMaxControlBytes. Copies the message. Control messages
  // arrive in order. They need no receive and no credit. If the path has failed, drops the message
  // without an error.
  virtual void SendControl(absl::string_view message) = 0;
  // Sends a control message that may overtake all earlier messages except urgent ones. So an urgent
  // message never waits behind data. Returns false, and does nothing, if this path cannot send the
  // message now, or never sends urgent messages.
  virtual bool SendUrgent(absl::string_view) { return false; }
  // Ends one communicator on this path. Fails with `why` the receives posted with context `mine`,
  // and the sends posted with context `theirs`. Drops early messages for `mine`. Other
  // communicators continue. Never blocks.
  virtual void Revoke(Context mine, Context theirs, const absl::Status& why) = 0;
  // Fails all pending transfers with `why`, tells the peer, and ends the connection. Before that,
  // sends the control messages that still wait, if that is possible without waiting. May be called
  // in any state, any number of times. Never blocks. OnLost is not called afterwards.
  virtual void Close(const absl::Status& why) = 0;
  // Returns the peer's name for errors: "tcp 127.0.0.1:4711", "shm pid 812".
  virtual std::string peer_address() const = 0;
  // Returns one line for users: the methods by which this path moves messages. Returns an empty
  // text if all messages use one method, or if the path is not established.
  virtual std::string Explain() const { return ""; }
  // Returns the measured round trip time of a small message, without the peer's own time to answer.
  // 0: the time is too short to matter, or not known.
  virtual int64_t round_trip_ns() const { return 0; }
  // Returns a number that grows when bytes arrive from the peer. So a peer whose answer waits behind
  // data on a slow line is not taken for a silent one. A transport on which answers do not wait
  // behind data returns 0.
  virtual uint64_t received() const { return 0; }
};

// The medium that carries a transport's bytes. Each line of a tuning table applies to one medium.
// kFabric: a network whose cards read and write the memory of processes (RDMA).
enum class Medium : uint8_t { kProcess, kHostMemory, kNetwork, kFabric };

// Estimates for the choice of algorithms. The planner uses these estimates if its tuning table has
// no figures for the medium.
struct Traits {
  const char* name;  // "shm"
  Medium medium;
  int64_t latency_ns;            // latency of a small message while both sides poll
  double bytes_per_second;       // rate of a large message
  double host_bytes_per_second;  // rate of the messages of all ranks of a host together
};

// The settings of a transport. The runtime fills them in.
struct TransportConfig {
  PeerId self{};
  std::string host_id;           // boot id + network namespace + IPC namespace, or ENTRAIN_HOST_ID
  std::string interface_filter;  // ENTRAIN_INTERFACE, lib/net/interfaces
  std::string ports;             // ENTRAIN_PORTS: "LOW-HIGH"; empty: the kernel chooses
  Security security;             // the key, TLS
  std::string tcp_streams;       // ENTRAIN_TCP_STREAMS, see transports/tcp/tcp_transport.h
  std::string tcp_congestion;    // ENTRAIN_TCP_CONGESTION, see transports/tcp/tcp_transport.h
  std::string keep_alive;        // ENTRAIN_KEEPALIVE, lib/net/keep_alive
  // The store's host. The transport uses the interface by which packets to this host leave. Empty:
  // unknown.
  std::string route_to;
  const Clock* clock = &Clock::Real();
  // If a connection is not complete after this time, the path is lost.
  int64_t connect_timeout_ns = 60 * kSecond;
  // tcp treats each path as if its round trip were at least this long. For tests of long paths.
  int64_t least_round_trip_ns = 0;
  // The memory of this process that peers may map. Only for transports that can pass file
  // descriptors. May be null.
  std::shared_ptr<const SharedRegions> regions;
};

class Transport {
 public:
  virtual ~Transport() = default;  // after all endpoints are destroyed; never blocks
  virtual Traits traits() const = 0;
  // Returns the address by which peers reach this process over this transport. Bootstrap publishes
  // the address. It is printable and has at most 1 KiB.
  virtual std::string address() const = 0;
  // Returns true if this process can reach `remote`, the address of the peer's transport of the
  // same name. Has no side effects.
  virtual bool Reaches(absl::string_view remote) const = 0;
  // Creates the endpoint of a peer, and returns without waiting. The caller may post transfers at
  // once. Poll establishes the connection. Completions and OnLost report a failure. Both sides must
  // call Connect, once per peer. The side with the smaller PeerId dials.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                            absl::string_view remote) = 0;
  // Tells peers that have mapped this region to unmap it. No send of the region's bytes may be
  // pending. The caller must remove the region from TransportConfig::regions before the next send.
  virtual void Retire(const SharedRegion&) {}
  // Makes progress without blocking. Returns the number of events handled (0: nothing to do).
  virtual int Poll() = 0;
  // Must be called before sleeping. Returns true if from now on any event makes wait_fd readable.
  // Returns false if an event has already happened. The caller must then call Poll instead of
  // sleeping. Poll undoes Arm. So a caller that has called Arm and then does not sleep must only
  // call Poll.
  virtual bool Arm() = 0;
  // Returns a file descriptor that is readable if an event has happened since Arm returned true.
  // Returns the same descriptor during the transport's whole life, never -1.
  virtual int wait_fd() const = 0;
};

// A kind of transport (registry.h lists them).
struct TransportFactory {
  const char* name;
  absl::StatusOr<std::unique_ptr<Transport>> (*create)(const TransportConfig& config,
                                                       Events* events);
  // If null, every process has the transport. Otherwise returns OK, or the reason why this process
  // does not have the transport. `named`: the user asked for the transport by name. Only in this
  // case is its absence an error.
  absl::Status (*absence)(bool named) = nullptr;

  absl::Status Absence(bool named) const { return absence ? absence(named) : absl::OkStatus(); }
};

}  // namespace entrain
