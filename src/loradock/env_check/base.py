"""The types of a check: what it looks at, and what it finds.

A check is one module with a `look(host, facts, plan) -> [Finding, ...]` and a `CHECK` that names it. It asks the
machine through `host` alone, says what it found, and changes nothing; what is wrong is returned, never raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loradock.errors import EnvironmentUnfit, LoradockError
from loradock.facts import Facts, ModelFacts
from loradock.machine import Host
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from loradock.config.schema import RunConfig
    from loradock.plan.plan import Plan

Severity = Literal["ok", "warning", "error"]
# fmt: off
Subject = Literal[
    "files", "python", "code", "machine", "limits", "user", "libraries", "gpus", "variables",
    "device", "model", "weights", "optimizer", "engine", "trackers", "moment",
]
# fmt: on
"""What a verdict may depend on; `subjects.py` says what each is, and how it is now."""
ON_DISK: tuple[Subject, ...] = ("files", "python", "code", "user")
"""For a check that reads what is installed."""
LOADED: tuple[Subject, ...] = (*ON_DISK, "machine", "limits", "libraries", "gpus", "variables")
"""For one that loads it, or computes with it."""
Level = Literal["quick", "compute", "bench"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warning", "error")
LEVELS: tuple[Level, ...] = ("quick", "compute", "bench")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found: what, in one line, and the remedy in one line that can be typed.

    `exit_code` is what an error ends the process with. `measured` are figures by name, with the unit in the name; they
    may differ from run to run, `what` of an unchanged machine does not. A warning `is_lasting` that stays as long as
    what its check depends on: it may be kept, as what is ok.
    """

    severity: Severity
    what: str
    remedy: str = ""
    exit_code: int = 0
    measured: dict[str, float] = field(default_factory=dict[str, float])
    is_lasting: bool = False

    def __post_init__(self) -> None:
        is_ok = self.severity == "ok"
        if "\n" in self.what + self.remedy or not self.what or is_ok == bool(self.remedy):
            raise ValueError(f"a finding is one line, with a remedy unless it is ok: {self!r}")


def ok(what: str, **measured: float) -> Finding:
    """All is well; `what` says what was seen, and names nothing that is suspect elsewhere."""
    return Finding(severity="ok", what=what, measured=measured)


def warning(what: str, *, remedy: str, **measured: float) -> Finding:
    """A run works, but slower, or may end badly."""
    return Finding(severity="warning", what=what, remedy=remedy, measured=measured)


def lasting_warning(what: str, *, remedy: str) -> Finding:
    """A warning that nothing but a change of what the check depends on takes away."""
    return Finding(severity="warning", what=what, remedy=remedy, is_lasting=True)


def error(what: str, *, remedy: str, ends: type[LoradockError] = EnvironmentUnfit, **measured: float) -> Finding:
    """A run cannot work; `ends` is the error that it would end with, whose exit code this one takes."""
    return Finding(severity="error", what=what, remedy=remedy, exit_code=ends.exit_code, measured=measured)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What the run that follows means to do, as far as that is known before it begins: the `plan` of a check.

    `config` is None where none was named: then a check judges by what every run needs. `output`, `cache` and `scratch`
    are the folders of run directories, prepared data and temporary files; they need not exist yet. `attention` is the
    shape of the configured model's attention, or that of a common one; `has_experts`: it is a mixture. `plan`
    is None where none was made yet. `digests` is the folder that keeps those of unchanged files from run to run, None
    where every file is to be read. `base_facts` are those of the configured base, where they are known already.
    """

    output: Path
    cache: Path
    scratch: Path
    attention: AttentionShape = field(default_factory=AttentionShape)
    has_experts: bool = False
    config: RunConfig | None = None
    plan: Plan | None = None
    digests: Path | None = None
    base_facts: ModelFacts | None = None

    @property
    def folders(self) -> dict[str, Path]:
        """Every folder that a run writes to, by its role."""
        return {"output": self.output, "cache": self.cache, "scratch": self.scratch}

    @property
    def wants_gpu(self) -> bool:
        """True where the configuration asks for a GPU by name."""
        return self.config is not None and self.config.device == "cuda"

    @property
    def refuses_gpu(self) -> bool:
        """True where the configuration asks for the CPU by name."""
        return self.config is not None and self.config.device == "cpu"

    def uses_gpu(self, facts: Facts) -> bool:
        """True where the run would compute on a GPU."""
        return facts.has_gpu and not self.refuses_gpu


Look = Callable[[Host, Facts, Intent], Sequence[Finding]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its name (kebab-case, its file's), its group (its folder), what it proves in a sentence for the docs.

    `needs` leaves a check out where there is no GPU ("gpu") or no configuration ("config"). `limit_seconds` bounds
    it; one above the `quick` level also pays for the imports that it is the first to need. `is_beside` gives a long one
    that needs no such imports a process of its own beside the others, and one that `needs_no_torch` with what is known
    already is quick. `depends_on` names all that its verdict follows
    from: while that is as it was, `train` takes a good verdict of before. One about the moment is always computed.
    """

    name: str
    group: str
    proves: str
    look: Look
    level: Level = "quick"
    needs: Literal["nothing", "gpu", "config"] = "nothing"
    limit_seconds: float = 15.0
    is_beside: bool = False
    needs_no_torch: Callable[[Intent], bool] | None = None
    depends_on: tuple[Subject, ...] = ("moment",)

    @property
    def computes(self) -> bool:
        """True where it takes seconds of computing: a run makes it last, once its data and its plan are known."""
        return self.group == "compute" or self.is_beside

    def level_with(self, plan: Intent) -> Level:
        """The level at which it runs."""
        return "quick" if self.needs_no_torch and self.needs_no_torch(plan) else self.level

    def applies(self, facts: Facts, plan: Intent) -> bool:
        """False where there is nothing to look at."""
        return {
            "nothing": True,
            "gpu": plan.uses_gpu(facts),
            "config": plan.config is not None,
        }[self.needs]
