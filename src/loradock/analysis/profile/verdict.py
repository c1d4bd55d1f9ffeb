"""From what was measured to one sentence: what bounds this run, with the figures, and what to do about it. Pure.

A cause is named where it takes at least `LEAST_SHARE` of a step (the preparation of rows: of the whole run). Of several
the one that costs the run most is named, the others are reported beside it. Where there is none, it says what
bounds the computing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loradock.analysis.profile import roles
from loradock.text.amounts import duration_text, percent

LEAST_SHARE = 0.15
"""Below it a cause is worth less than what a change costs; a healthy run's evaluations and checkpoints stay below."""
SMALL_SHARE = 0.3
"""Of the passes: what larger ones must save before the micro-batch is called too small. Every pass has some of it."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured.

    `phases`: seconds of a step by phase of `breakdown`. `cadence`: steps between metric lines (`log`), evaluations and
    checkpoints. `padding_share`: of the slots computed. `busy_share`: of a step in which the GPU did something; None
    on a CPU. `small_share`: of the passes, what larger ones would save; None where that was not measured.
    `training_share`, `preparing_share`: of the whole run. `operations`: launched in a step. `role_shares`: of the
    computing, by role. `flops`, `bytes`: a second of the passes; `peak_flops`, `peak_bytes`: at best, by `source`.
    """

    device: str
    phases: Mapping[str, float]
    cadence: Mapping[str, int]
    padding_share: float
    busy_share: float | None
    small_share: float | None
    pass_tokens: float
    passes: int
    training_share: float
    preparing_share: float
    preparing_seconds: float
    operations: float
    role_shares: Mapping[str, float]
    flops: float
    bytes: float
    peak_flops: float
    peak_bytes: float
    source: str

    @property
    def seconds(self) -> float:
        """Of a step, all in all."""
        return sum(self.phases.values())

    def share(self, phase: str) -> float:
        """Of a step."""
        return self.phases[phase] / self.seconds

    def of_step(self, phase: str) -> str:
        """The phase's seconds of the step's, in words."""
        return f"{duration_text(self.phases[phase])} of {duration_text(self.seconds)}"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What takes time that could be saved. `share` is of a step, `cost` of the whole run."""

    kind: str
    sentence: str
    remedy: str
    share: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`kind` in a word, and the sentence; `is_bottleneck` is False where the run is healthy. `also`: lesser causes."""

    kind: str
    sentence: str
    remedy: str | None
    is_bottleneck: bool
    also: tuple[str, ...]


def judge(evidence: Evidence) -> Verdict:
    """What bounds the run."""
    ranked = sorted(
        (candidate for candidate in causes(evidence) if candidate.share >= LEAST_SHARE),
        key=lambda candidate: -candidate.cost,
    )
    if not ranked:
        kind, sentence = computing(evidence)
        return Verdict(
            kind=kind, sentence=f"no bottleneck found: {sentence}", remedy=None, is_bottleneck=False, also=()
        )
    worst, *rest_causes = ranked
    also = tuple(candidate.sentence for candidate in rest_causes)
    return Verdict(kind=worst.kind, sentence=worst.sentence, remedy=worst.remedy, is_bottleneck=True, also=also)


def causes(evidence: Evidence) -> list[Cause]:
    """All that there could be, whatever their share."""
    return [*of_phases(evidence), *of_passes(evidence), preparing(evidence)]


def of_phases(evidence: Evidence) -> list[Cause]:
    """What waits beside the passes."""
    cadence = evidence.cadence

    def every(name: str) -> str:
        return f"every {cadence[name]} step{'s' if cadence[name] > 1 else ''}"

    texts = {
        "data": (
            "data-bound",
            "the device is idle {share} of each step, waiting for data ({seconds})",
            "prepare rows ahead: --set train.workers=4, or find out what slows the reader or the disk",
        ),
        "optimizer": (
            "optimiser-bound",
            "the optimiser's update takes {share} of each step ({seconds})",
            "--set train.optimizer=adamw_fused, fewer targets or a lower rank, or a larger train.global_batch",
        ),
        "logging": (
            "logging-bound",
            f"writing metric lines {every('log')} takes {{share}} of the time ({{seconds}} a step)",
            f"--set logging.every={10 * cadence['log']}, fewer trackers, or a run directory on a faster disk",
        ),
        "evaluation": (
            "evaluation-bound",
            f"evaluating {every('evaluate')} takes {{share}} of the time ({{seconds}} a step)",
            f"--set evaluation.every={10 * max(1, cadence['evaluate'])}, or a smaller data.validation",
        ),
        "saving": (
            "checkpoint-bound",
            f"saving {every('save')} takes {{share}} of the time ({{seconds}} a step)",
            f"--set checkpoints.every={10 * cadence['save']}, or a run directory on a faster disk",
        ),
    }
    return [
        cause(
            evidence,
            kind,
            sentence.format(share=percent(evidence.share(phase)), seconds=evidence.of_step(phase)),
            remedy,
            share=evidence.share(phase),
        )
        for phase, (kind, sentence, remedy) in texts.items()
    ]


