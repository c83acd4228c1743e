#!/usr/bin/env python3
"""Compares methods of entrain-train with optimizers at equal tokens, each with several seeds.

examples/compare.sh [OPTIONS] [-- FLAGS]     FLAGS go to every run of entrain-train

Without FLAGS the model and the batches are so small that a run takes seconds; with --task digits
among them they say all. Names of methods are
those of entrain-train; an optimizer's is, too, or one with "+wsam" behind it: with sharpness-aware
steps around it (--wsam decoupled). Flags given more closely win: --method-flags over
--optimizer-flags over FLAGS.

Makes OUT/report.html, a page that needs no other file; OUT/report.csv, a row a run; OUT/curves.csv.
A run that is in OUT/runs already, of the same flags, text and programs, is not made again. One that
fails is reported, the others go on, and the exit code is 1; it is 75 when --seconds left some out.
Times mean something on a quiet machine only."""

import argparse
import csv
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compare_tables as tables  # noqa: E402  (the path comes first)
from runs import (  # noqa: E402
    LAUNCHER,
    LEFT_OUT,
    MODEL,
    TRAINER,
    RunFailed,
    Runs,
    add_arguments,
    check_paths,
    machine,
)

WSAM = "+wsam"
# What a method cannot do without here: by default a-edit meets every ten minutes.
METHOD_FLAGS = {"a-edit": "--local-sgd-sync-time 0.2 --min-total-global-steps 1"}
CONDITIONS = ("--step-ms", "--straggler", "--straggler-ms", "--straggler-replica")
OURS = {  # flags of entrain-train that this program sets, and by what
    **{
        flag: flag
        for flag in ("--data", "--tokens", "--steps", "--shard-size", "--lr", *CONDITIONS)
    },
    "--method": "--methods",
    "--optimizer": "--optimizers",
    "--wsam": f"--optimizers NAME{WSAM}",
    "--seed": "--seeds",
    "--log": "--out",
    "--summary": "--out",
}


class BadUsage(Exception):
    """One line that names argument and value."""


