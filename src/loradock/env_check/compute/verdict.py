"""Whose fault a wrong training is: the attention's, the quantisation's, that of both together, or neither's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loradock.catalog import storages
from loradock.env_check.base import Finding, error, ok, warning
from loradock.env_check.remedies import train_with

RAISES = "it fails: "


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a training with one attention went: what is wrong with the base as stored and unquantised, "" for nothing.

    `setting` is the `model.attention` that leads to it. `whole` was tried only where the first is wrong. `cannot` says
    that it cannot do what was tried.
    """

    setting: str | None
    wrong: str = ""
    whole: str = ""
    cannot: bool = False

    @property
    def raises(self) -> bool:
        """True where it ends with an exception instead of wrong numbers."""
        return self.wrong.startswith(RAISES)


def judge(trials: Mapping[str, Trial], *, storage: str, place: str, wanted: str, again: str) -> list[Finding]:
    """The findings for trials by name of attention; `storage` is how the base is stored (nf4, int8, none).

    `again` is the command that reinstalls the libraries.

    A kernel that raises where the setting it belongs to, left to choose, is right, stops no run.
    """
    is_quantised = storages.of(storage).is_quantised
    tried = {name: trial for name, trial in trials.items() if not trial.cannot}
    good_settings = {name for name, trial in tried.items() if name == trial.setting and not trial.wrong}
    passed_over = {name: trial for name, trial in tried.items() if trial.raises and trial.setting in good_settings}
    if passed_over:
        remaining = judge(
            {name: trial for name, trial in tried.items() if name not in passed_over},
            storage=storage,
            place=place,
            wanted=wanted,
            again=again,
        )
        return [*remaining, *(_passed_over(*name, place=place) for name in _together(passed_over))]
    wrong = {name: trial for name, trial in tried.items() if trial.wrong}
    if not tried:
        return [error(f"no attention can train this model on {place}", remedy=train_with("model.attention=eager"))]
    if not wrong:
        kind = storage if is_quantised else "unquantised"
        return [ok(f"a small {kind} training run on {place} matches the float64 reference: {', '.join(tried)}")]
    of_attention = {name: trial for name, trial in wrong.items() if not is_quantised or trial.whole}
    if len(of_attention) == len(tried) and len(tried) > 1:
        fault = next(trial.whole or trial.wrong for trial in of_attention.values())
        what = f"training is wrong on {place}, with every attention and without quantisation too: {fault}"
        return [error(what, remedy=again)]
    good = [trial.setting for trial in tried.values() if not trial.wrong and trial.setting]
    alternative = next((name for name in good if name not in {trial.setting for trial in wrong.values()}), None)
    remedy = train_with(f"model.attention={alternative}") if alternative else again
    where = f"with and without {storage}" if is_quantised else "without quantisation"
    findings = [
        _by_use(f"{names} attention is wrong on {place}, {where}: {fault}", setting, wanted, remedy)
        for names, setting, fault in _together(of_attention)
    ]
    sound = {name: trial for name, trial in tried.items() if name not in of_attention}
    if sound and all(trial.wrong for trial in sound.values()):
        fault = next(trial.wrong for trial in sound.values())
        what = (
            f"quantisation is wrong on {place}: training in {storage} fails, without quantisation it is right: {fault}"
        )
        return [*findings, error(what, remedy=train_with("model.quantization=none"))]
    for names, setting, fault in _together({name: trial for name, trial in sound.items() if trial.wrong}):
        what = f"{names} attention and {storage} together are wrong on {place}, each alone is right: {fault}"
        findings.append(_by_use(what, setting, wanted, remedy))
    return findings


def _passed_over(names: str, setting: str | None, fault: str, *, place: str) -> Finding:
    return ok(f"{setting} on {place} skips {names}, which does not train: {fault.removeprefix(RAISES)}")


def _together(trials: Mapping[str, Trial]) -> list[tuple[str, str | None, str]]:
    """(names, setting, fault), one for all that have setting and fault in common."""
    groups: dict[tuple[str | None, str], list[str]] = {}
    for name, trial in trials.items():
        groups.setdefault((trial.setting, trial.whole or trial.wrong), []).append(name)
    return [(", ".join(names), setting, fault) for (setting, fault), names in groups.items()]


def _by_use(what: str, setting: str | None, chosen_setting: str, remedy: str) -> Finding:
    if setting == chosen_setting:
        return error(what, remedy=remedy)
    return warning(f"{what}; a run here uses {chosen_setting}", remedy=train_with(f"model.attention={chosen_setting}"))
