"""Mesh, Shard, EDiT, A-EDiT, ACCO and the optimizers from Python."""
import io
import time

import numpy as np
import pytest
from conftest import ranks

import entrain

LAYERS = [6, 5]


def target(layer):
    return np.linspace(-1, 1, LAYERS[layer]).astype(np.float32)


def train(comm, steps, config=None, directory=None, load=None, shard=1, **options):
    """Minimises |w - target|^2 by EDiT. Returns the losses, and the info of the EDiT object."""
    with entrain.Mesh(comm, shard=shard) as mesh, entrain.Shard(mesh, LAYERS) as model:
        params = np.zeros(model.slab_count, np.float32)
        grads = np.zeros_like(params)
        model.bind(params, grads)
        for layer in range(2):
            model.load(layer, np.full(LAYERS[layer], 2.0))
        model.broadcast()
        edit = entrain.EDiT(mesh, model, config, **options)
        edit.add_state("cursor", np.array([comm.rank]))
        if load:
            edit.load(directory, load)
        losses = []
        for _ in range(steps):
            edit.begin_forward()
            loss = 0.0
            for layer, count in enumerate(LAYERS):
                w = model.wait(layer)[:count]
                loss += float(((w - target(layer)) ** 2).sum())
                model.gradients(layer)[:count] += 2 * (w - target(layer)) + 0.01 * comm.rank
                model.release(layer)
                model.reduce_gradients(layer)
            model.finish_gradients()
            params -= 0.1 * grads
            grads[:] = 0
            edit.end_step()
            edit.record(10, loss, 1.0)
            losses.append(loss)
        edit.request_sync()
        edit.begin_forward()
        losses.append(0.0)
        for layer, count in enumerate(LAYERS):
            losses[-1] += float(((model.wait(layer)[:count] - target(layer)) ** 2).sum())
            model.release(layer)
        there = edit.reduce([])
        n = there.ranks
        assert n == comm.size and edit.reduce([1.0, there.rank]) == entrain.Reduced([n, n * (n - 1) / 2], there.rank, n)
        if directory and not load:
            edit.save(directory, "c")
        return losses, edit.info(), edit.anchor(), [edit.layer_report(layer) for layer in range(2)]


def test_edit(tmp_path):
    config = entrain.EditConfig(local_sgd_sync_interval=4, local_sgd_warmup_steps=2, outer_optimizer="sgd", outer_nesterov=True)

    def body(comm):
        losses, info, anchor, reports = train(comm, 12, config, str(tmp_path), shard=2)
        assert losses[-2] < 0.1 * losses[0]
        assert info.steps == 12 and info.syncs >= 2 and np.isfinite(info.metric)
        assert reports[0][2] == 1.0 and len(reports[0][0]) == 2
        again = train(comm, 1, config, str(tmp_path), load="c", shard=2)
        assert again[0][0] == losses[-1] and again[1].steps == 13
        return info.anchor_checksum, anchor.tolist()

    results = ranks(4, body)
    assert results[0] == results[2] and results[1] == results[3]


def test_exchange_only_with_arrays_by_layer():
    def body(comm):
        mesh = entrain.Mesh.of(comm.split(comm.rank), comm.split(0))
        assert mesh.coordinate("sync") == (comm.rank, 2) and mesh.comm("sync").size == 2
        model = entrain.Shard(mesh, LAYERS)
        layers = [np.full(count, comm.rank, np.float32) for count in LAYERS]
        with pytest.raises(entrain.InvalidArgument, match=r"params\[1\] has 6 elements"):
            model.bind_layers([layers[0], layers[0]])
        model.bind_layers(layers)
        edit = entrain.EDiT(mesh, model, local_sgd_sync_interval=2)
        for _ in range(3):
            edit.begin_forward()
            for layer in range(2):
                edit.wait_layer(layer)
            assert edit.gradient_scope() == "local"
            for layer in layers:
                layer += comm.rank + 1.0
            edit.end_step()
        assert edit.info().syncs == 1
        return layers[0][0]

    results = ranks(2, body)
    assert results[1] - results[0] == 1.0


