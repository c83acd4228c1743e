#!/usr/bin/env python3
"""Draws the timelines of docs/learn: draw.py writes an SVG for each method beside this file. Time runs to the right, in arbitrary
units. Each replica has a line for its computation and a line for its network.

A picture is a list of bars. A bar is (line, begin, end, kind, text). A lane is a replica, with the lines of its kinds. `steps` makes
the bars of steps in a row."""

import html
import pathlib
from typing import Dict, List, NamedTuple, Sequence, Tuple

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, LEFT, TOP, LINE, GAP, FOOT = 960, 150, 34, 26, 12, 44

# kind: (what the legend says, fill on a light page, fill on a dark page)
KINDS = {
    "compute": ("computes", "#b6d7ff", "#1b4b87"),
    "outer": ("outer step, merge", "#e3c8ff", "#5b3391"),
    "gradient": ("sends gradients", "#ffd59e", "#7a4a08"),
    "exchange": ("sends pseudo-gradients or parameters", "#b4e6b9", "#1d5e2a"),
    "word": ("sends a few numbers", "#f5b5c8", "#86294a"),
    "wait": ("waits", "#e4e6ea", "#3a4049"),
}

Bar = Tuple[str, float, float, str, str]


class Picture(NamedTuple):
    title: str
    lines: Sequence[Tuple[str, str]]  # (name of the line, text to its left)
    bars: Sequence[Bar]
    marks: Sequence[Tuple[float, str]] = ()  # (time, text): a vertical line


def steps(line: str, begin: float, length: float, texts: Sequence[object], kind: str = "compute") -> List[Bar]:
    return [(line, begin + at * length, begin + (at + 1) * length, kind, str(text)) for at, text in enumerate(texts)]


def replicas(*names: str) -> List[Tuple[str, str]]:
    """Returns a line c1, c2, ... of computation and a line n1, n2, ... of the network for each name."""
    return [(f"{kind}{at}", f"{name}: {what}") for at, name in enumerate(names, 1) for kind, what in (("c", "compute"), ("n", "network"))]


def both(*bars: Bar) -> List[Bar]:
    """Returns the bars of the lines c1 and n1 also for c2 and n2."""
    return [(line[0] + one, begin, end, kind, text) for one in "12" for line, begin, end, kind, text in bars]


