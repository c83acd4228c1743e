"""python -m entrain.demo: four local processes train a small network by EDiT and by DDP, at equal batches, with NumPy alone.

Prints both losses, and the megabytes that each method sent. The network (2 -> 64 -> 64 -> 2, tanh) tells two spirals apart."""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any, List, Tuple

import numpy as np
import numpy.typing as npt

import entrain

Matrix = npt.NDArray[np.float32]
_SHAPES = [(3, 64), (65, 64), (65, 2)]  # the last row of each is the bias


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


def _train(comm: entrain.Comm, method: str, steps: int, batch: int) -> Tuple[float, float]:
    """Returns the final loss, over all replicas and new data, and the megabytes that this rank sent. Each rank uses
    `batch` points per step."""
    random = np.random.default_rng(1)
    start = [random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0])) for shape in _SHAPES]
    random = np.random.default_rng(100 + comm.rank)
    counts = [layer.size for layer in start]
    with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, counts) as shard:
        params, grads = np.zeros(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
        shard.bind(params, grads)
        for layer, weights in enumerate(start):
            shard.load(layer, weights)
        optim = entrain.Optim.adamw()
        state = [np.zeros_like(params) for _ in range(optim.state_arrays)]
        # Each replica has one rank here, so its shards are the layers themselves.
        live = [params[info.slab_offset:][:info.full_count].reshape(shape) for info, shape in zip(shard.layers, _SHAPES)]
        # DDP is EDiT that never leaves its synchronous warm-up.
        edit = entrain.EDiT(mesh, shard, local_sgd_warmup_steps=steps + 1) if method == "ddp" else \
            entrain.EDiT(mesh, shard, preset="edit", local_sgd_sync_interval=16, local_sgd_warmup_steps=16)
        for step in range(1, steps + 1):
            edit.begin_forward()
            for layer in range(len(counts)):
                edit.wait_layer(layer)
            loss, gradients = _loss(live, *_batch(random, batch))
            for layer, gradient in enumerate(gradients):
                shard.gradients(layer)[:gradient.size] += gradient.ravel()
                shard.reduce_gradients(layer)
            shard.finish_gradients()
            optim.step(params, grads, state, step, 0.003)
            grads[:] = 0
            edit.end_step()
            if step % (steps // 5) == 0:
                mean = float(comm.all_reduce(np.array([loss]), op="avg")[0])
                if comm.rank == 0:
                    print(f"  {method:5} step {step:5}  loss {mean:.4f}", flush=True)
        if method != "ddp":  # evaluates the replicas' consensus
            edit.request_sync()
            edit.begin_forward()
            for layer in range(len(counts)):
                edit.wait_layer(layer)
        loss, _ = _loss(live, *_batch(np.random.default_rng(7 + comm.rank), 2000))
        sent = (shard.stats().bytes_sent_sync + edit.info().bytes_sent_sync) / 1e6
        edit.close()
    return float(comm.all_reduce(np.array([loss]), op="avg")[0]), sent


def _rank(steps: int) -> None:
    with entrain.Comm.from_env(timeout=60) as comm:
        results = {method: _train(comm, method, steps, 256) for method in ("ddp", "edit")}
        if comm.rank == 0:
            for method, (loss, sent) in results.items():
                print(f"{method:5} loss on new data {loss:.4f}, sent {sent:8.2f} MB a rank")
            print(f"edit sends {results['ddp'][1] / results['edit'][1]:.1f} times less than ddp")


def _start(ranks: int, steps: int) -> int:
    """Starts the ranks, which meet in a store of this process."""
    with entrain.Store.serve("tcp://127.0.0.1:0") as store:
        processes: List["subprocess.Popen[Any]"] = []
        for rank in range(ranks):
            place = {"ENTRAIN_STORE": store.url, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "OPENBLAS_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([sys.executable, "-m", "entrain.demo", "--rank", "--steps", str(steps)],
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
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 40 or given.ranks < 2:
        parser.error("at least 2 ranks and 40 steps")
    if given.rank:
        _rank(given.steps)
    else:
        sys.exit(_start(given.ranks, given.steps))


if __name__ == "__main__":
    main()