def test_buffers_of_the_caller_and_the_norm_of_gradients():
    def body(comm):
        with entrain.Mesh(comm, shard=2) as mesh, entrain.Shard(mesh, LAYERS) as model:
            slabs = [np.zeros(model.slab_count, np.float32) for _ in range(2)]
            model.bind(*slabs)
            model.load(0, np.full(LAYERS[0], 2.0))
            padded = model.layers[0].padded_count
            gathered, gradients = np.full(padded, 9, np.float32), np.full(padded, 9, np.float32)
            with pytest.raises(entrain.InvalidArgument, match="gathered has 1 elements of f32; layer 0 takes 6 of f32"):
                model.set_buffers(0, gathered[:1])
            model.set_buffers(0, gathered, gradients)
            assert np.shares_memory(model.wait(0), gathered) and gathered.tolist() == [2] * 6
            with pytest.raises(entrain.FailedPrecondition, match="its buffers can be changed after its release"):
                model.set_buffers(0)
            model.release(0)
            lent = model.gradients(0)
            assert np.shares_memory(lent, gradients) and not gradients.any()
            lent[:] = 1 + comm.rank
            model.reduce_gradients(0)
            model.gradients(1)[:LAYERS[1]] = 2
            model.reduce_gradients(1)
            model.finish_gradients()
            # The mean over two ranks of 1 and 2, six times; five times 2.
            assert model.gradient_norm() == pytest.approx(np.sqrt(6 * 1.5 ** 2 + 5 * 2 ** 2))
            held = len(model._held)
            model.set_buffers(0)
            model.set_buffers(0, gathered)
            assert len(model._held) == held
            assert model.wait(0).tolist() == [2] * 6
            model.release(0)
            comm.barrier()

    ranks(2, body)


def test_outer_step_in_python():
    def body(comm):
        seen = []

        def outer(layer, step, anchor, grad):
            seen.append((layer, step, len(anchor)))
            anchor -= 0.5 * grad

        train(comm, 4, local_sgd_sync_interval=2, outer_optimizer="callback", outer_step=outer)
        assert (0, 1, 6) in seen and (1, 1, 5) in seen

    ranks(2, body)


def test_an_exception_in_an_outer_step_is_the_cause():
    def body(comm):
        def broken(layer, step, anchor, grad):
            raise ZeroDivisionError("in the outer step")

        with pytest.raises(entrain.Aborted) as raised:
            train(comm, 4, local_sgd_sync_interval=2, outer_optimizer="callback", outer_step=broken)
        return raised.value.__cause__

    # The rank whose step fails first ends the communicators of the other.
    assert any(isinstance(cause, ZeroDivisionError) for cause in ranks(2, body))


def test_options_have_the_names_and_defaults_of_the_library():
    from entrain._library import new_struct
    from entrain._options import ACCO_FAMILIES, EDIT_FAMILIES, AccoOptions
    from entrain.reductions import constant
    from entrain.train import _EDIT_ARRAYS, EditConfig
    own = {"outer_step", "timeout"} | set(_EDIT_ARRAYS)
    assert own < set(vars(EditConfig()))
    for kind, options, families in (("edit", EditConfig(), EDIT_FAMILIES), ("acco", AccoOptions(), ACCO_FAMILIES)):
        struct, fields = new_struct(f"{kind}_config"), vars(options)
        for name in set(fields) - own:
            family = families.get(name)
            value = fields[name] if family is None else constant(family, fields[name], name)
            got = getattr(struct, name)
            assert (not got if value is None else got == value), name


