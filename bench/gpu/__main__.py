"""The first hour on a GPU, one command: `scripts/gpu`, which runs `python -m bench.gpu`. See docs/gpu.md.

    scripts/gpu --out DIR --wheels WHEELS            nine minutes; the same command goes on where it was cut
    scripts/gpu --out DIR --only nvml,env-check      only these steps
    scripts/gpu --list                               the steps, their limits and the questions that they answer

Each step runs in a process of its own and is killed at its limit; what it found is in DIR/results.json, results.md and
log.txt after each. A step that has its answer is not run again on the same GPU, packages and code. Ends with 0 when
every step has a result or a reason, with 3 while steps are left: give the same command again.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu import stack as stacks
from bench.gpu.results import Results
from bench.gpu.runner import END_SECONDS, Runner, sweep
from bench.gpu.steps import STEPS
from bench.gpu.steps.base import Step
from loradock.process import signals

USAGE, LEFT, UNFIT, STOPPED = 2, 3, 71, 130
NOTE = "training commands have --skip-env-check: the step env-check is the proof, once, and its findings are a result"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="scripts/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--minutes", type=float, default=9.0, help="this call ends within them (9)")
    add("--out", type=Path, default=Path("gpu-results"), metavar="DIR", help="results; the same for each call")
    add(
        "--work",
        type=Path,
        default=Path("/tmp/loradock-gpu"),
        metavar="DIR",
        help="models and runs: 20 GB, may be lost",
    )
    add("--only", type=names, default=STEPS, metavar="STEP,...", help="only these steps")
    add("--again", type=names, default=(), metavar="STEP,...", help="forget what these steps found, and run them again")
    add("--tiny", action="store_true", help="a rehearsal: tiny models, few steps")
    add("--list", action="store_true", help="print the steps, run nothing")
    add("--wheels", metavar="DIR", help="packages that the host lacks (scripts/gpu-wheels DIR); into DIR/site-packages")
    add(
        "--unsloth-wheels",
        metavar="DIR",
        help="those of unsloth (scripts/gpu-wheels DIR unsloth); into DIR/site-packages",
    )
    add("--python", metavar="PATH", help="in place of .venv's, else the host's python3")
    return made


def names(text: str) -> tuple[Step, ...]:
    """Steps by name, in their own order."""
    asked = {name.strip() for name in text.split(",")}
    unknown = asked - {step.name for step in STEPS}
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown step: {', '.join(sorted(unknown))}")
    return tuple(step for step in STEPS if step.name in asked)


def refuse(what: str, hint: str, *, code: int) -> int:
    """Say why nothing is run."""
    print(f"error: {what}\nhint: {hint}", file=sys.stderr)
    return code


def notes_of(stack: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """What is out of the ordinary about this stack, for whoever reads the results."""
    notes = [NOTE, f"loradock from src by PYTHONPATH, for {sys.executable}"]
    if stack["unpinned"]:
        others = ", ".join(f"{name} {versions}" for name, versions in stack["unpinned"].items())
        notes.append(f"not the locked packages, the host's own: {others}")
    given = {"--wheels": options.wheels, "--unsloth-wheels": options.unsloth_wheels}
    notes += [f"{option}: {', '.join(wheels_in(folder))}" for option, folder in given.items() if folder]
    if options.tiny:
        notes.append("--tiny: a rehearsal, no figure counts")
    return notes


def wheels_in(folder: str) -> list[str]:
    """Names and versions of the wheels."""
    return sorted("-".join(file.name.split("-")[:2]) for file in Path(folder).glob("*.whl"))


def listing() -> None:
    """Print the steps; a reader that has enough, as `head`, ends it without a word."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for step in STEPS:
        questions = ", ".join(map(str, step.questions))
        print(f"{step.name:<22}{step.seconds:>4} s  {questions:<18}  {step.about}")


def main() -> int:
    """Run what is left to run; 3 where steps are left over."""
    began = time.monotonic()
    options = parser().parse_args()
    if options.list:
        listing()
        return 0
    seconds = 60 * options.minutes
    longest = max(options.only, key=lambda step: step.least(is_tiny=options.tiny))
    needed = longest.least(is_tiny=options.tiny) + 2 * END_SECONDS
    if needed > seconds:
        what = f"--minutes {options.minutes:g} is too short for the step {longest.name}"
        return refuse(what, f"--minutes {math.ceil(needed / 6) / 10}, or --only with shorter steps", code=USAGE)
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return refuse(f"another scripts/gpu works in {out}", "wait for it, or --out ANOTHER", code=UNFIT)
    sweep(out)
    stack = stacks.ask()
    if stack["missing"]:
        hint = "scripts/gpu-wheels DIR where there is a network, then scripts/gpu --wheels DIR"
        return refuse(f"{sys.executable} lacks {', '.join(stack['missing'])}", hint, code=UNFIT)
    if not stack["gpu"]:
        return refuse("torch sees no GPU", "nvidia-smi; python3 -c 'import torch; torch.cuda.init()'", code=UNFIT)
    identity = stacks.identity(stack, is_tiny=options.tiny)
    results = Results.load(out, identity=identity, stack=stack, notes=notes_of(stack, options))
    for step in options.again:
        results.forget(step.name)
    results.write()
    runner = Runner(
        steps=options.only,
        results=results,
        out=out,
        work=options.work.resolve(),
        is_tiny=options.tiny,
        deadline=began + seconds,
        unsloth_packages=str(Path(options.unsloth_wheels, "site-packages").resolve()) if options.unsloth_wheels else "",
    )
    signals.install()
    try:
        runner.run()
    except KeyboardInterrupt:
        print(f"stopped by {signals.requested()}; the same command goes on", file=sys.stderr)
        return STOPPED
    left = [step.name for step in runner.left()]
    print(f"results: {out / 'results.md'}", file=sys.stderr)
    if left:
        print(f"{len(left)} step(s) are left: {', '.join(left)}; the same command goes on", file=sys.stderr)
    return LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
