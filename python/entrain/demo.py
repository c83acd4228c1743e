"""python -m entrain.demo: four local processes train a small network by DDP, DiLoCo, EDiT and ACCO, on equal data, with NumPy alone.

Prints the losses and the megabytes that each method sent, and draws them (SVG). The network (2 -> 64 -> 64 -> 2, tanh) tells two
spirals apart. It is too small to compare the methods' quality: docs/experiments.md does."""
from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict, List, Tuple

import numpy as np
import numpy.typing as npt

import entrain

Matrix = npt.NDArray[np.float32]
_SHAPES = [(3, 64), (65, 64), (65, 2)]  # the last row of each is the bias
_COLOURS = {"ddp": "#666666", "diloco": "#1f77b4", "edit": "#d62728", "acco": "#2ca02c"}  # by method, in the order of the runs


@dataclasses.dataclass
class _Result:
    """What a method has reached."""

    #: Of training, by step: the mean of all replicas.
    curve: Matrix
    #: On new data, mean of all replicas.
    loss: float
    #: Megabytes that this rank sent.
    sent: float


def _batch(random: np.random.Generator, count: int) -> Tuple[Matrix, npt.NDArray[np.int64]]:
    """Returns points of two spirals, and the spiral of each."""
    label = random.integers(0, 2, count)
    turn = np.sqrt(random.random(count)) * 2.5 * np.pi
    point = np.stack([np.cos(turn), np.sin(turn)], 1) * (turn / 8)[:, None] * (2 * label - 1)[:, None]
    noisy: Matrix = (point + 0.03 * random.standard_normal((count, 2))).astype(np.float32)
    return noisy, label


def _with_bias(x: Matrix) -> Matrix:
    return np.concatenate([x, np.ones((len(x), 1), np.float32)], 1)


def _loss(layers: List[Matrix], x: Matrix, label: npt.NDArray[np.int64]) -> Tuple[float, List[Matrix]]:
    """Returns the mean cross entropy, and its gradients."""
    inputs = []
    for index, weights in enumerate(layers):
        inputs.append(_with_bias(x))
        x = inputs[-1] @ weights
        x = np.tanh(x) if index < len(layers) - 1 else x
    x = x - x.max(1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    delta = np.exp(log_p)
    delta[np.arange(len(label)), label] -= 1
    delta /= len(label)
    grads: List[Matrix] = []
    for index in reversed(range(len(layers))):
        grads.insert(0, inputs[index].T @ delta)
        if index:
            delta = (delta @ layers[index][:-1].T) * (1 - inputs[index][:, :-1] ** 2)
    return float(-log_p[np.arange(len(label)), label].mean()), grads


def _start_values() -> List[Matrix]:
    random = np.random.default_rng(1)
    return [random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0])) for shape in _SHAPES]


def _result(comm: entrain.Comm, layers: List[Matrix], losses: List[float], sent: int) -> _Result:
    loss, _ = _loss(layers, *_batch(np.random.default_rng(7 + comm.rank), 2000))
    means = comm.all_reduce(np.array([*losses, loss]), op="avg")
    return _Result(means[:-1].astype(np.float32), float(means[-1]), sent / 1e6)


