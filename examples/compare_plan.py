"""Checks the arguments of compare.py. Derives the runs from them, and the flags of entrain-train
for each run."""

import os
import re
import shlex
import subprocess

import compare_tables as tables
from runs import MODEL, TRAINER

WSAM = {"+wsam": "decoupled", "+wsam-coupled": "coupled"}  # ending of an optimizer's name: --wsam
# Flags that a method needs in these short runs. By default a-edit exchanges every ten minutes.
METHOD_FLAGS = {"a-edit": "--local-sgd-sync-time 0.2 --min-total-global-steps 1"}
CONDITIONS = ("--step-ms", "--straggler", "--straggler-ms", "--straggler-replica")
OURS = {  # flags of entrain-train that compare.py sets, and its option for each
    **{
        flag: flag
        for flag in ("--data", "--tokens", "--steps", "--shard-size", "--lr", *CONDITIONS)
    },
    "--method": "--methods",
    "--optimizer": "--optimizers",
    "--wsam": f"--optimizers NAME{' or NAME'.join(WSAM)}",
    "--seed": "--seeds",
    "--log": "--out",
    "--summary": "--out",
}


class BadUsage(Exception):
    """A wrong argument. The message is one line that names argument and value."""


def split_flags(text, argument):
    """Returns the words of entrain-train's command line as {flag: [flag and its values]}."""
    found, name = {}, None
    for word in shlex.split(text) if isinstance(text, str) else text:
        if word.startswith("--"):
            name = word.split("=")[0].replace("_", "-")
            if name in OURS:
                raise BadUsage(f"{argument}: {name} is set by {OURS[name]}")
            found[name] = [name + word[len(name) :]]
        elif name is None:
            raise BadUsage(f"{argument}: '{word}' is not a flag of entrain-train")
        else:
            found[name].append(word)
    return found


