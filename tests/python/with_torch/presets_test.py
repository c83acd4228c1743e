"""The methods by their names: what a class without options runs, and what options override."""
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from conftest import ranks

torch = pytest.importorskip("torch")
import entrain  # noqa: E402
import entrain.torch  # noqa: E402
from entrain.train import PRESETS, with_preset  # noqa: E402

NORMS = dict(reducer="linear", pseudo_gradnorm_reduce=True, clip_pseudo_grad=10.0, skip_anomaly=True)
NESTEROV = dict(outer_optimizer="sgd", outer_nesterov=True)
EDIT = dict(local_sgd_sync_interval=16, **NORMS, **NESTEROV)
DILOCO = dict(local_sgd_sync_interval=16, **NESTEROV)


def changed(config):
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(entrain.EditConfig)
            if getattr(config, field.name) != field.default}


def test_presets_are_the_methods():
    assert PRESETS == ("edit", "a-edit", "diloco", "streaming-diloco", "decoupled-diloco", "post-local-sgd", "co2", "sparseloco", "published")
    found = {name: changed(with_preset(entrain.EditConfig(), name, 12)) for name in PRESETS}
    assert found["edit"] == EDIT and found["diloco"] == DILOCO and found["published"] == {}
    assert found["a-edit"] == dict(use_async=True, **NORMS, **NESTEROV)
    assert found["post-local-sgd"] == dict(local_sgd_sync_interval=16)
    assert found["streaming-diloco"] == dict(DILOCO, overlap_steps=1, overlap_merge="mix", fragments=8, fragment_pattern="strided", wire_format="int4")
    assert found["decoupled-diloco"]["quorum"] == 1 and found["decoupled-diloco"]["overlap_steps"] == 16
    assert found["co2"]["overlap_merge"] == "restart" and found["sparseloco"]["wire_format"] == "int2"
    with pytest.raises(entrain.InvalidArgument, match='"editt" is none of the methods: edit, a-edit, diloco'):
        with_preset(entrain.EditConfig(), "editt", 1)


def test_options_override_a_preset():
    def of(name, layers=12, **options):
        return changed(with_preset(dataclasses.replace(entrain.EditConfig(), **options), name, layers, options))

    assert of("edit", local_sgd_sync_interval=64, clip_pseudo_grad=0.0) == dict(local_sgd_sync_interval=64, **NESTEROV, reducer="linear",
                                                                                pseudo_gradnorm_reduce=True, skip_anomaly=True)
    # A value that is the library's default is given, too.
    assert of("edit", local_sgd_sync_interval=1, skip_anomaly=False) == {**NESTEROV, "reducer": "linear", "pseudo_gradnorm_reduce": True,
                                                                         "clip_pseudo_grad": 10.0}
    # What has no effect beside a given option is left out, so that the result is accepted.
    assert of("diloco", outer_optimizer="adamw") == dict(local_sgd_sync_interval=16, outer_optimizer="adamw")
    assert of("edit", reducer="none", outer_optimizer="none") == dict(local_sgd_sync_interval=16)
    assert of("decoupled-diloco", local_sgd_sync_interval=8, layers=3)["overlap_steps"] == 8


PROGRAM = """
import warnings
import torch, entrain, entrain.torch
from entrain.train import with_preset
warnings.simplefilter("ignore")

model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
begin = entrain.train.EDiT.__init__


def watched(self, mesh, shard, config=None, **more):
    seen.append(config)
    begin(self, mesh, shard, config, **more)


entrain.train.EDiT.__init__ = watched
for make, method in ((entrain.torch.EDiT, "edit"), (entrain.torch.DiLoCo, "diloco"), (entrain.torch.AEDiT, "a-edit")):
    make(model, optimizer).close()
    assert seen[-1] == with_preset(entrain.EditConfig(), method, 2), (make, seen[-1])
entrain.torch.EDiT(model, optimizer, preset="co2", local_sgd_sync_interval=4).close()
assert (seen[-1].overlap_steps, seen[-1].overlap_merge) == (4, "restart")
entrain.torch.EDiT(model, optimizer, preset="published").close()
entrain.torch.EDiT(model, optimizer, entrain.EditConfig()).close()  # a config is whole
assert seen[-1] == seen[-2] == entrain.EditConfig()
entrain.torch.EDiT(model, optimizer, outer_optim_class=torch.optim.SGD, outer_optim_kwargs=dict(lr=0.5, momentum=0.9)).close()
assert (seen[-1].outer_lr, seen[-1].outer_momentum, seen[-1].outer_nesterov, seen[-1].skip_anomaly) == (0.5, 0.9, False, True)
print("good")
"""


def test_the_classes_run_what_they_are_called():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.stdout == "good\n", done.stdout + done.stderr


def test_the_engine_takes_presets():
    def body(comm):
        with entrain.Mesh(comm) as mesh, entrain.Shard(mesh, [4, 4]) as shard:
            shard.bind(np.zeros(shard.slab_count, np.float32), np.zeros(shard.slab_count, np.float32))
            with entrain.EDiT(mesh, shard, preset="streaming-diloco") as edit:
                assert edit.info().steps == 0

    ranks(2, body)
