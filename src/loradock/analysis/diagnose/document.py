"""A diagnosis as one JSON-able document: what was measured, what it means, and the settings to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import yaml

from loradock import __version__
from loradock.analysis.diagnose.arms import Arm
from loradock.analysis.diagnose.measure import Measured
from loradock.analysis.diagnose.search import Search
from loradock.analysis.diagnose.verdict import bottlenecks, conclude, summary
from loradock.config.strict_yaml import parse_value
from loradock.env_check.paired_ratio import Ratio

FORMAT = "loradock.analysis.diagnose/1"
HOUR_SECONDS = 3600.0


def document(search: Search, *, price_per_hour: float | None, published: Mapping[str, str]) -> dict[str, Any]:
    """The whole diagnosis; `price_per_hour` is of the machine, `published` what a note says of its rows."""
    baseline = search.baseline.measured
    assert baseline, "a diagnosis without a baseline is an error"
    cases = [search.case(arm) for arm in search.arms]
    causes = bottlenecks(cases, baseline)
    rows = [row(search, arm, baseline, price_per_hour=price_per_hour, published=published) for arm in search.arms]
    return {
        "format": FORMAT,
        "loradock": __version__,
        "is_complete": search.has_ended,
        "spent_seconds": round(search.spent_seconds, 1),
        "rounds": max(search.baseline.rounds) + 1,
        "spread": search.spread,
        "run": {
            "steps": baseline.total_steps,
            "seconds": baseline.run_seconds,
            "cost": cost(baseline.run_seconds, price_per_hour),
        },
        "device": baseline.device,
        "engine": baseline.engine,
        "summary": summary(causes, cases, baseline),
        "bottlenecks": [
            {"name": cause.name, "saving": cause.saving, "sentence": cause.sentence, "trial": cause.trial}
            for cause in causes
        ],
        "phases": {phase: baseline.breakdown.share(phase) for phase in baseline.phases},
        "padding_share": baseline.padding_share,
        "rows": [{**figures(baseline), "name": "baseline", "title": "as it is", "settings": []}, *rows],
        "patch": patch(search, baseline, price_per_hour=price_per_hour),
    }


def row(
    search: Search, arm: Arm, baseline: Measured, *, price_per_hour: float | None, published: Mapping[str, str]
) -> dict[str, Any]:
    """One line of the table."""
    case = search.case(arm)
    measured, ratio = case.measured, case.ratio
    content = {
        "name": arm.name,
        "title": " + ".join(trial.title for trial in arm.trials),
        "settings": list(arm.settings),
        "conclusion": str(conclude(case, baseline)),
        "word": conclude(case, baseline).word,
        "price": arm.trial.price,
        "published": published.get(arm.name),
    }
    if measured is None or ratio is None:
        return content
    expected = measured.expected / baseline.expected if measured.expected and baseline.expected else None
    saved = saved_seconds(ratio, baseline)
    return {
        **content,
        **figures(measured),
        **speed_up(ratio),
        "expected": expected,
        "seconds_saved": saved,
        "cost_saved": cost(saved, price_per_hour),
    }


def figures(measured: Measured) -> dict[str, Any]:
    """What was measured of one configuration."""
    return {
        "samples_per_second": measured.breakdown.samples_per_second,
        "tokens_per_second": measured.breakdown.tokens_per_second,
        "step_seconds": measured.seconds,
        "memory_bytes": measured.memory_bytes,
        "busy_share": measured.busy_share,
        "padding_share": measured.padding_share,
        "loss": measured.loss,
        "lost_tokens": measured.lost_tokens,
        "cut_rows": measured.cut_rows,
    }


def speed_up(ratio: Ratio) -> dict[str, Any]:
    """How many times faster, with the interval."""
    return {"speed_up": ratio.value, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def patch(search: Search, baseline: Measured, *, price_per_hour: float | None) -> dict[str, Any] | None:
    """The settings to take, with the speed-up that was measured of all of them together; None where there are none."""
    best = search.best
    ratio = search.ratio(best) if best else None
    if best is None or ratio is None:
        return None
    saved = saved_seconds(ratio, baseline)
    return {
        "settings": list(best.settings),
        "yaml": as_yaml(best.settings),
        **speed_up(ratio),
        "seconds_saved": saved,
        "cost_saved": cost(saved, price_per_hour),
    }


def saved_seconds(ratio: Ratio, baseline: Measured) -> float:
    """Of the whole run's steps; negative for what is slower."""
    return baseline.run_seconds * (1 - 1 / ratio.value)


def cost(seconds: float, price_per_hour: float | None) -> float | None:
    """In the currency of the price; None without one."""
    return None if price_per_hour is None else seconds / HOUR_SECONDS * price_per_hour


def as_yaml(settings: tuple[str, ...]) -> str:
    """KEY=VALUE texts as the YAML of a configuration file."""
    tree: dict[str, Any] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        *sections, last = key.split(".")
        section = tree
        for name in sections:
            section = cast("dict[str, Any]", section.setdefault(name, {}))
        section[last] = parse_value(text, file=f"--set {key}")
    return yaml.safe_dump(tree, sort_keys=False)
