#!/usr/bin/env python3
"""Computes what the methods of docs/learn cost. costs.py writes the tables between `<!-- costs METHOD -->` and `<!-- end -->` on the
pages beside this file.

The formulas are those of docs/training.md and docs/acco.md. tests/python/costs_test.py compares them with what the library counts."""

import math
import pathlib
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = re.compile(r"(<!-- costs (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The example: 7 billion parameters in 34 layers, replicas of M = 8 ranks, N = 4 replicas.
LAYERS = (262_000_000, *[202_375_000] * 32, 262_000_000)
SHARDS, REPLICAS, INTERVAL = 8, 4, 16
RATE = 1e9 / 8  # bytes a second of the link of one rank: 1 Gbit/s


class Way(NamedTuple):
    """What a method keeps and sends, as its preset says (entrain_edit_config_preset)."""

    kept: int  # bytes a parameter of a rank's shards, between exchanges
    holds: str  # what these bytes are
    wire: str = "f32"
    block: int = 256  # values a scale
    density: float = 1.0
    fragments: int = 1  # rendezvous an interval


WAYS: Dict[str, Way] = {
    "post-local-sgd": Way(0, "nothing"),
    "diloco": Way(8, "anchor and momentum"),
    "edit": Way(8, "anchor and momentum"),
    "a-edit": Way(8, "anchor and momentum"),
    "streaming-diloco": Way(12, "anchor, momentum, snapshot", wire="int4", fragments=8),
    "decoupled-diloco": Way(12, "anchor, momentum, snapshot", fragments=8),
    "co2": Way(12, "anchor, momentum, snapshot"),
    "sparseloco": Way(8, "anchor, and what was not sent", wire="int2", block=64, density=1 / 64),
}
BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4, "int2": 2}


def values_bytes(wire: str, block: int, values: float) -> float:
    scales = 4 * math.ceil(values / block) if wire.startswith("int") else 0
    return math.ceil(values * BITS[wire] / 8) + scales


def slice_bytes(wire: str, block: int, count: float, values: float) -> float:
    """Returns the bytes of a slice of `count` elements, of which `values` are sent: a word, positions, values; whole words."""
    positions = 0 if values == count else min(count / 8, 4 * values)
    return 8 * math.ceil((8 + positions + values_bytes(wire, block, values)) / 8)


def layer_bytes(way: Way, shard: float, replicas: int, together: bool = True) -> float:
    """Returns the bytes that a rank sends to other replicas for its shard of a layer. With sparsification: if all replicas send the same
    elements (`together`), or all send other ones."""
    others, part = replicas - 1, shard / replicas
    if way.density == 1:
        return 2 * others * (4 * part if way.wire == "f32" else slice_bytes(way.wire, way.block, part, part))
    kept = way.density * part
    union = kept if together else min(part, replicas * kept)
    result = "bf16" if way.wire == "int2" else way.wire
    return others * (16 + slice_bytes(way.wire, way.block, part, kept) + slice_bytes(result, way.block, part, union))


def exchange_bytes(method: str, shards: Sequence[float], replicas: int, together: bool = True) -> float:
    """Returns the bytes that a rank sends to other replicas in an interval: the standings, the norms, and all layers."""
    way = WAYS[method]
    told = (replicas - 1) * (64 * min(way.fragments, len(shards)) + 8 * len(shards))
    return told + sum(layer_bytes(way, shard, replicas, together) for shard in shards)


def within_bytes(method: str, layers: int, shards: int) -> int:
    """Returns the bytes that a rank sends within its replica in an exchange of all layers at once."""
    squares = {"edit": 1, "a-edit": 1, "co2": 3}.get(method, 0)  # of a layer, for the clip and the staleness penalty
    return 8 * (shards - 1) * (layers + 5 + squares * layers)


