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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("meeting", ["store", "address"])
def test_a_replica_that_is_started_again_joins(method, meeting, tmp_path):
    if meeting == "address" and method == "ACCO":
        pytest.skip("once is enough")
    where = {"ENTRAIN_STORE": f"file:{tmp_path}/store"} if meeting == "store" else free_address()

    def start(rank, restarts):
        process = Process("import os, signal, time\nSTEPS = 300\n" + MODEL + METHODS[method], environment={
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "SAVES": str(tmp_path / "saves"),
            "ENTRAIN_TIMEOUT": "40s", "ENTRAIN_RESTARTS": str(restarts), **where})
        process.read()
        return process

    first, killed = start(0, 0), start(1, 0)
    killed.communicate(40)
    assert killed.returncode == -signal.SIGKILL, killed.text
    again = start(1, 1)
    ended = [process.communicate(60)[0] for process in (first, again)]
    assert [first.returncode, again.returncode] == [0, 0], "\n".join(ended)
    assert "begins at step 0" in ended[0] and "begins at step 0" not in ended[1], ended
    last = [text.splitlines()[-1] for text in ended]
    assert all(line.startswith("2 replicas, ") for line in last), last
    assert last[0].split("parameters ")[1] == last[1].split("parameters ")[1]
    if method == "EDiT":
        assert int(last[0].split()[2]) > int(last[1].split()[2]) > 0, last


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
