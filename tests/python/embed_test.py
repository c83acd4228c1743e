"""What docs/embed.md says of a framework's own loop around the calls of EDiT: one test for each of its statements that is not tested
elsewhere."""
import concurrent.futures
import threading
import time

import numpy as np
import pytest
from conftest import ranks

import entrain

COUNTS = [6, 5]
OPTIONS = dict(preset="diloco", local_sgd_sync_interval=2)


def arrays(counts, value=0.0):
    return [np.full(count, value, np.float32) for count in counts]


def embedded(comm, counts, layers, body, mesh=None, **options):
    """Binds the framework's arrays, without gradients, and calls body(edit)."""
    with entrain.Mesh(comm, **(mesh or {})) as made, entrain.Shard(made, counts, replicated=options.pop("replicated", None)) as shard:
        shard.bind_layers(layers)
        with entrain.EDiT(made, shard, **{**OPTIONS, **options}) as edit:
            return body(edit)


def step(edit, layers, move, call=lambda function, *arguments, **keywords: function(*arguments, **keywords)):
    """A step of the framework: each layer moves by `move` and its number. `call` makes the calls of the library."""
    began = call(edit.begin_forward)
    for index in range(len(layers)):
        call(edit.wait_layer, index)
    for index, layer in enumerate(layers):
        layer += move + index
    call(edit.end_step)
    return began


def test_a_layer_may_be_waited_for_again():
    def body(comm):
        layers = arrays(COUNTS)

        def train(edit):
            for _ in range(5):
                edit.begin_forward()
                for index in [0, 1, 0, 1, 1, 0]:  # used twice, recomputed in the backward pass
                    edit.wait_layer(index)
                    if index == 1:
                        first = layers[0].copy()
                assert (layers[0] == first).all()
                layers[0] += comm.rank
                edit.wait_layer(0)  # changes nothing any more
                assert (layers[0] == first + comm.rank).all()
                edit.end_step()
            assert edit.info().syncs == 2

        embedded(comm, COUNTS, layers, train)

    ranks(2, body)


def test_a_recomputed_layer_is_gathered_again():
    def body(comm):
        with entrain.Mesh(comm, shard=2) as mesh, entrain.Shard(mesh, COUNTS) as shard:
            params, grads = np.ones(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
            shard.bind(params, grads)
            with entrain.EDiT(mesh, shard, **OPTIONS) as edit:
                for _ in range(5):
                    edit.begin_forward()
                    seen = {}
                    for backward in (False, True):
                        shard.begin_pass(backward=backward)
                        for index in (0, 1) if not backward else (1, 0):
                            whole = shard.wait(index)[:COUNTS[index]].tolist()
                            assert seen.setdefault(index, whole) == whole
                            if backward:
                                shard.gradients(index)[:COUNTS[index]] += 1
                                shard.reduce_gradients(index)
                            shard.release(index)
                    shard.finish_gradients()
                    params -= grads
                    grads[:] = 0
                    edit.end_step()

    ranks(2, body)


def test_passes_are_counted():
    def body(comm):
        layers = arrays(COUNTS)

        def train(edit):
            edit.begin_forward()
            with pytest.raises(entrain.FailedPrecondition,
                               match="begin_forward of micro-batch 2 of step 0, but gradient_accumulation_steps is 1"):
                edit.begin_forward(first_microbatch=False)
            edit.begin_forward(training=False)  # an evaluation counts for nothing
            edit.end_step()
            with pytest.raises(entrain.FailedPrecondition, match="begin_forward was called for 0 of the step's micro-batches"):
                edit.end_step()

        embedded(comm, COUNTS, layers, train)

    ranks(1, body)


def test_layers_that_were_not_waited_for_are_named():
    def body(comm):
        layers = arrays(COUNTS)

        def train(edit):
            for _ in range(2):
                step(edit, layers, comm.rank)
            assert edit.begin_forward()
            edit.wait_layer(0)
            with pytest.raises(entrain.FailedPrecondition, match="nobody has waited for the exchange of layer 1"):
                edit.end_step()
            edit.wait_layer(1)
            edit.end_step()

        embedded(comm, COUNTS, layers, train, prefetch=0)

    ranks(2, body)


def test_microbatches_in_the_lent_buffer_send_less():
    def body(comm):
        sent = []
        for once in (False, True):
            with entrain.Mesh(comm, shard=2) as mesh, entrain.Shard(mesh, [4096]) as shard:
                params, grads = np.zeros(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32)
                shard.bind(params, grads)
                for microbatch in range(4):
                    shard.gradients(0)[:] += comm.rank + 1  # the same buffer, with what it has
                    if not once or microbatch == 3:
                        shard.reduce_gradients(0)
                shard.finish_gradients()
                assert (grads == 6).all()
                with pytest.raises(entrain.FailedPrecondition, match="layer 0 has no gradient buffer to reduce"):
                    shard.reduce_gradients(0)
                sent.append(shard.stats().bytes_sent_shard)
        assert sent[0] == 4 * sent[1] > 0

    ranks(2, body)


def test_threads_in_turn():
    """Each call may come from another thread than the one before it."""
    def body(comm):
        results = []
        for threads in (1, 3):
            layers = arrays(COUNTS)
            pools = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(threads)]
            number = 0

            def call(function, *arguments, **keywords):
                nonlocal number
                number += 1
                return pools[number % threads].submit(function, *arguments, **keywords).result()

            embedded(comm, COUNTS, layers, lambda edit: [step(edit, layers, comm.rank, call) for _ in range(7)])
            results.append(np.concatenate(layers).tobytes())
            for pool in pools:
                pool.shutdown()
        assert results[0] == results[1]

    ranks(2, body)


