# Made from lib/train/*_option_list.h by tools/python_declarations.py; a test compares.
"""The options of EDiT and ACCO that are one number each."""
from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class EditOptions:
    #: H: optimizer steps between exchanges
    local_sgd_sync_interval: int = 1
    #: synchronous steps before the first local one (W_s)
    local_sgd_warmup_steps: int = 0
    #: micro-batches per optimizer step
    gradient_accumulation_steps: int = 1
    #: A-EDiT: replicas exchange by time
    use_async: bool = False
    #: A-EDiT: seconds between exchanges (tau)
    local_sgd_sync_time: float = 600.0
    #: A-EDiT: steps of all replicas between two exchanges
    min_total_global_steps: int = 100
    #: replicas with clocks of their own are weighted by tokens since the last exchange
    use_step_weight: bool = False
    #: share of each weight that follows the tokens (r)
    step_weight_ratio: float = 0.5
    #: combination of pseudo-gradients: plain mean, weighted mean, or generalised task arithmetic; one of none, linear, gta
    reducer: str = "none"
    #: gta: election of the sign of an element; one of none, sum, count
    consensus_method: str = "none"
    #: gta: choice of the elements of a pseudo-gradient that are sent; one of none, magnitude, random, rescaled_random
    sparsification_method: str = "none"
    #: share of the elements that sparsification keeps
    density: float = 1.0
    #: magnitude: elements of each chunk of a shard, a multiple of 64; 0: the whole shard
    sparsify_chunk: int = 0
    #: seed of random sparsification and stochastic rounding
    seed: int = 0
    #: format in which pseudo-gradients are sent; one of f32, bf16, int8, int4, int2
    wire_format: str = "f32"
    #: int8, int4, int2: values per scale; 0: 256
    wire_block: int = 0
    #: rounding of pseudo-gradients to the wire format; one of nearest, stochastic
    wire_rounding: str = "nearest"
    #: the part that was not sent is added to the next pseudo-gradient
    error_feedback: bool = False
    #: factor of the part that was not sent, before it is added (beta)
    error_decay: float = 1.0
    #: accepted with a consensus; has no effect here
    int8_mask: bool = False
    #: replicas are weighted by softmax(-norm / T)
    pseudo_gradnorm_reduce: bool = False
    #: the result is the mean, not the sum
    normalize: bool = True
    #: temperature T of pseudo_gradnorm_reduce; 0: 1
    weight_softmax_temperature: float = 0.0
    #: largest norm of a layer's pseudo-gradient (phi); 0: off
    clip_pseudo_grad: float = 0.0
    #: optimizer that moves the anchor; one of none, sgd, adamw, callback, lion
    outer_optimizer: str = "none"
    #: sgd: Nesterov's momentum
    outer_nesterov: bool = False
    #: learning rate of the anchor (eta)
    outer_lr: float = 0.7
    #: sgd: momentum (mu)
    outer_momentum: float = 0.8
    #: weight decay of the anchor
    outer_weight_decay: float = 0.0
    #: adamw, lion: first beta
    outer_beta1: float = 0.9
    #: adamw, lion: second beta
    outer_beta2: float = 0.999
    #: adamw: term added to the denominator
    outer_eps: float = 1e-08
    #: norms far above the earlier ones are rejected
    skip_anomaly: bool = False
    #: rate at which mean and deviation of norms adapt
    ewma_alpha: float = 0.02
    #: exchanges before any norm is rejected
    ewma_warmup_steps: int = 120
    #: distance above the mean that is rejected, in deviations
    ewma_threshold: float = 3.0
    #: on a device: anchors and outer state are in host memory
    cpu_offload: bool = False
    #: the log has a line for each layer and exchange
    is_debug: bool = False
    #: arithmetic of the published code; not for training
    compat: bool = False
    #: number of layers exchanged ahead of use
    prefetch: int = 1
    #: between distant sites: memory for the deltas that are sent at the same time, in bytes; at least two layers
    in_flight_bytes: int = 67108864
    #: number of steps behind which an exchange runs; A-EDiT: 1; with quorum: of grace for other replicas
    overlap_steps: int = 0
    #: treatment of the steps made during an exchange; one of add, mix, restart
    overlap_merge: str = "add"
    #: mix: share kept of the replica's own parameters (alpha)
    overlap_mix: float = 0.5
    #: late pseudo-gradients are divided by the movement of the anchor
    staleness_penalty: bool = False
    #: largest norm of a layer's outer momentum; 0: off
    outer_momentum_clip: float = 0.0
    #: parts of the model that are exchanged at steps of their own (P)
    fragments: int = 1
    #: layers of a fragment: neighbours, or every P-th; one of sequential, strided
    fragment_pattern: str = "sequential"
    #: when a replica is lost: the run fails, or the others finish the round and go on; one of fail, finish
    on_loss: str = "fail"
    #: newcomers: none, or taken in after an exchange, behind further steps; one of none, exchange
    admit: str = "none"
    #: largest number of replicas, with newcomers; 0: that of the mesh
    most_replicas: int = 0
    #: exchanges over which the weight of a newcomer grows; 0: it is full at once
    newcomer_warmup: int = 0
    #: when the replicas' anchors differ: the run stops, or the majority's replace the others; off: not compared; one of stop, repair, off
    anchor_check: str = "stop"
    #: number of replicas that close a round without the others; 0: all, or round_deadline decides
    quorum: int = 0
    #: seconds after its first replica at which a round is closed without the others; 0: none, or at once with quorum
    round_deadline: float = 0.0
    #: pseudo-gradient of a late replica: dropped, added to its next one, or that with less weight; one of drop, carry, weighted
    late: str = "drop"
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30
    silence: float = 0.0


@dataclasses.dataclass
class AccoOptions:
    #: gradients of a step: acco: two halves of a batch; dpu: the round before; wp: the round before, with a prediction; zero1: its own round; one of acco, dpu, wp, zero1
    method: str = "acco"
    #: smallest number of micro-batches of a rank in a round
    min_microbatches: int = 1
    #: largest number of micro-batches of a rank in a round (repeatable runs: the smallest); 0: as many as fit
    max_microbatches: int = 0
    #: synchronous rounds at the start
    warmup_rounds: int = 0
    #: largest norm of a round's mean gradient; 0: off
    clip_norm: float = 0.0
    #: highest learning rate
    lr: float = 0.001
    #: learning rate at the end of the cosine
    min_lr: float = 0.0
    #: end of the linear rise of the learning rate from 0
    schedule_warmup: int = 0
    #: end of the cosine after the rise; 0: the learning rate is constant
    schedule_total: int = 0
    #: unit of the schedule: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens
    schedule_unit: str = "commits"
    #: unit of the limit: steps, micro-batches or tokens of all ranks; one of commits, gradients, tokens
    limit_unit: str = "commits"
    #: the run ends at the first step that reaches this limit; 0: it ends at acco_stop
    limit: int = 0
    #: when a rank is lost: fail: all ranks end; finish: the others finish the round with the copy of its shard; one of fail, finish
    on_loss: str = "fail"
    #: newcomers: none, or taken in after a commit; the others train on until they are connected; one of none, exchange
    admit: str = "none"
    #: seconds after which a rank whose library answers nothing is lost; 0: ENTRAIN_SILENCE, else 3 with admit, else 30
    silence: float = 0.0


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
