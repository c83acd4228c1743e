// The contract between the engine, which runs schedules, and the transports that move bytes:
// inproc, shm, tcp, ucx.
//
// Thread safety: none. Only the driver calls these functions: the thread that drives the engine at
// the moment (the caller that waits, or the engine's own thread). The engine makes sure that there
// is one driver at a time, and that each driver sees the writes of the one before. A transport with
// threads of its own synchronises with them itself.
//
// Invariants (tests/transports/endpoint_contract_test.cc cites them by number):
//   1 Messages with one tag to one peer arrive in the order sent. Between tags there is no order.
//   2 Messages whose receives are not posted, however many, never delay other tags or control
//     messages: small early messages are kept in bounded memory, and others wait at the sender.
//   3 A completion runs exactly once, from Poll and never from inside the Post, Revoke or Close
//     that caused it. That holds also after Close, and for messages of no bytes.
//   4 After the first failure an endpoint only fails; it never recovers. OnLost is called once,
//     from Poll. Messages that had arrived entirely before the failure are still delivered: the
//     peer may have sent all its messages and ended.
//   5 Nothing read from a peer is used as an index or a length before it is checked.
//   6 Every message carries its descriptor. If the receive of the same tag has another descriptor
//     or another length, the receive fails with MISMATCH naming both, and nothing is written to its
//     buffer. The path stays good.
//   7 After Revoke(context) returns, no buffer lent under that context is read for a *successful*
//     delivery, written, or otherwise touched again, by this process or by the peer. A peer in the
//     middle of a copy notices the revocation and drops its copy. Completions of pending transfers
//     run from the next Poll with the given status.
//   8 Each thread that polls, or sleeps on wait_fd, notices the death of the peer's process within
//     1 s, even without traffic.
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

// The number of a communicator in one process. Every process chooses its own number and tells its
// peers during bootstrap; a message carries the number of its *receiver*. Numbers are not reused.
using Context = uint16_t;

// The tag of a message: context of the receiver 16 bits, user tag 20, call 20, lane 8. Only this
// class knows the layout. `call` counts the calls of one user tag in one communicator, modulo 2^20;
// at most 2^16 are open at a time.
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

// The end of one transfer. It is part of the executor's lane, which outlives the transfer, so that
// posting allocates nothing. `bytes`: number of bytes moved, if `status` is OK.
struct Completion {
  void (*done)(Completion* self, const absl::Status& status, int64_t bytes) = nullptr;
};

// A received message that lies in the sender's memory, which this process has mapped.
struct Loan {
  const std::byte* lent = nullptr;  // null: the bytes are in the receive's buffer
  uint64_t handle = 0;              // for the endpoint's own use
};

// Hints about the receiver's use of the bytes. A transport may ignore them, but it empties `loan`.
struct RecvHint {
  // If not null, the receiver only reads the bytes, and soon. When `done` runs, the bytes are at
  // loan->lent if this is not null, and in the receive's buffer otherwise. They stay at loan->lent
  // until the receiver calls Release. The loan lives as long as the Completion.
  Loan* loan = nullptr;
};

using PeerId = std::array<uint8_t, 16>;  // entrain_peer_id_t: one per runtime, random

class Endpoint;

// Reports that no completion can carry. The engine implements this class. Called from Poll only.
class Events {
 public:
  virtual ~Events() = default;
  // Returns true if the engine wants messages for this receiving context. If false (the context was
  // revoked or never assigned), the transport drops them.
  virtual bool Accepts(Context context) = 0;
  // Called when a message, or its RTS, came before its receive was posted. The transport keeps the
  // message. The engine uses the report to notice that ranks have called different things.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  // Called when the path is gone: the peer died, closed it, or broke the protocol. The completions
  // of pending transfers report the failure.
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
};

constexpr int64_t kMaxControlBytes = 4096;

// A message for which TrySend has sent an RTS and that the peer has not taken yet.
struct SendRequest {
  uint64_t number = 0;  // for the transport's own use
  int64_t bytes = 0;
};

