// The rounds of fragments that no replica waits for (options quorum and overlap_steps), as in
// Decoupled DiLoCo (arXiv 2604.21428). The paper's synchroniser is a process of its own. Here each
// replica has the anchors, and the workers of all replicas agree when a round is closed
// (round_closer.h). They also run the round, so no caller takes part.
//
//   caller   offers fragment 0 ... merges 0    offers 1 ...       merges 1     at every step
//   worker            round of 0                      round of 1
//   late     offers nothing: its worker takes part without its parameters      takes over 0, 1
//
//   kTraining --Offer--> kOffered --a round with this replica--> kResult --Merge--> kTraining
//       └──── a round without this replica ───> kLate ────────── Merge ────────────────┘
//
// A replica has its own clock: it offers a fragment at its own steps. A replica of one rank offers
// again, with its newer parameters, if the last offer was not answered until the fragment is due
// again. If a round was closed just before the offer, the offer is taken back and made again after
// Merge.
//
// The ranks of a replica merge and offer at the same steps, although a round ends at another time
// on each of them: at each step they merge what all of them could merge at the step before
// (ReplicaAgreement). If only some of them have an offer, the replica does not take part in the
// round (ReplicaRendezvous), and these ranks are late too.
//
// Thread safety: one thread of the caller, and the worker. With replicas of one rank, Merge and
// Offer block only while the worker takes an anchor into a snapshot.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/comm/communicator.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/edit/fragments.h"
#include "lib/train/edit/rendezvous.h"
#include "lib/train/edit/replica_agreement.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/edit/snapshots.h"

namespace entrain {

class BackgroundRounds {
 public:
  // The totals of this replica.
  struct Trained {
    int64_t steps = 0, tokens = 0;
  };

  // The references must outlive this object. `replica` is as in ReplicaAgreement.
  BackgroundRounds(const EditOptions& options, const FragmentSchedule& schedule,
                   Snapshots& snapshots, RoundCloser& closer,
                   std::shared_ptr<Communicator> replica);

  // ---- Called by the caller's thread
  // Must be called when all parameters are those of the anchors, and count from now on.
  void Begin(const Trained& now);
  // Returns the fragments that Merge must merge at this step, by fragment. The same on all ranks of
  // the replica. Must be called once at each step.
  absl::StatusOr<std::vector<bool>> Mergeable();
  // Merges results of rounds with this replica, and takes over those of rounds without it (option
  // late). If the replica has several ranks, no round may be under way.
  void Merge(const Trained& now, const std::vector<bool>& which);
  // Makes a pending call within the replica fail on all its ranks. May be called from any thread.
  void GiveUp(const absl::Status& why) { agreement_.GiveUp(why); }
  // Offers the fragments that are due at this step, and those whose offers were taken back.
  // `fetch` is called before the parameters are read (LayerSync::Fetch). `take_news` is called for
  // each; it returns what this replica has not told yet: flags and the metric. The results are needed at `due_ns` of the real clock. Returns true if it has offered
  // any.
  absl::StatusOr<bool> Offer(const Trained& now, int64_t since_warmup,
                             absl::FunctionRef<absl::Status()> fetch,
                             absl::FunctionRef<Standing()> take_news, int64_t due_ns);
  // Takes back all offers and merges all results. No round may be under way. Adds to `standing` the
  // training since the oldest mark of a fragment, and what these offers have not told.
  void Settle(const Trained& now, Standing* standing);

  // ---- Called by the worker
  // Begins a round of a fragment. `included`: the decision includes this replica. `late` is the
  // standing with which this replica takes part if it has no offer.
  absl::StatusOr<std::unique_ptr<ExchangeRound>> BeginRound(int fragment, bool included,
                                                            const Standing& late,
                                                            ExchangeRound::InFlight in_flight);
  // Must be called at the end of the round.
  void EndRound(int fragment);
  // Takes over all results. The caller must wait for the worker.
  void CatchUp();

 private:
  enum class State { kTraining, kOffered, kResult, kLate };
  struct Fragment {
    std::vector<int> layers;
    State state = State::kTraining;
    bool running = false;     // a round of the fragment is under way
    bool takes_part = false;  // in this round, with the offer
    bool wanted = false;      // must be offered as soon as possible
    bool out = false;         // due since the last Merge. The same on all ranks of the replica
    Trained mark, before;     // what is exchanged; before: without the offer
    Standing standing;        // of the offer; or what an offer that was taken back has not told
    int64_t rounds_late = 0;  // since the last exchange with this replica
  };
  void TakeBack(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Ready(const Fragment& fragment);
  static void AddNews(const Standing& untold, Standing* standing);
  void MergeAll(const Trained& now);

  const EditOptions& options_;
  const FragmentSchedule& schedule_;
  Snapshots& snapshots_;
  RoundCloser& closer_;
  const bool alone_;            // the replica has one rank
  ReplicaAgreement agreement_;  // what can be merged, by fragment
  mutable absl::Mutex mutex_;
  std::vector<Fragment> fragments_ ABSL_GUARDED_BY(mutex_);
  Trained settled_ ABSL_GUARDED_BY(mutex_);  // of the last Settle
};

}  // namespace entrain
