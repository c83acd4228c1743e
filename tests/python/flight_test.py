"""Flight dumps: the last calls of every communicator, as JSON."""
import json
import threading

import numpy
import pytest

import entrain
from conftest import ranks


def test_a_dump_has_the_calls_of_each_rank(tmp_path):
    path = tmp_path / "dump.json"
    both = threading.Barrier(2)

    def body(comm):
        comm.all_reduce(numpy.ones(4, numpy.float32))
        both.wait()
        if comm.rank == 0:
            entrain.flight_dump(path)
            with pytest.raises(entrain.FailedPrecondition, match="exists"):
                entrain.flight_dump(str(path))
            with pytest.raises(entrain.FailedPrecondition, match="ENTRAIN_FLIGHT_DIR"):
                entrain.flight_dump()
        both.wait()

    ranks(2, body)
    dump = json.loads(path.read_text())
    assert dump["entrain_flight"] == 1
    assert sorted(comm["rank"] for comm in dump["communicators"]) == [0, 1]
    for comm in dump["communicators"]:
        last = comm["calls"][-1]
        assert (last["arguments"], last["state"], last["bytes"]) == ("all_reduce sum of 4 f32", "done", 16)
