// The contract between the engine, which runs schedules, and the ways bytes move: inproc, shm, tcp,
// ucx.
//
// Thread safety: none, and none needed. Everything here is called by whoever drives the engine at the moment (the
// caller that waits, or the engine's own thread); the engine makes sure that it is one thread at a time and that each
// sees what the one before wrote. A transport with threads of its own synchronises with them itself.
//
// Invariants (tests/transports/endpoint_contract_test.cc cites them by number):
//   1 Messages with one tag to one peer arrive in the order sent. Between tags there is no order.
//   2 A message whose receive is not posted never holds up other tags or control messages, in any amount: small early
//     messages are kept in bounded memory, others wait at the sender.
//   3 A completion runs exactly once, from Poll and never from inside Post/Revoke/Close of the same call, also after
//     Close, also for messages of no bytes.
//   4 After the first failure an endpoint only fails; it never recovers. OnLost is called once, from Poll. Messages that
//     had arrived entirely before the failure are still delivered: a peer may have sent all that was needed, and gone.
//   5 Nothing read from a peer is used as an index or a length before it is checked.
//   6 Every message carries its descriptor. When the receive of the same tag has another descriptor or another length,
//     the receive fails with MISMATCH naming both, and nothing is written to its buffer; the path stays good.
//   7 After Revoke(context) returns, no buffer lent under that context is read for a *successful* delivery, written, or
//     otherwise touched again, locally or by the peer (a peer that was copying finds out and drops what it copied).
//     Completions of what was pending run from the next Poll with the given status.
//   8 Death of the peer's process is noticed within 1 s without traffic, by anyone who polls or sleeps on wait_fd.
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

namespace entrain {

// A communicator as one process numbers it. Every process chooses its own number for a communicator and tells its
// peers during bootstrap; a message carries the number of its *receiver*. Numbers are not reused.
using Context = uint16_t;

// Context of the receiver 16 bits, user tag 20, call 20, lane 8. This class is the only place that knows.
// `call` counts the calls of one user tag in one communicator, modulo 2^20; at most 2^16 are open at a time.
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

// What rides in front of every message.
struct Envelope {
  Tag tag;
  Descriptor descriptor;
};

// One finished transfer. Lives in the executor's lane, which outlives the transfer: posting allocates nothing there.
// `bytes`: what was moved, when `status` is OK.
struct Completion {
  void (*done)(Completion* self, const absl::Status& status, int64_t bytes) = nullptr;
};

// A received message that lies in memory of the sender's that this process has mapped.
struct Loan {
  const std::byte* lent = nullptr;  // null: the bytes are in the receive's buffer
  uint64_t handle = 0;              // the endpoint's
};

// What the receiver will do with the bytes. A transport may ignore it, but empties `loan`.
struct RecvHint {
  // Not null: the receiver only reads the bytes, soon. When `done` runs, the bytes are in the receive's buffer or, if
  // loan->lent is not null, there, until the receiver calls Release. The loan lives as long as the Completion.
  Loan* loan = nullptr;
  // The result is so large that no cache holds it, and nothing reads these bytes soon: a transport that copies may write
  // them past the caches.
  bool cold = false;
};

using PeerId = std::array<uint8_t, 16>;  // entrain_peer_id_t: one per runtime, random

class Endpoint;

// What a transport has to say that no completion can. Implemented by the engine; called from Poll only.
class Events {
 public:
  virtual ~Events() = default;
  // Whether messages for this receiving context are wanted. False (revoked, or never handed out): drop them.
  virtual bool Accepts(Context context) = 0;
  // A message, or the announcement of one, came before its receive was posted. It stays kept; this is for noticing
  // that the ranks have called different things.
  virtual void OnEarly(Endpoint& from, const Envelope& envelope) = 0;
  virtual void OnControl(Endpoint& from, absl::string_view message) = 0;
  // The path is gone: the peer died, closed, or broke the protocol. Pending transfers fail by their completions.
  virtual void OnLost(Endpoint& from, const absl::Status& why) = 0;
};

constexpr int64_t kMaxControlBytes = 4096;

// A message that TrySend has announced and that the peer has not taken yet.
struct Ticket {
  uint64_t number = 0;  // the transport's
  int64_t bytes = 0;
};

// A path to one peer process: reliable, whole messages. Made by Transport::Connect; destroyed only after Close.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  // frees, never blocks

