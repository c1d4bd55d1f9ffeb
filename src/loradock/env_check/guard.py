"""What `train` proves before it trains: the machine at once, and what takes computing once the run's plan is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from loradock.env_check.base import Intent
from loradock.env_check.child import Looked
from loradock.env_check.examination import Examination, examine
from loradock.env_check.intent import cache_of_machine
from loradock.env_check.kept import Kept
from loradock.facts import Facts, ModelFacts
from loradock.machine import Host
from loradock.model import hub_cache, kept_facts
from loradock.plan.plan import Plan


class Shown(Protocol):
    """Who receives what is found."""

    def looked(self, looked: Looked) -> None:
        """A check ended."""
        ...

    def examined(self, examination: Examination) -> None:
        """All checks ended."""
        ...


@dataclass(kw_only=True)
class Guard:
    """Looks at the machine of a run in two parts; `plan` is what the run means to do.

    What was proven before and still counts is taken, unless the look `is_full`.
    """

    host: Host
    facts: Facts
    plan: Intent
    shown: Shown
    is_full: bool = False
    begun: Examination = field(init=False)

    def look(self) -> dict[str, Any]:
        """All that needs no computing; what was found, for run.json. Raises where the machine cannot train."""
        self.plan = replace(self.plan, base_facts=None if self.is_full else self._base_facts())
        examination = examine(
            host=self.host,
            facts=self.facts,
            plan=self.plan,
            progress=self.shown.looked,
            computes=False,
            kept=self._kept(self.plan),
        )
        self.begun = replace(examination, level="quick")
        if self.begun.exit_code:
            self.shown.examined(self.begun)
        self.begun.refuse()
        return self.begun.summary()

    def compute(self, plan: Plan, *, beat: Callable[[], None]) -> dict[str, Any]:
        """What computes, as the plan of the run says; all that was found, for run.json.

        `beat` is called as each check ends. Raises where the machine cannot train.
        """

        def progress(looked: Looked) -> None:
            beat()
            self.shown.looked(looked)

        intent = replace(self.plan, plan=plan, digests=None if self.is_full else cache_of_machine(self.host))
        later = examine(
            host=self.host, facts=self.facts, plan=intent, progress=progress, computes=True, kept=self._kept(intent)
        )
        combined = self.begun.then(later)
        self.shown.examined(combined)
        combined.refuse()
        return combined.summary()

    def _base_facts(self) -> ModelFacts | None:
        """Those of the configured base, where they are known and its files are here."""
        if self.plan.config is None:
            return None
        model = self.plan.config.model
        directory = hub_cache.directory_of(model.name, model.revision, environ=self.host.environ)
        return kept_facts.known(kept_facts.key_of(self.plan.config, directory), cache_of_machine(self.host))

    def _kept(self, intent: Intent) -> Kept:
        return Kept(cache_of_machine(self.host), (self.host, self.facts, intent), is_full=self.is_full)
