"""Where the run computes: the card where there is one, else the CPU, and never a silent fall from one to the other."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Context
from loradock.plan.plan import Decision

NOTICEABLE_BYTES = 256 << 20


def decide(context: Context) -> Decision[str]:
    """A card when one is visible; a request for cuda without a card is refused."""
    asked = context.config.device
    facts = context.facts
    if asked == "cuda" and not facts.has_gpu:
        raise EnvironmentUnfit(
            "device is cuda, but no GPU is visible to this process",
            hint="start the container with --gpus all, check CUDA_VISIBLE_DEVICES, or use --set device=cpu",
        )
    if asked == "cpu" or not facts.has_gpu:
        why = "asked for" if asked == "cpu" else "no GPU is visible"
        return Decision(name="device", value="cpu", why=why)
    card = facts.gpu
    why = f"{card.name}, {card.memory_bytes / 2**30:.0f} GiB, {card.architecture}"
    if card.runtime_bytes is not None:
        why += f"; CUDA itself takes {card.runtime_bytes / 2**20:,.0f} MiB of it"
    if card.taken_bytes > NOTICEABLE_BYTES:
        why += f"; other processes hold {card.taken_bytes / 2**30:.1f} GiB"
    return Decision(name="device", value="cuda", why=why)
