"""TF32 for what is left in float32 (adapters outside autocast, norms): 10 bits of mantissa, float32's range."""

from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision

FIRST_TF32 = (8, 0)


def decide(context: Context) -> Decision[bool]:
    """On where the GPU has it, unless float32 compute was asked for, which stays exact."""
    setting = context.config.train.tf32
    if setting != "auto":
        return asked("tf32", setting)
    if not context.on_gpu:
        return Decision(name="tf32", value=False, why="a CPU has no TF32")
    architecture = context.facts.gpu.architecture
    if context.facts.gpu.capability < FIRST_TF32:
        return Decision(name="tf32", value=False, why=f"TF32 needs sm80 or newer, this GPU is {architecture}")
    if context.plan.compute_dtype.value == "float32":
        return Decision(name="tf32", value=False, why="float32 compute was requested, so it stays exact")
    return Decision(name="tf32", value=True, why=f"{architecture}: up to 8x for what is left in float32")
