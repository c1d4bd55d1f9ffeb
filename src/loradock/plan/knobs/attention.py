"""Which attention kernel: by what is there and works on this GPU, or forced by name."""

from loradock.catalog import engines
from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Context, asked
from loradock.plan.gpu_table import FIRST_FLASH
from loradock.plan.plan import Decision, Plan
from loradock.plan.trial import BUILD, CLAIMED, SHORT_RUN, Stated, Trial

GAIN = Stated(low=1.0, high=1.4, source=f"{CLAIMED}: 30 to 40 %; SDPA has the same kernels inside")


def decide(context: Context) -> Decision[str]:
    """flash-attn where it is installed and the GPU has it; otherwise torch's SDPA, which picks its own kernel."""
    setting = context.config.model.attention
    obstacle = flash_obstacle(context)
    if setting == "flash_attention_2" and obstacle:
        raise EnvironmentUnfit(
            f"attention flash_attention_2 cannot be used: {obstacle}", hint="--set model.attention=sdpa"
        )
    if setting != "auto":
        return asked("attention", setting)
    if obstacle and not context.model.has_sdpa:
        why = f"{obstacle}; {context.model.architecture} has no other"
        return Decision(name="attention", value="eager", why=why)
    if obstacle:
        return Decision(name="attention", value="sdpa", why=obstacle)
    if not is_installed(context):
        why = "the image is built without flash-attn, unless asked; SDPA has the same kernels inside"
        return Decision(name="attention", value="sdpa", why=why)
    why = f"flash-attn {context.facts.packages['flash-attn']} is installed: packed rows need no mask"
    return Decision(name="attention", value="flash_attention_2", why=why)


def flash_obstacle(context: Context) -> str | None:
    """Why flash-attn cannot be used here, or None."""
    if not context.on_gpu:
        return "flash-attn needs a GPU"
    if context.facts.gpu.capability < FIRST_FLASH:
        return f"flash-attn needs sm80 or newer, this GPU is {context.facts.gpu.architecture}"
    if context.plan.compute_dtype.value == "float32":
        return "flash-attn has no float32"
    if not is_installed(context) and not context.facts.is_described:
        return "flash-attn is not installed; SDPA has the same kernels inside"
    return None


def is_installed(context: Context) -> bool:
    """Whether flash-attn is known to be there."""
    return "flash-attn" in context.facts.packages


def propose(context: Context) -> tuple[Trial, ...]:
    """flash-attn where nothing is in its way, and SDPA where the model has it; eager is never faster."""
    current = context.plan.attention.value
    alternatives = {"flash_attention_2": flash_obstacle(context) is None, "sdpa": context.model.has_sdpa}
    build = "one setting" if is_installed(context) else "an image with flash-attn (loradock build --flash-attn build)"
    return tuple(
        Trial(
            name=f"attention-{kernel.removesuffix('_attention_2')}",
            title=f"attention {kernel} instead of {current}",
            settings=(f"model.attention={kernel}",),
            cause=f"the attention kernel {current}",
            phase="passes",
            stability_risk="low",
            effort=build if kernel == "flash_attention_2" else "one setting",
            minutes=BUILD if kernel == "flash_attention_2" and not is_installed(context) else SHORT_RUN,
            debugging="moderate",
        )
        for kernel, is_there in alternatives.items()
        if is_there and kernel != current
    )


def gains(_before: Plan, changed: Plan) -> bool:
    """flash-attn in the model's own modules."""
    return changed.attention.value == "flash_attention_2" and not engines.of(changed.engine.value).has_own_kernels
