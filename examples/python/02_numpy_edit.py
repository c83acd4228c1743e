"""EDiT with NumPy. Replicas of a linear model train on their own data, and exchange every 8 steps.

    entrain-run -n 2 -- python3 02_numpy_edit.py

Between exchanges nothing crosses the network. An exchange runs layer by layer while the next step computes."""
import numpy as np

import entrain

TRUTH = [np.linspace(-1, 1, 8).astype(np.float32), np.float32([0.5])]  # a layer of weights, and a layer with the bias

with entrain.Comm.from_env() as comm, entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [8, 1]) as model:
    # The parameters of both layers are contiguous in one array, which this program owns.
    params, grads = np.zeros(model.slab_count, np.float32), np.zeros(model.slab_count, np.float32)
    model.bind(params, grads)
    weights, bias = params[:8], params[8:]
    edit = entrain.EDiT(mesh, model, preset="edit", local_sgd_sync_interval=8, local_sgd_warmup_steps=8)
    random = np.random.default_rng(comm.rank)
    for step in range(200):
        edit.begin_forward()  # every 8 steps this starts an exchange
        x = random.standard_normal((16, 8)).astype(np.float32)
        edit.wait_layer(0)
        out = x @ weights
        edit.wait_layer(1)
        error = out + bias - (x @ TRUTH[0] + TRUTH[1])
        for layer, gradient in enumerate([x.T @ error / 16, error.mean(keepdims=True)]):
            model.gradients(layer)[:] += gradient
            model.reduce_gradients(layer)  # averages over the replicas in warm-up, and not afterwards
        model.finish_gradients()
        params -= 0.05 * grads
        grads[:] = 0
        edit.end_step()
        edit.record(len(x), float((error ** 2).mean()), 1.0)
        if step % 40 == 39 and comm.rank == 0:
            print(f"step {step + 1}: error {np.abs(error).max():.4f}, {edit.info().syncs} exchanges")
    edit.request_sync()
    edit.begin_forward()
    edit.wait_layer(0), edit.wait_layer(1)
    print(f"rank {comm.rank}: all replicas have {params.round(3)}")
    edit.close()
