// The contract between the engine, which runs schedules, and the transports that move bytes:
// inproc, shm, tcp, ucx.
//
// Thread safety: none. Only the driver calls these functions. The driver is the thread that drives
// the engine at the moment: a caller that waits, or the engine's own thread. The engine makes sure
// that there is one driver at a time, and that each driver sees the writes of the previous driver.
// If a transport has threads of its own, it must synchronise with these threads itself.
//
// Invariants (tests/transports/endpoint_contract_test.cc cites them by number):
//   1 Messages with the same tag to the same peer arrive in the order sent. Messages with different
//     tags have no order.
//   2 Messages whose receives are not posted, however many there are, never delay messages of other
//     tags or control messages. The receiver keeps small early messages in bounded memory. Other
//     messages wait at the sender.
//   3 A completion runs exactly once, and only inside Poll, never inside the Post, Revoke or Close
//     that caused it. That also holds after Close, and for messages of 0 bytes.
//   4 After the first failure an endpoint only fails; it never recovers. OnLost is called once,
//     from Poll. Messages that had arrived entirely before the failure are still delivered: the
//     peer may have sent all its messages and ended.
//   5 Nothing read from a peer is used as an index or a length before it is checked.
//   6 Every message carries its descriptor. If the receive of the same tag has another descriptor
//     or another length, the receive fails with MISMATCH naming both, and nothing is written to its
//     buffer. The path continues to work.
//   7 After Revoke(context) returns, neither this process nor the peer uses a buffer of that
//     context again. One case is allowed: a peer in the middle of a copy may still read the buffer,
//     but then notices the revocation and drops its copy. The next Poll runs the completions of
//     pending transfers with the status given to Revoke.
//   8 A thread that polls or sleeps on wait_fd notices the death of the peer's process within 1 s,
//     even without traffic.
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

// A callback for the end of one transfer. The object is part of the executor's lane, which outlives
// the transfer, so that posting allocates nothing. `bytes`: number of bytes moved, if `status` is
// OK.
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
  // If not null, the receiver promises to only read the bytes, and to do so soon. When `done` runs,
  // the bytes are at loan->lent, or in the receive's buffer if loan->lent is null. The bytes stay
  // at loan->lent until the receiver calls Release. The Loan must live as long as the Completion.
  Loan* loan = nullptr;
};

using PeerId = std::array<uint8_t, 16>;  // entrain_peer_id_t: random, one for each runtime

class Endpoint;

// Events of a transport that belong to no completion. The engine implements this class. Only Poll
// calls it.
class Events {
 public:
  virtual ~Events() = default;
  // Returns true if the engine wants messages for this context of the receiver. If false (the
  // context was revoked or never assigned), the transport drops the messages.
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

// A message that TrySend has sent by RTS and that the peer has not taken yet.
struct SendRequest {
  uint64_t number = 0;  // for the transport's own use
  int64_t bytes = 0;
};

// A path to one peer process that carries whole messages reliably. Transport::Connect makes it. It
// must be closed before it is destroyed.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  // frees, never blocks

