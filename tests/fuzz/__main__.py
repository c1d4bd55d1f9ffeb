"""The fuzz campaign: `PYTHONPATH=tests python -m fuzz [--mutants N] [--kind NAME] [--seed N] [--out FILE]`.

Each kind of file gets its share of the mutants; what is not as documented is printed, and ends it with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.campaign.processes import ENVIRONMENT, adopt, preload
from faults.campaign.subjects import Loradock
from fuzz.judge import Trial, Verdict
from fuzz.kinds import KINDS
from fuzz.kinds.base import Kind
from proven import VERDICT

MUTANTS = 5000


def main() -> int:
    """Run it; 1 where a mutant found a flaw."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS])
    parser.add_argument("--seed", type=int, help="only the mutant of this seed, and what it said")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, help="append a line of JSON per mutant")
    asked = parser.parse_args()
    preload(Loradock.package, libraries=Loradock.libraries)
    adopt()
    kinds = [kind for kind in KINDS if not asked.kind or kind.name in asked.kind]
    proof = Path(tempfile.mkdtemp(prefix="loradock-fuzz-"), "proof")
    os.environ.setdefault(VERDICT, str(proof))  # the machine is proven once, not for each kind that trains
    try:
        return campaign(kinds, asked)
    finally:
        shutil.rmtree(proof.parent)


def campaign(kinds: Sequence[Kind], asked: argparse.Namespace) -> int:
    """Every kind's mutants, what they found, and the table; 1 where that is a flaw."""
    found: list[Verdict] = []
    for kind, seeds in shared(kinds, mutants=asked.mutants, first=asked.first):
        for verdict in judged(kind, seeds if asked.seed is None else [asked.seed]):
            found.append(verdict)
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(verdict.line()) + "\n")
            if verdict.flaws or asked.seed is not None:
                what = f"{verdict.code} {'; '.join(verdict.flaws)}"
                sys.stdout.write(f"{kind.name} --seed {verdict.seed}: {what}\n{verdict.words}\n\n")
    sys.stdout.write(table(found) + "\n")
    return int(any(verdict.flaws for verdict in found))


def shared(kinds: Sequence[Kind], *, mutants: int, first: int = 0) -> Iterator[tuple[Kind, range]]:
    """Each kind with the seeds of its share, at least one."""
    whole = sum(kind.share for kind in kinds)
    for kind in kinds:
        yield kind, range(first, first + max(1, round(mutants * kind.share / whole)))


def judged(kind: Kind, seeds: Sequence[int]) -> Iterator[Verdict]:
    """The verdicts of a kind's mutants, one after another."""
    folder = Path(
        tempfile.mkdtemp(prefix="loradock-fuzz-")
    )  # a TemporaryDirectory would be removed by each child's end
    try:
        trial = Trial(kind, folder / "trial")
        for seed in seeds:
            yield trial.judge(seed)
    finally:
        shutil.rmtree(folder)


def table(found: Sequence[Verdict]) -> str:
    """Markdown: kinds, mutants, codes, slowest, largest."""
    lines = [
        "| kind | mutants | exit codes | slowest, CPU s | largest, MiB | flaws |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(verdict.kind for verdict in found):
        of_kind = [verdict for verdict in found if verdict.kind == name]
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(Counter(v.code for v in of_kind).items()))
        slowest, largest = max(v.cpu_seconds for v in of_kind), max(v.bytes for v in of_kind) >> 20
        flaws = sum(bool(v.flaws) for v in of_kind)
        lines.append(f"| {name} | {len(of_kind)} | {codes} | {slowest:.1f} | {largest} | {flaws} |")
    lines.append(f"| all | {len(found)} | | | | {sum(bool(v.flaws) for v in found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():  # libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, "-m", "fuzz", *sys.argv[1:]], os.environ | ENVIRONMENT)
    raise SystemExit(main())