def test_wrong_options_of_acco_are_named():
    def body(comm):
        params, sgd = np.zeros(4, np.float32), entrain.Optim.sgd()
        with pytest.raises(TypeError, match="clip"):
            entrain.ACCO(comm, params, sgd, clip=1.0)
        with pytest.raises(entrain.InvalidArgument, match="'ddp' is none of acco, dpu, wp, zero1"):
            entrain.ACCO(comm, params, sgd, method="ddp")
        with pytest.raises(entrain.InvalidArgument, match="warmup_rounds: 2 has no effect with method zero1"):
            entrain.ACCO(comm, params, sgd, method="zero1", warmup_rounds=2)

    ranks(1, body)


def test_acco():
    def body(comm, **options):
        params = np.full(50, float(comm.rank), np.float32)
        optim = options.pop("optim", None)
        with entrain.ACCO(comm, params, optim, lr=0.2, limit=20, clip_norm=100.0, **options) as channel:
            assert (params == 0).all()
            while True:
                channel.gradients += 2 * (params - 3)
                channel.add(1, tokens=8)
                if channel.poll() and channel.install():
                    break
            info = channel.info()
        assert info.commits == 20 and info.finished == 1 and info.tokens == 8 * info.gradients
        return params.tolist()

    def own(preview, step, lr, first, grads, master, out):
        moved = master - lr * 0.5 * grads
        (out if preview else master)[:] = moved

    for options in ({"optim": entrain.Optim.adamw()}, {"step": own, "method": "dpu"},
                    {"optim": entrain.Optim.sgd(), "method": "zero1", "schedule": lambda progress: 0.1}):
        results = ranks(2, lambda comm, options=options: body(comm, **options))
        assert results[0] == results[1] and abs(results[0][0] - 3) < 1.5


def test_a_failing_acco_step_is_the_cause():
    def body(comm):
        def broken(*arguments):
            raise KeyError("in the step")

        params = np.zeros(8, np.float32)
        with pytest.raises(entrain.Aborted) as raised, entrain.ACCO(comm, params, step=broken, limit=5) as channel:
            for _ in range(1000):
                channel.add()
                channel.install()
        assert (params == 0).all()
        return raised.value.__cause__

    assert any(isinstance(cause, KeyError) for cause in ranks(2, body))


def test_the_time_that_an_install_waits_is_told():
    def body(comm):
        with entrain.ACCO(comm, np.zeros(8, np.float32), entrain.Optim("sgd"), limit=1, method="zero1") as channel:
            if comm.rank == 1:
                time.sleep(0.3)  # the other rank waits so long for this one's gradients
            channel.add()
            channel.install()
            info = channel.info()
            comm.barrier()
        return info.exposed_ns

    assert ranks(2, body)[0] > 0.2e9


def test_the_time_that_a_layer_is_waited_for_is_told():
    def body(comm):
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, LAYERS) as model:
            model.bind(np.zeros(model.slab_count, np.float32), np.zeros(model.slab_count, np.float32))
            with entrain.EDiT(mesh, model) as edit:
                for _ in range(2):
                    if edit.begin_forward() and comm.rank == 1:
                        time.sleep(0.3)  # the other rank waits so long for this one's layers
                    for layer in range(len(LAYERS)):
                        edit.wait_layer(layer)
                    edit.end_step()
                return edit.info().exposed_ns

    assert ranks(2, body)[0] > 0.2e9


def test_an_optimizer_may_be_closed_before_its_channel():
    def body(comm):
        optim = entrain.Optim.adamw()
        channel = entrain.ACCO(comm, np.zeros(8, np.float32), optim, limit=2, method="zero1")
        optim.close()
        for _ in range(2):
            channel.add()
            finished = channel.install()
        assert finished

    ranks(2, body)


