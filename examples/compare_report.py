"""Makes the page of compare.py: one file that contains its pictures and loads nothing."""

import html
import math
from collections.abc import Callable
from dataclasses import dataclass

import compare_picture as picture
import compare_tables as tables

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>entrain-train: methods compared</title>
<style>
:root {{ color-scheme: light dark; --faint: #8884; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 1180px; margin: 2em auto;
  padding: 0 1em; }}
h2 {{ margin-top: 2em; border-bottom: 1px solid var(--faint); }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25em .7em; text-align: right; white-space: nowrap; }}
th {{ vertical-align: bottom; border-bottom: 1px solid; white-space: normal; }}
td {{ border-bottom: 1px solid var(--faint); }}
td:first-child, th:first-child, .words td, .words th {{ text-align: left; }}
.about td {{ white-space: normal; overflow-wrap: anywhere; }}
.about td:first-child {{ white-space: nowrap; }}
.wide {{ overflow-x: auto; }}
.pair {{ display: grid; gap: 1em;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }}
figure {{ margin: 1em 0; }}
figcaption {{ font-size: 13px; }}
svg {{ width: 100%; height: auto; overflow: visible; }}
@media (prefers-color-scheme: dark) {{ svg {{ filter: brightness(1.3); }} }}
.failed {{ border: 2px solid #c33; padding: 0 1em; }}
pre {{ overflow-x: auto; font-size: 12px; }}
code {{ overflow-wrap: anywhere; }}
small {{ opacity: .75; }}
</style>
<h1>Methods of entrain-train compared</h1>
{body}
</html>
"""

NOTES = """<h2>How to read it</h2>
<ul>
<li>All runs of a section read equally many tokens (bytes of text, or images), counted over all
ranks. A number is the mean over seeds &plusmn; their standard deviation; so are lines and bands. A
seed sets the starting weights and the batches, the same for every method: seeds often differ by
more than methods do, so the picture of differences compares seed by seed.</li>
<li><b>Validation loss</b> is in nats per token, at the end of a run, of what its replicas agree on.
<b>Training loss</b> is the mean over the steps of a {bins}th part of the run, over all replicas,
each with the parameters that it has.</li>
<li><b>Seconds to a loss</b>: when the training loss first comes down to the one that is named above
the table.</li>
<li><b>Bytes per token</b>: payload that all ranks sent, over the tokens that all read. <b>Exposed
communication</b>: the share of its time that a rank waited for others, mean over the ranks.
<b>Peak memory</b>: of the largest process, with its libraries and the text; what a gradient channel
holds comes with zero1, acco, dpu and wp beside the parameters.</li>
<li>Several learning rates, where tried, are shown in a table of their own; the rest is about the
one with the lowest mean validation loss.</li>
<li>Ranks share the cores of one machine: times compare methods, and are not those of a
cluster.</li>
</ul>
"""


def table(rows, kind=""):
    """Makes a table from rows of text cells. The first row has the headings."""
    head, *body = rows
    out = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>\n"
    for row in body:
        out += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
    return f'<div class="wide"><table class="{kind}">\n{out}</table></div>\n'


def shown(mean, deviation=0.0, digits=1, absent=""):
    if mean is None:
        return absent
    if not math.isfinite(mean):
        return "no number"
    text = f"{mean:,.{digits}f}"
    return f"{text} ± {deviation:,.{digits}f}" if deviation else text


def digits_for(mean):
    """Returns the number of decimals that show three significant digits of a value."""
    if not mean or not math.isfinite(mean):
        return 0
    return max(0, 2 - math.floor(math.log10(abs(mean))))


# The memory figures of summaries. Only methods with a gradient channel have the second.
MEMORY = {"peak_rss_bytes": "peak memory", "bytes_held": "held by a gradient channel"}


def of_summary(key, scale=1.0):
    return lambda run: None if run.summary.get(key) is None else run.summary[key] / scale


def of_costs(key, target, scale=1.0):
    def get(run):
        value = tables.costs(run, target)[key]
        return None if value is None else value * scale

    return get


@dataclass(frozen=True)
class Measure:
    """A figure of every run, other than its losses. It gets a column and a panel of dots."""

    heading: str
    of: Callable  # maps a run to a number, or None
    scale: str = "from 0"
    absent: str = ""  # the text for an entry without a number


def measures(runs, target):
    found = []
    if target is not None:
        get = of_costs("seconds_to_target", target)
        found.append(Measure(f"seconds to {target:.3f}", get, absent="not reached"))
    found += [
        Measure("seconds", of_summary("wall_s")),
        Measure("tokens / s", of_summary("tokens_per_s")),
        Measure("bytes / token", of_costs("bytes_per_token", target), "log"),
        Measure("exposed communication, %", of_costs("exposed_share", target, 100)),
    ]
    for key, name in MEMORY.items():
        if any(run.summary.get(key) for run in runs):
            found.append(Measure(f"{name}, MB", of_summary(key, 1e6)))
    return found


def overview(entries, kinds):
    """Returns the table for one number of ranks. The lowest validation loss comes first."""
    base = entries[0]
    rates = any(run.rate for entry in entries for run in entry.runs)
    head = ["", "lr"] if rates else [""]
    head += ["seeds", "validation loss", f"against {base.label}"]
    rows = [head + [kind.heading for kind in kinds]]
    for entry in sorted(entries, key=lambda one: tables.ascending(one.val_loss()[0])):
        mean, deviation = entry.val_loss()
        cells = [entry.label] + ([entry.runs[0].rate or "default"] if rates else [])
        cells += [str(len(entry.runs)), shown(mean, deviation, 4)]
        against = 100 * (mean / base.val_loss()[0] - 1)
        cells.append("" if entry is base else f"{against:+.2f} %")
        for kind in kinds:
            both = tables.spread(entry.values(kind.of))
            cells.append(shown(*both, digits_for(both[0]), kind.absent))
        rows.append(cells)
    return table(rows)


def tried_rates(entries, tune):
    if all(len(entry.tried) == 1 for entry in entries):
        return ""
    rates = sorted({rate for entry in entries for rate in entry.tried}, key=lambda r: float(r or 0))
    rows = [[""] + [f"lr {rate or 'default'}" for rate in rates] + ["best"]]
    for entry in entries:
        each = [shown(entry.tried[rate], 0, 4) if rate in entry.tried else "" for rate in rates]
        rows.append([entry.label, *each, entry.runs[0].rate or "default"])
    of = "all seeds" if tune is None else "seed 1" if tune == 1 else f"seeds 1 to {tune}"
    return f"<h3>Learning rates: mean validation loss of {of}</h3>\n" + table(rows)


def drawn(svg, caption):
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>\n" if svg else ""


def section(ranks, runs, target, asked, tune):
    entries = tables.entries(runs, tune)
    out = f"<h2>{ranks} rank{'s' if ranks != 1 else ''}</h2>\n"
    if not entries:
        return out + "<p>No run is complete.</p>\n"
    why = "as asked" if asked else "the highest one at which a run ends; all of them reach it"
    if target is not None:
        out += f"<p>Time to a given loss is that to a training loss of {target:.4f}: {why}.</p>\n"
    kinds = measures([run for entry in entries for run in entry.runs], target)
    out += overview(entries, kinds)
    base, name = entries[0], f"n{ranks}"
    out += '<div class="pair">\n'
    out += drawn(picture.losses(entries, "tokens", name + "a"), "Training loss against tokens.")
    out += drawn(
        picture.differences(entries, base, name + "b"),
        f"The same, seed by seed less the loss of {base.label} at the same tokens.",
    )
    out += drawn(
        picture.losses(entries, "seconds", name + "c"),
        "Training loss against time. A dot: the end.",
    )
    out += drawn(
        picture.trade(entries, name + "d"), "Validation loss against what all ranks sent per token."
    )
    out += "</div>\n"
    loss = Measure("validation loss", lambda run: tables.number(run.summary["val_loss"]), "linear")
    out += drawn(
        picture.dots(entries, [loss, *kinds], name + "e"), "A dot: a seed. A stroke: their mean."
    )
    return out + tried_rates(entries, tune)


def failures(runs):
    failed = [run for run in runs if run.reason]
    if not failed:
        return ""
    out = f'<div class="failed"><h2>{len(failed)} of {len(runs)} runs failed</h2>\n'
    for run in failed:
        out += f"<p><b>{html.escape(run.name)}</b></p>\n<pre>{html.escape(run.reason)}</pre>\n"
    return out + "</div>\n"


def every_run(runs):
    rows = [["run", "", "validation loss", "seconds", "flags"]]
    for run in runs:
        loss = shown(tables.number(run.summary["val_loss"]), 0.0, 4) if run.summary else ""
        took = f"{run.summary['wall_s']:.1f}" if run.summary else ""
        rows.append([run.name, run.status(), loss, took, " ".join(run.flags)])
    head = f"<h2>All runs</h2>\n<details><summary>{len(runs)} runs</summary>\n"
    return f"{head}{table(rows)}</details>\n"


def page(runs, about, target, asked, tune=None):
    """`runs` has all runs of the plan, made or not. `about` is [(topic, text)]. `target` is {number of
    ranks: target loss}; the page states when each run reaches it. `asked`: the user has chosen the
    target loss. `tune` is the number of seeds that chose the learning rates (None: all seeds)."""
    body = table([["", ""]] + [[what, text] for what, text in about], "words about")
    left = sum(run.status() == "not made" for run in runs)
    if left:
        body += f"<p><b>{left} of {len(runs)} runs are still to be made.</b></p>\n"
    body += failures(runs)
    for ranks in dict.fromkeys(run.ranks for run in runs):
        own = [run for run in runs if run.ranks == ranks]
        body += section(ranks, own, target[ranks], asked, tune)
    return PAGE.format(body=body + NOTES.format(bins=tables.BINS) + every_run(runs))
