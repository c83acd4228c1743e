"""Interpreters with this folder in PYTHONPATH write the method of each EDiT and ACCO object that they make to the file TEST_METHODS: what
it runs by its options, whatever the program calls it."""
import dataclasses
import os

# These tune a method, or say how it runs. Of the others, the ones in SIZES matter as being zero or not.
FREE = {"local_sgd_sync_interval", "local_sgd_sync_time", "min_total_global_steps", "local_sgd_warmup_steps", "gradient_accumulation_steps",
        "outer_lr", "outer_momentum", "ewma_warmup_steps", "prefetch", "on_loss", "admit", "most_replicas", "threads", "silence_ns",
        "newcomer_warmup"}
SIZES = {"clip_pseudo_grad", "fragments", "overlap_steps"}


def method_of(config, layers):
    from entrain.train import PRESETS, EditConfig, EditOptions, with_preset

    def of(one):
        found = {field.name: getattr(one, field.name) for field in dataclasses.fields(EditOptions) if field.name not in FREE}
        return {name: bool(value) if name in SIZES else value for name, value in found.items()}

    names = [name for name in PRESETS if of(with_preset(EditConfig(), name, layers)) == of(config)]
    return "/".join(names) or "none"


def watch():
    import entrain.acco
    import entrain.train
    edit, acco = entrain.train.EDiT.__init__, entrain.acco.ACCO.__init__

    def note(name):
        with open(os.environ["TEST_METHODS"], "a") as file:
            file.write(name + "\n")

    def edit_and_note(self, mesh, shard, config=None, *, preset=None, **options):
        given = {name: value for name, value in options.items() if name not in ("join", "fetch")}
        whole = dataclasses.replace(config or entrain.train.EditConfig(), **given)
        if preset is not None:
            whole = entrain.train.with_preset(whole, preset, len(shard.layers), given)
        note(method_of(whole, len(shard.layers)))
        edit(self, mesh, shard, config, preset=preset, **options)

    def acco_and_note(self, *arguments, **options):
        note(options.get("method", "acco"))
        acco(self, *arguments, **options)

    entrain.train.EDiT.__init__ = edit_and_note
    entrain.acco.ACCO.__init__ = acco_and_note


if os.environ.get("TEST_METHODS"):
    watch()