def test_optimizers():
    w, g = np.ones(10, np.float32), np.full(10, 0.5, np.float32)
    sgd = entrain.Optim.sgd()
    sgd.step(w, g, [], 1, 0.1)
    assert np.allclose(w, 0.95) and sgd.state_arrays == 0
    adamw = entrain.Optim.adamw(weight_decay=0.1)
    state, out = [np.zeros(10, np.float32) for _ in range(adamw.state_arrays)], np.empty(10, np.float32)
    adamw.preview(w, g, state, out, 1, 0.01)
    adamw.step(w, g, state, 1, 0.01)
    assert (out == w).all()
    agd = entrain.Optim.agd()
    agd.step(w, g, [np.zeros(10, np.float32) for _ in range(agd.state_arrays)], 1, 0.001)
    assert agd.info().elements == 10
    with pytest.raises(entrain.InvalidArgument, match="state has 0 arrays; the optimizer has 2"):
        adamw.step(w, g, [], 1, 0.1)
    with pytest.raises(entrain.InvalidArgument, match="grads is f64; optimizers take f32"):
        sgd.step(w, g.astype(float), [], 1, 0.1)


def test_wsam():
    w, saved = np.full(4, 2.0, np.float32), np.empty(4, np.float32)
    with entrain.WSAM(entrain.Optim.sgd(), rho=0.1) as wsam:
        g = w.copy()
        wsam.ascend(w, saved, g, wsam.ascent_sum(w, g))
        assert np.allclose(w, 2.05)
        second = w.copy()
        wsam.restore(w, saved)
        assert (w == 2).all()
        out = np.empty(4, np.float32)
        wsam.preview(w, g, second, [], out, 1, 0.1)
        wsam.step(w, g, second, [], 1, 0.1)
        assert (out == w).all() and np.allclose(w, 2 - 0.2 - 0.1 * 9 * 0.05, atol=1e-5)


# ---- State as arrays of the caller --------------------------------------------------------------------------------------


class Run:
    """EDiT on two layers whose parameters follow from rank and step."""

    def __init__(self, comm, shard=1):
        self.comm = comm
        self.mesh = entrain.Mesh(comm, shard=shard)
        self.shard = entrain.Shard(self.mesh, LAYERS)
        self.params = np.zeros(self.shard.slab_count, np.float32)
        self.shard.bind_layers([self.params[layer.slab_offset:layer.slab_offset + layer.shard_count] for layer in self.shard.layers])
        self.edit = entrain.EDiT(self.mesh, self.shard, outer_optimizer="sgd", skip_anomaly=True)
        self.cursor = np.array([0])
        self.edit.add_state("cursor", self.cursor)

    def forward(self):
        self.edit.begin_forward()
        for layer in range(len(LAYERS)):
            self.edit.wait_layer(layer)

    def step(self):
        self.forward()
        for layer in self.shard.layers:  # padding stays zero
            first = layer.slab_offset
            self.params[first:first + layer.valid_count] += 1.0 + self.comm.rank + self.cursor[0]
        self.cursor += 1
        self.edit.end_step()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.comm.barrier()
        self.edit.close()
        self.shard.close()
        self.mesh.close()


def test_state_goes_on_bit_equal():
    def body(comm):
        with Run(comm, shard=2) as straight, Run(comm, shard=2) as resumed:
            for _ in range(3):
                straight.step()
            straight.forward()
            state = straight.edit.state("exact")
            straight.step()
            straight.step()
            resumed.edit.load_state(state, "exact")
            assert resumed.cursor[0] == 3 and resumed.edit.info().steps == 3
            resumed.step()
            resumed.step()
            np.testing.assert_array_equal(resumed.params, straight.params)
            assert resumed.edit.info().anchor_checksum == straight.edit.info().anchor_checksum

    ranks(4, body)


