"""Turns finished runs of time_experiments.py and optimizers.py into tables: pure functions on
summaries and step losses. Also converts tables to Markdown.

A table is a list of rows. A row is a list of cells, which are texts. The first row has the
headings."""

import functools
import random
import statistics


def markdown(rows):
    """Returns the table as Markdown. The first column is aligned to the left, the other columns to
    the right."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    return "\n".join(lines) + "\n"


def percent(value):
    return f"{100 * value:+.2f} %"


# ---- stragglers ----------------------------------------------------------------------


@functools.cache
def predict(method, straggler, ratio, replicas=4, interval=16, rounds=1500, seed=1):
    """Simulates training (Monte-Carlo). A step takes a time of 1, a delay takes `ratio`, and
    exchanges take no time. Returns the throughput as a share of the ideal. ddp exchanges at every
    step, edit after `interval` steps, a-edit at the first step that ends after a time of
    `interval`."""
    draw = random.Random(seed)
    late = [[] for _ in range(replicas)]  # by replica: whether each of its steps is delayed

    def takes(replica, step):
        if straggler == "fixed":
            return 1 + ratio * (replica == 0)
        if straggler == "none":
            return 1
        while step >= len(late[0]):
            chosen = draw.randrange(replicas)
            for n in range(replicas):
                late[n].append(n == chosen)
        return 1 + ratio * late[replica][step]

    made, now = [0] * replicas, 0.0
    steps = 1 if method == "ddp" else interval
    for _ in range(rounds):
        ends = []
        for n in range(replicas):
            spent, begun = 0.0, made[n]
            while spent < interval if method == "a-edit" else made[n] - begun < steps:
                spent += takes(n, made[n])
                made[n] += 1
            ends.append(spent)
        now += max(ends)
    return sum(made) / (replicas * now)


def share_of_ideal(summary, step_ms):
    """Returns tokens per second, relative to replicas that never wait and are never late."""
    tokens_a_step = (
        summary["tokens"] / sum(summary["replica_steps"]) * len(summary["replica_steps"])
    )
    return summary["tokens_per_s"] * step_ms / 1000 / tokens_a_step


def stragglers(results, predicted, most=0.05):
    """Makes a table whose cells are measured / predicted. results and predicted are
    {(straggler, delay / step): {method: share}}."""
    methods = list(next(iter(results.values())))
    rows = [["late", "delay / step"] + methods + [f"all within {100 * most:g} points"]]
    for key, shares in results.items():
        apart = {method: abs(share - predicted[key][method]) for method, share in shares.items()}
        cells = [f"{share:.3f} / {predicted[key][method]:.3f}" for method, share in shares.items()]
        far = [method for method in methods if apart[method] > most]
        rows.append([key[0], f"{key[1]:g}"] + cells + ["no: " + ", ".join(far) if far else "yes"])
    return rows


def idle(summary):
    rows = [["replica", "steps", "share of its time that it waited"]]
    for n, (steps, waited) in enumerate(zip(summary["replica_steps"], summary["idle_share"])):
        rows.append([str(n), str(steps), f"{100 * waited:.1f} %"])
    return rows


# ---- acco ----------------------------------------------------------------------------


def check_params(summary, params):
    if summary["params"] != params:
        raise ValueError(f"the model has {summary['params']} parameters, not {params}")


def channel(summary, microbatch_ms, params):
    """Returns two figures of a run with a gradient channel whose micro-batches take `microbatch_ms`
    each. "share": gradients per second, relative to replicas that never wait. "waited": the share
    of its time that each replica waited."""
    check_params(summary, params)
    replicas = len(summary["replica_microbatches"])
    made = sum(summary["replica_microbatches"]) - summary["dropped_microbatches"]
    return {
        "share": made * microbatch_ms / 1000 / summary["wall_s"] / replicas,
        "waited": summary["idle_share"],
    }


def slow(results, slowness, replicas):
    """results is [(method, exchange over micro-batch, result of `channel`)]. The column "without
    losses" has the ideal. For zero1: a rank computes, then exchanges, and waits for the slow
    replica. For acco: the exchange is hidden, and the faster ranks add more micro-batches to a
    round."""
    rows = [["exchange / micro-batch", "method", "share of computing alone", "without losses"]]
    rows[0] += ["of that", "waited, by replica"]
    for method, exchange, found in results:
        ideal = 1 / (slowness + exchange)
        if method == "acco":
            ideal = (replicas - 1 + 1 / slowness) / replicas
        cells = [f"{exchange:g}", method, f"{found['share']:.3f}", f"{ideal:.3f}"]
        waited = " ".join(f"{100 * share:.1f} %" for share in found["waited"])
        rows.append([*cells, f"{found['share'] / ideal:.3f}", waited])
    return rows


def updates_a_second(summary):
    return summary["steps"] / summary["wall_s"]


def microbatches(summary):
    """Returns the number of micro-batches per rank and update."""
    made = sum(summary["replica_microbatches"]) - summary["dropped_microbatches"]
    return made / len(summary["replica_microbatches"]) / summary["steps"]


def updates_to_a_loss(curves):
    """Returns {method: mean number of blocks until the loss stays at or below the target}. The
    target is the highest final loss of all runs. curves is {method: {seed: [mean training loss of a
    block of steps]}}."""
    ends = [losses[-1] for seeds in curves.values() for losses in seeds.values()]
    if not ends:
        return {}
    target, found = max(ends), {}
    for method, seeds in curves.items():
        counts = []
        for losses in seeds.values():
            above = [at for at, loss in enumerate(losses) if loss > target]
            counts.append((above[-1] + 1 if above else 0) + 1)
        found[method] = statistics.mean(counts)
    return found


def ideal_speed(exchange):
    """Returns the ideal ratio of updates per second, acco's over zero1's, for updates of two
    micro-batches. acco exchanges in each of two rounds, during a micro-batch. zero1 exchanges once,
    before the next update."""
    return (2 + exchange) / (2 * max(1, exchange))


def ratio(results, updates):
    """results is {exchange over micro-batch: {method: [summary of each pass]}}. updates has the
    numbers of updates that zero1 and acco need to reach a loss."""
    head = ["exchange / micro-batch", "ddp", "zero1", "acco", "acco / zero1", "without losses"]
    head += ["time to a loss, acco / zero1", "acco-free", "its micro-batches an update"]
    rows = [head + ["waited: zero1", "acco", "acco-free"]]
    to_loss = updates["acco"] / updates["zero1"] if len(updates) == 2 else None
    for exchange, methods in sorted(results.items()):
        speeds = {key: [updates_a_second(one) for one in runs] for key, runs in methods.items()}
        pairs = [own / base for own, base in zip(speeds["acco"], speeds["zero1"])]
        faster = statistics.mean(pairs)
        cells = [f"{exchange:g}"]
        for method in ("ddp", "zero1", "acco"):
            cells.append(from_to(speeds[method], 2))
        cells += [from_to(pairs, 3), f"{ideal_speed(exchange):.3f}"]
        cells.append("" if to_loss is None else f"{to_loss / faster:.2f}")
        cells.append(from_to(speeds["acco-free"], 2))
        cells.append(f"{statistics.mean(microbatches(one) for one in methods['acco-free']):.1f}")
        for method in ("zero1", "acco", "acco-free"):
            waited = [max(one["idle_share"]) for one in methods[method]]
            cells.append(f"{100 * statistics.mean(waited):.0f} %")
        rows.append(cells)
    return rows


def from_to(values, digits):
    """Returns a text with the mean. If there are several values, adds the least and the
    greatest."""
    text = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


# ---- optimizers ----------------------------------------------------------------------

WINDOW = 64  # a training loss is the mean over this many steps


def loss_or_infinity(summary):
    return float("inf") if summary["val_loss"] is None else summary["val_loss"]


def mean_losses(records):
    """Returns {step: mean loss over the replicas}."""
    by_step = {}
    for record in records:
        by_step.setdefault(record["step"], []).append(record["loss"])
    return {step: statistics.fmean(losses) for step, losses in by_step.items()}


def smooth_losses(records, window=WINDOW):
    """Returns [mean training loss of the last `window` steps, all replicas], from step `window`
    on."""
    by_step = mean_losses(records)
    losses = [by_step[step] for step in sorted(by_step)]
    ends = range(window, len(losses) + 1)
    return [statistics.fmean(losses[end - window : end]) for end in ends]


def reaches(records, target, window=WINDOW):
    """Returns the step from which on the smoothed training loss is at most `target`, or None if
    the loss is above `target` at the end."""
    losses = smooth_losses(records, window)
    above = [number for number, loss in enumerate(losses) if loss > target]
    after = above[-1] + 1 if above else 0
    return after + window if after < len(losses) else None


def spread(values, digits):
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def mean_or_infinity(losses):
    return "∞" if max(losses) == float("inf") else f"{statistics.mean(losses):.4f}"


def optimizers(results, rhos):
    """results has a dictionary for each optimizer, with the keys "name", "steps", "gradients",
    "rate", "losses", "summaries" and "records". "losses" are the validation losses of all seeds at
    half the rate, at the rate, and at twice the rate. "summaries" and "records" are those of each
    seed at the rate. The other optimizers are compared with the first, seed by seed."""
    first = results[0]
    rows = [["", "steps", "gradients", "best lr", "at half of it", "validation loss"]]
    rows[0] += ["at twice it", f"against {first['name']}", "right", "training loss"]
    rows[0] += [f"{first['name']}'s after steps", "gradients"]
    rows[0] += [f"rise at {rho:g}" for rho in rhos] + ["adaptive"]
    base = statistics.mean(first["losses"][1])
    targets = [smooth_losses(records)[-1] for records in first["records"]]
    for result in results:
        half, own, twice = result["losses"]
        cells = [str(result["steps"]), str(result["gradients"]), f"{result['rate']:g}"]
        cells += [mean_or_infinity(half), spread(own, 4), mean_or_infinity(twice)]
        cells.append("" if result is first else percent(statistics.mean(own) / base - 1))
        accuracies = [100 * summary["val_accuracy"] for summary in result["summaries"]]
        cells.append(spread(accuracies, 1) + " %")
        cells.append(spread([smooth_losses(records)[-1] for records in result["records"]], 4))
        cells += steps_to(targets, result)
        for place in range(len(rhos)):
            rises = [summary["sharpness"][place] for summary in result["summaries"]]
            cells.append(f"{statistics.mean(rises):.4f}")
        cells.append(adaptive(result["records"]))
        rows.append([result["name"]] + cells)
    return rows


def steps_to(targets, result):
    """Returns two cells: the steps and the gradients after which the training loss reaches the
    target of its seed. Both are means over the seeds."""
    steps = [reaches(records, target) for records, target in zip(result["records"], targets)]
    never = steps.count(None)
    if never > 0:
        return ["never" if never == len(steps) else f"never in {never} of {len(steps)}", ""]
    mean = statistics.mean(steps)
    return [f"{mean:.0f}", f"{mean * result['gradients'] / result['steps']:.0f}"]


def adaptive(records):
    """Returns a cell: AGD's mean share of elements on the adaptive branch, over all steps and
    seeds."""
    key = "adaptive_share"
    shares = [record[key] for seed in records for record in seed if key in record]
    return f"{100 * statistics.mean(shares):.1f} %" if shares else ""
