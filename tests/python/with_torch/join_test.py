"""A replica is killed, and its process is started again and joins the others, which train and save meanwhile."""
import signal
import time

import pytest

pytest.importorskip("torch")
from edit_test import MODEL  # noqa: E402
from forks import Process  # noqa: E402

METHODS = {
    "EDiT": """
restarts = int(os.environ["ENTRAIN_RESTARTS"])
model = build(seed=restarts)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
edit = entrain.torch.EDiT(model, optimizer, local_sgd_sync_interval=2, outer_optim_class=torch.optim.SGD,
                          outer_optim_kwargs=dict(lr=0.7, momentum=0.8, nesterov=True), on_loss="finish", admit="exchange",
                          join=30 if restarts else None)
print(f"replica {edit.replica} of {edit.replicas} begins at step {edit.info.steps}", flush=True)
saved = 0
while edit.info.steps < STEPS:
    if edit.info.steps % 20 == 0:
        edit.wish_checkpoint()
    edit.begin_step()
    if edit.checkpoint_due:
        edit.save(os.environ["SAVES"], f"step-{edit.info.steps}", exact=False)
        saved += 1
    optimizer.zero_grad()
    loss_of(model, edit.replica, edit.info.steps).backward()
    optimizer.step()
    if edit.info.steps == 40 and edit.replica == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05 if edit.replicas < 2 else 0.002)  # the other process starts meanwhile
edit.synchronize()
with edit.consensus():
    agreed = flat(model)
print(f"{edit.replicas} replicas, {saved} saved, parameters {agreed.numpy().tobytes().hex()}", flush=True)
""",
    "ACCO": """
restarts = int(os.environ["ENTRAIN_RESTARTS"])
model = build(seed=restarts)
acco = entrain.torch.ACCO(model, "sgd", lr=0.01, limit=STEPS, on_loss="finish", admit="exchange", join=30 if restarts else None)
print(f"rank begins at step {acco.info.commits}", flush=True)
rank = int(os.environ["RANK"])
while not acco.info.finished:
    loss_of(model, rank, acco.info.gradients).backward()
    acco.step()
    if acco.info.commits >= 40 and rank == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05 if acco.info.losses > acco.info.joins else 0.002)  # as above
print(f"2 replicas, parameters {flat(model).numpy().tobytes().hex()}", flush=True)
""",
}


