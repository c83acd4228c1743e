"""Tables of docs/choose.md: which options each method takes (a "yes" must train, a "no" be refused), and the planner's figures for N and M."""
import concurrent.futures
import dataclasses
import time

import numpy as np
import pytest
from conftest import ROOT, ranks

import entrain
from entrain import plan
from entrain.train import with_preset

LAYERS = [8192, 4096]
BY_TIME = dict(local_sgd_sync_time=0.02, min_total_global_steps=1)
FINISH = dict(on_loss="finish")
ADMIT = dict(FINISH, admit="exchange")
VALUES = {"on_loss": FINISH, "admit": ADMIT, "quorum": dict(quorum=1, round_deadline=0.1), "wire_format": dict(wire_format="int8"),
          "tau": dict(BY_TIME, use_async=True), "overlap_steps": dict(overlap_steps=2)}


def cells_of(name):
    text = (ROOT / "docs/choose.md").read_text()
    rows = text.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0].splitlines()
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]


HEAD, _, *ROWS = cells_of("options")
TABLE = {row[0]: dict(zip(HEAD[1:], row[1:])) for row in ROWS}
CELLS = [(method, option, cell) for method, row in TABLE.items() for option, cell in row.items() if method != "acco"]


def step(edit, slab, number):
    edit.begin_forward()
    for layer in range(len(LAYERS)):
        edit.wait_layer(layer)
    slab += 0.001 * (1 + number)
    time.sleep(0.001)
    edit.end_step()


def train(comm, method, work, **options):
    """Calls work(edit, slab) and leaves. Returns what `work` returned, the parameters, and the info."""
    if method == "a-edit":
        options = {**BY_TIME, **options}
    elif "use_async" not in options:
        options["local_sgd_sync_interval"] = 4
    with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, LAYERS) as shard:
        slab = np.zeros(shard.slab_count, np.float32)
        shard.bind(slab, np.zeros_like(slab))
        with entrain.EDiT(mesh, shard, preset=method, timeout=20, **options) as edit:
            result = work(edit, slab)
            if result != "dies":
                edit.leave()
            return result, slab.tobytes(), edit.info()


def accepted(method, options):
    """Returns whether two replicas train with the options, and exchange."""
    def body(comm):
        def work(edit, slab):
            for _ in range(12):
                step(edit, slab, comm.rank)

        with entrain.Store.open("mem:choices") as store:
            more = dict(admit_store=store, admit_name=f"{method}-{sorted(options)}") if "admit" in options else {}
            return train(comm, method, work, **options, **more)[1:]

    try:
        (first, info), (second, _) = ranks(2, body)
    except entrain.InvalidArgument:
        return False
    assert first == second and info.syncs > 0
    return True


def test_the_table_has_all_methods_and_options():
    assert set(TABLE) == set(entrain.train.PRESETS) - {"published"} | {"acco"}
    assert all(list(row) == list(VALUES) for row in TABLE.values())


@pytest.mark.parametrize("method, option, cell", CELLS)
def test_a_cell(method, option, cell):
    preset, plain = with_preset(entrain.EditConfig(), method, len(LAYERS)), entrain.EditConfig()
    field = {"tau": "use_async"}.get(option, option)
    assert (cell == "set") == (getattr(preset, field) != getattr(plain, field))
    if cell == "1":
        assert accepted(method, {option: 1}) and not accepted(method, {option: 2})
    else:
        assert accepted(method, VALUES[option]) == {"yes": True, "set": True, "no": False}[cell]


@pytest.mark.parametrize("method", [method for method, option, cell in CELLS if option == "on_loss" and cell == "yes"])
def test_the_others_go_on(method):
    def body(comm):
        def work(edit, slab):
            for number in range(24):
                if comm.rank == 1 and number == 6:
                    comm.abort("it dies")
                    return "dies"
                step(edit, slab, comm.rank)
            return "lives"

        return train(comm, method, work, on_loss="finish")

    first, dead, third = ranks(3, body)
    assert dead[0] == "dies" and first[0] == third[0] == "lives"
    assert first[1] == third[1] and first[2].losses == third[2].losses == 1


@pytest.mark.parametrize("method", [method for method, option, cell in CELLS if option == "admit" and cell == "yes"])
def test_a_replica_joins(method):
    def body(rank):
        name = f"mem:choices-{method}"
        with entrain.Runtime() as runtime, entrain.Store.open(name) as store:
            def work(edit, slab):
                last = edit.info().steps + 8 if rank == 2 else 10**6
                if rank == 2:
                    ends.append(last)
                while edit.info().steps < (ends[0] if ends else last):
                    step(edit, slab, rank)

            options = dict(ADMIT, most_replicas=3, admit_store=store, admit_name="choices", join=20 if rank == 2 else None)
            size, own, place = (1, "own", 0) if rank == 2 else (2, "world", rank)
            with entrain.Comm.create(store, place, size, name=own, timeout=20, runtime=runtime) as comm:
                return train(comm, method, work, **options)

    ends = []  # the step at which all end; the joining replica sets it
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = list(pool.map(body, range(3)))
    assert {slab for _, slab, _ in results} == {results[0][1]}
    assert [info.joins for _, _, info in results[:2]] == [1, 1] and all(info.replicas == 3 for _, _, info in results)


def channel(comm, **options):
    params = np.zeros(3001, np.float32)
    with entrain.Optim.adamw() as optim, entrain.ACCO(comm, params, optim, limit=4, **options) as acco:
        finished = False
        while not finished:
            acco.gradients += 1
            acco.add(1, 1)
            finished = acco.install()
    return params.tobytes()


def test_acco():
    """Its loss and its admission have tests of their own."""
    assert TABLE["acco"] == {"on_loss": "yes", "admit": "yes", "quorum": "no", "wire_format": "bf16", "tau": "no", "overlap_steps": "set"}
    there = {field.name for field in dataclasses.fields(entrain.AccoOptions)}
    assert {"on_loss", "admit"} <= there and not there & {"quorum", "round_deadline", "local_sgd_sync_time", "overlap_steps"}
    assert len(set(ranks(2, lambda comm: channel(comm, on_loss="finish")))) == 1
    assert len(set(ranks(2, lambda comm: channel(comm, wire_dtype=entrain.DType.BF16)))) == 1
    with pytest.raises(entrain.InvalidArgument, match="wire_dtype"):
        ranks(1, lambda comm: channel(comm, wire_dtype=entrain.DType.I8))


def test_the_planners_figures_for_n_and_m():
    rows = cells_of("shapes")[2:]
    assert len(rows) == 5
    for replicas, shards, within, sent, *goodputs in rows:
        job = plan.Job(params=plan.parse_count("13B"), layers=40, replicas=int(replicas), shards=int(shards), step=4.0,
                       rate=plan.parse_rate("1Gbit"), round_trip=0.08, precision="bf16", inner_rate=plan.parse_rate(within))
        assert plan.parse_size(sent) == pytest.approx(plan.estimate(job, "edit").sent_across, rel=0.01)
        for method, goodput in zip(("ddp", "edit", "streaming-diloco"), goodputs):
            assert plan.parse_share(goodput) == pytest.approx(plan.estimate(job, method).goodput, abs=0.01), (replicas, method)