def test_adapters_are_layers_of_their_own():
    """LoRA: with its own sharding a framework binds the adapters alone; with the library's, the frozen base is a layer beside them."""
    def body(comm):
        adapters = arrays([4, 4])
        embedded(comm, [4, 4], adapters, lambda edit: [step(edit, adapters, comm.rank) for _ in range(5)])

        counts = [100, 4, 100, 4]  # base, adapter, base, adapter
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, counts, frozen=[True, False, True, False]) as shard:
            layers = arrays(counts, 1.0)
            shard.bind_layers(layers, [None, np.zeros(4, np.float32), None, np.zeros(4, np.float32)])
            with entrain.EDiT(mesh, shard, **OPTIONS) as edit:
                with pytest.raises(entrain.InvalidArgument, match="layer: 0 is frozen, it has no gradients"):
                    shard.gradients(0)
                for _ in range(5):
                    edit.begin_forward()
                    for index in range(4):
                        edit.wait_layer(index)
                    layers[1] += comm.rank
                    edit.end_step()
                assert edit.info().syncs == 2 and edit.info().bytes_sent_sync < 800  # the base alone has 800 bytes
                assert (layers[0] == 1).all() and (layers[2] == 1).all() and (layers[1] != 1).all()

    ranks(2, body)


def test_sharding_of_another_shape():
    """Ranks of a replica whose parts are no equal chunks: each is a model part of its own, along the tensor axis."""
    def body(comm):
        counts = [[7, 3], [2, 9]][comm.rank % 2]
        layers = arrays(counts)

        def train(edit):
            for _ in range(5):
                step(edit, layers, comm.rank // 2)
            edit.request_sync()
            edit.begin_forward()
            edit.wait_layer(0), edit.wait_layer(1)
            return edit.layer_report(0)[0], [layer[0] for layer in layers]

        return embedded(comm, counts, layers, train, mesh=dict(tensor=2))

    results = ranks(4, body)
    assert results[0] == results[1] == results[2] == results[3]  # norms are of the whole replica


def test_experts_and_dense_layers():
    """An axis of experts is the tensor axis: experts are parts of their own, dense layers are replicated. Copies that differ are found."""
    def body(comm, breaks):
        layers = arrays([3, 8])  # dense, experts
        expert = comm.rank % 2

        def train(edit):
            for number in range(5):
                edit.begin_forward()
                edit.wait_layer(0), edit.wait_layer(1)
                layers[0] += comm.rank // 2 + (breaks and expert)  # gradients of copies are equal: the framework has averaged them
                layers[1] += comm.rank
                edit.end_step()
            edit.request_sync()
            edit.begin_forward()
            edit.wait_layer(0), edit.wait_layer(1)
            return [layer.tobytes() for layer in layers]

        return embedded(comm, [3, 8], layers, train, mesh=dict(tensor=2), replicated=[True, False])

    results = ranks(4, lambda comm: body(comm, False))
    assert len({dense for dense, _ in results}) == 1
    experts = [own for _, own in results]
    assert experts[0] == experts[2] != experts[1] == experts[3]
    with pytest.raises(entrain.Mismatch, match="layer 0"):
        ranks(4, lambda comm: body(comm, True))


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_replica_joins(overlap):
    """Also with overlapped exchanges. It gets the lost replica's number and the others' step, by which it finds its data."""
    died, last = threading.Event(), []  # last: the step at which all end

    def train(comm, store, join=None):
        layers = arrays([5000])
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [5000]) as shard:
            shard.bind_layers(layers)
            options = dict(on_loss="finish", admit="exchange", admit_store=store, admit_name="embed", overlap_steps=overlap, timeout=20)
            with entrain.EDiT(mesh, shard, join=join, **OPTIONS, **options) as edit:
                began = edit.info()
                if join is not None:
                    last.append(began.steps + 8)  # the others wait for this replica before
                while not last or edit.info().steps < last[0]:
                    step(edit, layers, comm.rank)
                    if comm.rank == 1 and edit.info().syncs == 3:
                        comm.abort("it dies")
                        return None
                edit.request_sync()
                edit.begin_forward()
                edit.wait_layer(0)
                assert edit.info().joins == 1 and edit.info().replicas == 3
                return layers[0].tobytes(), began.replica, began.steps

    def body(rank):
        with entrain.Runtime() as runtime, entrain.Store.open(f"mem:embed-{overlap}") as store:
            if rank < 3:
                with entrain.Comm.create(store, rank, 3, timeout=20, runtime=runtime) as comm:
                    result = train(comm, store)
                if rank == 1:
                    died.set()
                return result
            assert died.wait(30)
            with entrain.Comm.create(store, 0, 1, name="own", timeout=20, runtime=runtime) as comm:
                return train(comm, store, join=20)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(body, range(4)))
    assert results[0][0] == results[2][0] == results[3][0]
    assert results[3][1] == 1 and results[3][2] >= 6


