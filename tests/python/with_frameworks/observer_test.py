"""entrain.observe around the training of a framework, which makes the EDiT object itself."""
import json
import re

import pytest
from common import run
from lightning_test import LIGHTNING
from transformers_test import TRAINER

PROGRAMS = {
    "transformers": TRAINER + """
from entrain.observe import Observer
with Observer(textfile=directory + "/{rank}.prom", trace=directory + "/{rank}.json"):
    trainer = trainer_of("a")
    trainer.train()
report("end", trainer.model, 0.0)
""",
    "lightning": LIGHTNING + """
from entrain.observe import Observer
module = Module()
with Observer(textfile=directory + "/{rank}.prom", trace=directory + "/{rank}.json"):
    trainer = trainer_of()
    trainer.fit(module, loader(ROWS[:STEPS * BATCH * size]))
report("end", module.model, 0.0)
"""}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_what_the_framework_makes_is_observed(framework, tmp_path):
    run(PROGRAMS[framework], tmp_path, size=2)
    for rank in range(2):
        text = (tmp_path / f"{rank}.prom").read_text()
        own = f'{{rank="{rank}",replica="{rank}"}}'
        assert f"entrain_steps_total{own} 15\n" in text and f"entrain_exchanges_total{own} 4\n" in text, text
        assert re.search(r'entrain_wait_seconds_total\{rank="\d",replica="\d",layer="(model\.)+layers\.1",operation="wait"\} \d', text), text
        spans = [event for event in json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"] if event["ph"] == "X"]
        assert {"compute", "wait", "exposed"} <= {event["cat"] for event in spans}
        # Lightning's steps have a closure, which makes the passes.
        names = [event["name"] for event in spans]
        assert "optimizer" in names and sum(bool(re.fullmatch(r"backward (model\.)+layers\.1", name)) for name in names) == 15
        assert sum(bool(re.fullmatch(r"forward (model\.)+layers\.1", name)) for name in names) == 15
