"""Draws the pictures of compare.py's report as SVG elements of a page. The pictures contain no fonts and no URLs.
Text and axes have the colour of the page's text, so they are readable in light and in dark mode."""

import io
import math
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)
from matplotlib import ticker  # noqa: E402

import compare_tables as tables  # noqa: E402

INK = "#010203"  # stands for the colour of the text around the picture
# Petroff's ten colours, which most people with colour vision deficiency can distinguish. Lines also differ in their
# dashes, and have their names at their ends.
COLOURS = "#3f90da #ffa90e #bd1f01 #94a4a2 #832db6 #a96b59 #e76300 #b9ac70 #717581 #92dadd".split()
DASHES = ["-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1, 1.5))]
STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}


def colour(entry):
    return COLOURS[entry.colour % len(COLOURS)]


def dash(entry):
    return DASHES[entry.dash % len(DASHES)]


def svg(figure, name):
    """Returns the figure as an element of a page. `name` is a prefix that makes its ids unique on the page."""
    text = io.StringIO()
    plain = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=plain)
    plt.close(figure)
    out = text.getvalue()
    out = out[out.index("<svg") :]
    out = re.sub(r"<metadata>.*?</metadata>", "", out, flags=re.S)
    out = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", out)
    out = out.replace("xlink:href", "href").replace(INK, "currentColor")
    out = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", out)
    # Coordinates need no more than hundredths of a point.
    out = re.sub(r'd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), out)
    return re.sub(r'width="[^"]*" height="[^"]*"', "", out, count=1)


def figure(names):
    """Makes a figure with one plot, and with room beside it for `names` names."""
    return plt.subplots(figsize=(6.4, max(4.2, 1.0 + 0.22 * names)), layout="constrained")


def token_scale(lines):
    """Returns the divisor of tokens, and the axis's name. lines is [(entry, [(tokens, ...), ...])]."""
    most = max(line[-1][0] for _, line in lines)
    if most > 5e5:
        return 1e6, "tokens, millions"
    return (1e3, "tokens, thousands") if most > 5e3 else (1.0, "tokens")


def apart(wanted, least, low, high):
    """Returns places near the wanted places, in the same order and at least `least` apart. All are
    in [low, high] if there is room."""
    least = min(least, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    places = list(wanted)
    for _ in range(500):
        moved = False
        for lower, upper in zip(order, order[1:]):
            lacking = least - (places[upper] - places[lower])
            if lacking > 1e-6 * least:
                places[lower] -= lacking / 2
                places[upper] += lacking / 2
                moved = True
        for at, place in enumerate(places):
            places[at] = min(max(place, low), high)
        if not moved:
            break
    return places


def name_ends(axis, ends):
    """Writes the entry's name to the right of the axis, beside the end of its line. ends is
    [(entry, y)]."""
    low, high = axis.get_ylim()
    places = apart([y for _, y in ends], (high - low) * 0.052, low, high)
    for (entry, y), place in zip(ends, places):
        axis.annotate(
            entry.label,
            (1, y),
            (1.03, place),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour(entry),
                "linewidth": 0.8,
                "relpos": (0, 0.5),
            },
        )


def draw_band(axis, entry, line, scale=1.0):
    """Draws the mean with a band of the deviation around it. line is [(x, mean, deviation)]."""
    x = [at / scale for at, _, _ in line]
    axis.plot(
        x, [mean for _, mean, _ in line], color=colour(entry), linestyle=dash(entry), linewidth=1.5
    )
    if any(wide > 0 for _, _, wide in line):
        axis.fill_between(
            x,
            [mean - wide for _, mean, wide in line],
            [mean + wide for _, mean, wide in line],
            color=colour(entry),
            alpha=0.1,
            linewidth=0,
        )


def loss_limits(lines):
    """Returns limits of the axis that show the last seven eighths of the curves. In the first eighth they fall
    from far above."""
    low = min(mean - wide for line in lines for _, mean, wide in line)
    high = max(line[len(line) // 8][1] for line in lines)
    room = max(0.04 * (high - low), 1e-3)
    return low - room, high + room


def losses(entries, key, name):
    """Draws training loss over tokens or over seconds."""
    lines = [(entry, tables.mean_curve(entry, key)) for entry in entries]
    lines = [(entry, line) for entry, line in lines if line and all(map(math.isfinite, line[-1]))]
    if not lines:
        return ""
    with plt.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn, axis = figure(len(lines))
        scale, title = token_scale(lines) if key == "tokens" else (1.0, "seconds")
        for entry, line in lines:
            draw_band(axis, entry, line, scale)
        axis.set_ylim(*loss_limits([line for _, line in lines]))
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.set_ylabel("training loss")
        axis.set_xlabel(title)
        if key == "tokens":
            name_ends(axis, [(entry, line[-1][1]) for entry, line in lines])
        else:
            for entry, line in lines:
                axis.plot(*line[-1][:2], "o", color=colour(entry), markersize=4)
                axis.plot([], [], color=colour(entry), linestyle=dash(entry), label=entry.label)
            axis.legend(fontsize=9, ncols=2 if len(lines) > 6 else 1)
        return svg(drawn, name)


def differences(entries, base, name):
    """Draws the difference to the loss of `base` at equal tokens."""
    lines = [(entry, tables.difference(entry, base)) for entry in entries]
    lines = [(entry, line) for entry, line in lines if line and all(map(math.isfinite, line[-1]))]
    if len(lines) < 2:
        return ""
    with plt.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn, axis = figure(len(lines))
        scale, title = token_scale(lines)
        later = [line[len(line) // 4 :] for _, line in lines]
        low = min(mean - wide for line in later for _, mean, wide in line)
        high = max(mean + wide for line in later for _, mean, wide in line)
        for entry, line in lines:
            draw_band(axis, entry, line, scale)
        room = max(0.04 * (high - low), 1e-4)
        axis.set_ylim(low - room, high + room)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.set_xlabel(title)
        axis.set_ylabel(f"training loss above that of {base.label}")
        name_ends(axis, [(entry, line[-1][1]) for entry, line in lines])
        return svg(drawn, name)


def logarithmic(axis):
    """Sets ticks at 1, 2 and 5 times powers of ten, as plain numbers."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())


def trade(entries, name):
    """Draws validation loss over bytes per token."""
    points = []
    for entry in entries:
        sent = tables.spread(entry.values(lambda run: tables.costs(run, None)["bytes_per_token"]))
        points.append((entry, sent[0], *entry.val_loss()))
    points = [one for one in points if one[1] > 0 and math.isfinite(one[2])]
    if not points:
        return ""
    with plt.rc_context({**STYLE, "svg.hashsalt": name}):
        drawn, axis = figure(len(points))
        for entry, sent, mean, wide in points:
            axis.errorbar(sent, mean, wide, fmt="o", color=colour(entry), capsize=3)
        logarithmic(axis)
        axis.grid(alpha=0.25)
        axis.set_xlabel("bytes per token")
        axis.set_ylabel("validation loss")
        axis.set_xlim(right=max(sent for _, sent, _, _ in points) * 3)  # room for the names
        low, high = axis.get_ylim()
        places = apart([mean for _, _, mean, _ in points], (high - low) * 0.05, low, high)
        for (entry, sent, mean, _), place in zip(points, places):
            axis.annotate(entry.label, (sent, mean), (sent * 1.12, place), va="center", fontsize=9)
        return svg(drawn, name)


def dots(entries, measures, name):
    """Draws one panel per measure. A panel has a row per entry, with a dot per seed and a stroke at the mean of the
    dots."""
    columns = 4
    rows = -(-len(measures) // columns)
    with plt.rc_context({**STYLE, "svg.hashsalt": name}):
        size = (13, rows * (0.9 + 0.26 * len(entries)))
        drawn, axes = plt.subplots(
            rows, columns, figsize=size, layout="constrained", sharey=True, squeeze=False
        )
        for axis in axes.flat[len(measures) :]:
            axis.set_axis_off()
        for axis, measure in zip(axes.flat, measures):
            dot_panel(axis, entries, measure)
        axes[0][0].set_yticks(range(len(entries)), [entry.label for entry in entries])
        axes[0][0].set_ylim(len(entries) - 0.5, -0.5)
        return svg(drawn, name)


def dot_panel(axis, entries, measure):
    seen = []
    for at, entry in enumerate(entries):
        own = entry.values(measure.of)
        if not all(value is not None and math.isfinite(value) for value in own):
            place = axis.get_yaxis_transform()
            axis.text(0.02, at, measure.absent, transform=place, va="center", fontsize=8)
            continue
        axis.plot(own, [at] * len(own), "o", color=colour(entry), markersize=4, alpha=0.6)
        axis.plot(sum(own) / len(own), at, "|", color=INK, markersize=12)
        seen += own
    axis.set_title(measure.heading, fontsize=10)
    axis.grid(alpha=0.25)
    if measure.scale == "log" and seen and min(seen) > 0:
        logarithmic(axis)
        return
    axis.xaxis.set_major_locator(ticker.MaxNLocator(4))
    if measure.scale == "from 0" and seen and max(seen) > 0:
        axis.set_xlim(0, max(seen) * 1.08)
