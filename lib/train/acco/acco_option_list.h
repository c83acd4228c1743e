// The options of ACCO whose values are single numbers. Each row describes one option: the field of
// the same name in entrain_acco_config_t. option_list.h explains the columns, and the code that is
// generated from the rows.
//
// gradient_channel_options.h and gradient_channel_options.cc have the options that are pointers or
// arrays, and the rules that concern several options.
#pragma once

// clang-format off
#define ENTRAIN_ACCO_OPTIONS(X)                                                                                        \
  X(DelayMethod, method, DelayMethod::kAcco, OneOf("ENTRAIN_ACCO*", "acco,dpu,wp,zero1"), true, nullptr, true,         \
    "gradients of a step: acco: two halves of a batch; dpu: the round before; wp: the round before, with a "           \
    "prediction; zero1: its own round")                                                                                \
  X(int64_t, min_microbatches, 1, AtLeast(1), true, nullptr, false,                                                    \
    "smallest number of micro-batches of a rank in a round")                                                           \
  X(int64_t, max_microbatches, 0, NotNegative(), true, nullptr, false,                                                 \
    "largest number of micro-batches of a rank in a round (repeatable runs: the smallest); 0: as many as fit")         \
  X(int64_t, warmup_rounds, 0, NotNegative(), o.method != DelayMethod::kZero1,                                         \
    "has no effect with method zero1, all of whose rounds are synchronous; set 0", true,                               \
    "synchronous rounds at the start")                                                                                 \
  X(double, clip_norm, 0, AtLeast(0), true, nullptr, true,                                                             \
    "largest norm of a round's mean gradient; 0: off")                                                                 \
  X(double, lr, 1e-3, AtLeast(0), true, nullptr, true,                                                                 \
    "highest learning rate")                                                                                           \
  X(double, min_lr, 0, AtLeast(0), o.schedule_total > 0,                                                               \
    "has no effect without schedule_total; set both", true,                                                            \
    "learning rate at the end of the cosine")                                                                          \
  X(int64_t, schedule_warmup, 0, NotNegative(), true, nullptr, true,                                                   \
    "end of the linear rise of the learning rate from 0")                                                              \
  X(int64_t, schedule_total, 0, NotNegative(), true, nullptr, true,                                                    \
    "end of the cosine after the rise; 0: the learning rate is constant")                                              \
  X(ProgressUnit, schedule_unit, ProgressUnit::kCommits, OneOf("ENTRAIN_UNIT_*", "commits,gradients,tokens"),          \
    true, nullptr, true,                                                                                               \
    "unit of the schedule: steps, micro-batches or tokens of all ranks")                                               \
  X(ProgressUnit, limit_unit, ProgressUnit::kCommits, OneOf("ENTRAIN_UNIT_*", "commits,gradients,tokens"),             \
    true, nullptr, true,                                                                                               \
    "unit of the limit: steps, micro-batches or tokens of all ranks")                                                  \
  X(int64_t, limit, 0, NotNegative(), true, nullptr, true,                                                             \
    "the run ends at the first step that reaches this limit; 0: it ends at acco_stop")                                 \
  X(int64_t, timeout_ns, 0, NotNegative(), true, nullptr, false,                                                       \
    "time limit of each collective, in nanoseconds; 0: the communicator's default")                                    \
  X(OnLoss, on_loss, OnLoss::kFail, OneOf("ENTRAIN_ON_LOSS_*", "fail,finish"), true, nullptr, true,                    \
    "when a rank is lost: fail: all ranks end; finish: the others finish the round with the copy of its shard")         \
  X(Admit, admit, Admit::kNone, OneOf("ENTRAIN_ADMIT_*", "none,exchange"), true, nullptr, true,                        \
    "newcomers: none, or taken in after a commit; the others train on until they are connected")                       \
  X(double, silence, 0, Within(0, 1e9), o.on_loss == OnLoss::kFinish,                                                  \
    "has no effect without on_loss finish; set both, or ENTRAIN_SILENCE", false,                                       \
    "seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30")
// clang-format on
