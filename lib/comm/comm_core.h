// The part of a communicator that the engine knows: members, open calls, what ended it. Shared
// between the user's handle, the engine and the works; outlives none of the engine's endpoints.
//
// Thread safety: what is marked [driver] runs on the engine's driver (lib/engine/driver_seat.h); the
// rest from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/call_work.h"
#include "lib/comm/comm_end.h"
#include "lib/comm/comm_stats.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/inline_path.h"
#include "lib/comm/inquiry.h"
#include "lib/comm/mismatch.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"
#include "lib/engine/executor.h"

namespace entrain {

class CommCore;

// `number`: as Blame::sequence.
WorkInfo InfoOf(const CommCore& core, const Call& call, uint64_t number, int64_t started_ns);

class CommCore final : public ContextOwner,
                       private InlineOwner,
                       private CallOwner,
                       private FunnelOwner,
                       private InquiryOwner,
                       private MismatchOwner,
                       public std::enable_shared_from_this<CommCore> {
 public:
  CommCore(std::shared_ptr<Engine> engine, BufferPool& pool, CoreConfig config);
  // With the cores that the members have, of which the engine learns too.
  static std::shared_ptr<CommCore> Make(std::shared_ptr<Engine> engine, BufferPool& pool,
                                        CoreConfig config);

  absl::StatusOr<RefPtr<Work>> Start(Call call, bool kick);
  // Runs it on the inline path, or starts it and waits.
  absl::Status Run(const Call& call);
  InlinePath& inline_path() { return inline_; }
  // Numbers, plans, default times.
  CallFunnel& funnel() { return funnel_; }
  const CallFunnel& funnel() const { return funnel_; }
  absl::Status status() const { return end_.status(); }
  void Abort(absl::string_view reason);
  void EndWith(const absl::Status& why);
  // Plans made so far count no more.
  void SetPaths(const Paths& paths);
  void SetProbed(const CostModel& model);
  // The two lines of Planner::Explain, and the different texts of Endpoint::Explain, a line each.
  absl::StatusOr<std::string> Explain(CallKind kind, int64_t count, DType dtype);
  CommStats stats() const;
  // Waits until every call started so far is done; false: not by then.
  bool Drain(Deadline give_up);

  // Soon ends the communicator on all ranks, by what only this one knows of.
  void EndHere(const absl::Status& why);
  // This rank's caller could not start this call. Returns when the others have been told.
  void Refused(const Call& call, const absl::Status& why);

  Engine& engine() { return engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_holder_; }
  BufferPool& pool() { return pool_; }
  const CoreConfig& config() const { return config_; }
  const Topology& topology() const { return topology_; }
  int rank() const { return config_.rank; }
  int size() const { return static_cast<int>(config_.members.size()); }

  // [driver] Once, before any call: takes part in the engine's traffic from now on.
  void Open();
  // [driver] The user's handle is gone: ends unfinished calls everywhere, or leaves quietly.
  void Leave();

  // ContextOwner [driver]
  void Attend() override;
  void OnControl(Endpoint& from, absl::string_view message) override;
  void OnLost(Endpoint& from, const absl::Status& why) override;
  Deadline next_tick() const override;
  void OnTick(int64_t now_ns) override;
  void OnEarly(Endpoint& from, const Envelope& envelope) override;
  std::string UserOf(ConstBytes bytes) const override;
  void OnShutdown() override;
  std::optional<int64_t> waits_since() const override;
  Deadline FindOut(HeldUpBy then) override;

 private:
  absl::StatusOr<RefPtr<Work>> StartPacked(const Call& call, int64_t now_ns);
  // Counted as open, with the engine's reference; to be submitted, or started by the driver.
  RefPtr<CallWork> Prepare(Admitted admitted, CallWork::Begin begin);
  // FunnelOwner
  RefPtr<CallWork> Submit(Admitted admitted, CallWork::Begin begin) override;

  // InlineOwner [driver]
  bool ended() const override { return end_.ended(); }
  absl::Status Furnish(const Call& call, Admitted* admitted) override {
    return funnel_.Admit(call, admitted);
  }
  void Number(CallNumbers::Series series, Wiring* wiring) override {
    funnel_.Number(series, wiring);
  }
  absl::Status Over(const Descriptor& descriptor, const Wiring& wiring) override;
  absl::Status GoOn(const Call& call, Admitted admitted, const Progress& progress) override;

  // CallOwner, InquiryOwner and MismatchOwner [driver]
  void StartWork(CallWork* work) override;
  void NeedAttention() override;
  std::optional<OwnCall> OpenCollective(CallId call) const override {
    return open_.OwnCollective(call);
  }
  Deadline FirstDeadline() const override { return open_.FirstDeadline(); }
  bool SaysNothing(int rank) const override;
  absl::Status CauseOf(int rank) const override;
  void NeedFlush() override { engine_.seat().NeedFlush(); }
  void Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) override;
  // Ends the communicator here and tells the others why. The first reason counts.
  void Fail(const absl::Status& why) override;

  // [driver]:
  // Starts the receives in line whose turn has come.
  void TendLines();
  // A peer of whose next message with this tag something has come; -1: none.
  int SenderTo(uint32_t tag);
  // When all others have left and their paths are gone, so that no message can come: one of them; -1: they have not.
  int LastOfAllGone() const;
  void CompleteReady();
  void FinishWork(CallWork* work, const absl::Status& status);
  void OnQuery(Endpoint& from, int rank, Reader& reader);
  void SendAnswer(int rank, uint32_t nonce, Membership::Answer answer, int64_t more_ns = 0,
                  const absl::Status& excuse = absl::OkStatus());
  void TellOfRunning(int64_t now_ns);

  const std::shared_ptr<Engine> engine_holder_;
  Engine& engine_;
  BufferPool& pool_;
  const CoreConfig config_;
  const Topology topology_;
  const Peers peers_;

  const FailureWords words_;
  CommEnd end_;
  CallFunnel funnel_;
  // By the driver, without those of the inline path.
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};
  InlinePath inline_;

  // [driver]:
  OpenCalls open_;
  int last_source_ = -1;  // of a receive from any peer
  std::vector<CallWork*>
      draining_;  // over, but transfers have not completed; each holds one reference
  Mismatches mismatches_;
  int64_t opened_ns_ = 0;
  Inquiry inquiry_;
  bool attending_ = false;
  int64_t told_of_ns_ = 0;  // when the function was called of which the log has been told
};

}  // namespace entrain