def test_a_replica_joins_through_a_new_server(monkeypatch):
    """The store's process has ended, and another one serves at its address: what it held is lost, but not the run."""
    first = entrain.Store.serve("tcp://127.0.0.1:0")
    url = first.url
    monkeypatch.setenv("ENTRAIN_STORE", url)
    met, last = threading.Barrier(3), []

    def train(comm, join=None):
        layers = arrays([5000])
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [5000]) as shard:
            shard.bind_layers(layers)
            options = dict(on_loss="finish", admit="exchange", most_replicas=3, timeout=20)
            with entrain.EDiT(mesh, shard, join=join, **OPTIONS, **options) as edit:
                if join is not None:
                    last.append(edit.info().steps + 8)
                while not last or edit.info().steps < last[0]:
                    step(edit, layers, comm.rank)
                    if edit.info().steps == 4 and join is None:
                        met.wait(20)
                    time.sleep(0.01)
                edit.request_sync()
                edit.begin_forward()
                edit.wait_layer(0)
                assert edit.info().replicas == 3
                return layers[0].tobytes()

    def body(rank):
        with entrain.Runtime() as runtime:
            if rank < 2:
                with entrain.Store.open(url) as store, entrain.Comm.create(store, rank, 2, timeout=20, runtime=runtime) as comm:
                    return train(comm)
            met.wait(20)
            first.close()
            with entrain.Store.serve(url) as store, entrain.Comm.create(store, 0, 1, name="own", timeout=20, runtime=runtime) as comm:
                return train(comm, join=40)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(body, range(3)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("prefetch", [1, 2])
def test_pipeline_stages(prefetch):
    """A stage waits for activations before it uses its layers, so all its layers must be exchanged ahead."""
    def body(comm):
        stages, stage = entrain.Mesh(comm, pipeline=2), comm.rank % 2
        layers = arrays(COUNTS)

        def train(edit):
            row = stages.comm("pipeline")
            for number in range(5):
                edit.begin_forward()
                activation = np.zeros(1, np.float32)
                if stage == 1:
                    row.recv(activation, 0)
                for index, layer in enumerate(layers):
                    edit.wait_layer(index)
                    layer += comm.rank
                if stage == 0:
                    row.send(activation, 1)
                edit.end_step()
            return edit.info().syncs

        with stages:
            return embedded(comm, COUNTS, layers, train, mesh=dict(pipeline=2), preset="edit", prefetch=prefetch, timeout=3)

    if prefetch == 2:
        assert ranks(4, body) == [2] * 4
    else:
        with pytest.raises(entrain.Error):
            ranks(4, body, timeout=4)


@pytest.mark.parametrize("alike", [True, False])
def test_a_tensor_of_two_stages(alike):
    """Copies on two stages stay equal if they have the same layer number: weights and clip factors are per number."""
    def body(comm):
        stage, replica = comm.rank % 2, comm.rank // 2
        layers = arrays([4, 4])
        tied = 0 if alike else stage  # its number on this stage

        def train(edit):
            for _ in range(7):
                edit.begin_forward()
                edit.wait_layer(0), edit.wait_layer(1)
                layers[tied] += 1 + replica
                layers[1 - tied] += (5 - stage) * (1 + 9 * replica)
                edit.end_step()
            edit.request_sync()
            edit.begin_forward()
            edit.wait_layer(0), edit.wait_layer(1)
            return layers[tied].tobytes()

        return embedded(comm, [4, 4], layers, train, mesh=dict(pipeline=2), preset="edit", prefetch=2)

    assert len(set(ranks(4, body))) == (1 if alike else 2)
