"""Membership: members, agree, shrink."""
import os
import subprocess
import sys
import tempfile

import pytest

import entrain
from conftest import ranks


def test_ranks_agree_and_leave_one_out():
    def body(comm):
        assert comm.generation == 0
        assert comm.agree(0b111 & ~(1 << comm.rank)) == 0
        if comm.rank == 1:
            with pytest.raises(entrain.StaleGeneration, match="excludes it"):
                comm.shrink()
            assert isinstance(comm.error(), entrain.StaleGeneration)
            return None
        with comm.shrink(exclude=[1], name="rest", timeout=20) as rest:
            assert (rest.size, rest.generation) == (2, 1)
            members = rest.members()
            assert [(m.rank, m.parent_rank, m.state, m.text) for m in members] == [(0, 0, "alive", ""), (1, 2, "alive", "")]
            assert len(members[0].peer_id) == 16
            rest.barrier()
        return rest.size

    assert ranks(3, body) == [2, None, 2]


def test_a_late_rank_is_named_and_the_call_may_be_repeated():
    def body(comm):
        if comm.rank == 0:
            with pytest.raises(entrain.TimedOut, match="rank 1 did not make the call") as raised:
                comm.shrink(timeout=0.3)
            assert raised.value.record.scope == entrain.Scope.CALL
            comm.barrier()
        else:
            comm.barrier()
        with comm.shrink() as same:
            return same.size

    assert ranks(2, body) == [2, 2]


def test_wrong_arguments_are_named():
    def body(comm):
        for wrong, text in ((dict(partition="half"), "half"), (dict(exclude=[7]), "exclude: 7"), (dict(name=""), "name has 0")):
            with pytest.raises(entrain.InvalidArgument, match=text):
                comm.shrink(**wrong)

    ranks(1, body)


KILLED = """
import os, signal, numpy, entrain
comm = entrain.Comm.from_env()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        comm.all_reduce(numpy.ones(1000, numpy.float32))
except entrain.PeerLost:
    rest = comm.shrink()
assert [m.state for m in comm.members()][1] == "lost"
x = numpy.full(4, rest.rank + 1, numpy.float32)
rest.all_reduce(x)
assert rest.size == 2 and list(x) == [3, 3, 3, 3], x
print("went on")
"""


def run_three(code):
    """Runs `code` on three ranks. Returns their exit codes and outputs. entrain-run would end all ranks when one is
    killed, so the ranks are started one by one."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(3):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3", LOCAL_WORLD_SIZE="3",
                               ENTRAIN_STORE=f"file:{folder}")
            running.append(subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, text=True))
        texts = [process.communicate(timeout=60)[0] for process in running]
    return [process.returncode for process in running], texts


def test_survivors_of_a_killed_rank_go_on():
    codes, texts = run_three(KILLED)
    assert codes == [0, -9, 0], texts
    assert "went on" in texts[0] and "went on" in texts[2]


KILLED_REPLICA = """
import os, signal, numpy, entrain
comm = entrain.Comm.from_env()
mesh = entrain.Mesh(comm)
shard = entrain.Shard(mesh, [64, 8])
params = numpy.ones(shard.slab_count, numpy.float32)
shard.bind(params, numpy.zeros_like(params))
edit = entrain.EDiT(mesh, shard, outer_optimizer="sgd", on_loss="finish")
assert edit.losses() == []
for step in range(4):
    edit.begin_forward()
    if comm.rank == 1 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    for layer in range(2):
        edit.wait_layer(layer)
    params += 0.1 * (comm.rank + 1)
    edit.end_step()
edit.leave()
info, (loss,) = edit.info(), edit.losses()
assert info.losses == 1 and info.replicas == 2 and loss.replica == 1, (info, loss)
assert 1 <= loss.rendezvous <= 2 and "rank 1" in loss.why, loss
print("parameters", params.tobytes().hex())
"""


def test_edit_tells_which_replicas_are_lost():
    codes, texts = run_three(KILLED_REPLICA)
    assert codes == [0, -9, 0], texts
    assert texts[0] == texts[2] and texts[0].startswith("parameters"), texts