def known(build):
    """Returns the methods and optimizers of entrain-train, read from its --help."""
    said = subprocess.run(
        [build / TRAINER, "--help"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    found = [re.search(rf"--{name} TEXT:{{([^}}]*)}}", said) for name in ("method", "optimizer")]
    if None in found:
        raise BadUsage(f"--build: {build / TRAINER} --help names no methods or no optimizers")
    methods, optimizers = (match[1].split(",") for match in found)
    return methods, optimizers + [name + ending for ending in WSAM for name in optimizers]


def base_of(optimizer):
    """Returns the optimizer itself, and the value of --wsam, if any."""
    base, plus, ending = optimizer.partition("+")
    return base, WSAM.get(plus + ending)


def names(argument, text, allowed):
    found = text.split(",")
    for at, name in enumerate(found):
        if name not in allowed:
            raise BadUsage(f"{argument}: '{name}' is not one of {', '.join(allowed)}")
        if name in found[:at]:
            raise BadUsage(f"{argument}: '{name}' is there twice")
    return found


def whole(argument, text):
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise BadUsage(f"{argument}: '{text}' is not a whole number from 1 to 999999")
    return int(text)


def named_flags(argument, given, listed):
    """Converts ["NAME,NAME=FLAGS", ...] to {name: {flag: words}}."""
    found = {}
    for text in given:
        left, equals, flags = text.partition("=")
        if not equals:
            raise BadUsage(f"{argument}: '{text}' is not NAMES=FLAGS")
        for name in left.split(","):
            if name not in listed:
                raise BadUsage(f"{argument}: '{name}' is not in the list {','.join(listed)}")
            found.setdefault(name, {}).update(split_flags(flags, argument))
    return found


def variants(given, methods):
    """Converts ["NAME=METHOD FLAGS", ...] to {name: (method, {flag: words})}."""
    found = {}
    for text in given:
        name, equals, rest = text.partition("=")
        method, *flags = shlex.split(rest) or [""]
        if not equals or not re.fullmatch(r"[\w.-]+", name):
            raise BadUsage(f"--variant: '{text}' is not NAME=METHOD FLAGS")
        if name in methods or name in found:
            raise BadUsage(f"--variant: '{name}' is the name of a method already")
        if method not in methods:
            raise BadUsage(f"--variant: '{method}' of '{name}' is not one of {', '.join(methods)}")
        found[name] = method, split_flags(flags, "--variant")
    return found


def rates_of(text, methods, optimizers):
    """Converts "0.01", "NAME=1e-3:2e-3,..." to {name: [rate, ...]}. The name "" stands for all
    other names."""
    found = {}
    for part in text.split(",") if text else []:
        name, _, values = part.rpartition("=")
        plain = [*methods, *optimizers, *(base_of(name)[0] for name in optimizers)]
        both = [f"{method}/{optimizer}" for method in methods for optimizer in optimizers]
        if name and name not in plain + both:
            listed = f"{','.join(methods)} and {','.join(optimizers)}"
            raise BadUsage(
                f"--lr: '{name}' is not in the lists {listed}, nor METHOD/OPTIMIZER of them"
            )
        for value in values.split(":"):
            try:
                good = 0 < float(value) < float("inf")
            except ValueError:
                good = False
            if not good:
                raise BadUsage(f"--lr: '{value}' in '{part}' is not a positive number")
        found[name] = values.split(":")
    return found


def given(args, flag):
    value = getattr(args, flag[2:].replace("-", "_"))
    return [] if value is None else [flag, value]


class Plan:
    """The checked arguments: the runs, and the inputs other than flags on which results
    depend."""

    def __init__(self, args, flags):
        self.args = args
        allowed_methods, allowed_optimizers = known(args.build)
        self.variants = variants(args.variant, allowed_methods)
        allowed_methods = [*allowed_methods, *self.variants]
        methods = names("--methods", args.methods or ",".join(allowed_methods), allowed_methods)
        optimizers = names("--optimizers", args.optimizers, allowed_optimizers)
        self.ranks = [whole("--ranks", text) for text in args.ranks.split(",")]
        shard = whole("--shard-size", args.shard_size)
        for ranks in self.ranks:
            if ranks % shard:
                raise BadUsage(f"--shard-size: {shard} does not divide the {ranks} of --ranks")
        if len(set(self.ranks)) < len(self.ranks):
            raise BadUsage(f"--ranks: a number is there twice in '{args.ranks}'")
        self.seeds = whole("--seeds", args.seeds)
        self.tune = whole("--tune-seeds", args.tune_seeds) if args.tune_seeds else None
        if self.tune is not None and self.tune > self.seeds:
            raise BadUsage(f"--tune-seeds: {self.tune} is more than the {self.seeds} of --seeds")
        self.common = split_flags(flags, "flags behind --")
        if self.common.get("--task", [])[-1:] in ([], ["text"], ["--task=text"]):
            self.common = split_flags(MODEL, "") | self.common
        self.amount = self.checked_amount(shard)
        self.of_method = named_flags("--method-flags", args.method_flags, methods)
        self.of_optimizer = named_flags("--optimizer-flags", args.optimizer_flags, optimizers)
        rates = rates_of(args.lr, methods, optimizers)
        self.contenders = [
            (method, optimizer, rate)
            for method in methods
            for optimizer in optimizers
            for rate in self.rates(rates, method, optimizer)
        ]

    def checked_amount(self, shard):
        args, words = self.args, ["--shard-size", str(shard)] if shard > 1 else []
        flag, text = ("--steps", args.steps) if args.steps else ("--tokens", args.tokens)
        if not re.fullmatch(r"[1-9]\d*" + ("[KMG]?" if flag == "--tokens" else ""), text):
            raise BadUsage(f"{flag}: '{text}' is not a positive number")
        return words + [flag, text] + [word for flag in CONDITIONS for word in given(args, flag)]

    @staticmethod
    def rates(rates, method, optimizer):
        base = base_of(optimizer)[0]
        for name in (f"{method}/{optimizer}", method, optimizer, base, ""):
            if name in rates:
                return rates[name]
        return [""]

    def flags(self, method, optimizer, rate, seed):
        base, wsam = base_of(optimizer)
        of, own = self.variants.get(method, (method, {}))
        chosen = self.common | self.of_optimizer.get(optimizer, {})
        chosen |= split_flags(METHOD_FLAGS.get(of, ""), "") | own | self.of_method.get(method, {})
        words = ["--method", of, "--optimizer", base]
        words += ["--wsam", wsam] if wsam else []
        words += ["--lr", rate] if rate else []
        words += ["--seed", str(seed), *self.amount]
        return words + [word for own in chosen.values() for word in own]

    def runs(self):
        """Returns the runs: one seed of every entry, then the next seed of every entry. So other
        load on the machine affects all entries alike."""
        return [
            tables.Run(
                f"n{ranks}-{method}-{optimizer}{f'-lr{rate}' if rate else ''}-seed{seed}",
                ranks,
                method,
                optimizer,
                rate,
                seed,
                self.flags(method, optimizer, rate, seed),
            )
            for ranks in self.ranks
            for seed in range(1, self.seeds + 1)
            for method, optimizer, rate in self.contenders
        ]

    def environment(self):
        """Returns the settings of the library that the ranks will see."""
        found = {key: value for key, value in os.environ.items() if key.startswith("ENTRAIN_")}
        return found | ({"ENTRAIN_FAULT": self.args.fault} if self.args.fault else {})
