# Made from lib/train/*/*_option_list.h by tools/python_declarations.py; a test compares.
"""The options of EDiT and ACCO that are one number each."""
from __future__ import annotations

import dataclasses
from typing import Literal, TypedDict


@dataclasses.dataclass
class EditOptions:
    #: H: optimizer steps between exchanges; at least 1
    local_sgd_sync_interval: int = 1
    #: synchronous steps before the first local one (W_s); at least 0
    local_sgd_warmup_steps: int = 0
    #: micro-batches per optimizer step; at least 1
    gradient_accumulation_steps: int = 1
    #: A-EDiT: replicas exchange by time
    use_async: bool = False
    #: A-EDiT: seconds between exchanges (tau); more than 0, at most 1e9
    local_sgd_sync_time: float = 600.0
    #: A-EDiT: steps of all replicas between two exchanges; at least 1
    min_total_global_steps: int = 100
    #: replicas with clocks of their own are weighted by tokens since the last exchange
    use_step_weight: bool = False
    #: share of each weight that follows the tokens (r); 0 to 1
    step_weight_ratio: float = 0.5
    #: combination of pseudo-gradients: plain mean, weighted mean, or generalised task arithmetic; one of none, linear, gta
    reducer: str = "none"
    #: gta: election of the sign of an element; one of none, sum, count
    consensus_method: str = "none"
    #: gta: choice of the elements of a pseudo-gradient that are sent; one of none, magnitude, random, rescaled_random
    sparsification_method: str = "none"
    #: share of the elements that sparsification keeps; more than 0, at most 1
    density: float = 1.0
    #: magnitude: elements of each chunk of a shard, a multiple of 64; 0: the whole shard; at least 0
    sparsify_chunk: int = 0
    #: seed of random sparsification and stochastic rounding; at least 0
    seed: int = 0
    #: format in which pseudo-gradients are sent; one of f32, bf16, int8, int4, int2
    wire_format: str = "f32"
    #: int8, int4, int2: values per scale; 0: 256; at least 0
    wire_block: int = 0
    #: rounding of pseudo-gradients to the wire format; one of nearest, stochastic
    wire_rounding: str = "nearest"
    #: the part that was not sent is added to the next pseudo-gradient
    error_feedback: bool = False
    #: factor of the part that was not sent, before it is added (beta); more than 0, at most 1
    error_decay: float = 1.0
    #: replicas are weighted by softmax(-norm / T)
    pseudo_gradnorm_reduce: bool = False
    #: the result is the mean, not the sum
    normalize: bool = True
    #: temperature T of pseudo_gradnorm_reduce; 0: 1; at least 0
    weight_softmax_temperature: float = 0.0
    #: largest norm of a layer's pseudo-gradient (phi); 0: off; at least 0
    clip_pseudo_grad: float = 0.0
    #: optimizer that moves the anchor; one of none, sgd, adamw, callback, lion
    outer_optimizer: str = "none"
    #: sgd: Nesterov's momentum
    outer_nesterov: bool = False
    #: learning rate of the anchor (eta); at least 0
    outer_lr: float = 0.7
    #: sgd: momentum (mu); at least 0, less than 1
    outer_momentum: float = 0.8
    #: weight decay of the anchor; at least 0
    outer_weight_decay: float = 0.0
    #: adamw, lion: first beta; at least 0, less than 1
    outer_beta1: float = 0.9
    #: adamw, lion: second beta; at least 0, less than 1
    outer_beta2: float = 0.999
    #: adamw: term added to the denominator; at least 1e-37
    outer_eps: float = 1e-08
    #: norms far above the earlier ones are rejected
    skip_anomaly: bool = False
    #: rate at which mean and deviation of norms adapt; more than 0, less than 1
    ewma_alpha: float = 0.02
    #: exchanges before any norm is rejected; 2 to 1.04858e6
    ewma_warmup_steps: int = 120
    #: distance above the mean that is rejected, in deviations; more than 0
    ewma_threshold: float = 3.0
    #: the log has a line for each layer and exchange
    is_debug: bool = False
    #: arithmetic of the published code; not for training
    compat: bool = False
    #: number of layers exchanged ahead of use; at least 0
    prefetch: int = 1
    #: between distant sites: memory for the deltas that are sent at the same time, in bytes; at least two layers; at least 0
    in_flight_bytes: int = 67108864
    #: threads that share the passes over the arrays of an exchange; 0: this rank's CPUs, at most 8; 0 to 64
    threads: int = 0
    #: number of steps behind which an exchange runs; A-EDiT: 1; with quorum: of grace for other replicas; at least 0
    overlap_steps: int = 0
    #: treatment of the steps made during an exchange; one of add, mix, restart
    overlap_merge: str = "add"
    #: mix: share kept of the replica's own parameters (alpha); at least 0, less than 1
    overlap_mix: float = 0.5
    #: late pseudo-gradients are divided by the movement of the anchor
    staleness_penalty: bool = False
    #: largest norm of a layer's outer momentum; 0: off; at least 0
    outer_momentum_clip: float = 0.0
    #: parts of the model that are exchanged at steps of their own (P); at least 1
    fragments: int = 1
    #: layers of a fragment: neighbours, or every P-th; one of sequential, strided
    fragment_pattern: str = "sequential"
    #: when a replica is lost: the run fails, or the others finish the round and go on; one of fail, finish
    on_loss: str = "fail"
    #: newcomers: none, or taken in after an exchange, behind further steps; one of none, exchange
    admit: str = "none"
    #: largest number of replicas, with newcomers; 0: that of the mesh; at least 0
    most_replicas: int = 0
    #: exchanges over which the weight of a newcomer grows; 0: it is full at once; 0 to 1000
    newcomer_warmup: int = 0
    #: when the replicas' anchors differ: the run stops, or the majority's replace the others; off: not compared; one of stop, repair, off
    anchor_check: str = "stop"
    #: number of replicas that close a round without the others; 0: all, or round_deadline decides; at least 0
    quorum: int = 0
    #: seconds after its first replica at which a round is closed without the others; 0: none, or at once with quorum; 0 to 1e9
    round_deadline: float = 0.0
    #: pseudo-gradient of a late replica: dropped, added to its next one, or that with less weight; one of drop, carry, weighted
    late: str = "drop"
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30; 0 to 1e9
    silence: float = 0.0