def run(code, *arguments, **environment):
    """Runs two replicas, of which rank 1 kills itself, and starts that one again. Returns both processes that lived to the end, and what
    they have written."""
    def start(rank, restarts):
        process = Process(code, *arguments, environment={
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "ENTRAIN_TIMEOUT": "40s",
            "ENTRAIN_RESTARTS": str(restarts), **environment})
        process.read()
        return process

    first, killed = start(0, 0), start(1, 0)
    killed.communicate(40)
    assert killed.returncode == -signal.SIGKILL, killed.text
    again = start(1, 1)
    return first, again, [process.communicate(90)[0] for process in (first, again)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("meeting", ["store", "address"])
def test_a_replica_that_is_started_again_joins(method, meeting, tmp_path):
    if meeting == "address" and method == "ACCO":
        pytest.skip("once is enough")
    where = {"ENTRAIN_STORE": f"file:{tmp_path}/store"} if meeting == "store" else free_address()

    first, again, ended = run("import os, signal, time\nSTEPS = 300\n" + MODEL + METHODS[method], **where, SAVES=str(tmp_path / "saves"))
    assert [first.returncode, again.returncode] == [0, 0], "\n".join(ended)
    assert "begins at step 0" in ended[0] and "begins at step 0" not in ended[1], ended
    last = [text.splitlines()[-1] for text in ended]
    assert all(line.startswith("2 replicas, ") for line in last), last
    assert last[0].split("parameters ")[1] == last[1].split("parameters ")[1]
    if method == "EDiT":
        assert int(last[0].split()[2]) > int(last[1].split()[2]) > 0, last


HANDED = """
number, restarts = int(os.environ["RANK"]), int(os.environ["ENTRAIN_RESTARTS"])
torch.manual_seed(10 * number + restarts)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
told = []
warnings.showwarning = lambda message, *unused: told.append(str(message))
handed = dict(optimizer=optimizer, scheduler=scheduler)
if sys.argv[1] == "other names" and restarts:
    del handed["scheduler"]
form = sys.argv[1]
options = dict(on_loss="finish", admit="exchange", join=30 if restarts else None)
if form == "alone":
    from entrain.integrations import elastic
    options = elastic.alone(join=30).options
    assert "RANK" not in os.environ
if form == "broken":
    class Broken:
        def state_dict(self):
            raise RuntimeError("no state today")

        def load_state_dict(self, state):
            raise SystemExit("there was one")
    handed["broken"] = Broken()
if form == "dies":
    from entrain.torch import _joining
    _joining._WAIT = 2.0
    if restarts:
        _joining.HandOver._pass_on = lambda *unused, **more: os.kill(os.getpid(), signal.SIGKILL)
edit = entrain.torch.EDiT(model, optimizer, preset="diloco", local_sgd_sync_interval=4, hand_over=handed, most_replicas=3, **options)
if restarts:
    assert edit.info.steps > 0
begun = edit.info.steps
while edit.info.steps < 400:
    optimizer.zero_grad()
    loss_of(model, edit.replica, edit.info.steps).backward()
    optimizer.step()
    scheduler.step()
    if restarts and begun is not None and not edit._joining and form != "broken":
        # The first exchange is over: the optimizer and the scheduler have made the steps of a member, not those of this process.
        states = [state["step"].item() for state in optimizer.state.values()]
        assert min(states) == edit.info.steps, (states, edit.info.steps, begun, told)
        assert scheduler.last_epoch == edit.info.steps and model[1].num_batches_tracked.item() == edit.info.steps, told
        begun = None
    if edit.info.steps == 40 and number == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.03 if edit.replicas < 2 else 0.002)  # the other process starts meanwhile
assert not restarts or begun is None or form == "broken"
edit.synchronize()
print("ended", told, flush=True)
"""


@pytest.mark.parametrize("form", ["store", "address", "alone", "other names", "broken", "dies"])
def test_a_newcomer_gets_the_states_of_a_member(form, tmp_path):
    where = free_address() if form in ("address", "alone") else {"ENTRAIN_STORE": f"file:{tmp_path}/store"}

    first, again, ended = run("import os, signal, sys, time, warnings\n" + MODEL + HANDED, form, **where)
    if form == "other names":
        assert again.returncode != 0 and "Mismatch: " in ended[1] and "identity: hand_over" in ended[1], ended
        assert first.returncode == 0, ended
    elif form == "broken":
        assert [process.returncode for process in (first, again)] == [0, 0], "\n".join(ended)
        assert "no state today" in ended[0] and all("replica 1 joins without the state of replica 0" in text for text in ended), ended
    elif form == "dies":
        assert first.returncode == 0 and again.returncode == -signal.SIGKILL, ended
        assert "replica 1 joins without the state of replica 0" in ended[0], ended
    else:
        assert [process.returncode for process in (first, again)] == [0, 0], "\n".join(ended)
        assert [text.splitlines()[-1] for text in ended] == ["ended []"] * 2, ended


BUFFERS = """
number, restarts, form, kind = int(os.environ["RANK"]), int(os.environ["ENTRAIN_RESTARTS"]), sys.argv[1], sys.argv[2]
torch.manual_seed(10 * number + restarts)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
model.register_buffer("mark", torch.tensor(7.0))
told = []
warnings.showwarning = lambda message, *unused: told.append(str(message))
if form == "dies":
    from entrain.torch import _joining
    _joining._WAIT = 2.0
    if restarts:
        _joining.HandOver._pass_on = lambda *unused, **more: os.kill(os.getpid(), signal.SIGKILL)
if form == "late":
    from entrain.torch import _joining
    _joining._WAIT = 2.0
    if restarts:
        meet = _joining.HandOver._pass_on

        def come_late(*arguments, **more):
            time.sleep(3)  # longer than a member waits
            meet(*arguments, **more)

        _joining.HandOver._pass_on = come_late
acco = entrain.torch.ACCO(model, "sgd", lr=0.01, limit=300, method=kind, on_loss="finish", admit="exchange", join=30 if restarts else None,
                          scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.99))
if not restarts:
    model.mark.fill_(42.0 + number)
begun, seen = acco.info.commits, 0
while not acco.finished:
    loss_of(model, number, acco.info.gradients).backward()
    acco.step()
    info = acco.info
    # The number of the commit says the rate, here as on the other ranks. An estimate has the rate of the next commit.
    assert info.rounds == 0 or abs(info.lr - 0.01 * 0.99 ** ((info.commits - info.committed) // 10)) < 1e-9, info
    if restarts and not acco._joining and not seen:
        seen = int(model[1].num_batches_tracked)
        assert model.mark.item() == (7 if form == "late" else 42), (model.mark, told)
        assert begun >= 40, begun
    if acco.info.commits >= 40 and number == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05 if acco.info.losses == 1 > acco.info.joins else 0.002)  # the other process starts meanwhile
assert not restarts or form == "late" or seen >= 20, seen  # the member's count, and not that of the few micro-batches of this process
print("ended", told, flat(model).numpy().tobytes().hex() if form != "dies" else "", flush=True)
"""


@pytest.mark.parametrize("form, kind", [("store", "acco"), ("store", "dpu"), ("store", "wp"), ("store", "zero1"), ("dies", "acco"),
                                        ("late", "acco"), ("late", "zero1")])
def test_a_rank_that_joins_acco_gets_the_buffers_of_a_member(form, kind, tmp_path):
    first, again, ended = run("import os, signal, sys, time, warnings\n" + MODEL + BUFFERS, form, kind,
                              ENTRAIN_STORE=f"file:{tmp_path}/store")
    if form == "dies":
        assert first.returncode == 0 and again.returncode == -signal.SIGKILL, ended
        assert "ACCO: rank 1 joins without the state of rank 0: its buffers begin anew" in ended[0], ended
    else:
        assert [process.returncode for process in (first, again)] == [0, 0], "\n".join(ended)
        last = [text.splitlines()[-1] for text in ended]
        if form == "late":  # the parameters are equal, and both ranks say what is not
            assert all("rank 1 joins without the state of rank 0: its buffers begin anew" in line for line in last), ended
            last = [line.split()[-1] for line in last]
            assert last[0] == last[1], ended
            return
        assert last[0].startswith("ended [] ") and last[0] == last[1], ended


FROZEN = """
number, frozen, steps = int(sys.argv[1]), float(sys.argv[2]), 0
torch.manual_seed(number)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
model[0].weight.requires_grad_(False).fill_(frozen)
options = dict(on_loss="finish", admit="exchange", join=20 if number > 1 else None, comm=None)
if METHOD == "EDiT":
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.01)
    method = entrain.torch.EDiT(model, optimizer, preset="diloco", local_sgd_sync_interval=2, most_replicas=4, **options)
else:
    method = entrain.torch.ACCO(model, "sgd", lr=0.01, limit=100_000, **options)
print("begun", flush=True)
while method.info.joins == 0 and number < 2 or steps < 20:
    model(torch.randn(8, 4)).square().mean().backward()
    if METHOD == "EDiT":
        optimizer.step()
        optimizer.zero_grad()
    else:
        method.step()
    steps += method.info.joins > 0 or number > 1
    time.sleep(0.002)  # steps that take some time, while the others start
print("ended", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_with_other_frozen_parameters_is_refused(method, tmp_path):
    def start(number, frozen):
        return Process(f"import os, sys, time\nMETHOD = '{method}'\n" + MODEL + FROZEN, number, frozen, environment={
            "RANK": str(min(number, 1)), "WORLD_SIZE": "2", "LOCAL_RANK": str(min(number, 1)), "LOCAL_WORLD_SIZE": "2",
            "ENTRAIN_TIMEOUT": "40s", "ENTRAIN_STORE": f"file:{tmp_path}/store"})

    members = [start(number, 0.5) for number in range(2)]
    try:
        for member in members:
            member.read()
        text, _ = start(2, 0.25).communicate(60)
        assert "Mismatch" in text and "values of the frozen parameters" in text, text
        text, _ = start(3, 0.5).communicate(60)
        assert text.splitlines()[-1] == "ended", text
        for member in members:
            text, _ = member.communicate(60)
            assert member.returncode == 0, text
    finally:
        for member in members:
            member.kill()


def free_address():
    """Returns MASTER_ADDR and a MASTER_PORT that the kernel chooses."""
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(one.getsockname()[1])}