def test_state_says_whose_it_is():
    def body(comm):
        with Run(comm, shard=2) as run:
            run.step()
            run.forward()
            with run.edit.open_state("exact") as state:
                entries = {entry.key: entry for entry in state.entries}
                slot = comm.rank % 2
                anchor = entries["anchor.0[0:3]" if slot == 0 else "anchor.0[3:6]"]
                assert (anchor.holder, anchor.whole_count, anchor.first, anchor.count) == ("layer", 6, 3 * slot, 3)
                assert anchor.saves == (comm.rank < 2) and anchor.dtype is entrain.DType.F32
                np.testing.assert_array_equal(state.get(anchor), run.edit.anchor()[:3])
                cursor = entries[f"caller/cursor@{comm.rank}"]
                assert (cursor.holder, cursor.rank, cursor.saves) == ("rank", comm.rank, True)
                assert entries[f"steps@{comm.rank - slot}"].holder == "replica"
                for array in (np.zeros(4, np.float32), np.zeros(3)):
                    with pytest.raises(entrain.InvalidArgument, match="anchor"):
                        state.set(anchor, array)
                state.set(anchor, np.zeros(3, np.float32))
                with pytest.raises(entrain.FailedPrecondition, match="have not been set"):
                    state.commit()
            run.step()
            with run.edit.open_state() as state:
                assert not [entry for entry in state.entries if entry.holder == "rank"]
                with pytest.raises(entrain.FailedPrecondition, match="has had no exchange"):
                    state.get(state.entries[0])
            with pytest.raises(entrain.FailedPrecondition):
                state.get(state.entries[0])  # it is closed

    ranks(4, body)


def test_checkpoints_through_file_objects(tmp_path):
    def body(comm):
        with Run(comm) as run, Run(comm) as other:
            run.step()
            run.forward()
            run.edit.save(str(tmp_path), "file", kind="exact")
            buffer = io.BytesIO(b"before") if comm.rank == 0 else None
            if buffer is not None:
                buffer.seek(0, io.SEEK_END)
            run.edit.save_to(buffer, kind="exact")
            if buffer is not None:
                assert buffer.getvalue() == b"before" + (tmp_path / "file.ckpt").read_bytes()
                buffer.seek(6)
            other.edit.load_from(buffer, kind="exact")
            np.testing.assert_array_equal(other.params, run.params)
            assert other.cursor[0] == 1
            with open(tmp_path / "file.ckpt", "rb") as file:
                other.edit.load_from(file, kind="exact", rank0_only=False)

    ranks(2, body)


def test_a_file_object_that_fails_is_the_cause():
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError("no space")

    def body(comm):
        with Run(comm) as run:
            run.step()
            run.forward()
            with pytest.raises(entrain.FailedPrecondition, match="rank 0: .* write_at returned 1 at byte 128") as error:
                run.edit.save_to(Full() if comm.rank == 0 else None)
            assert (comm.rank == 0) == isinstance(error.value.__cause__, OSError)
            with pytest.raises(entrain.InvalidArgument, match="rank 0: functions: write_at is NULL"):
                run.edit.save_to(None)
            with pytest.raises(entrain.InvalidArgument, match="is not a checkpoint"):
                run.edit.load_from(io.BytesIO(b"nothing of ours"))
            run.step()

    ranks(2, body)


def test_state_of_acco_on_another_number_of_ranks():
    whole, numbers, params = {}, {}, {}

    def body(comm):
        weights = np.ones(10, np.float32)
        with entrain.ACCO(comm, weights, entrain.Optim("adamw"), method="zero1") as acco:
            if comm.size == 3:
                for step in range(2):
                    acco.gradients += np.arange(10, dtype=np.float32) + comm.rank - step
                    acco.add(1, 5)
                    acco.install()
                with acco.open_state() as state:
                    for entry in state.entries:
                        if entry.holder == "layer":
                            whole.setdefault(entry.name, np.empty(entry.whole_count, np.float32))[
                                entry.first:entry.first + entry.count] = state.get(entry)
                        else:
                            numbers[entry.key] = state.get(entry)
                params[0] = weights
            else:
                with acco.open_state() as state:
                    for entry in state.entries:
                        state.set(entry, whole[entry.name][entry.first:entry.first + entry.count]
                                  if entry.holder == "layer" else numbers[entry.key])
                    state.commit()
                np.testing.assert_array_equal(weights, params[0])
                assert acco.info().commits == 2
            comm.barrier()

    for size in (3, 2, 1):
        ranks(size, body)
    np.testing.assert_array_equal(whole["master"], params[0])
    assert set(whole) == {"master", "optim/0", "optim/1"}