def of_passes(evidence: Evidence) -> list[Cause]:
    """What is wasted within the passes: padding, passes that are too small, a GPU that waits for its host."""
    passes = evidence.share("passes")
    padding = [
        cause(
            evidence,
            "padding-bound",
            f"{percent(evidence.padding_share)} of what the passes compute is padding: sequences are filled up to the "
            f"longest of their micro-batch",
            "--set train.packing=true, or --set engine=fast, which computes no padding",
            share=evidence.padding_share * passes,
        )
    ]
    small, pass_size = evidence.small_share, f"{evidence.pass_tokens:,.0f} tokens"
    if small is not None and small >= SMALL_SHARE and evidence.passes > 1:
        sentence = (
            f"the micro-batch is too small: each step is {evidence.passes} passes of {pass_size}, and "
            f"{percent(small)} of a pass goes into starting operations and into weights, which larger ones would share"
        )
        remedy = "a larger train.micro_batch (auto finds the largest that fits)"
        padding.append(cause(evidence, "host-bound", sentence, remedy, share=small * passes))
    if evidence.busy_share is not None:
        waiting = max(0.0, passes + evidence.share("optimizer") - evidence.busy_share)
        sentence = (
            f"the GPU is idle {percent(waiting)} of each step while the host launches {evidence.operations:,.0f} "
            f"kernels in passes of {pass_size}"
        )
        remedy = "a larger train.micro_batch, --set train.cuda_graphs=true, or --set engine=fast"
        padding.append(cause(evidence, "host-bound", sentence, remedy, share=waiting))
    return padding


def preparing(evidence: Evidence) -> Cause:
    """Reading and tokenising rows before the first step."""
    share = evidence.preparing_share
    return Cause(
        kind="data-bound",
        sentence=(
            f"data-bound: the device is idle {percent(share)} of the whole run, waiting for rows to be read and "
            f"tokenised ({duration_text(evidence.preparing_seconds)} before the first step; kept for the next run)"
        ),
        remedy="--set data.workers=8, a faster disk for the source, or prepare the cache before renting the GPU",
        share=share,
        cost=share,
    )


def cause(evidence: Evidence, kind: str, sentence: str, remedy: str, *, share: float) -> Cause:
    """One whose share is that of a step."""
    cost = share * evidence.training_share
    return Cause(kind=kind, sentence=f"{kind}: {sentence}", remedy=remedy, share=share, cost=cost)


def computing(evidence: Evidence) -> tuple[str, str]:
    """What the computing itself is bound by: the arithmetic, or the memory's traffic."""
    shares = evidence.role_shares
    counted = sum(shares.values()) or 1.0
    arithmetic = sum(shares.get(role, 0.0) for role in roles.COMPUTING) / counted
    if arithmetic >= 0.5:
        figures = figure(evidence.flops, evidence.peak_flops, unit="FLOP/s", source=evidence.source)
        return "compute-bound", (
            f"compute-bound; products, attention and the loss take {percent(arithmetic)} of the computing, at {figures}"
        )
    largest = max((role for role in shares if role not in roles.COMPUTING), key=lambda role: shares[role])
    figures = figure(evidence.bytes, evidence.peak_bytes, unit="B/s", source=evidence.source)
    return "bandwidth-bound", (
        f"bandwidth-bound; memory traffic takes {percent(1 - arithmetic)} of the computing ({largest} "
        f"{percent(shares[largest] / counted)}), at {figures}"
    )


def figure(rate: float, peak: float, *, unit: str, source: str) -> str:
    """A rate, and its share of the best."""
    return f"{scaled(rate)}{unit}, {percent(rate / peak)} of {scaled(peak)}{unit} ({source})"


def scaled(value: float) -> str:
    """1.2e12 as `1.2 T`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "
