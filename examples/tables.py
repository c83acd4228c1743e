"""Turns finished runs of experiments.py into tables: pure functions on losses, curves, decisions and summaries.

A table is a list of rows. A row is a list of cells, which are texts. The first row has the headings. Intervals are those of
Student's t, two-sided, 95 %, of the differences between runs of equal seeds."""

import re
import statistics

NO_PARTS = "none (DiLoCo)"  # edit without any part of its penalty
SYNCHRONOUS = ("ddp", "zero1")  # methods in which every step is synchronous
# The 97.5 % quantiles of Student's t, by degrees of freedom from 1 on.
QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131),
)


def markdown(rows):
    """Returns the table as Markdown. The first column is aligned to the left, the other columns to
    the right."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    return "\n".join(lines) + "\n"


# ---- Differences of equal seeds ---------------------------------------------------------


def interval(values):
    """Returns (mean, half of the interval's width). The width is None for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None
    return mean, QUANTILES[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5


def against(own, base):
    """Returns [own / base - 1 for each seed that both have]. own and base are {seed: loss}."""
    return [own[seed] / base[seed] - 1 for seed in sorted(own) if seed in base]


def difference(own, base):
    """Returns the mean relative difference and its interval as text. The text is empty if there is no
    common seed."""
    differences = against(own, base)
    if not differences:
        return ""
    mean, half = interval(differences)
    text = f"{100 * mean:+.2f} %"
    return (
        text if half is None else f"{text} [{100 * (mean - half):+.2f}, {100 * (mean + half):+.2f}]"
    )


def spread(losses):
    values = list(losses.values())
    return f"{statistics.mean(values):.4f}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


def share(part, whole, digits=1):
    return f"{100 * part / whole:.{digits}f} %" if whole else ""


def steps_of(warmup, steps):
    return f"{warmup} ({100 * warmup / steps:.0f} %)"


# ---- quality -------------------------------------------------------------------------


def quality(results, ddp, steps):
    """results is [(method, synchronous steps, learning rate, {seed: loss})]."""
    rows = [["method", "synchronous steps", "lr", "seeds", "validation loss", "against ddp [95 %]"]]
    for method, warmup, rate, losses in results:
        cells = [steps_of(warmup, steps), f"{rate:g}", str(len(losses)), spread(losses)]
        rows.append([method, *cells, "" if method == "ddp" else difference(losses, ddp)])
    return rows


def intervals(grid, ddp, warmups, lengths, steps):
    """Makes a table whose cells are differences to ddp. grid is
    {(synchronous steps, H): {seed: loss}}."""
    rows = [["synchronous steps"] + [f"H = {length}" for length in lengths]]
    for warmup in warmups:
        found = [grid.get((warmup, length)) for length in lengths]
        cells = [difference(losses, ddp) if losses else "" for losses in found]
        rows.append([steps_of(warmup, steps), *cells])
    return rows


def acted(decisions):
    """Returns how often each part of the penalty acted. A clip acts on a layer's mean, so it
    counts once per exchange."""
    norms = [one["norm"] for one in decisions]
    weights = [one["weight"] for one in decisions if one["accepted"]]
    return {
        "exchanges": max(one["exchange"] for one in decisions),
        "decisions": len(decisions),
        "armed": sum(one["limit"] > 0 for one in decisions),
        "rejected": sum(not one["accepted"] for one in decisions),
        "clipped": sum(one["clip"] < 1 for one in decisions),
        "norms": (min(norms), max(norms)),
        "weights": (min(weights), max(weights)),
    }


def acted_together(runs):
    """Returns what `acted` returns for the decisions of several runs. runs are what it returns for each of them."""
    together = {key: sum(one[key] for one in runs) for key in ("decisions", "armed", "rejected", "clipped")}
    together["exchanges"] = max(one["exchanges"] for one in runs)
    for key in ("norms", "weights"):
        together[key] = (min(one[key][0] for one in runs), max(one[key][1] for one in runs))
    return together


def parts(results, steps):
    """results is [(synchronous steps, H, decisions of all seeds)]."""
    head = ["synchronous steps", "H", "exchanges of a run", "decisions", "with an armed detector"]
    rows = [head + ["rejected", "clipped", "largest norm", "weights from", "to"]]
    for warmup, interval, decisions in results:
        found = acted(decisions)
        cells = [str(interval)]
        for key in ("exchanges", "decisions", "armed", "rejected", "clipped"):
            cells.append(str(found[key]))
        cells += [f"{found['norms'][1]:.2f}"] + [f"{weight:.3f}" for weight in found["weights"]]
        rows.append([steps_of(warmup, steps), *cells])
    return rows


# ---- gap -----------------------------------------------------------------------------


def outer(losses):
    """losses is {(outer learning rate, momentum, whether Nesterov's): loss}."""
    kinds = sorted({one[1:] for one in losses}, key=lambda kind: (not kind[1], kind[0]))
    names = [
        f"momentum {mu:g}" + ("" if nesterov else ", not Nesterov's") for mu, nesterov in kinds
    ]
    rows = [["outer lr"] + names]
    for rate in sorted({one[0] for one in losses}):
        found = [losses.get((rate, *kind)) for kind in kinds]
        rows.append([f"{rate:g}"] + ["" if loss is None else f"{loss:.4f}" for loss in found])
    return rows


def inner(losses):
    """losses is {(method, learning rate, other flags): loss}."""
    rows = [["method", "inner lr", "besides", "validation loss"]]
    for (method, rate, flags), loss in losses.items():
        rows.append([method, f"{rate:g}", f"`{flags}`" if flags else "", f"{loss:.4f}"])
    return rows


def gap(results, ddp, risen, steps):
    """results is [(synchronous steps, H, {seed: loss} with the default, {seed: loss} with the
    settings found)]. risen has the losses of ddp with LONG_RISE. They get a row of their own."""
    rows = [["synchronous steps", "H", "seeds", "default, against ddp [95 %]"]]
    rows[0] += ["found, against ddp [95 %]", "found, against default [95 %]"]
    rows[0].append("found, against ddp with the longer rise [95 %]")
    cells = [f"ddp, {steps_of(steps, steps)}", "", str(len(risen)), ""]
    rows.append([*cells, difference(risen, ddp), difference(risen, ddp), ""])
    for warmup, interval, before, after in results:
        cells = [steps_of(warmup, steps), str(interval), str(len(after))]
        rows.append([*cells, difference(before, ddp), difference(after, ddp)])
        rows[-1] += [difference(after, before), difference(after, risen)]
    return rows


# ---- penalty -------------------------------------------------------------------------


def worst_excursion(quiet, spiked):
    """Takes [loss of each step] of two runs: with shuffled labels (`spiked`), and with the same
    batches but without shuffled labels (`quiet`). Returns the largest difference at one step."""
    return max(after - before for before, after in zip(quiet, spiked))


def penalty(results):
    """results is {parts that are on: {seed: {"worst", "val_loss", "val_loss_quiet", ..}}}. One key is
    NO_PARTS."""
    rows = [["parts that are on", "seeds", "worst excursion", "against none [95 %]"]]
    rows[0] += ["loss with shuffling", "against none [95 %]", "loss without", "against none [95 %]"]
    for label, seeds in results.items():
        rows.append([label, str(len(seeds))])
        for name in ("worst", "val_loss", "val_loss_quiet"):
            own = {seed: one[name] for seed, one in seeds.items()}
            base = {seed: one[name] for seed, one in results[NO_PARTS].items()}
            rows[-1] += [spread(own), "" if label == NO_PARTS else difference(own, base)]
    return rows


def fraction(chosen, test):
    """Returns a text, for example "3 of 40 (7.5 %)"."""
    found = sum(test(one) for one in chosen)
    return f"{found} of {len(chosen)} ({share(found, len(chosen))})" if chosen else ""


def acts(results, shuffled, every):
    """Returns how often each part acted on shuffled deltas, and on all other deltas. results is as
    for `penalty`."""
    rows = [["parts that are on", "labels", "shuffled: rejected with an armed detector"]]
    rows[0] += ["all others: likewise", "clipped", "mean clip factor of these"]
    rows[0] += ["weight of the shuffled", "of the same replica otherwise"]

    def struck(one, kind):
        wanted = kind == "shuffled" and one["replica"] == shuffled
        return wanted and one["exchange"] % every == 0

    def mean_weight(chosen):
        found = [one["weight"] for one in chosen if one["accepted"]]
        return f"{statistics.mean(found):.3f}" if found else ""

    for label, seeds in results.items():
        for kind, key in (("shuffled", "decisions"), ("in order", "decisions_quiet")):
            found = [one for seed in seeds.values() for one in seed[key]]
            armed = [one for one in found if one["limit"] > 0]
            clipped = [one["clip"] for one in found if one["clip"] < 1]
            same = [one for one in found if one["replica"] == shuffled]
            cells = [label, kind]
            for wanted in (True, False):
                chosen = [one for one in armed if struck(one, kind) == wanted]
                cells.append(fraction(chosen, lambda one: not one["accepted"]))
            cells.append(fraction(found, lambda one: one["clip"] < 1))
            cells.append(f"{statistics.mean(clipped):.2f}" if clipped else "")
            for wanted in (True, False):
                cells.append(mean_weight([one for one in same if struck(one, kind) == wanted]))
            rows.append(cells)
    return rows


# ---- delay ---------------------------------------------------------------------------


def delay(results):
    """Compares the other methods with the first. results is
    [(method, learning rate, {seed: loss})]."""
    base = results[0]
    rows = [["method", "lr", "seeds", "validation loss", f"against {base[0]} [95 %]"]]
    for method, rate, losses in results:
        cells = [method, f"{rate:g}", str(len(losses)), spread(losses)]
        rows.append([*cells, "" if method == base[0] else difference(losses, base[2])])
    return rows


# ---- all methods ---------------------------------------------------------------------


def synchronous_steps(flags):
    words = flags.split()
    for name in ("--local-sgd-warmup-steps", "--warmup-rounds"):
        if name in words:
            return int(words[words.index(name) + 1])
    return 0


def with_all_seeds(runs):
    """Returns {(method, learning rate): {seed: row}} for the rates that were run with all seeds. runs are the rows of compare.py's
    report.csv."""
    by_rate = {}
    for run in runs:
        if run["status"] == "done":
            by_rate.setdefault((run["entry"], run["lr"]), {})[run["seed"]] = run
    most = max(len(seeds) for seeds in by_rate.values())
    return {key: seeds for key, seeds in by_rate.items() if len(seeds) == most}


def values(seeds, name):
    return {seed: float(run[name]) for seed, run in seeds.items()}


def methods(runs, base="ddp"):
    """Shows, for each method, the learning rate that was run with all seeds. The smallest loss comes
    first. runs are the rows of compare.py's report.csv."""
    chosen = with_all_seeds(runs)
    losses = {key: values(seeds, "val_loss") for key, seeds in chosen.items()}
    of_base = next(own for (entry, _), own in losses.items() if entry == base)
    rows = [["method", "synchronous steps", "lr", "validation loss", f"against {base} [95 %]"]]
    rows[0] += ["tokens / s", "bytes / token", "exposed communication"]
    for key in sorted(chosen, key=lambda one: statistics.mean(losses[one].values())):
        one = next(iter(chosen[key].values()))
        warmup = int(one["steps"]) if key[0] in SYNCHRONOUS else synchronous_steps(one["flags"])
        cells = [key[0], steps_of(warmup, int(one["steps"])), f"{float(key[1]):g}"]
        cells += [spread(losses[key]), "" if key[0] == base else difference(losses[key], of_base)]
        speeds = list(values(chosen[key], "tokens_per_s").values())
        cells.append(f"{statistics.mean(speeds):,.0f} ± {statistics.stdev(speeds):,.0f}")
        for name, factor, form in (("bytes_per_token", 1, ",.0f"), ("exposed_share", 100, ".1f")):
            mean = statistics.mean(values(chosen[key], name).values())
            cells.append(f"{factor * mean:{form}}" + (" %" if factor > 1 else ""))
        rows.append(cells)
    return rows


# ---- ratio ---------------------------------------------------------------------------


def check_params(summary, params):
    if summary["params"] != params:
        raise ValueError(f"the model has {summary['params']} parameters, not {params}")


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


# ---- docs/evidence.md ----------------------------------------------------------------


def allowed(own, base):
    """Returns the sentence that the interval of the difference allows. More loss is worse."""
    mean, half = interval(against(own, base))
    if half is None:
        return "one seed: no interval"
    low, high = 100 * (mean - half), 100 * (mean + half)
    if low > 0:
        return f"worse, by {low:.1f} to {high:.1f} %"
    if high < 0:
        return f"better, by {-high:.1f} to {-low:.1f} %"
    return f"no difference seen: at most {high:.1f} % worse, {max(0.0, -low):.1f} % better"


def count(part, whole):
    return f"{part} of {whole} ({share(part, whole)})"


def evidence_methods(results, base="ddp"):
    """results is [(method, settings, number of settings tried, {seed: loss}, MB sent, what `acted` returns or None)]."""
    of_base = next(losses for name, _, _, losses, _, _ in results if name == base)
    rows = [["method", "settings found", "tried", "seeds", "validation loss", f"against {base} [95 %]"]]
    rows[0] += ["what this allows to say", "MB a rank sends", "rejected", "clipped"]
    for name, settings, tried, losses, sent, parts in results:
        cells = [name, f"`{settings}`", str(tried), str(len(losses)), spread(losses)]
        cells += ["", ""] if name == base else [difference(losses, of_base), allowed(losses, of_base)]
        cells.append(f"{statistics.mean(sent):,.0f}")
        cells += [count(parts["rejected"], parts["armed"]), count(parts["clipped"], parts["decisions"])] if parts else ["", ""]
        rows.append(cells)
    return rows


def evidence_sizes(gaps, methods, base="ddp"):
    """gaps is {size: {method: {seed: loss}}}. Cells are differences to the base."""
    rows = [["model"] + [f"{method} against {base} [95 %]" for method in methods if method != base]]
    for size, losses in gaps.items():
        own = [difference(losses[one], losses[base]) if one in losses else "" for one in methods if one != base]
        rows.append([size, *own])
    return rows


def evidence_parts(found):
    """found is {condition: {parts that are on: ({seed: loss}, what `acted` returns)}}. The first variant has no part."""
    rows = [["condition", "parts that are on", "seeds", "validation loss", "against none [95 %]", "what this allows to say"]]
    rows[0] += ["rejected, of armed", "clipped", "weights from", "to"]
    for condition, variants in found.items():
        for on, (losses, parts) in variants.items():
            cells = [condition, ", ".join(on) or NO_PARTS, str(len(losses)), spread(losses)]
            cells += [difference(losses, variants[()][0]), allowed(losses, variants[()][0])] if on and () in variants else ["", ""]
            cells += [count(parts["rejected"], parts["armed"]) if parts["armed"] else "", count(parts["clipped"], parts["decisions"])]
            rows.append([*cells, *(f"{weight:.3f}" for weight in parts["weights"])])
    return rows


def evidence_exchange(results):
    """results is [(exchange over micro-batch, {seed: loss} of acco, {seed: loss} of ddp with as many tokens in an update)]. The first row's
    ddp is the one with the smallest updates. A micro-batch of ddp has as many tokens as two of acco."""
    smallest = results[0][2]
    rows = [["exchange / micro-batch", "tokens in an update, to the first row's", "seeds", "loss of acco", "of ddp with such updates"]]
    rows[0] += ["acco against it [95 %]", "against ddp with the smallest updates [95 %]"]
    rows[0].append("computed time at equal tokens, ddp with the smallest updates / acco")
    for times, acco, ddp in results:
        cells = [f"{times:g}", f"{times:g}", str(len(acco)), spread(acco), spread(ddp), difference(acco, ddp)]
        rows.append([*cells, difference(acco, smallest), f"{(2 + times) / 2:g}"])
    return rows


def evidence_muon(found):
    """found is {flags: (settings, {seed: loss})}. Each optimizer's row of diloco is compared with its ddp, and with diloco by AdamW."""
    rows = [["method", "inner optimizer", "settings found", "seeds", "validation loss", "against diloco with AdamW [95 %]"]]
    rows[0] += ["against ddp with the same optimizer [95 %]", "what the first interval allows to say"]
    base = next(losses for flags, (_, losses) in found.items() if flags == "--method diloco --optimizer adamw")
    for flags, (settings, losses) in found.items():
        _, method, _, optimizer = flags.split()
        same = found.get(f"--method ddp --optimizer {optimizer}", ("", {}))[1]
        cells = [method, optimizer, f"`{settings}`", str(len(losses)), spread(losses)]
        first = losses is base
        cells += ["" if first else difference(losses, base), difference(losses, same) if method != "ddp" else ""]
        rows.append([*cells, "" if first else allowed(losses, base)])
    return rows


def evidence_storm(found):
    """found is {method: {seed: {"kills", "loss", "equal"}}}; loss is the difference to the undisturbed job in percent."""
    rows = [["method", "jobs", "kills a job", "loss, against the undisturbed job [95 %]", "what this allows to say", "equal anchors"]]
    for method, seeds in found.items():
        own, base = {seed: 1 + one["loss"] / 100 for seed, one in seeds.items()}, dict.fromkeys(seeds, 1.0)
        kills = statistics.mean(one["kills"] for one in seeds.values())
        cells = [method, str(len(seeds)), f"{kills:g}", difference(own, base), allowed(own, base)]
        rows.append([*cells, "; ".join(sorted({one["equal"] for one in seeds.values()}))])
    return rows


# ---- README.md -----------------------------------------------------------------------


def row_of(table, *starts):
    """Returns the first row of a table whose first cells begin so."""
    return next(one for one in table[1:] if all(map(str.startswith, one, starts)))


def figures(found):
    """Returns the rows of README.md. `found` has the rows of the page's tables by name, so README.md and the page have the same
    figures. Each compares methods that are tuned alike."""

    def row(table, *starts):
        return row_of(found[table], *starts)

    def cell(table, column, *starts):
        return row(table, *starts)[found[table][0].index(column)]

    against_ddp, longer = "against ddp [95 %]", "found, against ddp with the longer rise [95 %]"
    speed = "acco / zero1"
    return [
        ["", "difference or ratio [95 %, or range]"],
        [
            "EDiT, H = 16, the first quarter of the steps synchronous: loss against synchronous training, both at the best of the same"
            " learning rates",
            cell("quality", against_ddp, "edit", "192"),
        ],
        ["DiLoCo in its place", cell("quality", against_ddp, "diloco", "192")],
        [
            "EDiT, H = 16, no synchronous steps, against synchronous training: both with the learning rate and the rise that a search"
            " found",
            cell("gap", longer, "0 (0 %)", "16"),
        ],
        ["the same, H = 8", cell("gap", longer, "0 (0 %)", "8")],
        [
            "EDiT against DiLoCo where one of four replicas learns from noise in each twelfth interval: loss",
            row("penalty", "all")[5],
        ],
        ["the same: largest excursion of the loss behind such an interval", row("penalty", "all")[3]],
        [
            "EDiT against DiLoCo, no noise, 48 synchronous steps, a clip of 1 that acts in a quarter of the cases: loss",
            row("penalty", "all")[7],
        ],
        ["ACCO against ZeRO-1, equal updates and tokens: loss", cell("delay", "against zero1 [95 %]", "acco")],
        ["ACCO against ZeRO-1: updates a second, if an exchange takes as long as a micro-batch", cell("ratio", speed, "1")],
        ["the same, if it takes four times as long: ACCO is the slower one", cell("ratio", speed, "4")],
    ]


# ---- docs/choose.md ------------------------------------------------------------------


def compared(report, names, base="ddp"):
    """Returns rows of `expect` for these methods of compare.py's report.csv."""
    chosen, rows = {entry: (float(rate), seeds) for (entry, rate), seeds in with_all_seeds(report).items()}, []
    for name in names:
        rates, runs = zip(chosen[name], chosen[base])
        one = next(iter(runs[0].values()))
        words = f"{100 * synchronous_steps(one['flags']) // int(one['steps'])} % synchronous"
        sent = [statistics.mean(values(seeds, "bytes_per_token").values()) for seeds in runs]
        rows.append(
            {
                "method": name,
                "settings": words if name == "a-edit" else f"H = 16, {words}",
                "params": int(one["params"]),
                "against": base,
                "rates": rates,
                "chosen": "on one of these seeds",
                "loss": [values(seeds, "val_loss") for seeds in runs],
                "bytes": sent[0] / sent[1],
            }
        )
    return rows


def expect(rows):
    """Makes the table of losses. A row is a dictionary with the keys of `compared`."""
    found = [["method", "settings", "parameters", "against", "lr, the baseline's", "chosen", "seeds", "loss [95 %]", "bytes"]]
    for row in rows:
        own, base = row["loss"]
        rates = ", ".join(f"{rate:g}" for rate in row["rates"])
        cells = [row["method"], row["settings"], f"{row['params']:,}", row["against"], rates, row["chosen"], str(len(own))]
        found.append([*cells, difference(own, base), f"{100 * row['bytes']:.1f} %"])
    return found


def links(runs):
    """runs are the rows of links.csv: the milliseconds of a step of each method, load and pass."""
    times = {}
    for run in runs:
        times.setdefault(run["method"], {}).setdefault(int(run["load"]), []).append(float(run["step_ms"]))
    loads = sorted({load for row in times.values() for load in row})
    rows = [["method"] + [f"load {load}" for load in loads]]
    return rows + [[method] + [from_to(row[load], 0) for load in loads] for method, row in times.items()]


# The sizes of the tables of docs/evidence.md, in parameters.
EVIDENCE_SIZES = {"evidence-tiny": "26,232", "evidence-methods": "107,800", "evidence-middle": "515,088", "evidence-large": "1,944,096"}
EVIDENCE_INTERVALS = {"evidence-tiny-intervals": "26,232", "evidence-intervals": "107,800"}
EVIDENCE_PARTS = {"evidence-tiny-parts": "26,232", "evidence-parts": "107,800"}


def verdict_of(measured, zero, below="holds"):
    """Returns what a difference of losses with its interval says of a claim: `zero` if the interval has 0, `below` if it lies below."""
    low, high = (float(number) for number in re.search(r"\[([+-][\d.]+), ([+-][\d.]+)\]", measured).groups())
    return "does not hold" if low > 0 else below if high < 0 else zero


def claims(found):
    """Returns the rows of the papers' claims beside what was measured. `found` has the rows of the page's tables by name."""

    def cell(table, column, *starts):
        return row_of(found[table], *starts)[found[table][0].index(column)]

    small = "80,112 parameters, four replicas"
    against_ddp, longer = "against ddp [95 %]", "found, against ddp with the longer rise [95 %]"
    penalty = row_of(found["penalty"], "all")
    rows = [["claim", "setting", "measured [95 %, or range]", "verdict"]]

    def add(claim, setting, measured, verdict):
        rows.append([claim, setting, measured, verdict])

    add("EDiT: the loss of synchronous training, with an exchange every H steps", f"{small}, H = 16, a quarter of the steps synchronous",
        f"loss {cell('quality', against_ddp, 'edit', '192')}", "holds within the interval")
    add("the same", f"{small}, H = 16, no synchronous steps, settings searched for both", f"loss {cell('gap', longer, '0 (0 %)', '16')}",
        "does not hold")
    tuned = "four replicas, H = 16, every method tuned"
    untuned = "four replicas, H = 16, settings found for the model before"
    sizes = {table: size for table, size in EVIDENCE_SIZES.items() if table in found}
    for table, size in sizes.items():
        add("the same", f"{size} parameters, {untuned if table == 'evidence-large' else tuned}, a sixteenth of the steps synchronous",
            f"loss {cell(table, against_ddp, 'edit')}", "does not hold")
    for table, size in EVIDENCE_INTERVALS.items():
        row = found[table][-1]
        measured = row[found[table][0].index("H = 16")]
        add("the same", f"{size} parameters, {tuned}, a quarter of the steps synchronous", f"loss {measured}", verdict_of(measured, "holds within the interval"))
    add("EDiT: its penalty protects the model from a replica that goes astray", f"{small}, one learns from noise in each twelfth interval",
        f"against DiLoCo: loss {penalty[5]}, worst excursion {penalty[3]}", "holds at the defaults of the outer step")
    for table, size in EVIDENCE_PARTS.items():
        for start, condition in (("noisy", "one learns from noise in each eighth interval"), ("corrupted", "one learns from noise always"),
                                 ("heterogeneous", "each has its own fourth of the text")):
            row = row_of(found[table], start, ", ".join(("detector", "weights", "clip")))
            add("the same", f"{size} parameters, four replicas, H = 16, beside a tuned DiLoCo: {condition}",
                f"against DiLoCo: loss {row[4]}; rejected {row[6]}", verdict_of(row[4], "not seen", "holds"))
    add("EDiT: better than DiLoCo without such a replica", f"{small}, a clip of 1 that acts in a quarter of the cases",
        f"loss {penalty[7]}", "holds there, by the clip")
    add("A-EDiT: a slow replica does not hold up the others", "[lab/stragglers.md](lab/stragglers.md)", "there",
        "holds for the speed; the loss with uneven replicas has not been measured")
    add("ACCO: the loss of synchronous training at equal updates", f"{small}, two micro-batches an update",
        f"loss {cell('delay', 'against zero1 [95 %]', 'acco')}", "no difference seen")
    for table, size in sizes.items():
        measured = cell(table, against_ddp, "acco") if any(row[0] == "acco" for row in found[table]) else ""
        if "[" not in measured:
            continue  # runs are still to be made: one seed has no interval
        how = "settings found for the model before" if table == "evidence-large" else "every method tuned"
        add("the same", f"{size} parameters, four replicas, {how}", f"loss, to ddp {measured}", verdict_of(measured, "no difference seen"))
    add("ACCO: faster, because the exchange is hidden", "two replicas, an exchange as long as a micro-batch",
        f"updates a second, to ZeRO-1 {cell('ratio', 'acco / zero1', '1')}", "holds below an exchange of two micro-batches")
    add("the same", "an exchange four times as long", f"updates a second, to ZeRO-1 {cell('ratio', 'acco / zero1', '4')}",
        "does not hold at equal updates: ACCO sends twice as much")
    add("AGD: fewer steps than AdamW", "[lab/optimizers.md](lab/optimizers.md): text, digits", "there",
        "holds on text, not on digits; rates chosen on the reported seeds")
    add("WSAM: flatter minima", "the same page", "there", "holds around SGD, not as such around AdamW and AGD")
    add("WSAM: better minima", "the same page, at equal steps", "there",
        "holds on digits around SGD and slightly on text around AdamW; not at equal computing on text")
    return rows
