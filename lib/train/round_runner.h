// Posts the jobs of rounds to the worker of an EDiT object, and records their results. The first
// job that fails ends the object on all ranks, unless it has failed because of a loss that `recovery`
// answers. Then the job continues.
//
// Thread safety: only the caller's thread posts. Fail and sync_ns may be called from any thread.
// Watch is called by the worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/train/admission.h"
#include "lib/train/exchange.h"
#include "lib/train/exchange_results.h"
#include "lib/train/exchange_round.h"
#include "lib/train/first_error.h"
#include "lib/train/recovery.h"
#include "lib/train/worker.h"

namespace entrain {

class RoundRunner {
 public:
  // All arguments must outlive this object. `recovery` is null if a loss ends the object,
  // `admission` if nobody is taken in.
  RoundRunner(Worker& worker, Exchange& exchange, ExchangeResults& results, FirstError& error,
              Recovery* recovery, Admission* admission = nullptr)
      : worker_(worker),
        exchange_(exchange),
        results_(results),
        error_(error),
        recovery_(recovery),
        admission_(admission) {}

  // PostJudge and PostTurn return the job's number; after an error, the number of the last job.
  uint64_t PostJudge(std::shared_ptr<ExchangeRound> round, int64_t extra_ns);
  // Must be called once for each turn of the round.
  uint64_t PostTurn(std::shared_ptr<ExchangeRound> round);
  // Posts the job that takes newcomers in, after the last turn of a round. Nothing of the round waits
  // for it.
  void PostAdmission();
  // Posts the sealing of anchors that have just been created.
  void Seal();
  // Merges a round behind further steps, ordered before the caller's next work.
  absl::Status Merge(std::shared_ptr<ExchangeRound> round);

  // Called while no job runs: answers a loss that has happened, so that other ranks, which may be
  // in the middle of a round, need not wait for this one.
  absl::Status Watch();
  // Ends the object because of an error outside of rounds, of a call within the replica. If the
  // error is a loss, the worker takes part in the recovery first, so that no rank waits for this
  // one. Returns the object's error.
  absl::Status Meet(const absl::Status& why);
  // Ends the object with this error on all ranks of both groups. Only the first error counts.
  void Fail(const absl::Status& why);
  // Returns the total time of all jobs.
  uint64_t sync_ns() const { return sync_ns_.load(std::memory_order_relaxed); }

 private:
  uint64_t Numbered(const absl::StatusOr<uint64_t>& posted);
  Worker::Job Timed(Worker::Job body);
  absl::Status Finish(absl::Status status);
  bool MustRecover() const;
  absl::Status Persist(Worker::Job& body);
  absl::Status Judge(const std::shared_ptr<ExchangeRound>& round, int64_t extra_ns);
  absl::Status RunTurn(ExchangeRound& round);
  absl::Status SealAnchors();

  Worker& worker_;
  Exchange& exchange_;
  ExchangeResults& results_;
  FirstError& error_;
  Recovery* const recovery_;
  Admission* const admission_;
  std::shared_ptr<ExchangeRound> round_;  // the last that has begun on the worker
  std::atomic<uint64_t> sync_ns_{0};
};

}  // namespace entrain
