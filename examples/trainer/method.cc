#include "examples/trainer/method.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/trainer/checkpoint_names.h"
#include "examples/trainer/presets.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {

Method::Method(const Options& options, const Task& task, Session* session, entrain_shard_t* shard) {
  if (PresetOf(options.method).engine == Engine::kEveryStep) {
    Check(entrain_shard_set_gradients(shard, ENTRAIN_GRADIENTS_GLOBAL));
    return;
  }
  entrain_edit_config_t config = ConfigOf(options, task.layers());
  config.shard = shard;
  const std::string identity = IdentityOf(options, task.Entropy());
  config.identity = identity.c_str();
  entrain_edit_t* edit = nullptr;
  const std::string admit_name = session->AdmitName("edit");
  config.admit_name = session->revives() ? admit_name.c_str() : nullptr;
  if (session->joins()) {
    session->Join([&](int64_t wait_ns) {
      return entrain_edit_join(session->mesh(), &config, wait_ns, &edit);
    });
  } else {
    Check(entrain_edit_create(session->mesh(), &config, &edit));
  }
  edit_.reset(edit);
  by_time_ = config.use_async != 0;
  late_ = config.overlap_steps > 0;
  closes_early_ = config.quorum > 0 || config.round_deadline > 0;
  goes_on_after_losses_ = config.on_loss == ENTRAIN_ON_LOSS_FINISH;
  interval_steps_ = config.local_sgd_sync_interval;
  warmup_steps_ = config.local_sgd_warmup_steps;
  NoteInfo();
}

// Must be called when this replica has taken over the state of a run.
void Method::NoteInfo() {
  const entrain_edit_info_t info = Info();
  exchanges_ = info.syncs;
  taken_part_ = info.rendezvous - info.missed;
}

bool Method::BeginForward(bool training, bool first_microbatch) {
  if (edit_ == nullptr) {
    return false;
  }
  const Waiting waiting(&waited_s_);
  int32_t syncing = 0;
  Check(entrain_edit_begin_forward(edit_.get(), training ? 1 : 0, first_microbatch ? 1 : 0,
                                   &syncing, nullptr));
  if (decoupled()) {
    const entrain_edit_info_t info = Info();
    const int64_t before = std::exchange(taken_part_, info.rendezvous - info.missed);
    syncing = taken_part_ > before ? 1 : 0;
  }
  exchanges_ += syncing;
  return syncing != 0;
}

void Method::RequestExchange() {
  Check(entrain_edit_request_sync(edit_.get()));
}

void Method::WaitLayer(int layer) {
  if (edit_ != nullptr) {
    const Waiting waiting(&waited_s_);
    Check(entrain_edit_wait_layer(edit_.get(), layer));
  }
}

void Method::EndStep(int64_t tokens, double loss) {
  if (edit_ != nullptr) {
    Check(entrain_edit_record(edit_.get(), tokens, loss, static_cast<double>(tokens)));
    Check(entrain_edit_end_step(edit_.get()));
  }
}

void Method::WaitAll(int layers) {
  for (int layer = 0; layer < layers; ++layer) {
    WaitLayer(layer);
  }
}

bool Method::Finish(int layers) {
  if (edit_ == nullptr || Info().in_warmup != 0) {
    return false;
  }
  if (by_time_ || decoupled()) {
    const Waiting waiting(&waited_s_);
    Check(entrain_edit_leave(edit_.get(), nullptr));
    return true;
  }
  RequestExchange();
  BeginForward(true, true);
  WaitAll(layers);
  return true;
}

void Method::AddState(const char* name, float* data, size_t count) {
  Check(entrain_edit_add_state(edit_.get(), name, data, count, ENTRAIN_F32, ENTRAIN_STATE_RANK));
}

entrain_status_t Method::Reduce(const void* in, void* out, size_t count, entrain_dtype_t dtype,
                                entrain_op_t op, int32_t* rank, int32_t* ranks) {
  return entrain_edit_reduce(edit_.get(), in, out, count, dtype, op, 0, rank, ranks, nullptr);
}

void Method::WishCheckpoint() {
  Check(entrain_edit_wish(edit_.get(), ENTRAIN_WISH_CHECKPOINT));
}

bool Method::CheckpointIsDue(int replicas) const {
  bool due = (Info().wishes & ENTRAIN_WISH_CHECKPOINT) != 0;
  for (int replica = 0; due && replica < replicas; ++replica) {
    const std::optional<entrain_edit_replica_t> said = Said(replica);
    due = !said.has_value() || said->leaving == 0;
  }
  return due;
}

// Returns the record of a replica at the last rendezvous, or nothing if the replica is lost.
std::optional<entrain_edit_replica_t> Method::Said(int replica) const {
  entrain_edit_replica_t said;
  entrain_edit_replica_init(&said);
  const entrain_status_t status = entrain_edit_replica(edit_.get(), replica, &said);
  if (status == ENTRAIN_FAILED_PRECONDITION) {
    return std::nullopt;
  }
  Check(status);
  return said;
}

void Method::Save(const Options& options, const std::string& name) {
  entrain_checkpoint_config_t config = CheckpointConfig(options);
  config.save_dir = options.save_dir.c_str();
  config.ckpt_name = name.c_str();
  Check(entrain_edit_save(edit_.get(), &config, nullptr, nullptr));
}

void Method::Load(const Options& options, const std::string& file) {
  const CheckpointPath path(file);
  entrain_checkpoint_config_t config = CheckpointConfig(options);
  config.save_dir = path.directory.c_str();
  config.ckpt_name = path.name.c_str();
  Check(entrain_edit_load(edit_.get(), &config, nullptr, nullptr));
  NoteInfo();
}

int64_t Method::interval() const {
  const int64_t local = edit_ == nullptr ? -1 : Info().steps - warmup_steps_;
  if (local < 0) {
    return 0;
  }
  return 1 + (by_time_ ? exchanges_ : local / interval_steps_);
}

Method::Met Method::StepsWhenMet(int replicas, int own) const {
  Met met;
  for (int replica = 0; replica < replicas; ++replica) {
    if (const auto said = Said(replica)) {
      ++met.replicas;
      met.steps += said->steps;
      met.own = replica == own ? said->steps : met.own;
    }
  }
  return met;
}

std::vector<int> Method::Lost() const {
  std::vector<int> lost;
  const int32_t count = edit_ ? Info().losses : 0;
  for (int32_t index = 0; index < count; ++index) {
    int32_t replica = 0;
    Check(entrain_edit_loss(edit_.get(), index, &replica, nullptr, nullptr, 0));
    lost.push_back(replica);
  }
  return lost;
}

uint64_t Method::anchor_checksum() const {
  return edit_ ? Info().anchor_checksum : 0;
}

uint64_t Method::bytes_sent_shard() const {
  return edit_ ? Info().bytes_sent_shard : 0;
}

uint64_t Method::bytes_sent_sync() const {
  return edit_ ? Info().bytes_sent_sync : 0;
}

entrain_edit_info_t Method::Info() const {
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  Check(entrain_edit_info(edit_.get(), &info));
  return info;
}

}  // namespace trainer