class EditNumbers(TypedDict, total=False):
    """EditOptions as keywords."""
    #: H: optimizer steps between exchanges; at least 1; default 1
    local_sgd_sync_interval: int
    #: synchronous steps before the first local one (W_s); at least 0; default 0
    local_sgd_warmup_steps: int
    #: micro-batches per optimizer step; at least 1; default 1
    gradient_accumulation_steps: int
    #: A-EDiT: replicas exchange by time; default False
    use_async: bool
    #: A-EDiT: seconds between exchanges (tau); more than 0, at most 1e9; default 600.0
    local_sgd_sync_time: float
    #: A-EDiT: steps of all replicas between two exchanges; at least 1; default 100
    min_total_global_steps: int
    #: replicas with clocks of their own are weighted by tokens since the last exchange; default False
    use_step_weight: bool
    #: share of each weight that follows the tokens (r); 0 to 1; default 0.5
    step_weight_ratio: float
    #: combination of pseudo-gradients: plain mean, weighted mean, or generalised task arithmetic; one of none, linear, gta; default "none"
    reducer: Literal["none", "linear", "gta"]
    #: gta: election of the sign of an element; one of none, sum, count; default "none"
    consensus_method: Literal["none", "sum", "count"]
    #: gta: choice of the elements of a pseudo-gradient that are sent; one of none, magnitude, random, rescaled_random; default "none"
    sparsification_method: Literal["none", "magnitude", "random", "rescaled_random"]
    #: share of the elements that sparsification keeps; more than 0, at most 1; default 1.0
    density: float
    #: magnitude: elements of each chunk of a shard, a multiple of 64; 0: the whole shard; at least 0; default 0
    sparsify_chunk: int
    #: seed of random sparsification and stochastic rounding; at least 0; default 0
    seed: int
    #: format in which pseudo-gradients are sent; one of f32, bf16, int8, int4, int2; default "f32"
    wire_format: Literal["f32", "bf16", "int8", "int4", "int2"]
    #: int8, int4, int2: values per scale; 0: 256; at least 0; default 0
    wire_block: int
    #: rounding of pseudo-gradients to the wire format; one of nearest, stochastic; default "nearest"
    wire_rounding: Literal["nearest", "stochastic"]
    #: the part that was not sent is added to the next pseudo-gradient; default False
    error_feedback: bool
    #: factor of the part that was not sent, before it is added (beta); more than 0, at most 1; default 1.0
    error_decay: float
    #: replicas are weighted by softmax(-norm / T); default False
    pseudo_gradnorm_reduce: bool
    #: the result is the mean, not the sum; default True
    normalize: bool
    #: temperature T of pseudo_gradnorm_reduce; 0: 1; at least 0; default 0.0
    weight_softmax_temperature: float
    #: largest norm of a layer's pseudo-gradient (phi); 0: off; at least 0; default 0.0
    clip_pseudo_grad: float
    #: optimizer that moves the anchor; one of none, sgd, adamw, callback, lion; default "none"
    outer_optimizer: Literal["none", "sgd", "adamw", "callback", "lion"]
    #: sgd: Nesterov's momentum; default False
    outer_nesterov: bool
    #: learning rate of the anchor (eta); at least 0; default 0.7
    outer_lr: float
    #: sgd: momentum (mu); at least 0, less than 1; default 0.8
    outer_momentum: float
    #: weight decay of the anchor; at least 0; default 0.0
    outer_weight_decay: float
    #: adamw, lion: first beta; at least 0, less than 1; default 0.9
    outer_beta1: float
    #: adamw, lion: second beta; at least 0, less than 1; default 0.999
    outer_beta2: float
    #: adamw: term added to the denominator; at least 1e-37; default 1e-08
    outer_eps: float
    #: norms far above the earlier ones are rejected; default False
    skip_anomaly: bool
    #: rate at which mean and deviation of norms adapt; more than 0, less than 1; default 0.02
    ewma_alpha: float
    #: exchanges before any norm is rejected; 2 to 1.04858e6; default 120
    ewma_warmup_steps: int
    #: distance above the mean that is rejected, in deviations; more than 0; default 3.0
    ewma_threshold: float
    #: the log has a line for each layer and exchange; default False
    is_debug: bool
    #: arithmetic of the published code; not for training; default False
    compat: bool
    #: number of layers exchanged ahead of use; at least 0; default 1
    prefetch: int
    #: between distant sites: memory for the deltas that are sent at the same time, in bytes; at least two layers
    #: at least 0
    #: default 67108864
    in_flight_bytes: int
    #: threads that share the passes over the arrays of an exchange; 0: this rank's CPUs, at most 8; 0 to 64; default 0
    threads: int
    #: number of steps behind which an exchange runs; A-EDiT: 1; with quorum: of grace for other replicas; at least 0; default 0
    overlap_steps: int
    #: treatment of the steps made during an exchange; one of add, mix, restart; default "add"
    overlap_merge: Literal["add", "mix", "restart"]
    #: mix: share kept of the replica's own parameters (alpha); at least 0, less than 1; default 0.5
    overlap_mix: float
    #: late pseudo-gradients are divided by the movement of the anchor; default False
    staleness_penalty: bool
    #: largest norm of a layer's outer momentum; 0: off; at least 0; default 0.0
    outer_momentum_clip: float
    #: parts of the model that are exchanged at steps of their own (P); at least 1; default 1
    fragments: int
    #: layers of a fragment: neighbours, or every P-th; one of sequential, strided; default "sequential"
    fragment_pattern: Literal["sequential", "strided"]
    #: when a replica is lost: the run fails, or the others finish the round and go on; one of fail, finish; default "fail"
    on_loss: Literal["fail", "finish"]
    #: newcomers: none, or taken in after an exchange, behind further steps; one of none, exchange; default "none"
    admit: Literal["none", "exchange"]
    #: largest number of replicas, with newcomers; 0: that of the mesh; at least 0; default 0
    most_replicas: int
    #: exchanges over which the weight of a newcomer grows; 0: it is full at once; 0 to 1000; default 0
    newcomer_warmup: int
    #: when the replicas' anchors differ: the run stops, or the majority's replace the others; off: not compared
    #: one of stop, repair, off
    #: default "stop"
    anchor_check: Literal["stop", "repair", "off"]
    #: number of replicas that close a round without the others; 0: all, or round_deadline decides; at least 0; default 0
    quorum: int
    #: seconds after its first replica at which a round is closed without the others; 0: none, or at once with quorum; 0 to 1e9; default 0.0
    round_deadline: float
    #: pseudo-gradient of a late replica: dropped, added to its next one, or that with less weight
    #: one of drop, carry, weighted
    #: default "drop"
    late: Literal["drop", "carry", "weighted"]
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30
    #: 0 to 1e9
    #: default 0.0
    silence: float