// A path to one peer process that carries whole messages reliably. Transport::Connect makes it. It
// must be closed before it is destroyed.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  // frees, never blocks

  // ---- Seven verbs move data: three here, four on the fast path below.
  // Sends `bytes`, which the caller lends until `done`. May be called before the connection is
  // complete. When `done` runs, the buffer may be reused; that does not mean that the peer has
  // received the message.
  virtual void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) = 0;
  // Receives a message with an equal envelope and exactly bytes.size() bytes.
  virtual void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done,
                        RecvHint hint = {}) = 0;
  // Returns a loan to the sender and empties it. The send is not complete before. Must be called
  // once for each loan, also after Revoke and Close, wherever posting is allowed. An error means
  // that the sender took its memory back before this call (invariant 7), so the bytes read there
  // may not be the message.
  virtual absl::Status Release(Loan*) { return absl::OkStatus(); }

  // Returns true if a message of this tag, or its beginning or RTS, has come and no receive has
  // taken it. OnEarly has reported each such message.
  virtual bool HasEarly(Tag tag) const = 0;

  // ---- Non-blocking fast path, for a caller that does not poll in the meantime. The default
  // implementations do nothing.
  enum class Sent { kNo, kCopied, kRtsSent };
  // Sends the message now if that needs no waiting. kCopied: the buffer may be reused. kRtsSent:
  // the peer will read the message from the buffer; TryTaken with `*request` tells whether it has
  // done so. kNo: the message would have to wait; nothing was done.
  virtual Sent TrySend(const Envelope&, ConstBytes, SendRequest*) { return Sent::kNo; }
  enum class Next { kNothing, kPart, kThis, kOther };
  // Takes a complete message of exactly this envelope and length. kThis: the message was taken and
  // lies in `into`. If `where` is not null, the message may also stay in the endpoint's memory:
  // `*where` is its address, valid until the next call of this endpoint or of Poll. kNothing:
  // nothing has come. kPart: a part of the message has come, and the peer is writing the rest.
  // kOther: only Poll can handle it (something else has come, or a receive of this tag is posted);
  // nothing was done.
  virtual Next TryRecv(const Envelope&, Bytes, const std::byte** = nullptr) { return Next::kOther; }
  // Returns whether the peer has taken a message sent by RTS. kThis: the peer has taken it, so the
  // buffer may be reused, and the request must not be used again. kNothing: the peer has not taken
  // it yet. kOther: only Poll can handle this case, and the caller must call Await.
  virtual Next TryTaken(SendRequest) { return Next::kOther; }
  // Leaves a message sent by RTS to Poll, which runs `done` as for a posted message.
  virtual void Await(SendRequest, Completion*) {}

  // Sends a control message of at most kMaxControlBytes, which is copied. Control messages arrive
  // in order, and need no receive and no credit. Reports no error: after a failure the message is
  // dropped.
  virtual void SendControl(absl::string_view message) = 0;
  // Sends a control message ahead of everything sent before, so that it never waits behind data.
  // Urgent messages arrive in order among themselves. Returns false, and does nothing, if this path
  // cannot do that now or ever.
  virtual bool SendUrgent(absl::string_view) { return false; }
  // Ends one communicator on this path: receives posted with context `mine`, sends posted with
  // context `theirs`, and early messages kept for `mine`. Other communicators continue. Never
  // blocks.
  virtual void Revoke(Context mine, Context theirs, const absl::Status& why) = 0;
  // Fails everything pending with `why`, and ends the connection; the peer is told. Control
  // messages from earlier calls are still sent if that needs no waiting. May be called in any
  // state, any number of times. Never blocks. No OnLost follows.
  virtual void Close(const absl::Status& why) = 0;
  // Returns the peer's name for errors: "tcp 127.0.0.1:4711", "shm pid 812".
  virtual std::string peer_address() const = 0;
  // Returns one line for people: the methods by which messages travel on this path. Returns an
  // empty text if all messages travel by one method, or if the path is not established.
  virtual std::string Explain() const { return ""; }
  // Returns the measured time from a small message to its answer, without the time that the peer
  // itself takes. 0: it is too short to matter, or not known.
  virtual int64_t round_trip_ns() const { return 0; }
};

// The medium through which a transport's bytes travel. It selects the lines of a tuning that apply
// to the transport.
// A fabric is a network whose cards read and write the memory of processes.
enum class Medium : uint8_t { kProcess, kHostMemory, kNetwork, kFabric };

// Estimates for the choice of algorithms, used if a tuning has no figures for such a link.
struct Traits {
  const char* name;  // "shm"
  Medium medium;
  int64_t latency_ns;            // latency of a small message, both sides polling
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
  std::string keep_alive;        // ENTRAIN_KEEPALIVE, lib/net/keep_alive
  // The store's host, to choose the interface that leads there; empty: unknown.
  std::string route_to;
  const Clock* clock = &Clock::Real();
  // limit for a connection to become complete; then it is lost
  int64_t connect_timeout_ns = 60 * kSecond;
  // The memory of this process that peers may map, if the transport can pass descriptors. May be
  // null.
  std::shared_ptr<const SharedRegions> regions;
};

class Transport {
 public:
  virtual ~Transport() = default;  // after all endpoints are destroyed; never blocks
  virtual Traits traits() const = 0;
  // Returns the address by which peers reach this process with this transport. Bootstrap publishes
  // it. The text is printable and has at most 1 KiB.
  virtual std::string address() const = 0;
  // Returns true if a peer's address, published by its transport of the same name, can be reached.
  // Has no side effects.
  virtual bool Reaches(absl::string_view remote) const = 0;
  // Returns at once, and posting may begin. Poll establishes the connection; completions and OnLost
  // report its failure. Both sides call Connect: the side with the smaller PeerId dials, the other
  // is dialled. Called once per peer.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                            absl::string_view remote) = 0;
  // Tells peers that have mapped this region to unmap it. The region is no longer in
  // TransportConfig::regions, and no loan lies in it.
  virtual void Retire(const SharedRegion&) {}
  // Makes progress without blocking. Returns the number of events handled (0: nothing to do).
  virtual int Poll() = 0;
  // Must be called before sleeping. Returns true if from now on any event makes wait_fd readable.
  // Returns false if an event is already there, so that the caller must poll again. Poll undoes the
  // arming: a caller that armed and did not sleep just polls.
  virtual bool Arm() = 0;
  // Returns a descriptor that is readable if the transport is armed and something has happened. It
  // is the same during the transport's whole life, and never -1.
  virtual int wait_fd() const = 0;
};

}  // namespace entrain
