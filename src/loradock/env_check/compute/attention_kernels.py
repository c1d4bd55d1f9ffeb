"""Each attention implementation, result and gradients, with the model's heads, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.exact_attention import LENGTH, Case, attend, cases
from loradock.env_check.compute.implementations import Implementation, implementations, is_incapable, wanted
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.remedies import as_locked, train_with
from loradock.facts import AttentionShape, Facts
from loradock.machine import Host

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
    shape, again = plan.attention, as_locked(host, "torch", "transformers")
    by_dtype: dict[str, Mapping[str, list[torch.Tensor]]] = {}

    def at(place: Device) -> list[Finding]:
        expected = by_dtype.get(place.dtype) or {case.name: exact(place, case, shape) for case in cases(shape)}
        by_dtype[place.dtype] = expected
        outcomes = {each.name: outcome(each, place, shape, expected) for each in implementations(place, facts, shape)}
        return judge(outcomes, place, shape, wanted(facts, plan, place), again=again)

    return at_each(host, facts, plan, at)


def arguments(place: Device, case: Case, shape: AttentionShape) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the result, as this place has them; no gradient comes from padding."""
    heads = (shape.heads, shape.key_value_heads, shape.key_value_heads, shape.heads)
    made = [place.random(case.rows, n, LENGTH, shape.head_size, seed=seed) for seed, n in enumerate(heads)]
    made[3] = made[3] * case.real()[:, None, :, None].to(place.device)
    return made


def exact(place: Device, case: Case, shape: AttentionShape) -> list[torch.Tensor]:
    """The result and the gradients of query, key and value in float64, on the CPU."""
    return with_gradients(
        lambda q, k, v: attend(q, k, v, case.allowed(), softcap=shape.softcap),
        [argument.cpu().double() for argument in arguments(place, case, shape)],
        case,
    )


def with_gradients(function: Any, given: list[torch.Tensor], case: Case) -> list[torch.Tensor]:
    """[result, dq, dk, dv] on the CPU in float64; the result is zero where there is padding."""
    *inputs, gradient = given
    inputs = [each.detach().requires_grad_() for each in inputs]
    out = function(*inputs)
    out.backward(gradient)
    real = case.real()[:, None, :, None]
    return [
        (out.detach().cpu() * real).double(),
        *(each.grad.cpu().double() for each in inputs if each.grad is not None),
    ]


def outcome(
    implementation: Implementation, place: Device, shape: AttentionShape, expected: Mapping[str, list[torch.Tensor]]
) -> Outcome:
    """Try all cases."""
    right: list[str] = []
    wrong: list[str] = []
    cannot: list[str] = []
    said = ""
    is_wrong = False
    if implementation.obstacle:
        names = tuple(case.name for case in cases(shape))
        return Outcome(setting=implementation.setting, cannot=names, obstacle=implementation.obstacle)
    for case in cases(shape):
        try:
            found = with_gradients(
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
                said = first_line(failure)
            continue
        off = is_off(found, expected[case.name], place)
        (wrong if off else right).append(case.name)
        is_wrong = is_wrong or off
    return Outcome(
        setting=implementation.setting,
        right=tuple(right),
        wrong=tuple(wrong),
        said="" if is_wrong else said,
        cannot=tuple(cannot),
    )


def is_off(found: list[torch.Tensor], expected: list[torch.Tensor], place: Device) -> bool:
    """True where result or gradients are not what they should be, by their norms; also where they are not finite."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        limit = place.roundings * place.unit * (GRADIENT_FACTOR if number else 1)
        if not float((one - other).norm() / other.norm()) <= limit:
            return True
    return False


def judge(
    outcomes: Mapping[str, Outcome], place: Device, shape: AttentionShape, setting: str, *, again: str
) -> list[Finding]:
    """Wrong is an error where the run would use it; what cannot be done only where nothing else of its setting can.

    `again` is the command that reinstalls the libraries.
    """
    found: list[Finding] = []
    good = {each.setting for each in outcomes.values() if each.setting} - {
        each.setting
        for name, each in outcomes.items()
        if (each.wrong and not is_passed_over(name, outcomes)) or each.obstacle
    }
    other = next((name for name in ("flash_attention_2", "sdpa", "eager") if name in good), None)
    remedy = train_with(f"model.attention={other}") if other else again
    groups: dict[tuple[str | None, str], list[str]] = {}
    for name, each in outcomes.items():
        if each.wrong:
            how = f"fails: {each.said}" if each.said else "differs from float64"
            groups.setdefault((each.setting, f"{how} ({', '.join(each.wrong)})"), []).append(name)
    for (named, how), names in groups.items():
        what = f"{', '.join(names)} attention on {place} {how}"
        is_failing = any(outcomes[name].said for name in names)
        if all(is_passed_over(name, outcomes) for name in names):
            found.append(ok(f"{named} on {place} skips {', '.join(names)}, which {how}"))
        elif named is None:
            found.append(ok(f"{what}; no run uses it") if is_failing else warning(what, remedy=again))
        elif named == setting:
            found.append(error(what, remedy=remedy))
        else:
            remedy_here = train_with(f"model.attention={setting}")
            found.append(warning(f"{what}; a run here uses {setting}", remedy=remedy_here))
    own = [each for each in outcomes.values() if each.setting == setting]
    missing = [case.name for case in cases(shape) if not any(case.name in (*each.right, *each.wrong) for each in own)]
    if missing:
        why = next((each.obstacle for each in own if each.obstacle), "no kernel supports it")
        what = f"{setting} attention does not support this model's attention ({why}) on {place}: {', '.join(missing)}"
        found.append(error(what, remedy=remedy))
    return [*found, *summary(outcomes, place, shape)]


def is_passed_over(name: str, outcomes: Mapping[str, Outcome]) -> bool:
    """True where it raises instead of giving wrong numbers, and its setting, left to choose, is right all the same."""
    failed = outcomes[name]
    chosen = outcomes.get(failed.setting or "")
    return bool(failed.said) and chosen is not None and all(case in chosen.right for case in failed.wrong)


def summary(outcomes: Mapping[str, Outcome], place: Device, shape: AttentionShape) -> list[Finding]:
    """What is right, and what is not done, in a line each."""
    right = [name for name, each in outcomes.items() if each.right and not each.wrong]
    refused = [
        f"{name} ({each.obstacle or 'not ' + ' and '.join(each.cannot)})"
        for name, each in outcomes.items()
        if each.cannot
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
)
