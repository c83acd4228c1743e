// One side of a link between two ranks of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/inproc/hub.h"
#include "transports/inproc/inbox.h"
#include "transports/matching.h"
#include "transports/transport.h"

namespace entrain {

// The state that all endpoints of one transport share. Must outlive the endpoints.
struct InprocShared {
  Events* events = nullptr;
  const Clock* clock = nullptr;
  CompletionList completions;
  std::vector<class InprocEndpoint*> endpoints;  // by slot; null once destroyed
};

class InprocEndpoint final : public Endpoint {
 public:
  static constexpr int64_t kEagerBytes = 1024;
  // largest cost of eager messages that the receiver has not taken yet
  static constexpr int64_t kCredit = 1 << 20;
  // most bytes copied at a time. If a sender revokes a message, it waits at most while one piece is
  // copied
  static constexpr int64_t kPieceBytes = 256 << 10;
  static constexpr int64_t kBytesPerPoll = 1 << 20;  // bytes copied in one call of Progress

  InprocEndpoint(InprocShared* shared, uint32_t slot, std::string address, Deadline connect_by);
  ~InprocEndpoint() override;

  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override;
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override;
  bool HasEarly(Tag tag) const override { return queue_.HasEarly(tag); }
  void SendControl(absl::string_view message) override;
  void Revoke(Context mine, Context theirs, const absl::Status& why) override;
  void Close(const absl::Status& why) override;
  std::string peer_address() const override { return "inproc " + address_; }

  // Must be called right after construction. If the link is null, the peer is gone, and the next
  // Poll reports the loss.
  void Join(Hub::Joined joined);
  // Called from Poll. Handles one note of the peer, and its payload.
  void OnNote(const Note& note, ConstBytes payload);
  // Called from Poll. Copies pieces of messages in copying_. Ends the endpoint if the peer does not
  // connect in time. Returns the number of events handled.
  int Progress();
  // Returns true if Progress has something to copy or to report now.
  bool busy() const { return !copying_.empty() || !failed_.ok(); }
  // Returns the time at which Progress must be called even if nothing happens. Returns Never() once
  // connected.
  Deadline wake_at() const;

 private:
  InprocPair::Side& mine() const { return link_->side[side_]; }
  InprocPair::Side& theirs() const { return link_->side[1 - side_]; }
  void Send(Note note, ConstBytes payload);
  void SendRts(const Envelope& envelope, ConstBytes bytes, Completion* done);
  void Finish(LentMessage* lent, const absl::Status& status);
  void Revoke(LentMessage* lent, const absl::Status& why);
  void OnRts(const Note& note);
  void OnWithdraw(const Note& note);
  int CopyPieces();
  void ReturnCredit();
  // Fails everything pending. Afterwards nothing more is sent or received.
  void End(const absl::Status& why);
  // Calls End. The next Progress calls OnLost.
  void Lose(const absl::Status& why);
  bool ended() const { return !end_.ok(); }

  InprocShared* const shared_;
  const uint32_t slot_;
  const std::string address_;
  const Deadline connect_by_;
  std::shared_ptr<InprocPair> link_;
  int side_ = 0;
  bool connected_ = false;
  NoteBatch backlog_;               // notes for the other side, which has not connected yet
  int64_t sent_ = 0;                // cost of the eager messages sent
  std::vector<LentMessage*> open_;  // messages sent by RTS and not finished
  std::vector<Incoming*> copying_;  // messages sent by RTS; each must be copied, or refused if it
                                    // is dropped
  std::vector<uint64_t> refused_;   // reused by Revoke
  absl::Status end_;                // reason of the end
  absl::Status failed_;             // error that the next Progress passes to OnLost
  MatchQueue queue_;
};

}  // namespace entrain
