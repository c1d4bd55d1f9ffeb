"""Each attention implementation, result and gradients, with the model's heads, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.exact_attention import LENGTH, Case, attend, cases
from loradock.env_check.compute.implementations import Implementation, implementations, is_incapable, wanted
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.remedies import as_locked, train_with
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

GRADIENT_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an implementation did: the cases where it is wrong or fails, and those that it cannot do.

    `said` is what it said where it fails, "" where it gives a wrong result in any case.
    """

    setting: str | None
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    said: str = ""
    cannot: tuple[str, ...] = ()
    obstacle: str = ""


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """All implementations at each place."""
    shape, remedy = plan.attention, as_locked(host, "torch", "transformers")
    by_dtype: dict[str, Mapping[str, list[torch.Tensor]]] = {}

    def at(place: Device) -> list[Finding]:
        expected = by_dtype.get(place.dtype) or {case.name: exact(place, case, shape) for case in cases(shape)}
        by_dtype[place.dtype] = expected
        outcomes = {
            implementation.name: outcome(implementation, place, shape, expected)
            for implementation in implementations(place, facts, shape)
        }
        return judge(outcomes, place, shape, wanted(facts, plan, place), again=remedy)

    return at_each(host, facts, plan, at)


def arguments(place: Device, case: Case, shape: AttentionShape) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the result, as this place has them; no gradient comes from padding."""
    heads = (shape.heads, shape.key_value_heads, shape.key_value_heads, shape.heads)
    tensors = [place.random(case.rows, n, LENGTH, shape.head_size, seed=seed) for seed, n in enumerate(heads)]
    tensors[3] = tensors[3] * case.real()[:, None, :, None].to(place.device)
    return tensors


def exact(place: Device, case: Case, shape: AttentionShape) -> list[torch.Tensor]:
    """The result and the gradients of query, key and value in float64, on the CPU."""
    return with_gradients(
        lambda q, k, v: attend(q, k, v, case.allowed(), softcap=shape.softcap),
        [argument.cpu().double() for argument in arguments(place, case, shape)],
        case,
    )


def with_gradients(function: Any, seed_gradient: list[torch.Tensor], case: Case) -> list[torch.Tensor]:
    """[result, dq, dk, dv] on the CPU in float64; the result is zero where there is padding."""
    *inputs, gradient = seed_gradient
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    out.backward(gradient)
    real = case.real()[:, None, :, None]
    return [
        (out.detach().cpu() * real).double(),
        *(tensor.grad.cpu().double() for tensor in inputs if tensor.grad is not None),
    ]


def outcome(
    implementation: Implementation, place: Device, shape: AttentionShape, expected: Mapping[str, list[torch.Tensor]]
) -> Outcome:
    """Try all cases."""
    right: list[str] = []
    wrong: list[str] = []
    cannot: list[str] = []
    failure_text = ""
    is_wrong = False
    if implementation.obstacle:
        names = tuple(case.name for case in cases(shape))
        return Outcome(setting=implementation.setting, cannot=names, obstacle=implementation.obstacle)
    for case in cases(shape):
        try:
            results = with_gradients(
                lambda q, k, v, case=case: implementation.attend(q, k, v, case, shape),
                arguments(place, case, shape),
                case,
            )
            place.finish()
        except Exception as failure:  # a kernel may fail in any way; it is said of that kernel
            if is_full(failure):
                raise
            if is_incapable(failure):
                cannot.append(case.name)
            else:
                wrong.append(case.name)
                failure_text = first_line(failure)
            continue
        off = is_off(results, expected[case.name], place)
        (wrong if off else right).append(case.name)
        is_wrong = is_wrong or off
    return Outcome(
        setting=implementation.setting,
        right=tuple(right),
        wrong=tuple(wrong),
        said="" if is_wrong else failure_text,
        cannot=tuple(cannot),
    )


def is_off(results: list[torch.Tensor], expected: list[torch.Tensor], place: Device) -> bool:
    """True where result or gradients are not what they should be, by their norms; also where they are not finite."""
    for number, (result, exact_tensor) in enumerate(zip(results, expected, strict=True)):
        limit = place.roundings * place.unit * (GRADIENT_FACTOR if number else 1)
        if not float((result - exact_tensor).norm() / exact_tensor.norm()) <= limit:
            return True
    return False


def judge(
    outcomes: Mapping[str, Outcome], place: Device, shape: AttentionShape, setting: str, *, again: str
) -> list[Finding]:
    """Wrong is an error where the run would use it; what cannot be done only where nothing else of its setting can.

    `again` is the command that reinstalls the libraries.
    """
    findings: list[Finding] = []
    good = {result.setting for result in outcomes.values() if result.setting} - {
        result.setting
        for name, result in outcomes.items()
        if (result.wrong and not is_passed_over(name, outcomes)) or result.obstacle
    }
    alternative = next((name for name in ("flash_attention_2", "sdpa", "eager") if name in good), None)
    remedy = train_with(f"model.attention={alternative}") if alternative else again
    groups: dict[tuple[str | None, str], list[str]] = {}
    for name, result in outcomes.items():
        if result.wrong:
            how = f"fails: {result.said}" if result.said else "differs from float64"
            groups.setdefault((result.setting, f"{how} ({', '.join(result.wrong)})"), []).append(name)
    for (names_of_fault, how), names in groups.items():
        what = f"{', '.join(names)} attention on {place} {how}"
        is_failing = any(outcomes[name].said for name in names)
        if all(is_passed_over(name, outcomes) for name in names):
            findings.append(ok(f"{names_of_fault} on {place} skips {', '.join(names)}, which {how}"))
        elif names_of_fault is None:
            findings.append(ok(f"{what}; no run uses it") if is_failing else warning(what, remedy=again))
        elif names_of_fault == setting:
            findings.append(error(what, remedy=remedy))
        else:
            remedy_here = train_with(f"model.attention={setting}")
            findings.append(warning(f"{what}; a run here uses {setting}", remedy=remedy_here))
    same_setting = [result for result in outcomes.values() if result.setting == setting]
    missing = [
        case.name
        for case in cases(shape)
        if not any(case.name in (*entry.right, *entry.wrong) for entry in same_setting)
    ]
    if missing:
        why = next((result.obstacle for result in same_setting if result.obstacle), "no kernel supports it")
        what = f"{setting} attention does not support this model's attention ({why}) on {place}: {', '.join(missing)}"
        findings.append(error(what, remedy=remedy))
    return [*findings, *summary(outcomes, place, shape)]


def is_passed_over(name: str, outcomes: Mapping[str, Outcome]) -> bool:
    """True where it raises instead of giving wrong numbers, and its setting, left to choose, is right all the same."""
    failed = outcomes[name]
    choice = outcomes.get(failed.setting or "")
    return bool(failed.said) and choice is not None and all(case in choice.right for case in failed.wrong)


def summary(outcomes: Mapping[str, Outcome], place: Device, shape: AttentionShape) -> list[Finding]:
    """What is right, and what is not done, in a line each."""
    right = [name for name, result in outcomes.items() if result.right and not result.wrong]
    refused = [
        f"{name} ({result.obstacle or 'not ' + ' and '.join(result.cannot)})"
        for name, result in outcomes.items()
        if result.cannot
    ]
    heads = f"{shape.heads} heads over {shape.key_value_heads}, size {shape.head_size}"
    heads += ", window" * bool(shape.window) + ", softcap" * bool(shape.softcap)
    lines = [f"{', '.join(right)} attention matches float64 on {place}: {heads}"] if right else []
    lines += [f"not supported for this shape on {place.device}: {', '.join(refused)}"] if refused else []
    return [ok(line) for line in lines]


CHECK = Check(
    name="attention-kernels",
    group="compute",
    proves="Each attention implementation matches float64, forward and backward, with the model's heads and masks.",
    look=look,
    level="compute",
    limit_seconds=90,
    depends_on=(*LOADED, "device", "model", "engine"),
)