def acco_held(params: float, ranks: int, narrow: bool = False) -> float:
    """Returns the bytes of a channel with AdamW, without the parameters; `narrow`: bf16 with an accumulator of f32."""
    return (6 if narrow else 8) * params + 12 * params / ranks


def acco_round(params: float, ranks: int, bytes_each: int) -> float:
    return 2 * (ranks - 1) / ranks * params * bytes_each


def amount(count: float) -> str:
    return "0" if count == 0 else f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def span(low: float, high: float) -> str:
    return amount(low) if low == high else f"{amount(low)} to {amount(high)}"


Row = Tuple[str, str, str]


def edit_rows(method: str) -> List[Row]:
    way, shards = WAYS[method], [layer / SHARDS for layer in LAYERS]
    held = sum(shards)
    low, high = (exchange_bytes(method, shards, REPLICAS, together) for together in (True, False))
    step = 2 * (REPLICAS - 1) / REPLICAS * 4 * held
    sent = {"f32": "$8 P (N - 1) / (M N)$", "int4": "about $(1 + 1/32) P (N - 1) / (M N)$",
            "int2": "between $0.16$ and $0.32$ times $P (N - 1) / (M N)$"}[way.wire]
    clock = r"$\tau$" if method == "a-edit" else f"$H$ = {INTERVAL}"
    rows = [
        (f"kept: {way.holds}", f"${way.kept} P / M$" if way.kept else "0", amount(way.kept * held)),
        ("more during an exchange", r"$8 P_\ell / M$", amount(8 * max(shards))),
        ("sent to other replicas in an exchange" if way.fragments == 1 else "sent to other replicas in an interval, all fragments", sent, span(low, high)),
    ]
    if method != "a-edit":
        rows.append((f"sent to other replicas in a step on average, {clock}", "bytes of an exchange / $H$" if way.fragments == 1 else "bytes of an interval / $H$", span(low / INTERVAL, high / INTERVAL)))
        share = f"{100 * low / INTERVAL / step:.2f} %" + ("" if low == high else f" to {100 * high / INTERVAL / step:.2f} %")
        rows.append(("sent in a step of synchronous training (f32)", "$8 P (N - 1) / (M N)$", f"{amount(step)}, of which this method sends {share}"))
    seconds = f"{low / RATE:.1f} s" + ("" if low == high else f" to {high / RATE:.1f} s")
    rows.append(("time to send an exchange at 1 Gbit/s a rank" if way.fragments == 1 else "time to send an interval's bytes at 1 Gbit/s a rank",
                 "bytes / $R$", seconds))
    return rows


def acco_rows() -> List[Row]:
    params, ranks = float(sum(LAYERS)), SHARDS * REPLICAS
    one = acco_round(params, ranks, 2)
    return [
        ("memory besides the parameters, all in f32", "$8 P + 12 P / W$", amount(acco_held(params, ranks))),
        ("memory besides the parameters, parameters in bf16 and the accumulator in f32", "$6 P + 12 P / W$", amount(acco_held(params, ranks, True))),
        ("sent in a round, bf16", "$4 P (W - 1) / W$", amount(one)),
        ("sent for an update (two rounds), bf16", "$8 P (W - 1) / W$", amount(2 * one)),
        ("sent for an update of ZeRO-1, bf16", "$4 P (W - 1) / W$", amount(one)),
        ("time of a round's bytes, 1 Gbit/s for each rank", "bytes / $R$", f"{one / RATE:.0f} s"),
    ]


def table(method: str) -> str:
    head = f"7 billion parameters, $M$ = {SHARDS}, $N$ = {REPLICAS}" + (f", $W$ = {SHARDS * REPLICAS}" if method == "acco" else "")
    rows = acco_rows() if method == "acco" else edit_rows(method)
    lines = [f"| a rank | bytes | {head} |", "|---|---|---:|", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    return BLOCK.sub(lambda match: match[1] + table(match[2]) + match[3], page)


def main() -> None:
    for page in sorted(HERE.glob("*.md")):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
