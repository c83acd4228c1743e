"""09: JAX and ACCO with the caller's own optimizer: jax.grad computes gradients, and a jitted function makes the steps.

Why: ACCO takes any update rule as a function. The library calls the function on its own thread, with this rank's part of
the gradients and master parameters. Meanwhile the main thread computes the next gradients.

    entrain-run -n 2 -- python3 09_jax_acco.py"""
import jax
import numpy as np

import entrain

SHAPES = [(6, 32), (33, 1)]  # the last row of each is the bias


def loss_of(params, x):
    (w1, b1), (w2, b2) = [(layer[:-1], layer[-1]) for layer in params]
    out = jax.numpy.tanh(x @ w1 + b1) @ w2 + b2
    return ((out[:, 0] - x[:, 0] * x[:, 1]) ** 2).mean()


loss_and_gradients = jax.jit(jax.value_and_grad(loss_of))


@jax.jit
def rmsprop(master, grads, square, lr):
    square = 0.95 * square + 0.05 * grads ** 2
    return master - lr * grads / (jax.numpy.sqrt(square) + 1e-6), square


square = {}  # mean square of this rank's part of the gradients, by the part's first element


def step(preview, number, lr, first, grads, master, out):
    """A commit changes `master` and the state. A preview writes the same result to `out` and changes nothing else."""
    moved, moment = rmsprop(master, grads, square.get(first, np.zeros_like(master)), lr)
    if preview:
        out[:] = moved
    else:
        master[:] = moved
        square[first] = moment


with entrain.Comm.from_env() as comm:
    params = np.zeros(sum(a * b for a, b in SHAPES), np.float32)
    layers = [part.reshape(shape) for part, shape in zip(np.split(params, [SHAPES[0][0] * SHAPES[0][1]]), SHAPES)]
    for layer, key in zip(layers, jax.random.split(jax.random.key(1), len(SHAPES))):
        layer[:-1] = jax.random.normal(key, layer[:-1].shape) / np.sqrt(len(layer))
    random = np.random.default_rng(comm.rank)  # each rank has its own data
    losses = []
    with entrain.ACCO(comm, params, step=step, lr=0.01, limit=300) as acco:
        finished = False
        while not finished:
            loss, gradients = loss_and_gradients(layers, random.standard_normal((64, 5)).astype(np.float32))
            acco.gradients += np.concatenate([np.asarray(gradient).ravel() for gradient in gradients])
            losses.append(float(loss))
            acco.add()
            finished = acco.poll() and acco.install()  # writes the new parameters, of which `layers` are views
        info = acco.info()
    print(f"rank {comm.rank}: {info.commits} steps on {info.gradients} micro-batches of all ranks, "
          f"loss {losses[0]:.4f} -> {np.mean(losses[-20:]):.4f}, norm of the parameters {np.linalg.norm(params):.9g}", flush=True)
