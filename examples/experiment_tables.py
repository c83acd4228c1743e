"""What experiments.py makes of finished runs: pure functions from summaries and step losses to
tables.

A table is a list of rows, each a list of cells that are text; the first row has the headings."""

import random
import statistics


def markdown(rows):
    """The table as Markdown: first column to the left, the others to the right."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    return "\n".join(lines) + "\n"


def percent(value):
    return f"{100 * value:+.2f} %"


# ---- quality -------------------------------------------------------------------------


def best_rate(by_rate):
    """Of {learning rate: [loss of each seed]} the rate with the least mean."""
    return min(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))


def quality(results, base="ddp"):
    """results: {method: {learning rate: [validation loss of each seed]}}; base is one of them, and
    the others are compared with it, each at its best rate."""
    rates = sorted(results[base])
    seeds = len(results[base][rates[0]])
    head = ["method"] + [f"mean at lr {rate:g}" for rate in rates] + ["best lr"]
    rows = [head + [f"its seed {n + 1}" for n in range(seeds)] + ["mean", f"against {base}"]]
    of_base = statistics.mean(results[base][best_rate(results[base])])
    for method, by_rate in results.items():
        best = best_rate(by_rate)
        mean = statistics.mean(by_rate[best])
        cells = [f"{statistics.mean(by_rate[rate]):.4f}" for rate in rates] + [f"{best:g}"]
        cells += [f"{loss:.4f}" for loss in by_rate[best]] + [f"{mean:.4f}"]
        rows.append([method] + cells + ["" if method == base else percent(mean / of_base - 1)])
    return rows


# ---- spikes --------------------------------------------------------------------------


def clean_losses(records, shuffled_replica):
    """{step: mean loss over the replicas that are never fed shuffled labels}."""
    by_step = {}
    for record in records:
        if record["replica"] != shuffled_replica:
            by_step.setdefault(record["step"], []).append(record["loss"])
    return {step: statistics.mean(losses) for step, losses in by_step.items()}


def worst_excursion(quiet, spiked, first_step):
    """From `first_step` on, how far the losses of the run with shuffled labels rose above those of
    the same run without (the same batches at the same steps), at most."""
    return max(spiked[step] - quiet[step] for step in quiet if step >= first_step)


def spikes(results):
    """results: {variant: [{"worst", "worst_armed", "rejections", "val_loss", and the last two of
    the run without shuffling with "_quiet"} of each seed]}."""
    head = ["", "worst excursion", "against diloco", "after the detectors' warm-up"]
    head += ["against diloco", "layers rejected, by seed", "without shuffling"]
    rows = [head + ["validation loss", "without shuffling"]]

    def worst(variant, field):
        return max(one[field] for one in results[variant])

    for variant, seeds in results.items():
        cells = []
        for field in ("worst", "worst_armed"):
            own, base = worst(variant, field), worst("diloco", field)
            cells += [f"{own:.3f}", "" if variant == "diloco" else f"{own / base:.2f}"]
        for field in ("rejections", "rejections_quiet"):
            cells.append(" ".join(str(one[field]) for one in seeds))
        cells += [
            f"{statistics.mean(one[field] for one in seeds):.4f}"
            for field in ("val_loss", "val_loss_quiet")
        ]
        rows.append([variant] + cells)
    return rows


# ---- stragglers ----------------------------------------------------------------------


def predict(method, straggler, ratio, replicas=4, interval=16, rounds=1500, seed=1):
    """Share of ideal throughput with a step of 1 and a delay of `ratio`, by Monte-Carlo, for
    exchanges that take no time. ddp meets at every step, edit after `interval` steps, a-edit at the
    first step that ends when `interval` has passed.
    """
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
    """Tokens per second over those of replicas that never wait and are never late."""
    tokens_a_step = (
        summary["tokens"] / sum(summary["replica_steps"]) * len(summary["replica_steps"])
    )
    return summary["tokens_per_s"] * step_ms / 1000 / tokens_a_step


def stragglers(results, predicted, most=0.05):
    """results, predicted: {(straggler, delay / step): {method: share}}. Cells: measured /
    predicted."""
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


def channel(summary, microbatch_ms, params):
    """{"share": gradients a second over those of replicas that compute and never wait, "waited":
    share of its time that each did}, of a run by a gradient channel whose micro-batches are padded
    to so long."""
    if summary["params"] != params:
        raise ValueError(f"the model has {summary['params']} parameters, not {params}")
    replicas = len(summary["replica_microbatches"])
    made = sum(summary["replica_microbatches"]) - summary["dropped_microbatches"]
    return {
        "share": made * microbatch_ms / 1000 / summary["wall_s"] / replicas,
        "waited": summary["idle_share"],
    }


def ideal_share(method, grouped, exchange, slowness, replicas):
    """What `channel` would find on machines that lose no time. Exchanges take `exchange`
    micro-batches; a micro-batch of the first replica is `slowness` long. zero1 computes, then
    exchanges; of the others all compute without a pause, in rounds as long as the slow one's
    micro-batches or the exchange, whichever takes longer."""
    if method == "zero1":
        return grouped / (grouped * slowness + exchange)
    return (replicas - 1 + 1 / slowness) / replicas


def acco(runs):
    """runs: [(replicas, label, condition, `channel` of it, (method, micro-batches in a round, ..),
    exchange, slowness)]."""
    head = ["condition", "replicas", "method", "share of computing alone"]
    rows = [head + ["without losses", "of that", "waited, by replica"]]
    for replicas, label, condition, found, (method, grouped, _), exchange, slowness in runs:
        ideal = ideal_share(method, grouped, exchange, slowness, replicas)
        cells = [f"{found['share']:.3f}", f"{ideal:.3f}", f"{found['share'] / ideal:.3f}"]
        waited = " ".join(f"{100 * share:.1f} %" for share in found["waited"])
        rows.append([condition, str(replicas), label] + cells + [waited])
    return rows


# ---- optimizers ----------------------------------------------------------------------

WINDOW = 64  # steps over whose mean a training loss is read


def loss_or_infinity(summary):
    return float("inf") if summary["val_loss"] is None else summary["val_loss"]


def smooth_losses(records, window=WINDOW):
    """[mean training loss of the last `window` steps, all replicas], from step `window` on."""
    by_step = clean_losses(records, None)
    losses = [by_step[step] for step in sorted(by_step)]
    ends = range(window, len(losses) + 1)
    return [statistics.mean(losses[end - window : end]) for end in ends]


def reaches(records, target, window=WINDOW):
    """The step from which on the smoothed training loss is `target` or less; None: it is not, at
    the end."""
    losses = smooth_losses(records, window)
    above = [number for number, loss in enumerate(losses) if loss > target]
    after = above[-1] + 1 if above else 0
    return after + window if after < len(losses) else None


def spread(values, digits):
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def mean_or_infinity(losses):
    return "∞" if max(losses) == float("inf") else f"{statistics.mean(losses):.4f}"


def optimizers(results, rhos):
    """results: of each optimizer "name", "steps", "gradients", "rate", "losses" (validation losses
    of all seeds at half its rate, at it and at twice it), "summaries" and "records" of each seed at
    its rate. The first is what the others are compared with, seed by seed."""
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
    """Two cells: after how many steps, and gradients, a result's training loss is each seed's
    target."""
    steps = [reaches(records, target) for records, target in zip(result["records"], targets)]
    never = steps.count(None)
    if never > 0:
        return ["never" if never == len(steps) else f"never in {never} of {len(steps)}", ""]
    mean = statistics.mean(steps)
    return [f"{mean:.0f}", f"{mean * result['gradients'] / result['steps']:.0f}"]


def adaptive(records):
    """A cell: AGD's mean share of elements on the adaptive branch, over all steps and seeds."""
    key = "adaptive_share"
    shares = [record[key] for seed in records for record in seed if key in record]
    return f"{100 * statistics.mean(shares):.1f} %" if shares else ""
