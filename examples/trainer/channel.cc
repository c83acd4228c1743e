#include "examples/trainer/channel.h"

#include <algorithm>

#include "examples/trainer/checkpoint_names.h"
#include "examples/trainer/presets.h"

namespace trainer {
Channel::Channel(const Options& options, const Task& task, Session* session,
                 const InnerOptimizer& inner, WholeModel* model)
    : options_(options),
      steps_(options.total_steps(session->ranks())),
      tokens_per_step_(options.tokens_per_step(session->ranks())) {
  const bool by_tokens = options.tokens > 0;
  entrain_acco_config_t config;
  entrain_acco_config_init(&config);
  config.params = model->params();
  config.count = static_cast<size_t>(model->offset(model->layers()));
  config.params_dtype = options.precision == "bf16" ? ENTRAIN_BF16 : ENTRAIN_F32;
  config.grads_dtype = ENTRAIN_F32;
  config.method = PresetOf(options.method).acco_method;
  config.optim = inner.handle();
  config.min_microbatches = options.gradient_accumulation_steps;
  SetGiven(options.channel, OptionsOfChannel(), &config);
  config.clip_norm = options.inner.grad_clip;
  config.schedule = Schedule;
  config.schedule_user = this;
  config.schedule_unit = by_tokens ? ENTRAIN_UNIT_TOKENS : ENTRAIN_UNIT_COMMITS;
  config.limit_unit = config.schedule_unit;
  config.limit = by_tokens ? options.tokens : steps_;
  const std::string identity = IdentityOf(options, task.Entropy());
  config.identity = identity.c_str();
  entrain_acco_t* acco = nullptr;
  const std::string admit_name = session->AdmitName("acco");
  config.admit_name = session->revives() ? admit_name.c_str() : nullptr;
  if (session->joins()) {
    session->Join([&](int64_t wait_ns) {
      return entrain_acco_join(session->world(), &config, wait_ns, &acco);
    });
  } else {
    Check(entrain_acco_create(session->world(), &config, &acco));
  }
  acco_.reset(acco);
  void* gradients = nullptr;
  Check(entrain_acco_gradients(acco, &gradients));
  gradients_ = static_cast<float*>(gradients);
}

// Returns the learning rate of the commit after `progress`. Runs on the channel's thread.
double Channel::Schedule(void* self, int64_t progress) {
  const auto* const channel = static_cast<const Channel*>(self);
  double done = static_cast<double>(progress);
  if (channel->options_.tokens > 0) {
    done /= static_cast<double>(channel->tokens_per_step_);
  }
  const auto steps = static_cast<double>(channel->steps_);
  return LearningRate(channel->options_.inner, std::min(done + 1.0, steps), steps);
}

void Channel::Add(int64_t tokens) {
  Check(entrain_acco_add(acco_.get(), 1, tokens));
}

bool Channel::Ready() const {
  int32_t ready = 0;
  Check(entrain_acco_poll(acco_.get(), &ready));
  return ready != 0;
}

void Channel::Install() {
  int32_t finished = 0;
  Check(entrain_acco_install(acco_.get(), &finished));
}

entrain_acco_info_t Channel::info() const {
  entrain_acco_info_t info;
  entrain_acco_info_init(&info);
  Check(entrain_acco_info(acco_.get(), &info));
  return info;
}

std::vector<int> Channel::Lost() const {
  std::vector<int> lost;
  const int32_t count = info().losses;
  for (int32_t index = 0; index < count; ++index) {
    int32_t rank = 0;
    Check(entrain_acco_loss(acco_.get(), index, &rank, nullptr, nullptr, 0));
    lost.push_back(rank);
  }
  return lost;
}

void Channel::AddCursor(int64_t* cursor) {
  Check(entrain_acco_add_state(acco_.get(), "cursor", cursor, 1, ENTRAIN_I64, ENTRAIN_STATE_RANK));
}

entrain_status_t Channel::Reduce(const void* in, void* out, size_t count, entrain_dtype_t dtype,
                                 entrain_op_t op, int32_t* rank, int32_t* ranks) {
  return entrain_acco_reduce(acco_.get(), in, out, count, dtype, op, 0, rank, ranks, nullptr);
}

void Channel::Save(const std::string& name) {
  entrain_checkpoint_config_t config = CheckpointConfig(options_);
  config.save_dir = options_.save_dir.c_str();
  config.ckpt_name = name.c_str();
  Check(entrain_acco_save(acco_.get(), &config, nullptr, nullptr));
}

void Channel::Load(const Options& options, const std::string& file) {
  const CheckpointPath path(file);
  entrain_checkpoint_config_t config = CheckpointConfig(options);
  config.save_dir = path.directory.c_str();
  config.ckpt_name = path.name.c_str();
  Check(entrain_acco_load(acco_.get(), &config, nullptr, nullptr));
}

}  // namespace trainer