def _train_edit(comm: entrain.Comm, method: str, steps: int, batch: int) -> _Result:
    """Trains by a method of EDiT's family. Each rank uses `batch` points per step."""
    random = np.random.default_rng(100 + comm.rank)
    losses: List[float] = []
    with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [math.prod(shape) for shape in _SHAPES]) as shard:
        params, grads = np.zeros(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
        shard.bind(params, grads)
        for layer, weights in enumerate(_start_values()):
            shard.load(layer, weights)
        optim = entrain.Optim.adamw()
        state = [np.zeros_like(params) for _ in range(optim.state_arrays)]
        # Each replica has one rank here, so its shards are the layers themselves.
        live = [params[info.slab_offset:][:info.full_count].reshape(shape) for info, shape in zip(shard.layers, _SHAPES)]
        # DDP is EDiT that never leaves its synchronous warm-up.
        edit = entrain.EDiT(mesh, shard, local_sgd_warmup_steps=steps + 1) if method == "ddp" else \
            entrain.EDiT(mesh, shard, preset=method, local_sgd_sync_interval=16, local_sgd_warmup_steps=16)

        def await_layers() -> None:
            edit.begin_forward()
            for layer in range(len(_SHAPES)):
                edit.wait_layer(layer)

        for step in range(1, steps + 1):
            await_layers()
            loss, gradients = _loss(live, *_batch(random, batch))
            losses.append(loss)
            for layer, gradient in enumerate(gradients):
                shard.gradients(layer)[:gradient.size] += gradient.ravel()
                shard.reduce_gradients(layer)
            shard.finish_gradients()
            optim.step(params, grads, state, step, 0.003)
            grads[:] = 0
            edit.end_step()
        if method != "ddp":  # evaluates the replicas' consensus
            edit.request_sync()
            await_layers()
        sent = shard.stats().bytes_sent_sync + edit.info().bytes_sent_sync
        edit.close()
        return _result(comm, live, losses, sent)


def _train_acco(comm: entrain.Comm, steps: int, batch: int) -> _Result:
    """Trains by ACCO, whose step takes two gradients of half a batch."""
    random = np.random.default_rng(100 + comm.rank)
    losses: List[float] = []
    params = np.concatenate([weights.ravel() for weights in _start_values()])
    ends = np.cumsum([math.prod(shape) for shape in _SHAPES])[:-1]
    live = [part.reshape(shape) for part, shape in zip(np.split(params, ends), _SHAPES)]
    with entrain.ACCO(comm, params, entrain.Optim.adamw(), lr=0.003, limit=steps, max_microbatches=1) as acco:
        finished = False
        while not finished:
            loss, gradients = _loss(live, *_batch(random, batch // 2))
            losses.append(loss)
            acco.gradients += np.concatenate([gradient.ravel() for gradient in gradients])
            acco.add()
            finished = acco.poll() and acco.install()
        sent = acco.info().bytes_sent
    halves = losses[:2 * steps]
    return _result(comm, live, [(a + b) / 2 for a, b in zip(halves[::2], halves[1::2])], sent)


def _picture(results: Dict[str, _Result]) -> str:
    """Returns an SVG: the losses of training by step, on a logarithmic scale, and the megabytes sent."""
    width, height, left, top = 520, 300, 60, 40
    steps = len(results["ddp"].curve)
    window = max(1, steps // 40)
    curves = {method: np.convolve(np.log10(result.curve), np.ones(window) / window, "valid") for method, result in results.items()}
    low = math.floor(min(float(curve.min()) for curve in curves.values()))
    high = math.ceil(max(float(curve.max()) for curve in curves.values()))

    def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "black") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    def y_of(value: float) -> float:
        return top + height * (high - value) / (high - low)

    lines = [text(left, 22, f"training loss, mean of all replicas, over {window} steps")]
    for power in range(low, high + 1):
        lines += [f'<path d="M{left} {y_of(power):.1f}h{width}" stroke="#dddddd"/>', text(left - 6, y_of(power) + 4, f"{10.0 ** power:g}", "end")]
    lines += [text(left + width * fifth / 5, top + height + 18, f"{steps * fifth // 5}", "middle") for fifth in range(6)]
    lines.append(text(left + width / 2, top + height + 36, "optimizer steps", "middle"))
    right, most = left + width + 90, max(result.sent for result in results.values())
    lines.append(text(right, 22, "MB sent by a rank"))
    for index, (method, result) in enumerate(results.items()):
        points = " ".join(f"{left + width * (window + at) / steps:.1f},{y_of(value):.1f}" for at, value in enumerate(curves[method]))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[method]}" stroke-width="1.5"/>')
        y = top + 20 + 60 * index
        lines.append(f'<rect x="{right}" y="{y}" width="{180 * result.sent / most:.1f}" height="22" fill="{_COLOURS[method]}"/>')
        lines.append(text(right, y - 5, f"{method}: {result.sent:.2f} MB, loss on new data {result.loss:.4f}", colour=_COLOURS[method]))
    inside = "\n".join(lines)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 310}" height="{top + height + 50}" font-family="sans-serif" font-size="13">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{inside}\n</svg>\n')


def _rank(steps: int, picture: str) -> None:
    results: Dict[str, _Result] = {}
    with entrain.Comm.from_env(timeout=60) as comm:
        for method in _COLOURS:
            results[method] = _train_acco(comm, steps, 256) if method == "acco" else _train_edit(comm, method, steps, 256)
            for end in range(steps // 5, steps + 1, steps // 5):
                if comm.rank == 0:
                    print(f"  {method:6} step {end:5}  loss {results[method].curve[end - steps // 5:end].mean():.4f}", flush=True)
        if comm.rank == 0:
            print("method   loss on new data   MB sent a rank")
            for method, result in results.items():
                print(f"{method:6} {result.loss:18.4f} {result.sent:16.2f}")
            print(f"edit sends {results['ddp'].sent / results['edit'].sent:.1f} times less than ddp")
            pathlib.Path(picture).write_text(_picture(results))
            print(f"picture: {picture}")


def _start(ranks: int, steps: int, picture: str) -> int:
    """Starts the ranks, which meet in a store of this process."""
    with entrain.Store.serve("tcp://127.0.0.1:0") as store:
        processes: List["subprocess.Popen[Any]"] = []
        for rank in range(ranks):
            place = {"ENTRAIN_STORE": store.url, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "OPENBLAS_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([sys.executable, "-m", "entrain.demo", "--rank", "--steps", str(steps), "--picture", picture],
                                              env={**os.environ, **place}))
        try:
            return max(abs(process.wait()) for process in processes)
        except BaseException:
            for process in processes:
                process.terminate()
            raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m entrain.demo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--steps", type=int, default=800, help="optimizer steps (default: 800)")
    parser.add_argument("--picture", default="entrain-demo.svg", metavar="FILE", help="the picture (default: entrain-demo.svg)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 40 or given.ranks < 2:
        parser.error("at least 2 ranks and 40 steps")
    if given.rank:
        _rank(given.steps, given.picture)
    else:
        sys.exit(_start(given.ranks, given.steps, os.path.abspath(given.picture)))


if __name__ == "__main__":
    main()
