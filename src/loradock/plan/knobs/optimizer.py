"""The optimiser. An adapter's state is small, so 8-bit and paged states buy little and cost a sync a parameter."""

from loradock.catalog import optimizers
from loradock.catalog.optimizers import BYTES_IN_8_BITS, DEFAULT, SMALLEST
from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision, Plan
from loradock.plan.trial import CLAIMED, Risk, Stated, Trial

GAIN = Stated(
    low=1.0, high=1.1, source=f"{CLAIMED}: 5 to 10 % of a full fine-tuning's step; on adapters a test found 0.98x"
)


def decide(context: Context) -> Decision[str]:
    """Fused AdamW; paged 8-bit only where the smallest batch does not fit with it."""
    setting = context.config.train.optimizer
    if context.plan.device.value not in optimizers.named(setting).devices:
        raise EnvironmentUnfit(f"optimizer {setting} needs a GPU", hint=f"--set train.optimizer={DEFAULT.name}")
    if setting != "auto":
        return asked("optimizer", setting)
    weights = context.model.adapter_parameters(context.config.lora.rank)
    if len(context.engine.optimizers) == 1:
        why = f"one kernel over all adapters at once; {context.engine.title}'s only one{_saved(context, weights)}"
        return Decision(name="optimizer", value=context.engine.optimizers[0], why=why)
    state = weights * DEFAULT.device_bytes
    need = context.expected_bytes(
        micro_batch=1, checkpointing=context.plan.checkpointing.value, optimizer=DEFAULT.name
    )["total"]
    if context.on_gpu and SMALLEST.name in context.engine.optimizers and need > context.memory_bytes:
        return Decision(name="optimizer", value=SMALLEST.name, why=f"memory demands it: {state / 2**20:.0f} MiB less")
    return Decision(name="optimizer", value=DEFAULT.name, why=f"one kernel; its state is {state / 2**20:.1f} MiB")


def _saved(context: Context, weights: int) -> str:
    """What 8-bit moments would leave free on a GPU where nothing is shared out, to judge whether they are missed."""
    if not context.on_gpu or context.mode.cuts_state:
        return ""
    saved_bytes = weights * (DEFAULT.device_bytes - BYTES_IN_8_BITS)
    return f" (8 bits would save {saved_bytes / 2**20:,.0f} MiB, {saved_bytes / context.memory_bytes:.1%} of the GPU)"


def propose(context: Context) -> tuple[Trial, ...]:
    """Fused AdamW where it is another; else plain and paged 8-bit AdamW, which show how much there is to gain."""
    plan = context.plan
    current = plan.optimizer.value
    if SMALLEST.name not in context.engine.optimizers:
        return ()
    if current != DEFAULT.name:
        return (_trial(context, DEFAULT.name, cause=f"the optimiser {current}"),)
    plain = _trial(context, DEFAULT.instead, cause="the fused optimiser", is_remedy=False)
    paged = _trial(
        context, SMALLEST.name, cause="the optimiser's memory", price="moments in 8 bits", accuracy_risk="low"
    )
    return (plain, paged) if plan.device.value == "cuda" else (plain,)


def _trial(
    context: Context,
    name: str,
    *,
    cause: str,
    price: str = "",
    is_remedy: bool = True,
    accuracy_risk: Risk = "none",
) -> Trial:
    current = context.plan.optimizer.value
    engine_setting = (f"engine={context.engine.name}",) if context.config.engine == "auto" else ()
    return Trial(
        name=f"optimizer-{name.replace('_', '-')}",
        title=f"optimiser {name} instead of {current}",
        settings=(f"train.optimizer={name}", *engine_setting),
        cause=cause,
        phase="optimizer",
        price=price,
        is_remedy=is_remedy,
        accuracy_risk=accuracy_risk,
    )


def gains(baseline: Plan, changed: Plan) -> bool:
    """One kernel in place of several."""
    return changed.optimizer.value == DEFAULT.name and baseline.optimizer.value != DEFAULT.name
