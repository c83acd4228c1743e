"""08: JAX and EDiT: parameters are NumPy arrays, which JAX reads and EDiT exchanges.

Why: JAX differentiates one layer at a time. The program calls the library between layers, so no traced function needs a
callback. The program waits for a layer right before the forward pass of that layer. So the exchange of later layers is
hidden.

    entrain-run -n 2 -- python3 08_jax_edit.py"""
import jax
import numpy as np

import entrain

SHAPES = [(6, 32), (33, 32), (33, 1)]  # the last row of each is the bias


@jax.jit
def hidden(weights, x):
    return jax.numpy.tanh(x @ weights[:-1] + weights[-1])


@jax.jit
def output(weights, x):
    return x @ weights[:-1] + weights[-1]


with entrain.Comm.from_env() as comm, entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [a * b for a, b in SHAPES]) as shard:
    params, grads = np.zeros(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
    shard.bind(params, grads)
    # `layers` are views of `params`. Each replica has one rank here, so its shards are whole layers.
    layers = [params[place.slab_offset:][:a * b].reshape(a, b) for place, (a, b) in zip(shard.layers, SHAPES)]
    for layer, key in zip(layers, jax.random.split(jax.random.key(1), len(SHAPES))):
        layer[:-1] = jax.random.normal(key, layer[:-1].shape) / np.sqrt(len(layer))
    optim = entrain.Optim.adamw()
    state = [np.zeros_like(params) for _ in range(optim.state_arrays)]
    edit = entrain.EDiT(mesh, shard, preset="edit", local_sgd_sync_interval=8, local_sgd_warmup_steps=8)
    random = np.random.default_rng(comm.rank)  # each rank has its own data
    for step in range(1, 321):
        edit.begin_forward()  # every 8 steps this starts an exchange
        x = inputs = random.standard_normal((64, 5)).astype(np.float32)
        pullbacks = []
        for index, layer in enumerate(layers):
            edit.wait_layer(index)
            x, pullback = jax.vjp(hidden if index < 2 else output, layer, x)
            pullbacks.append(pullback)
        error = x[:, 0] - inputs[:, 0] * inputs[:, 1]
        slope = (2 / len(error)) * error[:, None]
        for index in reversed(range(len(layers))):
            gradient, slope = pullbacks[index](slope)
            shard.gradients(index)[:gradient.size] += np.asarray(gradient).ravel()
            shard.reduce_gradients(index)  # averages over the replicas in warm-up, and not afterwards
        shard.finish_gradients()
        # JAX may read NumPy arrays without a copy, and asynchronously. At this point it has read the parameters, because
        # all gradients have been copied out.
        optim.step(params, grads, state, step, 0.01)
        grads[:] = 0
        edit.end_step()
        edit.record(len(error))
        if comm.rank == 0 and step % 64 == 0:
            print(f"step {step}: loss {float((error ** 2).mean()):.4f}, {edit.info().syncs} exchanges", flush=True)
    edit.request_sync()
    edit.begin_forward()
    for index in range(len(layers)):
        edit.wait_layer(index)
    print(f"rank {comm.rank}: norm of the parameters {np.linalg.norm(params):.9g}", flush=True)
    edit.close()