  // ---- Seven verbs move data: three here, four on the fast path below.
  // Lends `bytes` until `done`. Posting may begin before the connection stands. `done` of a send runs when the buffer
  // may be reused, which does not say that the peer has received it.
  virtual void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) = 0;
  // Takes exactly bytes.size() bytes with an equal envelope.
  virtual void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done,
                        RecvHint hint = {}) = 0;
  // Gives back what a receive was lent, and empties the loan; until then the send is not complete. Once for each loan that
  // was lent, also after Revoke and Close; from wherever posting is allowed. An error: the sender took its memory back
  // meanwhile (invariant 7), so the bytes that were read there may not be the message.
  virtual absl::Status Release(Loan*) { return absl::OkStatus(); }

  // Whether a message of this tag has come, all of it or its beginning or announcement, and no receive has taken it. Such
  // a message was told of by OnEarly.
  virtual bool HasEarly(Tag tag) const = 0;

  // ---- Non-blocking fast path, for a caller that does not poll meanwhile. The defaults never do anything.
  enum class Sent { kNo, kCopied, kAnnounced };
  // Sends the message now, if that needs no waiting. kCopied: the buffer may be reused. kAnnounced: the peer takes the
  // message from the buffer; `*ticket` asks for the end. kNo: the message would have to wait; nothing was done.
  virtual Sent TrySend(const Envelope&, ConstBytes, Ticket*) { return Sent::kNo; }
  enum class Next { kNothing, kPart, kThis, kOther };
  // Takes a whole message of exactly this envelope and length. kThis: the message is taken, and lies in `into`. If `where`
  // is not null, the message may stay where it came: it lies at `*where`, in `into` or in memory of the endpoint, until the
  // next call of this endpoint or of Poll. kNothing: nothing has come. kPart: more of the message has come, and the rest is
  // being written. kOther: Poll must see to it (something else has come, or a receive of this tag is posted); nothing was
  // done.
  virtual Next TryRecv(const Envelope&, Bytes, const std::byte** = nullptr) { return Next::kOther; }
  // Whether the peer has taken an announced message. kThis: it has, so the buffer may be reused; the ticket is used up.
  // kNothing: not yet. kOther: Poll must see to it; the caller then calls Await.
  virtual Next TryTaken(Ticket) { return Next::kOther; }
  // Leaves an announced message to Poll: `done` runs as if the message had been posted with it.
  virtual void Await(Ticket, Completion*) {}

  // At most kMaxControlBytes, copied. In order among control messages; needs no receive and no credit. Never fails
  // visibly: after a failure it is dropped.
  virtual void SendControl(absl::string_view message) = 0;
  // The same, ahead of everything that was sent before: it never waits behind data, and says nothing of data. In order
  // among urgent messages. False: this path has no such way (now); nothing was done.
  virtual bool SendUrgent(absl::string_view) { return false; }
  // Ends one communicator on this path: receives posted with context `mine`, sends posted with context `theirs`, and
  // what was kept early for `mine`. Others go on. Never blocks.
  virtual void Revoke(Context mine, Context theirs, const absl::Status& why) = 0;
  // Fails everything pending with `why`, and tells the peer by ending the connection. What was handed to SendControl
  // before is still sent if that needs no waiting. Any state, any number of times, never blocks. No OnLost follows.
  virtual void Close(const absl::Status& why) = 0;
  // The peer as errors name it: "tcp 127.0.0.1:4711", "shm pid 812".
  virtual std::string peer_address() const = 0;
  // Describes in one line how messages come by this path, for people. Empty: all come in one way, or the path does not
  // stand.
  virtual std::string Explain() const { return ""; }
  // The measured time of a small message and its answer, without the peer's own; 0: too short to matter, or not known.
  virtual int64_t round_trip_ns() const { return 0; }
};

// What the bytes of a transport go through: which lines of a tuning speak of it. A fabric is a network whose cards read
// and write the memory of processes.
enum class Medium : uint8_t { kProcess, kHostMemory, kNetwork, kFabric };

// Guesses that algorithms are chosen by where a tuning has no figures of such a link.
struct Traits {
  const char* name;  // "shm"
  Medium medium;
  int64_t latency_ns;            // of a small message, both sides polling
  double bytes_per_second;       // of a large message
  double host_bytes_per_second;  // of the messages of all ranks of a host together
};

// Everything a transport may need to know, filled by the runtime.
struct TransportConfig {
  PeerId self{};
  std::string host_id;           // boot id + network namespace + IPC namespace, or ENTRAIN_HOST_ID
  std::string interface_filter;  // ENTRAIN_INTERFACE, lib/net/interfaces
  std::string ports;             // ENTRAIN_PORTS: "LOW-HIGH"; empty: the kernel chooses
  std::string key;               // pre-shared key for the handshake; empty: none
  std::string tcp_streams;       // ENTRAIN_TCP_STREAMS, see transports/tcp/tcp_transport.h
  std::string keep_alive;        // ENTRAIN_KEEPALIVE, lib/net/keep_alive
  // The store's host, to choose the interface that leads there; empty: unknown.
  std::string route_to;
  const Clock* clock = &Clock::Real();
  int64_t connect_timeout_ns = 60 * kSecond;  // a connection that does not stand by then is lost
  // Of this process, for peers to map where the transport can pass descriptors; null: none.
  std::shared_ptr<const SharedRegions> regions;
};

class Transport {
 public:
  virtual ~Transport() = default;  // after all endpoints are destroyed; never blocks
  virtual Traits traits() const = 0;
  // What bootstrap publishes for this process: how peers reach it by this transport. Printable, at most 1 KiB.
  virtual std::string address() const = 0;
  // Whether an address published by a peer's transport of the same name can be reached. Pure.
  virtual bool Reaches(absl::string_view remote) const = 0;
  // Returns at once; posting may begin; the connecting happens in Poll and fails through completions and OnLost. Both
  // sides call it; the one with the smaller PeerId dials, the other is dialled. Called once per peer.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerId& peer,
                                                            absl::string_view remote) = 0;
  // Peers that have mapped this region need it no more: it has been taken out of TransportConfig::regions, and nothing
  // that was lent lies in it.
  virtual void Retire(const SharedRegion&) {}
  // Progress without blocking; returns the number of events handled (0: nothing to do).
  virtual int Poll() = 0;
  // Before sleeping: true: from now on, any event makes wait_fd readable; false: there is something already, poll
  // again. Poll undoes it. A caller that armed and did not sleep just polls.
  virtual bool Arm() = 0;
  // Readable while armed and something happened. The same descriptor all its life, never -1.
  virtual int wait_fd() const = 0;
};

}  // namespace entrain
