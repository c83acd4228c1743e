// Posts the jobs of rounds to the worker of an EDiT object, and keeps account of what they come to. The first job that fails ends
// the object, on all ranks.
//
// Thread safety: one thread posts, the caller's; Fail and sync_ns from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/train/exchange.h"
#include "lib/train/exchange_results.h"
#include "lib/train/exchange_round.h"
#include "lib/train/first_error.h"
#include "lib/train/worker.h"

namespace entrain {

class RoundRunner {
 public:
  // All outlive this.
  RoundRunner(Worker& worker, Exchange& exchange, ExchangeResults& results, FirstError& error)
      : worker_(worker), exchange_(exchange), results_(results), error_(error) {}

  // Each gives the job's number; after an error: of the last job.
  uint64_t PostJudge(std::shared_ptr<ExchangeRound> round, int64_t extra_ns);
  // Once for each turn of the round.
  uint64_t PostTurn(std::shared_ptr<ExchangeRound> round);
  // The anchors that have just been created count.
  void Seal();
  // What a round behind further steps has brought is merged before anything that the caller does next.
  absl::Status Merge(std::shared_ptr<ExchangeRound> round);

  // Ends the object with this error, on all ranks of both groups; the first reason counts.
  void Fail(const absl::Status& why);
  // The time that jobs have taken.
  uint64_t sync_ns() const { return sync_ns_.load(std::memory_order_relaxed); }

 private:
  uint64_t Numbered(const absl::StatusOr<uint64_t>& posted);
  Worker::Job Timed(Worker::Job body);
  absl::Status Judge(ExchangeRound& round, int64_t extra_ns);
  absl::Status RunTurn(ExchangeRound& round);
  absl::Status SealAnchors();

  Worker& worker_;
  Exchange& exchange_;
  ExchangeResults& results_;
  FirstError& error_;
  std::atomic<uint64_t> sync_ns_{0};
};

}  // namespace entrain
