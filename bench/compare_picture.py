"""Draws the log-log picture of compare.py: time over size, one panel per collective and rank count."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

import compare_tables as tables  # noqa: E402

CURVES = [("Entrain shm", "C0-", lambda cell: tables.ours(cell, "shm")),
          ("best peer, shared memory", "C1-", lambda cell: tables.best_peer(cell, "shm")[0]),
          ("bare exchange, shared memory", "k-", tables.floor),
          ("Entrain tcp", "C0--", lambda cell: tables.ours(cell, "tcp")),
          ("best peer, tcp", "C1--", lambda cell: tables.best_peer(cell, "tcp")[0])]


def draw(lines, path):
    panels = tables.parts(lines)
    ranks = sorted({count for _, count in panels})
    # A barrier has no size, so it has no curve.
    names = [name for name in dict.fromkeys(name for name, _ in panels) if name != "barrier"]
    if not names:
        return
    figure, axes = plt.subplots(len(names), len(ranks), squeeze=False, figsize=(5.5 * len(ranks), 3.2 * len(names)),
                                layout="constrained")
    for row, name in zip(axes, names):
        for axis, count in zip(row, ranks):
            panel(axis, tables.cells(lines, name, count))
            axis.set(xscale="log", yscale="log", title=f"{name}, {count} ranks", ylabel="us")
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("bytes")
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def panel(axis, found):
    for label, style, value in CURVES:
        points = [(size, time) for size, cell in found.items() if (time := value(cell)) is not None]
        if points:
            axis.plot(*zip(*points), style, marker=".", markersize=3, linewidth=1, label=label)
