"""docs/reliability.md: each promise with what its last full run found, from the JSON lines that the trials left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from faults.campaign import records
from faults.campaign.records import Line

PAGE = records.ROOT / "docs" / "reliability.md"
CAMPAIGNS = ("P1", "P2", "P6", "P19")
PROMISES = {
    "P1": (
        "kill -9 at any time loses at most one save interval and the steps beside a commit; the same bits follow",
        200,
    ),
    "P2": ("no visible checkpoint is ever partial: killed at every system call of a save", 1),
    "P3": ("bit rot is never loaded", 200),
    "P4": ("a corrupt newest checkpoint: the next good one; none good: 83, never a silent fresh start", 1),
    "P5": ("a full disk leaves the previous checkpoint usable, ends with 73 and leaves no debris", 20),
    "P6": (
        "SIGTERM, SIGINT: within step + commit that runs + save + 2 s committed and 75, or 76 where no step was new",
        50,
    ),
    "P7": ("exit 0 only at the planned end, with the adapter verified: judged in every trial of P1, P2, P6 and P19", 1),
    "P8": ("nothing non-finite is ever committed; 79", 20),
    "P9": ("a foreign or changed run is never resumed silently; 83 names each field", 1),
    "P10": ("a second writer is refused; 84", 20),
    "P11": ("clock skew is harmless", 10),
    "P12": ("a hang ends with 82 within its limit", 10),
    "P13": ("bad data: 65 with file and line, before the GPU is used", 40),
    "P14": ("no secret in image, log or checkpoint", 1),
    "P15": ("any uid, read-only root, no capabilities", 3),
    "P16": ("rendered YAML cannot be injected", 10_000),
    "P17": ("durable after power loss: flushed before it is renamed, then the folders", 1),
    "P18": ("out of memory keeps the effective batch; 80 with the sizes where nothing helps", 10),
    "P19": ("a system call that fails ends the run with its code or not at all; the same command: the same bits", 100),
}
HEAD = """\
# Reliability: what is promised, and what the last full run found

<!-- Made from bench/results/reliability/: PYTHONPATH=tests .venv/bin/python -m faults.campaign --table -->

Each line of `bench/results/reliability/trials.jsonl.xz` (`xzcat` shows them) is one trial, with its commit, its seed
and what was done. A campaign continues where it stopped: give its command again. The *control* is the same harness on
transformers' own Trainer with a peft LoRA and `resume_from_checkpoint`, which has to fail. The *engine* is named where
a promise rests on code of each; a run from before there were two names none, and was TRL's trainer. A commit with
`-dirty` had changes in `src/`. {commits}

| | promise | trials | engine | result | control | commit | command |
|---|---|---|---|---|---|---|---|
"""


OBJECTIVES = """
## Other objectives

The same campaigns, at a tenth of the trials or fewer, where preferences or a reward model are learned: `--engine "fast
dpo"` and its like. Runs of `dpo` and `kto` spend a part of each step of their first epoch in the reference's pass, and
continue into a second one, in which its values are known; kills at random times fall into both, and
`tests/training/objectives/test_preference_runs.py` kills in both each time.