@dataclasses.dataclass
class AccoOptions:
    #: gradients of a step: acco: two halves of a batch; dpu: the round before; wp: the round before, with a prediction; zero1: its own round
    #: one of acco, dpu, wp, zero1
    method: str = "acco"
    #: smallest number of micro-batches of a rank in a round; at least 1
    min_microbatches: int = 1
    #: largest number of micro-batches of a rank in a round (repeatable runs: the smallest); 0: as many as fit; at least 0
    max_microbatches: int = 0
    #: synchronous rounds at the start; at least 0
    warmup_rounds: int = 0
    #: largest norm of a round's mean gradient; 0: off; at least 0
    clip_norm: float = 0.0
    #: highest learning rate; at least 0
    lr: float = 0.001
    #: learning rate at the end of the cosine; at least 0
    min_lr: float = 0.0
    #: end of the linear rise of the learning rate from 0; at least 0
    schedule_warmup: int = 0
    #: end of the cosine after the rise; 0: the learning rate is constant; at least 0
    schedule_total: int = 0
    #: unit of the schedule: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens
    schedule_unit: str = "commits"
    #: unit of the limit: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens
    limit_unit: str = "commits"
    #: the run ends at the first step that reaches this limit; 0: it ends at acco_stop; at least 0
    limit: int = 0
    #: when a rank is lost: fail: all ranks end; finish: the others finish the round with the copy of its shard; one of fail, finish
    on_loss: str = "fail"
    #: newcomers: none, or taken in after a commit; the others train on until they are connected; one of none, exchange
    admit: str = "none"
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30; 0 to 1e9
    silence: float = 0.0


