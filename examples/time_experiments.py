"""Experiments whose results are times. Times are meaningful only on a machine without other load."""

import experiment_tables as tables
from loss_experiments import MOST, delayed_runs
from text_runs import RANKS, STEPS

INTERVAL = 16
STEP_MS = 28  # length of a padded step: about five times the compute time if two ranks share a core
DELAYS = (0.5, 1, 4)
IDLE_SPEED, IDLE_STEPS = 3.3, 60  # ratio of the slow replica's step to the others', and tau in steps


def by_time(steps):
    """Returns the flags of an a-edit run that exchanges after every `steps` padded steps."""
    flags = f"--method a-edit --step-ms {STEP_MS} --local-sgd-sync-time {steps * STEP_MS / 1000:g}"
    return f"{flags} --min-total-global-steps 1 --steps-together"


def straggler_flags(method, straggler, ratio):
    flags = by_time(INTERVAL) if method == "a-edit" else f"--method {method} --step-ms {STEP_MS}"
    if method == "edit":
        flags += f" --local-sgd-sync-interval {INTERVAL}"
    if straggler != "none":
        flags += f" --straggler {straggler} --straggler-ms {ratio * STEP_MS:g}"
    return flags + " --lr 0.004"


def stragglers(runs):
    shares, predicted = {}, {}
    for key in [("none", 0)] + [(kind, ratio) for kind in ("random", "fixed") for ratio in DELAYS]:
        shares[key], predicted[key] = {}, {}
        for method in ("ddp", "edit", "a-edit"):
            predicted[key][method] = tables.predict(method, *key, RANKS, INTERVAL)
            expected_s = STEPS * STEP_MS / 1000 / predicted[key][method] * 1.1 + 4
            summary = runs.get(
                f"stragglers-{key[0]}-{key[1]:g}-{method}",
                straggler_flags(method, *key),
                expected_s,
            )
            if summary is not None:
                shares[key][method] = tables.share_of_ideal(summary, STEP_MS)
    complete = {key: row for key, row in shares.items() if len(row) == 3}
    return {"stragglers": tables.stragglers(complete, predicted)} if complete else {}


def idle(runs):
    delay = (IDLE_SPEED - 1) * STEP_MS
    flags = f"{by_time(IDLE_STEPS)} --straggler fixed --straggler-ms {delay:g} --lr 0.004"
    summary = runs.get("idle", flags, 45.0)
    return {} if summary is None else {"idle": tables.idle(summary)}


# ---- gradient channels ---------------------------------------------------------------

PARAMS, F32_BYTES = 80_112, 4
ACCO_MS = 60  # time of a padded micro-batch


def linked(ranks, exchange):
    """Returns the value of ENTRAIN_FAULT with which the reduce-scatter and the all-gather of a round
    together take as long as `exchange` micro-batches."""
    sent = 2 * (ranks - 1) / ranks * PARAMS * F32_BYTES
    return f"rate={sent / (exchange * ACCO_MS / 1000) / 1e6:.4f}MB/s"


SLOWNESS, SLOW_EXCHANGE = 4, 0.8
SLOW_STEPS = 50  # updates; an acco update has two rounds


def slow(runs):
    """Makes runs in which one of four replicas computes SLOWNESS times as long as the others."""
    rows = []
    for exchange in (0, SLOW_EXCHANGE):
        for method in ("zero1", "acco"):
            flags = f"--method {method} --lr 0.004 --step-ms {ACCO_MS}"
            flags += f" --straggler fixed --straggler-ms {(SLOWNESS - 1) * ACCO_MS}"
            fault = linked(RANKS, exchange) if exchange else ""
            name = f"slow-{method}-exchange{exchange:g}"
            summary = runs.get(name, flags, 30.0, SLOW_STEPS, RANKS, fault)
            if summary is not None:
                rows.append((method, exchange, tables.channel(summary, ACCO_MS, PARAMS)))
    return {"slow": tables.slow(rows, SLOWNESS, RANKS)} if rows else {}


RATIOS = (0.1, 0.25, 0.5, 0.8, 1, 2, 4)  # time of a round's exchange relative to a micro-batch
RATIO_RANKS, RATIO_UPDATES, RATIO_PASSES = 2, 20, (1, 2, 3)
# An update has two micro-batches of each rank. In acco-free it has as many as fit into the time of an
# exchange.
RATIO_METHODS = {
    "ddp": f"--method ddp --gradient-accumulation-steps 2 --step-ms {2 * ACCO_MS}",
    "zero1": f"--method zero1 --gradient-accumulation-steps 2 --step-ms {2 * ACCO_MS}",
    "acco": f"--method acco --max-microbatches 1 --step-ms {ACCO_MS}",
    "acco-free": f"--method acco --max-microbatches 0 --step-ms {ACCO_MS}",
}


def ratio(runs):
    found = {}
    for number in RATIO_PASSES:  # so that other load on the machine affects all methods alike
        for exchange in RATIOS:
            for method, flags in RATIO_METHODS.items():
                words = f"{flags} --lr 0.004 --seed {number}"
                name = f"ratio-{exchange:g}-{method}-{number}"
                expected_s = RATIO_UPDATES * ACCO_MS / 1000 * (2 + 2 * exchange)
                fault = linked(RATIO_RANKS, exchange)
                summary = runs.get(name, words, expected_s, RATIO_UPDATES, RATIO_RANKS, fault)
                if summary is not None:
                    tables.check_params(summary, PARAMS)
                    found.setdefault(exchange, {}).setdefault(method, []).append(summary)
    complete = {key: row for key, row in found.items() if len(row) == len(RATIO_METHODS)}
    if not complete:
        return {}
    return {"ratio": tables.ratio(complete, updates_to_a_loss(runs))}


def updates_to_a_loss(runs):
    """Returns {method: mean number of updates until the target loss}, from the runs of `delay`. The
    target is the highest final training loss of all runs."""
    curves = {}
    for method in ("zero1", "acco"):
        names = delayed_runs(runs, method)[2]
        curves[method] = {seed: runs.curve(names[seed]) for seed in MOST if seed in names}
    return tables.updates_to_a_loss(curves)


EXPERIMENTS = {"ratio": ratio, "slow": slow, "stragglers": stragglers, "idle": idle}
