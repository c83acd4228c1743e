// The options of EDiT whose values are single numbers. Each row describes one option: the field of
// the same name in entrain_edit_config_t. option_list.h explains the columns, and the code that is
// generated from the rows.
//
// edit_options.h and edit_options.cc have the options that are pointers or arrays, and the rules
// that concern several options.
#pragma once

// clang-format off
#define ENTRAIN_EDIT_OPTIONS(X)                                                                                        \
  X(int64_t, local_sgd_sync_interval, 1, AtLeast(1), !o.use_async,                                                     \
    "has no effect with use_async, which goes by local_sgd_sync_time; set one", true,                                  \
    "H: optimizer steps between exchanges")                                                                            \
  X(int64_t, local_sgd_warmup_steps, 0, AtLeast(0), true, nullptr, true,                                               \
    "synchronous steps before the first local one (W_s)")                                                              \
  X(int32_t, gradient_accumulation_steps, 1, AtLeast(1), true, nullptr, true,                                          \
    "micro-batches per optimizer step")                                                                                \
  X(bool, use_async, false, Switch(), true, nullptr, true,                                                             \
    "A-EDiT: replicas exchange by time")                                                                               \
  X(double, local_sgd_sync_time, 600, UpTo(0, kMaxSyncTime), o.use_async,                                              \
    "has no effect without use_async; set both", true,                                                                 \
    "A-EDiT: seconds between exchanges (tau)")                                                                         \
  X(int64_t, min_total_global_steps, 100, AtLeast(1), o.use_async,                                                     \
    "has no effect without use_async; set both", true,                                                                 \
    "A-EDiT: steps of all replicas between two exchanges")                                                             \
  X(bool, use_step_weight, false, Switch(), o.own_clocks(),                                                            \
    "has no effect without use_async, or quorum with overlap_steps: all replicas make the same steps; set one", true,  \
    "replicas with clocks of their own are weighted by tokens since the last exchange")                                \
  X(double, step_weight_ratio, 0.5, Within(0, 1), o.use_step_weight && o.reducer != ReducerKind::kNone,                \
    "has no effect without use_step_weight and a reducer; set all three", true,                                        \
    "share of each weight that follows the tokens (r)")                                                                \
  X(ReducerKind, reducer, ReducerKind::kNone, OneOf("ENTRAIN_REDUCER_*", "none,linear,gta"), true, nullptr, true,      \
    "combination of pseudo-gradients: plain mean, weighted mean, or generalised task arithmetic")                      \
  X(Consensus, consensus_method, Consensus::kNone, OneOf("ENTRAIN_CONSENSUS_*", "none,sum,count"),                     \
    o.reducer == ReducerKind::kGta, "has no effect without reducer gta; set both", true,                               \
    "gta: election of the sign of an element")                                                                         \
  X(Sparsification, sparsification_method, Sparsification::kNone,                                                      \
    OneOf("ENTRAIN_SPARSIFY_*", "none,magnitude,random,rescaled_random"),                                              \
    o.reducer == ReducerKind::kGta, "has no effect without reducer gta; set both", true,                               \
    "gta: choice of the elements of a pseudo-gradient that are sent")                                                  \
  X(double, density, 1, UpTo(0, 1), o.sparsification_method != Sparsification::kNone,                                  \
    "has no effect without a sparsification_method; set both", true,                                                   \
    "share of the elements that sparsification keeps")                                                                 \
  X(int32_t, sparsify_chunk, 0, AtLeast(0), o.sparsification_method == Sparsification::kMagnitude,                     \
    "has no effect without sparsification_method magnitude; set both", true,                                           \
    "magnitude: elements of each chunk of a shard, a multiple of 64; 0: the whole shard")                              \
  X(uint64_t, seed, 0, AtLeast(0), true, nullptr, true,                                                                \
    "seed of random sparsification and stochastic rounding")                                                           \
  X(WireFormat, wire_format, WireFormat::kFull, OneOf("ENTRAIN_WIRE_*", "f32,bf16,int8,int4,int2"), !o.plain(),        \
    "is for pseudo-gradients, and plain averaging sends parameters; set an outer_optimizer or a reducer", true,        \
    "format in which pseudo-gradients are sent")                                                                       \
  X(int32_t, wire_block, 0, AtLeast(0), IsScaled(o.wire_format),                                                       \
    "is for wire_format int8, int4 and int2; set one, or 0", true,                                                     \
    "int8, int4, int2: values per scale; 0: 256")                                                                      \
  X(WireRounding, wire_rounding, WireRounding::kNearest, OneOf("ENTRAIN_ROUND_*", "nearest,stochastic"), true,         \
    nullptr, true,                                                                                                     \
    "rounding of pseudo-gradients to the wire format")                                                                 \
  X(bool, error_feedback, false, Switch(), o.merging().Packs(),                                                        \
    "has no effect when everything is sent; set sparsification_method or wire_format", true,                           \
    "the part that was not sent is added to the next pseudo-gradient")                                                 \
  X(double, error_decay, 1, UpTo(0, 1), o.error_feedback,                                                              \
    "has no effect without error_feedback; set both", true,                                                            \
    "factor of the part that was not sent, before it is added (beta)")                                                 \
  X(bool, pseudo_gradnorm_reduce, false, Switch(), o.reducer != ReducerKind::kNone,                                    \
    "has no effect without reducer linear or gta; set both", true,                                                     \
    "replicas are weighted by softmax(-norm / T)")                                                                     \
  X(bool, normalize, true, Switch(),                                                                                   \
    o.reducer == ReducerKind::kGta || (o.reducer == ReducerKind::kLinear && !o.pseudo_gradnorm_reduce),                \
    "has no effect without reducer gta, or linear without pseudo_gradnorm_reduce, whose weights sum to 1; set those",  \
    true,                                                                                                              \
    "the result is the mean, not the sum")                                                                             \
  X(double, weight_softmax_temperature, 0, AtLeast(0), o.pseudo_gradnorm_reduce,                                       \
    "has no effect without pseudo_gradnorm_reduce; set both", true,                                                    \
    "temperature T of pseudo_gradnorm_reduce; 0: 1")                                                                   \
  X(double, clip_pseudo_grad, 0, AtLeast(0), !o.plain(),                                                               \
    "has no effect in plain averaging; set an outer_optimizer or a reducer", true,                                     \
    "largest norm of a layer's pseudo-gradient (phi); 0: off")                                                         \
  X(OuterKind, outer_optimizer, OuterKind::kNone, OneOf("ENTRAIN_OUTER_*", "none,sgd,adamw,callback,lion"), true,      \
    nullptr, true,                                                                                                     \
    "optimizer that moves the anchor")                                                                                 \
  X(bool, outer_nesterov, false, Switch(), o.outer_optimizer == OuterKind::kSgd,                                       \
    "has no effect without outer_optimizer sgd; set both", true,                                                       \
    "sgd: Nesterov's momentum")                                                                                        \
  X(double, outer_lr, 0.7, AtLeast(0),                                                                                 \
    o.outer_has_rate(),                                                                                                \
    "has no effect without outer_optimizer sgd, adamw or lion; set both", true,                                        \
    "learning rate of the anchor (eta)")                                                                               \
  X(double, outer_momentum, 0.8, From(0, 1), o.outer_optimizer == OuterKind::kSgd,                                     \
    "has no effect without outer_optimizer sgd; set both", true,                                                       \
    "sgd: momentum (mu)")                                                                                              \
  X(double, outer_weight_decay, 0, AtLeast(0),                                                                         \
    o.outer_has_rate(),                                                                                                \
    "has no effect without outer_optimizer sgd, adamw or lion; set both", true,                                        \
    "weight decay of the anchor")                                                                                      \
  X(double, outer_beta1, 0.9, From(0, 1), o.outer_has_betas(),                                                         \
    "has no effect without outer_optimizer adamw or lion; set both", true,                                             \
    "adamw, lion: first beta")                                                                                         \
  X(double, outer_beta2, 0.999, From(0, 1), o.outer_has_betas(),                                                       \
    "has no effect without outer_optimizer adamw or lion; set both", true,                                             \
    "adamw, lion: second beta")                                                                                        \
  X(double, outer_eps, 1e-8, AtLeast(kLeastEps), o.outer_optimizer == OuterKind::kAdamw,                               \
    "has no effect without outer_optimizer adamw; set both", true,                                                     \
    "adamw: term added to the denominator")                                                                            \
  X(bool, skip_anomaly, false, Switch(), !o.plain(),                                                                   \
    "has no effect in plain averaging; set an outer_optimizer or a reducer", true,                                     \
    "norms far above the earlier ones are rejected")                                                                   \
  X(double, ewma_alpha, 0.02, Between(0, 1), o.skip_anomaly,                                                           \
    "has no effect without skip_anomaly; set both", true,                                                              \
    "rate at which mean and deviation of norms adapt")                                                                 \
  X(int64_t, ewma_warmup_steps, 120, Within(2, kMaxEwmaWarmup), o.skip_anomaly,                                        \
    "has no effect without skip_anomaly; set both", true,                                                              \
    "exchanges before any norm is rejected")                                                                           \
  X(double, ewma_threshold, 3, Above(0), o.skip_anomaly,                                                               \
    "has no effect without skip_anomaly; set both", true,                                                              \
    "distance above the mean that is rejected, in deviations")                                                         \
  X(bool, is_debug, false, Switch(), true, nullptr, false,                                                             \
    "the log has a line for each layer and exchange")                                                                  \
  X(bool, compat, false, Switch(), true, nullptr, true,                                                                \
    "arithmetic of the published code; not for training")                                                              \
  X(int32_t, prefetch, 1, AtLeast(0), true, nullptr, false,                                                            \
    "number of layers exchanged ahead of use")                                                                         \
  X(int64_t, in_flight_bytes, 67108864, AtLeast(0), true, nullptr, false,                                     \
    "between distant sites: memory for the deltas that are sent at the same time, in bytes; at least two layers")      \
  X(int32_t, threads, 0, Within(0, kMostThreads), true, nullptr, false,                                               \
    "threads that share the passes over the arrays of an exchange; 0: this rank's CPUs, at most 8")                    \
  X(int32_t, overlap_steps, 0, AtLeast(0), true, nullptr, true,                                                        \
    "number of steps behind which an exchange runs; A-EDiT: 1; with quorum: of grace for other replicas")              \
  X(OverlapMerge, overlap_merge, OverlapMerge::kAdd, OneOf("ENTRAIN_MERGE_*", "add,mix,restart"),                      \
    o.overlap_steps > 0, "has no effect without overlap_steps; set both", true,                                        \
    "treatment of the steps made during an exchange")                                                                  \
  X(double, overlap_mix, 0.5, From(0, 1), o.overlap_steps > 0 && o.overlap_merge == OverlapMerge::kMix,                \
    "has no effect without overlap_merge mix; set both", true,                                                         \
    "mix: share kept of the replica's own parameters (alpha)")                                                         \
  X(bool, staleness_penalty, false, Switch(), o.overlap_steps > 0 && o.outer_optimizer == OuterKind::kSgd,             \
    "has no effect without overlap_steps and outer_optimizer sgd; set all three", true,                                \
    "late pseudo-gradients are divided by the movement of the anchor")                                                 \
  X(double, outer_momentum_clip, 0, AtLeast(0),                                                                        \
    o.outer_optimizer == OuterKind::kSgd && o.outer_momentum > 0 && !o.outer_nesterov,                                 \
    "has no effect without outer_optimizer sgd, an outer_momentum, and outer_nesterov off; set them", true,            \
    "largest norm of a layer's outer momentum; 0: off")                                                                \
  X(int32_t, fragments, 1, AtLeast(1), true, nullptr, true,                                                            \
    "parts of the model that are exchanged at steps of their own (P)")                                                 \
  X(FragmentPattern, fragment_pattern, FragmentPattern::kSequential,                                                   \
    OneOf("ENTRAIN_FRAGMENT_*", "sequential,strided"), o.fragments > 1,                                                \
    "has no effect with one fragment; set fragments", false,                                                           \
    "layers of a fragment: neighbours, or every P-th")                                                                 \
  X(OnLoss, on_loss, OnLoss::kFail, OneOf("ENTRAIN_ON_LOSS_*", "fail,finish"), !o.plain(),                             \
    "needs an anchor, which plain averaging does not have; set an outer_optimizer (sgd with outer_lr 1 and "           \
    "outer_momentum 0 averages too) or a reducer", true,                                                               \
    "when a replica is lost: the run fails, or the others finish the round and go on")                                 \
  X(Admit, admit, Admit::kNone, OneOf("ENTRAIN_ADMIT_*", "none,exchange"), o.on_loss == OnLoss::kFinish,               \
    "has no effect without on_loss finish; set both", true,                                                            \
    "newcomers: none, or taken in after an exchange, behind further steps")                                            \
  X(int32_t, most_replicas, 0, AtLeast(0), o.admit != Admit::kNone,                                                    \
    "has no effect without admit; set both", true,                                                                     \
    "largest number of replicas, with newcomers; 0: that of the mesh")                                                 \
  X(int64_t, newcomer_warmup, 0, Within(0, kMostNewcomerWarmup), o.admit != Admit::kNone,                              \
    "has no effect without admit; set both", true,                                                                     \
    "exchanges over which the weight of a newcomer grows; 0: it is full at once")                                      \
  X(AnchorCheck, anchor_check, AnchorCheck::kStop, OneOf("ENTRAIN_ANCHOR_CHECK_*", "stop,repair,off"), !o.plain(),     \
    "needs an anchor, which plain averaging does not have; set an outer_optimizer or a reducer", true,                 \
    "when the replicas' anchors differ: the run stops, or the majority's replace the others; off: not compared")       \
  X(int32_t, quorum, 0, AtLeast(0), true, nullptr, true,                                                               \
    "number of replicas that close a round without the others; 0: all, or round_deadline decides")                    \
  X(double, round_deadline, 0, Within(0, kMaxSyncTime), true, nullptr, true,                                           \
    "seconds after its first replica at which a round is closed without the others; 0: none, or at once with quorum")  \
  X(Late, late, Late::kDrop, OneOf("ENTRAIN_LATE_*", "drop,carry,weighted"), o.closes_early(),                         \
    "has no effect without quorum or round_deadline; set one", true,                                                   \
    "pseudo-gradient of a late replica: dropped, added to its next one, or that with less weight")                     \
  X(int64_t, timeout_ns, 0, AtLeast(0), true, nullptr, false,                                                          \
    "time limit of each collective, in nanoseconds; 0: the communicators' default")                                    \
  X(double, silence, 0, Within(0, kMaxSyncTime), o.on_loss == OnLoss::kFinish,                                         \
    "has no effect without on_loss finish; set both, or ENTRAIN_SILENCE", false,                                       \
    "seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30")
// clang-format on