class AccoNumbers(TypedDict, total=False):
    """AccoOptions as keywords."""
    #: gradients of a step: acco: two halves of a batch; dpu: the round before; wp: the round before, with a prediction; zero1: its own round
    #: one of acco, dpu, wp, zero1
    #: default "acco"
    method: Literal["acco", "dpu", "wp", "zero1"]
    #: smallest number of micro-batches of a rank in a round; at least 1; default 1
    min_microbatches: int
    #: largest number of micro-batches of a rank in a round (repeatable runs: the smallest); 0: as many as fit; at least 0; default 0
    max_microbatches: int
    #: synchronous rounds at the start; at least 0; default 0
    warmup_rounds: int
    #: largest norm of a round's mean gradient; 0: off; at least 0; default 0.0
    clip_norm: float
    #: highest learning rate; at least 0; default 0.001
    lr: float
    #: learning rate at the end of the cosine; at least 0; default 0.0
    min_lr: float
    #: end of the linear rise of the learning rate from 0; at least 0; default 0
    schedule_warmup: int
    #: end of the cosine after the rise; 0: the learning rate is constant; at least 0; default 0
    schedule_total: int
    #: unit of the schedule: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens; default "commits"
    schedule_unit: Literal["commits", "gradients", "tokens"]
    #: unit of the limit: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens; default "commits"
    limit_unit: Literal["commits", "gradients", "tokens"]
    #: the run ends at the first step that reaches this limit; 0: it ends at acco_stop; at least 0; default 0
    limit: int
    #: when a rank is lost: fail: all ranks end; finish: the others finish the round with the copy of its shard
    #: one of fail, finish
    #: default "fail"
    on_loss: Literal["fail", "finish"]
    #: newcomers: none, or taken in after a commit; the others train on until they are connected; one of none, exchange; default "none"
    admit: Literal["none", "exchange"]
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30
    #: 0 to 1e9
    #: default 0.0
    silence: float


#: Of options with words: the constants that these stand for.
EDIT_FAMILIES = {
    "reducer": "REDUCER",
    "consensus_method": "CONSENSUS",
    "sparsification_method": "SPARSIFY",
    "wire_format": "WIRE",
    "wire_rounding": "ROUND",
    "outer_optimizer": "OUTER",
    "overlap_merge": "MERGE",
    "fragment_pattern": "FRAGMENT",
    "on_loss": "ON_LOSS",
    "admit": "ADMIT",
    "anchor_check": "ANCHOR_CHECK",
    "late": "LATE",
}
ACCO_FAMILIES = {
    "method": "ACCO",
    "schedule_unit": "UNIT",
    "limit_unit": "UNIT",
    "on_loss": "ON_LOSS",
    "admit": "ADMIT",
}
