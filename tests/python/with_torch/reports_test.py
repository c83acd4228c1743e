"""What EDiT and ACCO tell while they train."""
import logging

import pytest
import torch
from torch import nn

import entrain
import entrain.torch
from conftest import ranks


class Board:
    """Takes what a SummaryWriter takes."""

    def __init__(self):
        self.rows = []

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))


class Run:
    """Takes what a run of W&B takes."""

    def __init__(self):
        self.rows = []

    def log(self, figures, step):
        self.rows.append((figures, step))


def edit_of(comm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, entrain.torch.EDiT(model, optimizer, comm=comm, preset="edit", local_sgd_sync_interval=2,
                                                local_sgd_warmup_steps=1)


def train(comm, model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(10 * step + comm.rank)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


def test_figures_of_exchanges_go_to_every_kind_of_sink(caplog):
    caplog.set_level(logging.INFO, logger="entrain")

    def body(comm):
        model, optimizer, edit = edit_of(comm)
        board, run, rows = Board(), Run(), []
        edit.report_to(board)
        edit.report_to(run)
        edit.report_to(lambda figures, step: rows.append((figures, step)))
        with pytest.raises(TypeError, match="report_to: 3 has neither add_scalar .* nor log"):
            edit.report_to(3)
        train(comm, model, optimizer, 8)
        edit.close()
        assert [figures["syncs"] for figures, _ in rows] == [1, 2, 3]
        assert [figures["replicas"] for figures, _ in rows] == [2, 2, 2]
        assert all(0 <= figures["exposed_s"] < 60 and "exposed_ns" not in figures for figures, _ in rows)
        assert [(figures["entrain/syncs"], step) for figures, step in run.rows] == [(figures["syncs"], step) for figures, step in rows]
        assert [row for row in board.rows if row[0] == "entrain/syncs"] == [("entrain/syncs", f["syncs"], step) for f, step in rows]
    ranks(2, body)
    assert sum("EDiT: syncs 2 at steps" in record.getMessage() for record in caplog.records) == 2


def test_figures_of_rounds(caplog):
    def body(comm):
        torch.manual_seed(0)
        model, rows = nn.Linear(3, 1), []
        acco = entrain.torch.ACCO(model, "sgd", comm=comm, lr=0.1, limit=6)
        acco.report_to(lambda figures, step: rows.append(figures))
        while not acco.finished:
            model(torch.randn(4, 3)).square().mean().backward()
            acco.step(4)
        acco.close()
        assert [figures["rounds"] for figures in rows] == sorted({figures["rounds"] for figures in rows})
        assert rows[0]["rounds"] == 1
        assert rows[-1]["commits"] == 6 and rows[-1]["bytes_sent"] > 0
    ranks(2, body)


def test_a_profile_has_the_ranges():
    def body(comm):
        model, optimizer, edit = edit_of(comm)
        if comm.rank == 1:
            train(comm, model, optimizer, 4)
        else:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                train(comm, model, optimizer, 4)
            found = {event.key: event.count for event in profile.key_averages() if event.key.startswith("entrain::")}
            assert found == {"entrain::begin": 4, "entrain::mean": 1, "entrain::wait": 2}, found
        edit.close()
    ranks(2, body)


def test_a_loss_is_a_warning(caplog):
    def body(comm):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        edit = entrain.torch.EDiT(model, optimizer, comm=comm, preset="edit", local_sgd_sync_interval=2, on_loss="finish")
        train(comm, model, optimizer, 3)
        if comm.rank == 2:
            edit.comm.abort("gone")
            return
        train(comm, model, optimizer, 6)
        assert edit.info.losses == 1
        edit.close()
    ranks(3, body)
    assert sum(record.levelno == logging.WARNING and record.getMessage().startswith("EDiT: ") for record in caplog.records) == 2


def test_too_few_replicas_are_an_error():
    def body(comm):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(entrain.InvalidArgument, match='min_replicas is 2, and on_loss is \'fail\''):
            entrain.torch.EDiT(model, optimizer, comm=comm, preset="edit", min_replicas=2)
        edit = entrain.torch.EDiT(model, optimizer, comm=comm, preset="edit", local_sgd_sync_interval=2, on_loss="finish",
                                  min_replicas=3)
        train(comm, model, optimizer, 3)
        if comm.rank == 2:
            edit.comm.abort("gone")
            return
        with pytest.raises(entrain.FailedPrecondition, match="2 replicas are left at step .*, and min_replicas is 3"):
            train(comm, model, optimizer, 6)
        edit.close()
    ranks(3, body)