  // ---- Seven verbs move data: three here, four on the fast path below. Sends `bytes`. The caller
  // must keep them until `done` runs. Then the caller may reuse the buffer; that does not mean that
  // the peer has received the message. May be called before the connection is complete.
  virtual void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) = 0;
  // Receives a message with an equal envelope and exactly bytes.size() bytes.
  virtual void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done,
                        RecvHint hint = {}) = 0;
  // Returns a loan to the sender and empties it. Only then is the send complete. Must be called
  // once for each loan, even after Revoke and Close, and may be called wherever posting is allowed.
  // An error means that the sender took its memory back before this call (invariant 7), so the
  // bytes that were read at loan->lent may not be the message.
  virtual absl::Status Release(Loan*) { return absl::OkStatus(); }

  // Returns true if a message of this tag, or its beginning or RTS, has come and no receive has
  // taken it. OnEarly has reported each such message.
  virtual bool HasEarly(Tag tag) const = 0;

  // ---- Non-blocking fast path, for a caller that does not call Poll meanwhile. The default
  // implementations do nothing.
  enum class Sent { kNo, kCopied, kRtsSent };
  // Sends the message now, if that is possible without waiting. kCopied: the buffer may be reused.
  // kRtsSent: the peer will read the message from the buffer; TryTaken(*request) tells whether the
  // peer has read it. kNo: the message would have to wait; nothing was done.
  virtual Sent TrySend(const Envelope&, ConstBytes, SendRequest*) { return Sent::kNo; }
  enum class Next { kNothing, kPart, kThis, kOther };
  // Takes a complete message of exactly this envelope and length. kThis: the message was taken and
  // lies in `into`. If `where` is not null, the message may also stay in the endpoint's memory:
  // `*where` is its address, valid until the next call of this endpoint or of Poll. kNothing:
  // nothing has come. kPart: a part of the message has come, and the peer is writing the rest.
  // kOther: only Poll can handle the case (something else has come, or a receive of this tag is
  // posted); nothing was done.
  virtual Next TryRecv(const Envelope&, Bytes, const std::byte** = nullptr) { return Next::kOther; }
  // Returns whether the peer has taken a message sent by RTS. kThis: the peer has taken it, so the
  // buffer may be reused, and the request must not be used again. kNothing: the peer has not taken
  // it yet. kOther: only Poll can handle this case, and the caller must call Await.
  virtual Next TryTaken(SendRequest) { return Next::kOther; }
  // Turns a message sent by RTS into a posted message: Poll runs the completion when the peer has
  // taken the message.
  virtual void Await(SendRequest, Completion*) {}

  // Sends a control message of at most kMaxControlBytes. Copies the message. Control messages
  // arrive in order, and need no receive and no credit. Reports no error: after a failure of the
  // path the message is dropped.
  virtual void SendControl(absl::string_view message) = 0;
  // Sends a control message that overtakes everything sent before, so that it never waits behind
  // data. Urgent messages do not overtake each other. Returns false, and does nothing, if this path
  // cannot send the message now, or never sends urgent messages.
  virtual bool SendUrgent(absl::string_view) { return false; }
  // Ends one communicator on this path: fails receives posted with context `mine` and sends posted
  // with context `theirs` with `why`, and drops early messages for `mine`. Other communicators
  // continue. Never blocks.
  virtual void Revoke(Context mine, Context theirs, const absl::Status& why) = 0;
  // Fails everything pending with `why`, tells the peer, and ends the connection. Still sends
  // earlier control messages, if that is possible without waiting. May be called in any state, any
  // number of times. Never blocks. No OnLost follows.
  virtual void Close(const absl::Status& why) = 0;
  // Returns the peer's name for errors: "tcp 127.0.0.1:4711", "shm pid 812".
  virtual std::string peer_address() const = 0;
  // Returns one line that tells users by which methods messages travel on this path. Returns an
  // empty text if all messages travel by one method, or if the path is not established.
  virtual std::string Explain() const { return ""; }
  // Returns the measured time from a small message to its answer, without the time that the peer
  // spends before it answers. 0: the time is too short to matter, or not known.
  virtual int64_t round_trip_ns() const { return 0; }
};

// The medium through which a transport's bytes travel. The lines of a tuning table name the medium
// to which they apply. A fabric is a network whose cards read and write the memory of processes.
enum class Medium : uint8_t { kProcess, kHostMemory, kNetwork, kFabric };

// Estimates for the choice of algorithms. The planner uses them if its tuning table has no figures
// for the medium.
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
  // The store's host; the transport chooses the interface from which packets to this host leave.
  // Empty: unknown.
  std::string route_to;
  const Clock* clock = &Clock::Real();
  // If a connection is not complete after this time, the path is lost.
  int64_t connect_timeout_ns = 60 * kSecond;
  // The memory of this process that peers may map. Only for transports that can pass descriptors.
  // May be null.
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
  // Creates the endpoint of a peer and returns at once. The caller may post at once. Poll
  // establishes the connection; completions and OnLost report a failure. Both sides call Connect,
  // and the side with the smaller PeerId dials. Must be called once per peer.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                            absl::string_view remote) = 0;
  // Tells peers that have mapped this region to unmap it. The region is no longer in
  // TransportConfig::regions, and no loan lies in it.
  virtual void Retire(const SharedRegion&) {}
  // Makes progress without blocking. Returns the number of events handled (0: nothing to do).
  virtual int Poll() = 0;
  // Must be called before sleeping. Returns true if from now on any event makes wait_fd readable.
  // Returns false if an event is already there; the caller must then call Poll instead of sleeping.
  // Poll also disarms, so a caller that armed but did not sleep needs to call only Poll.
  virtual bool Arm() = 0;
  // Returns a descriptor that is readable if the transport is armed and an event has happened.
  // Returns the same descriptor during the transport's whole life, never -1.
  virtual int wait_fd() const = 0;
};

}  // namespace entrain
