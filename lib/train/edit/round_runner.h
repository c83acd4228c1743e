// Posts the jobs of rounds to the worker of an EDiT object, and records the results of rounds. If a
// job fails because of a loss that `recovery` can handle, the job is repeated after the recovery.
// Any other failure ends the EDiT object on all ranks.
//
// With options quorum or round_deadline, the replicas decide together when a round is closed
// (round_closer.h). The jobs of this replica's rendezvous take part in these decisions. While no
// job runs, Watch takes part in them, and runs the rounds for which the caller is late.
//
// Thread safety: only the caller's thread posts. Fail and sync_ns may be called from any thread.
// Watch is called by the worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "lib/train/edit/admission.h"
#include "lib/train/edit/background_rounds.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/recovery.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/state/all_ranks.h"
#include "lib/train/worker/worker.h"

namespace entrain {

// Makes the current turn of a round whose rendezvous is over: begins the layers that may begin, and
// finishes the layer of the turn. Returns this layer, or kNoLayer if there is nothing to exchange.
absl::StatusOr<int> MakeTurn(ExchangeRound& round, Exchange& exchange);

class RoundRunner {
 public:
  // All arguments must outlive this object. `recovery` is null if a loss ends the object.
  // `admission` is null if no newcomer is admitted. `closer` is null if rounds need all replicas.
  // `layers` are the layers of rounds that `closer` closes and callers wait for. `background` is null
  // if there are no others.
  RoundRunner(Worker& worker, Exchange& exchange, ExchangeResults& results, FirstError& error,
              Recovery* recovery, Admission* admission = nullptr, RoundCloser* closer = nullptr,
              std::vector<int> layers = {}, BackgroundRounds* background = nullptr)
      : worker_(worker),
        exchange_(exchange),
        results_(results),
        error_(error),
        recovery_(recovery),
        admission_(admission),
        closer_(closer),
        layers_(std::move(layers)),
        background_(background) {}

  // PostJudge and PostTurn return the number of the posted job. After an error they return the
  // number of the last job.
  uint64_t PostJudge(std::shared_ptr<ExchangeRound> round, int64_t extra_ns);
  // Must be called once for each turn of the round.
  uint64_t PostTurn(std::shared_ptr<ExchangeRound> round);
  // Posts the job that admits newcomers. Must be called after the last PostTurn of a round. The
  // round does not wait for this job.
  void PostAdmission();
  // Stores the hashes of newly created anchors (Anchors::Seal). Runs in the calling thread.
  void Seal();
  // If `recovery` is not null, blocks until all ranks have finished their last exchange. If a rank
  // is lost during that exchange, this rank can still send its results to the others.
  absl::Status AwaitOthers();
  // Merges a round that overlaps with further steps, in the calling thread, when the round is over.
  absl::Status Merge(std::shared_ptr<ExchangeRound> round);

  // Returns true if this replica's last arrival came too late for its round. With a closer, must be
  // called by the caller's thread after the round's jobs are over. Without a closer, returns false
  // even while jobs run.
  bool missed() const { return closer_ != nullptr && round_ != nullptr && round_->missed(); }

  // Makes a call of the caller's threads of all replicas, and repeats it after losses
  // (joint_calls.h). No job may run. Errors without a loss end the object.
  absl::Status MakeJointCall(absl::FunctionRef<AllRanks()> everybody, JointCalls::Attempt attempt,
                             absl::string_view doing, std::string* result);

  // Called while no job runs. After a loss, takes part in the recovery: other ranks may be in the
  // middle of a round, and must not wait for this rank. If a session of the closer is under way,
  // takes part in its ticks.
  absl::Status Watch();
  // Must be called if a call within the replica, outside of rounds, has failed with `why`. Ends the
  // object and returns its error. If `why` is a loss, the worker takes part in the recovery first,
  // so that no rank waits for this rank.
  absl::Status FailTogether(const absl::Status& why);
  // Ends the object with this error on all ranks of both groups. Only the first error counts.
  void Fail(const absl::Status& why);
  // The worker holds the mutex while it runs a round for which the caller is late. The caller's
  // thread holds the mutex while it reads data that rounds write.
  absl::Mutex& between_late_rounds() const ABSL_LOCK_RETURNED(late_mutex_) { return late_mutex_; }
  // Returns the total time of all jobs.
  uint64_t sync_ns() const { return sync_ns_.load(std::memory_order_relaxed); }

 private:
  Worker::Job Timed(Worker::Job body);
  absl::Status Finish(absl::Status status);
  bool MustRecover(bool closing) const;
  absl::Status Persist(Worker::Job& body);
  absl::Status Judge(const std::shared_ptr<ExchangeRound>& round, int64_t extra_ns);
  absl::Status Make(ExchangeRound& round);
  absl::Status RunTurn(ExchangeRound& round);
  absl::Status SealAnchors();
  absl::Status JudgeOnTime(ExchangeRound& round, int64_t extra_ns);
  absl::Status JudgeOrCatchUp(ExchangeRound& round, int64_t extra_ns);
  absl::Status Recover();
  bool AnswersCaller(const Closing& closing) const;
  absl::Status AnswerOthers();
  absl::Status CarryOutForOthers(const Closing& closing);
  absl::Status RunForOthers(const Closing& closing);
  absl::Status BeginForOthers(const Closing& closing);
  absl::Status Admit();

  Worker& worker_;
  Exchange& exchange_;
  ExchangeResults& results_;
  FirstError& error_;
  Recovery* const recovery_;
  Admission* const admission_;
  RoundCloser* const closer_;
  const std::vector<int> layers_;
  BackgroundRounds* const background_;
  std::shared_ptr<ExchangeRound> round_;  // the caller's last round that has begun
  // The round that the worker runs while the caller trains; null: none.
  std::unique_ptr<ExchangeRound> late_;
  int64_t background_ns_ = 0;   // usual time of a round of a fragment
  bool admission_due_ = false;  // newcomers may be taken in after the last round
  std::atomic<uint64_t> sync_ns_{0};
  mutable absl::Mutex late_mutex_;
};

}  // namespace entrain