PICTURES: Dict[str, Picture] = {
    "synchronous": Picture(
        "Synchronous training: all replicas send gradients at every step",
        replicas("replica 1", "replica 2"),
        [bar for at in range(5) for bar in [
            ("c1", 6 * at, 6 * at + 4, "compute", f"step {at + 1}"), ("n1", 6 * at + 3, 6 * at + 6, "gradient", "gradients"),
            ("c1", 6 * at + 4, 6 * at + 6, "wait", ""),
            ("c2", 6 * at, 6 * at + 3.4, "compute", f"step {at + 1}"), ("n2", 6 * at + 3, 6 * at + 6, "gradient", "gradients"),
            ("c2", 6 * at + 3.4, 6 * at + 6, "wait", "")]],
    ),
    "post-local-sgd": Picture(
        "Post Local SGD, H = 3: synchronous steps first, then means of parameters",
        replicas("replica 1", "replica 2"),
        both(*[bar for at in range(2) for bar in [
            ("c1", 5 * at, 5 * at + 3, "compute", f"step {at + 1}"), ("n1", 5 * at + 2, 5 * at + 5, "gradient", "gradients"),
            ("c1", 5 * at + 3, 5 * at + 5, "wait", "")]],
            *steps("c1", 10, 3, ["3", "4", "5"]), ("n1", 19, 22, "exchange", "mean of θ"), ("c1", 19, 22, "wait", ""),
            *steps("c1", 22, 3, ["6", "7", "8"]), ("n1", 31, 34, "exchange", "mean of θ"), ("c1", 31, 34, "wait", "")),
        [(10, "t = S = 2"), (22, "θ ← mean"), (34, "θ ← mean")],
    ),
    "diloco": Picture(
        "DiLoCo, H = 4: an outer optimizer takes the mean change as a gradient",
        replicas("replica 1", "replica 2"),
        both(*steps("c1", 0, 3, ["1", "2", "3", "4"]), ("n1", 12, 16, "exchange", "mean of Δ"), ("c1", 12, 16, "wait", ""),
             ("c1", 16, 17, "outer", ""), *steps("c1", 17, 3, ["5", "6", "7", "8"]), ("n1", 29, 33, "exchange", "mean of Δ"),
             ("c1", 29, 33, "wait", ""), ("c1", 33, 34, "outer", "")),
        [(0, "θ = a"), (17, "θ ← a"), (34, "θ ← a")],
    ),
    "edit": Picture(
        "EDiT: one exchange of a model of four layers, close up. Layer by layer, in the next forward pass",
        replicas("replica 1", "replica 2"),
        both(("c1", 0, 5, "compute", "backward, step t"), ("n1", 5, 7, "word", "norms"), ("c1", 5, 9.6, "wait", ""),
             *steps("n1", 7, 2.6, ["Δ 1", "Δ 2", "Δ 3", "Δ 4"], "exchange"),
             *[bar for at in range(4) for bar in [("c1", 9.6 + 2.6 * at, 10.1 + 2.6 * at, "outer", ""),
                                                  ("c1", 10.1 + 2.6 * at, 12.2 + 2.6 * at, "compute", f"fwd {at + 1}")]],
             ("c1", 20, 26, "compute", "backward, step t + 1"), ("c1", 26, 34, "compute", "step t + 2, without network")),
        [(5, "t = S + kH")],
    ),
    "a-edit": Picture(
        "A-EDiT: a replica that is twice as slow makes half the steps. Each has its own clock, and meets after τ",
        replicas("fast", "slow"),
        [*steps("c1", 0, 2, range(1, 7)), ("c1", 12, 13.2, "wait", ""), ("n1", 13.2, 16, "exchange", "Δ"), ("c1", 13.2, 16, "wait", ""),
         *steps("c2", 0, 4.4, range(1, 4)), ("n2", 13.2, 16, "exchange", "Δ"), ("c2", 13.2, 16, "wait", ""),
         ("c1", 16, 16.6, "outer", ""), ("c2", 16, 16.6, "outer", ""),
         *steps("c1", 16.6, 2, range(7, 13)), ("c1", 28.6, 29.8, "wait", ""), ("n1", 29.8, 32.6, "exchange", "Δ"), ("c1", 29.8, 32.6, "wait", ""),
         *steps("c2", 16.6, 4.4, range(4, 7)), ("n2", 29.8, 32.6, "exchange", "Δ"), ("c2", 29.8, 32.6, "wait", ""),
         ("c1", 32.6, 33.2, "outer", ""), ("c2", 32.6, 33.2, "outer", "")],
        [(11.4, "τ is over"), (28, "τ is over")],
    ),
    "streaming-diloco": Picture(
        "Streaming DiLoCo, H = 8, four fragments, one step of overlap: the same bytes, spread over the interval",
        replicas("replica 1", "replica 2"),
        both(*steps("c1", 0, 2, range(1, 18)),
             *[("n1", 4 * at + 4, 4 * at + 6, "exchange", f"Δ {at % 4 + 1}") for at in range(7)],
             *[("c1", 4 * at + 5.7, 4 * at + 6, "outer", "") for at in range(7)]),
        [(16, "t = S + H"), (32, "t = S + 2H")],
    ),
    "decoupled-diloco": Picture(
        "Decoupled DiLoCo, two fragments: replicas offer a fragment at their own steps, and none waits",
        replicas("fast", "fast, too", "slow"),
        [*steps("c1", 0, 2, range(1, 18)), *steps("c2", 0, 2.1, range(1, 17)), *steps("c3", 0, 5.2, range(1, 7)), ("c3", 31.2, 34, "compute", "7"),
         *[(f"n{one}", begin, begin + 2, "exchange", text) for one in (1, 2) for begin, text in ((9, "Δ 1"), (17.2, "Δ 2"), (25.4, "Δ 1"))],
         *[("n3", begin, begin + 2, "exchange", text) for begin, text in ((9, "w = 0"), (17.2, "w = 0"), (25.4, "Δ 1"))],
         *[("c1", end - 0.35, end, "outer", "") for end in (12, 20, 28)], *[("c2", end - 0.35, end, "outer", "") for end in (12.6, 21, 29.4)],
         *[("c3", end - 0.35, end, "outer", "") for end in (15.6, 20.8, 31.2)]],
        [(9, "closed without slow"), (17.2, "again"), (25.4, "closed with slow")],
    ),
    "co2": Picture(
        "CO2, H = 4: the exchange of an interval takes all of the next interval",
        replicas("replica 1", "replica 2"),
        both(*steps("c1", 0, 2.6, range(1, 14)),
             ("n1", 10.4, 20.4, "exchange", "Δ of steps 1 to 4"), ("n1", 20.8, 30.8, "exchange", "Δ of steps 5 to 8"),
             ("n1", 31.2, 33.8, "exchange", "9 to 12"),
             *[("c1", end - 0.4, end, "outer", "") for end in (10.4, 20.8, 31.2)]),
        [(10.4, "θ ← a"), (20.8, "merge, θ ← a"), (31.2, "merge, θ ← a")],
    ),
    "sparseloco": Picture(
        "SparseLoCo, H = 4: one element in 64, in two bits each; the rest waits in e",
        replicas("replica 1", "replica 2"),
        both(*steps("c1", 0, 3, ["1", "2", "3", "4"]), ("c1", 12, 13.4, "outer", "pack"), ("n1", 13.4, 14, "exchange", ""),
             ("c1", 13.4, 14, "wait", ""), ("c1", 14, 15.4, "outer", "a"), *steps("c1", 15.4, 3, ["5", "6", "7", "8"]),
             ("c1", 27.4, 28.8, "outer", "pack"), ("n1", 28.8, 29.4, "exchange", ""), ("c1", 28.8, 29.4, "wait", ""),
             ("c1", 29.4, 30.8, "outer", "a"), ("c1", 30.8, 33.8, "compute", "9")),
        [(15.4, "θ ← a"), (30.8, "θ ← a")],
    ),
    "acco": Picture(
        "ACCO: a half of the batch is sent while the other half is computed",
        replicas("rank 1", "rank 2"),
        [*steps("c1", 0, 5.6, ["A at θ~", "B at θ", "A' at θ~'", "B' at θ'", "A'' at θ~''", "B'' at θ''"]),
         *steps("c2", 0, 2.8, ["A", "A", "B", "B", "A'", "A'", "B'", "B'", "A''", "A''", "B''", "B''"]),
         *[(f"n{one}", 5.6 * at + 5.6, 5.6 * at + 10.6, "gradient", text) for one in (1, 2)
           for at, text in enumerate(["A → θ~'", "A + B → θ'", "A' → θ~''", "A' + B' → θ''", "A'' → θ~'''"])
           if 5.6 * at + 10.6 <= 34]],
        [(11.2, "estimate θ~'"), (16.8, "commit θ'"), (22.4, "estimate θ~''"), (28, "commit θ''")],
    ),
}


