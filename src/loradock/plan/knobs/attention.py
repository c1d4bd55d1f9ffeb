"""Which attention kernel: by what is there and works on this card, or forced by name."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Decision, Question, asked

FIRST_FLASH = (8, 0)


def decide(question: Question) -> Decision:
    """flash-attn where it is installed and the card has it; otherwise torch's SDPA, which picks its own kernel."""
    wanted = question.config.model.attention
    obstacle = flash_obstacle(question)
    if wanted == "flash_attention_2" and obstacle:
        raise EnvironmentUnfit(
            f"attention flash_attention_2 cannot be used: {obstacle}", hint="--set model.attention=sdpa"
        )
    if wanted != "auto":
        return asked("attention", wanted)
    if obstacle and not question.model.has_sdpa:
        why = f"{obstacle}; {question.model.architecture} has no other"
        return Decision(name="attention", value="eager", why=why)
    if obstacle:
        return Decision(name="attention", value="sdpa", why=obstacle)
    why = f"flash-attn {question.facts.packages['flash-attn']} is installed: packed rows need no mask"
    return Decision(name="attention", value="flash_attention_2", why=why)


def flash_obstacle(question: Question) -> str | None:
    """Why flash-attn cannot be used here, or None."""
    if not question.on_gpu:
        return "flash-attn needs a GPU"
    if question.facts.gpu.capability < FIRST_FLASH:
        return f"flash-attn needs sm80 or newer, this card is {question.facts.gpu.architecture}"
    if question.decided["compute_dtype"] == "float32":
        return "flash-attn has no float32"
    if "flash-attn" not in question.facts.packages:
        return "flash-attn is not installed; SDPA has the same kernels inside"
    return None