def split_flags(text, argument):
    """Words of entrain-train's command line as {flag: [flag and its values]}."""
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
    """Methods and optimizers of the program, from its own help."""
    said = subprocess.run(
        [build / TRAINER, "--help"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    found = [re.search(rf"--{name} TEXT:{{([^}}]*)}}", said) for name in ("method", "optimizer")]
    if None in found:
        raise BadUsage(f"--build: {build / TRAINER} --help names no methods or no optimizers")
    methods, optimizers = (match[1].split(",") for match in found)
    return methods, optimizers + [name + WSAM for name in optimizers]


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
    """["NAME,NAME=FLAGS", ...] as {name: {flag: words}}."""
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


def rates_of(text, methods, optimizers):
    """ "0.01", "NAME=1e-3:2e-3,..." as {name: [rate, ...]}; the name "" is everything else's."""
    found = {}
    for part in text.split(",") if text else []:
        name, _, values = part.rpartition("=")
        plain = [
            *methods,
            *optimizers,
            *(name[: -len(WSAM)] for name in optimizers if WSAM in name),
        ]
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


class Plan:
    """What is asked for, checked: the runs, and what their results depend on besides flags."""

    def __init__(self, args, flags):
        self.args = args
        allowed_methods, allowed_optimizers = known(args.build)
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
        base = optimizer.removesuffix(WSAM)
        for name in (f"{method}/{optimizer}", method, optimizer, base, ""):
            if name in rates:
                return rates[name]
        return [""]

    def flags(self, method, optimizer, rate, seed):
        base, wsam = optimizer.removesuffix(WSAM), optimizer.endswith(WSAM)
        chosen = self.common | self.of_optimizer.get(optimizer, {})
        chosen |= split_flags(METHOD_FLAGS.get(method, ""), "") | self.of_method.get(method, {})
        words = ["--method", method, "--optimizer", base]
        words += ["--wsam", "decoupled"] if wsam else []
        words += ["--lr", rate] if rate else []
        words += ["--seed", str(seed), *self.amount]
        return words + [word for own in chosen.values() for word in own]

    def runs(self):
        """A seed of all before the next one: whatever a machine does meanwhile, it does to all."""
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
        """Settings of the library that the ranks will see."""
        found = {key: value for key, value in os.environ.items() if key.startswith("ENTRAIN_")}
        return found | ({"ENTRAIN_FAULT": self.args.fault} if self.args.fault else {})


def program(build):
    """The version, and what tells one build from another."""
    hashed = hashlib.sha256()
    for file in [build / LAUNCHER, build / TRAINER, build / "lib/api/libentrain.so"]:
        hashed.update(file.read_bytes())
    stated = re.search(r"^Version: (\S+)", (build / "lib/api/entrain.pc").read_text(), re.M)
    return f"Entrain {stated[1]}, programs {hashed.hexdigest()[:12]}"


def reason_of(failed):
    last = [line for line in failed.output.splitlines() if line.strip()][-8:]
    return "\n".join([f"{failed.how}:", *last, shlex.join(map(str, failed.words))])


def make_all(plan, wanted, programs):
    """Fills in summaries and reasons. How many runs were left for another call."""
    args = plan.args
    folder = args.out / "runs"
    folder.mkdir(exist_ok=True)
    runs = Runs(argparse.Namespace(**{**vars(args), "out": folder}), len(wanted))
    environment = plan.environment()
    text = hashlib.sha256(args.data.read_bytes()).hexdigest()[:12]
    besides = [f"{key}={value}" for key, value in sorted(environment.items())]
    besides += [f"text={text}", f"programs={programs}"]
    bar, longest = None, {}
    if sys.stderr.isatty() and not args.tables:
        from tqdm import tqdm  # Debian's python3-tqdm; a log needs none

        missing = [
            r for r in wanted if not runs.has(r.name, r.flags, [f"ranks={r.ranks}", *besides])
        ]
        bar = tqdm(total=len(missing), unit="run", dynamic_ncols=True)
        runs.say = lambda line: None
    for run in wanted:
        of_run = [f"ranks={run.ranks}", *besides]
        there = runs.has(run.name, run.flags, of_run)
        if bar is not None and not there:
            bar.set_description(run.name)
        try:
            expected_s = longest.get(run.ranks, 10.0)
            run.summary = runs.get(run.name, run.flags, expected_s, run.ranks, environment, of_run)
            if run.summary and not there:
                longest[run.ranks] = max(longest.get(run.ranks, 0), run.summary["wall_s"] + 2)
        except RunFailed as failed:
            run.reason = reason_of(failed)
            (bar.write if bar is not None else print)(f"FAILED {run.name}: {run.reason}")
        if bar is not None and not there and (run.summary or run.reason):
            bar.update()
        if run.summary:
            run.points = tables.curve(runs.records(run.name))
    if bar is not None:
        bar.close()
    return runs.left_out


def targets(args, wanted):
    """The loss that time is measured to, by rank count."""
    found = {}
    for ranks in dict.fromkeys(run.ranks for run in wanted):
        best = tables.entries([run for run in wanted if run.ranks == ranks])
        usual = tables.usual_target([run for entry in best for run in entry.runs])
        found[ranks] = usual if args.target_loss is None else args.target_loss
    return found


def write_csv(args, wanted, target):
    rows = []
    for run in wanted:
        row = {"run": run.name, "status": run.status(), "method": run.method, "ranks": run.ranks}
        row |= {"optimizer": run.optimizer, "lr": run.rate, "seed": run.seed}
        row |= {"flags": shlex.join(run.flags), "reason": run.reason}
        for key, value in (run.summary or {}).items():
            row[key] = json.dumps(value) if isinstance(value, list) else value
        if run.summary:
            row |= {"target_loss": target[run.ranks], **tables.costs(run, target[run.ranks])}
        rows.append(row)
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with open(args.out / "report.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=fields)
        writer.writeheader()
        writer.writerows(rows)
    with open(args.out / "curves.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "tokens", "seconds", "loss"])
        for run in wanted:
            for point in run.points:
                cells = (f"{point.tokens:.1f}", f"{point.seconds:.4f}", f"{point.loss:.6f}")
                writer.writerow([run.name, *cells])


def about(plan, wanted, programs):
    """What the report says of itself: [(what, text)]."""
    args = plan.args
    environment = [f"{key}={value}" for key, value in sorted(plan.environment().items())]
    sleeps = [word for flag in CONDITIONS for word in given(args, flag)]
    common = [word for words in plan.common.values() for word in words]
    read = next((run.summary["tokens"] for run in wanted if run.summary), None)
    shape = next((run.summary["params"] for run in wanted if run.summary), None)
    rows = [
        ("date", datetime.date.today().isoformat()),
        ("machine", machine()),
        ("programs", programs),
        ("command", command(sys.argv[1:])),
        ("data", str(args.data)),
        ("every run", shlex.join([*plan.amount, *common])),
        ("conditions", shlex.join(sleeps + environment) or "none emulated"),
    ]
    if read:
        rows.insert(5, ("model", f"{shape:,} parameters; {read:,} tokens a run"))
    for what, flags in (("method", plan.of_method), ("optimizer", plan.of_optimizer)):
        for name, own in flags.items():
            rows.append(
                (f"{what} {name}", shlex.join(word for words in own.values() for word in words))
            )
    return rows


def command(words):
    """As it was called, but for what says how much of it to do at once."""
    kept = list(words)
    if "--tables" in kept:
        kept.remove("--tables")
    if "--seconds" in kept:
        at = kept.index("--seconds")
        del kept[at : at + 2]
    return shlex.join(["examples/compare.sh", *kept])


def given(args, flag):
    value = getattr(args, flag[2:].replace("-", "_"))
    return [] if value is None else [flag, value]


def parse(words):
    parser = argparse.ArgumentParser(
        prog="compare.py",
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--methods", metavar="A,B", help="default: all that entrain-train has")
    add("--optimizers", metavar="A,B", default="adamw", help="(%(default)s)")
    add("--seeds", metavar="N", default="3", help="1 to N (%(default)s)")
    add("--ranks", metavar="N,N", default="4", help="a section each (%(default)s)")
    add("--shard-size", metavar="N", default="1", help="ranks that share a replica (%(default)s)")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--tokens", metavar="N", default="768K", help="of each run, over all ranks (%(default)s)"
    )
    amount.add_argument("--steps", metavar="N", help="instead")
    add(
        "--lr",
        metavar="R | NAME=R,...",
        help="learning rates: of METHOD/OPTIMIZER, METHOD or OPTIMIZER, the first that is given; "
        "R:R:R: of several the best. Default: entrain-train's",
    )
    for kind in ("method", "optimizer"):
        add(
            f"--{kind}-flags",
            metavar="A,B=FLAGS",
            action="append",
            default=[],
            help=f"further flags of these {kind}s; may be repeated",
        )
    add(
        "--target-loss",
        metavar="X",
        type=float,
        help="the training loss that time is measured to;"
        " default: the highest at which a run ends",
    )
    for flag in CONDITIONS:
        add(flag, metavar="X", help="a condition of all runs: see entrain-train --help")
    add("--fault", metavar="SPEC", help="a condition: ENTRAIN_FAULT of the ranks")
    add_arguments(parser, "comparison")
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    check_paths(parser, args)
    return args, words[split + 1 :]


def main():
    args, flags = parse(sys.argv[1:])
    try:
        plan = Plan(args, flags)
    except BadUsage as error:
        print(f"compare.py: {error}", file=sys.stderr)
        sys.exit(2)
    programs = program(args.build)
    wanted = plan.runs()
    left_out = make_all(plan, wanted, programs)
    target = targets(args, wanted)
    write_csv(args, wanted, target)
    import compare_report as report  # late: the plotting library takes a second, and errors none

    page = report.page(wanted, about(plan, wanted, programs), target, args.target_loss is not None)
    (args.out / "report.html").write_text(page, encoding="utf-8")
    failed = sum(bool(run.reason) for run in wanted)
    print(f"report: {args.out / 'report.html'}")
    if failed:
        print(f"{failed} of {len(wanted)} runs failed")
    if left_out:
        print(f"{left_out} of {len(wanted)} runs are still to be made")
    sys.exit(1 if failed else LEFT_OUT if left_out and not args.tables else 0)


if __name__ == "__main__":
    main()