| | engine and loss | trials | result | commit |
|---|---|---|---|---|
"""


def text(*, place: Path = records.PLACE) -> str:
    """The whole page."""
    whole = HEAD.format(commits=counted_at(place)) + "".join(row(promise, place=place) for promise in PROMISES)
    others = [row_of_objective(promise, engine, place=place) for promise, engine in objectives(place)]
    return whole + (OBJECTIVES + "".join(others) if others else "")


def objectives(place: Path) -> list[tuple[str, str]]:
    """Promise and engine of what was tried with another objective than supervised training, which the engine names."""
    lines = (line for promise in CAMPAIGNS for line in records.lines(promise, place=place))
    found = {(line["promise"], line["engine"]) for line in lines if learns_otherwise(line)}
    return sorted(found, key=lambda each: (each[1], CAMPAIGNS.index(each[0])))


def learns_otherwise(line: Line) -> bool:
    """Whether the line is a trial of another objective."""
    return " " in line.get("engine", "")


def row_of_objective(promise: str, engine: str, *, place: Path) -> str:
    """What the last run found."""
    lines = [line for line in records.lines(promise, place=place) if line.get("engine") == engine]
    found = records.of_last_run(lines, target=1)
    result = "; ".join([results(found), *extras(promise, found)])
    return f"| {promise} | {engine} | {records.counted(found)} | {result} | {found[0]['commit']} |\n"


def counted_at(place: Path) -> str:
    """Which code the counts are of: one commit for most promises, the others with theirs."""
    commits = {
        promise: ", ".join(sorted({line["commit"] for line in found}))
        for promise in PROMISES
        if (found := last_run(promise, "loradock", place=place))
    }
    if not commits:
        return "Nothing was counted yet."
    most, _ = Counter(commits.values()).most_common(1)[0]
    others = [f"{promise}: {commit}" for promise, commit in commits.items() if commit != most]
    besides = f" ({', '.join(others)})" if others else ""
    return f"The counts are of commit {most}{besides}, and not of later code."


def row(promise: str, *, place: Path) -> str:
    """One promise's row; one without a trial says so."""
    what, target = PROMISES[promise]
    if promise == "P7":
        found = [line for each in CAMPAIGNS for line in last_run(each, "loradock", place=place)]
        runs = [line for line in found if "flaws" in line["figures"]]  # not the commits that were killed alone
        found = [{**line, "result": "false success" if is_false(line) else "ok"} for line in runs]
        control = ""
    else:
        found = last_run(promise, "loradock", place=place, target=target)
        control = results(last_run(promise, "stock", place=place))
    count = records.counted(found)
    total = max((line.get("of", target) for line in found), default=target)
    trials = str(count) if count >= total else f"{count} of {total}"
    commit = ", ".join(sorted({line["commit"] for line in found}))
    result = results(found) + "".join(f"; {extra}" for extra in extras(promise, found)) if found else "not yet run"
    cells = [promise, what, trials if found else "", engines(found), result, control, commit, command(promise, found)]
    return "| " + " | ".join(cells) + " |\n"


def last_run(promise: str, subject: str, *, place: Path, target: int = 1) -> list[Line]:
    """The lines of the newest commit with a whole run of this promise and subject, else of the newest."""
    lines = records.lines(promise, place=place)
    found = [line for line in lines if line["subject"] == subject and not learns_otherwise(line)]
    return records.of_last_run(found, target=max((line.get("of", target) for line in found), default=target))


def results(found: Sequence[Line]) -> str:
    """How often each result came: `198 ok, 2 differs`."""
    tally: Counter[str] = Counter()
    for line in found:
        tally[line["result"]] += line.get("count", 1)
    return ", ".join(f"{number} {result}" for result, number in sorted(tally.items(), key=lambda pair: -pair[1]))


def engines(found: Sequence[Line]) -> str:
    """How many trials each engine had, where they name one: `fast 200, trl 20`."""
    tally: Counter[str] = Counter()
    for line in found:
        if "engine" in line:
            tally[line["engine"]] += line.get("count", 1)
    return ", ".join(f"{engine} {number}" for engine, number in sorted(tally.items()))


def extras(promise: str, found: Sequence[Line]) -> list[str]:
    """What is worth knowing besides: how many kills, how many cold starts, how late the latest."""
    if promise == "P1":
        killed = sum(len(line["done"]["kills"]) for line in found)
        return [f"{killed} kills, {sum(line['start'] == 'cold' for line in found)} started cold"]
    if promise == "P19":
        codes = Counter(line["done"]["exit_code"] for line in found if "done" in line)
        return ["ended with " + ", ".join(f"{code}: {number}" for code, number in sorted(codes.items()))]
    if promise == "P6":
        return [f"the slowest ended after {max(line['done']['took_seconds'] for line in found):.2f} s"]
    return []


def is_false(line: Line) -> bool:
    """Whether a run ended with 0 that had not reached its end."""
    return any(flaw.startswith("false success") for flaw in line["figures"]["flaws"])


def command(promise: str, found: Sequence[Line]) -> str:
    """What makes the trials."""
    if promise in CAMPAIGNS:
        alone = f"`PYTHONPATH=tests .venv/bin/python -m faults.campaign {promise}`"
        return f"`scripts/test --full tests/faults`; {alone} alone"
    files = sorted({str(line["trial"]).split("::")[0] for line in found}) if promise != "P7" else []
    return f"`scripts/test --full {' '.join(files)}`" if files else ""