def style() -> str:
    def fills(column: int) -> str:
        return "".join(f".{kind}{{fill:{colours[column]}}}" for kind, colours in KINDS.items())

    return ("text{font:12px sans-serif;fill:#1f2328}.page{fill:#fff}.bar{stroke:#57606a;stroke-width:.7}.mark{stroke:#57606a;stroke-dasharray:3 3}"
            f".title{{font-weight:600;font-size:13px}}{fills(1)}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.page{{fill:#0d1117}}"
            f".bar,.mark{{stroke:#9198a1}}{fills(2)}}}")


def text_at(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{html.escape(text, quote=False)}</text>'


def svg(picture: Picture) -> str:
    """Returns the picture. The same input gives the same bytes."""
    tops, y = {}, TOP + 20.0
    for at, (name, _) in enumerate(picture.lines):
        tops[name] = y
        y += LINE + (GAP if at % 2 else 2)
    foot, last = y, max(bar[2] for bar in picture.bars)
    scale = (WIDTH - LEFT - 16) / max(last, 34)

    def place(time: float) -> float:
        return round(LEFT + time * scale, 1)

    out = [f'<rect class="page" width="{WIDTH}" height="{foot + FOOT:g}" rx="6"/>',
           text_at(12, 20, picture.title, "start", ' class="title"')]
    for name, text in picture.lines:
        out.append(text_at(LEFT - 8, tops[name] + 17, text, "end"))
    for time, text in picture.marks:
        out.append(f'<path class="mark" d="M{place(time):g} {TOP + 14} V{foot - 6:g}"/>')
        out.append(text_at(place(time), TOP + 10, text, "start" if place(time) < LEFT + 20 else "end" if place(time) > WIDTH - 40 else "middle"))
    for line, begin, end, kind, text in picture.bars:
        x, width = place(begin), round(place(end) - place(begin), 1)
        out.append(f'<rect class="bar {kind}" x="{x:g}" y="{tops[line]:g}" width="{width:g}" height="{LINE}"/>')
        if text:
            out.append(text_at(round(x + width / 2, 1), tops[line] + 17, text))
    x = float(LEFT)
    for kind in [one for one in KINDS if any(bar[3] == one for bar in picture.bars)]:
        out.append(f'<rect class="bar {kind}" x="{x:g}" y="{foot + 8:g}" width="14" height="14"/>' + text_at(x + 20, foot + 19, KINDS[kind][0], "start"))
        x += 44 + 6.6 * len(KINDS[kind][0])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {foot + FOOT:g}" role="img"><title>{html.escape(picture.title)}</title>'
    return f"{head}<style>{style()}</style>\n" + "\n".join(out) + "\n</svg>\n"


def main() -> None:
    for name, picture in PICTURES.items():
        (HERE / f"{name}.svg").write_text(svg(picture), encoding="utf-8")


if __name__ == "__main__":
    main()
