// Changes in the membership of an EDiT object. Makes the objects that handle losses (option
// on_loss), close rounds without late replicas (quorum, round_deadline) and admit newcomers
// (admit). On a newcomer, Join joins the members.
//
// Thread safety: Start and Join run on the caller's thread, before the worker's thread exists. The
// results of the other functions do not change afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/agree.h"
#include "lib/comm/mesh.h"
#include "lib/train/edit/admission.h"
#include "lib/train/edit/background_rounds.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/fragments.h"
#include "lib/train/edit/recovery.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/edit/step_counter.h"
#include "lib/train/edit/trigger.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/shard/layer_shards.h"

namespace entrain {

class EditMembership {
 public:
  // The parts of the EDiT object that this object uses. They must outlive this object.
  struct Parts {
    const Mesh& mesh;
    const LayerShards& shards;
    const EditOptions& options;
    const FragmentSchedule& schedule;
    SyncTrigger& trigger;
    StepCounter& counter;
    Exchange& exchange;
    ExchangeResults& results;
  };
  explicit EditMembership(const Parts& parts) : parts_(parts) {}

  // Collective over all replicas. If there are other replicas, makes the objects for which the
  // options ask.
  absl::Status Start();
  // Used by a newcomer in place of Start. Joins the members, and continues at their last
  // rendezvous. Blocks for at most `wait_ns`; if that is 0, for at most the time limit of calls.
  absl::Status Join(int64_t wait_ns);

  // Return null if the options do not ask for the object, or if the run began with one replica. If
  // recovery is null, a loss ends the EDiT object. If admission is null, no newcomer is admitted.
  // If closer is null, a round needs all replicas.
  Recovery* recovery() const { return recovery_.get(); }
  Admission* admission() const { return admission_.get(); }
  RoundCloser* closer() const { return closer_.get(); }
  // Null if callers wait for all rounds.
  BackgroundRounds* background() const { return background_.get(); }

 private:
  absl::Status StartCloser();
  absl::Status MakeCloser(std::unique_ptr<ReplicaWorld> world, Communicator* replica);
  absl::Status StartRecovery();
  void StartAdmission();
  void LimitSilence(const std::vector<std::shared_ptr<Communicator>>& communicators) const;
  absl::StatusOr<std::unique_ptr<ReplicaWorld>> MakeWorld(absl::string_view option,
                                                          bool apart) const;
  NamedGroups Alike() const;
  int64_t StepOfNewcomer(int64_t met, int64_t members) const;

  const Parts parts_;
  std::unique_ptr<RoundCloser> closer_;
  std::unique_ptr<BackgroundRounds> background_;  // uses closer_
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<Admission> admission_;  // uses recovery_ and closer_
};

}  // namespace entrain
