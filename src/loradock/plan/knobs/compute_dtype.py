"""The dtype of matrix products. Adapters and optimiser state stay float32 whatever it is."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision, Plan
from loradock.plan.trial import Stated, Trial

FIRST_BFLOAT16 = (8, 0)
GAIN = Stated(low=1.5, high=8.0, source="published: tensor cores' peaks against float32 units'")


def decide(context: Context) -> Decision[str]:
    """bfloat16 from sm80, float16 below (no tensor cores for bfloat16), float32 on the CPU."""
    setting = context.config.model.compute_dtype
    if not context.on_gpu:
        if setting == "float16":
            raise EnvironmentUnfit(
                "compute_dtype float16 needs a GPU: the CPU has no float16 loss scaling",
                hint="--set model.compute_dtype=float32 (or bfloat16)",
            )
        if setting != "auto":
            return asked("compute_dtype", setting)
        return Decision(
            name="compute_dtype",
            value="float32",
            why="on a CPU: float32; the last bits depend on its instruction set and threads",
        )
    gpu = context.facts.gpu
    if setting == "bfloat16" and gpu.capability < FIRST_BFLOAT16:
        raise EnvironmentUnfit(
            f"compute_dtype bfloat16 needs sm80 or newer; {gpu.name} is {gpu.architecture}",
            hint="--set model.compute_dtype=float16",
        )
    if setting != "auto":
        return asked("compute_dtype", setting)
    if gpu.capability >= FIRST_BFLOAT16:
        return Decision(
            name="compute_dtype", value="bfloat16", why=f"{gpu.architecture}: float32's range, no loss scaling"
        )
    why = f"{gpu.architecture} has no tensor cores for bfloat16 (sm80 and newer have); the loss is scaled"
    return Decision(name="compute_dtype", value="float16", why=why)


def propose(context: Context) -> tuple[Trial, ...]:
    """The other form of the weights, and half precision where products are in float32."""
    return (*_weights(context), *_products(context))


def _weights(context: Context) -> tuple[Trial, ...]:
    storage = context.config.model.storage
    if not storage.is_quantised:
        return (
            Trial(
                name="quantization-nf4",
                title="4-bit base weights instead of 16-bit ones",
                settings=("model.quantization=nf4",),
                cause="16-bit base weights leave too little memory for larger micro-batches",
                phase="passes",
                price="base weights are rounded to 4 bits",
                accuracy_risk="low",
            ),
        )
    if context.mode.cuts_weights:  # unquantised weights are four times as many to gather for each pass
        return ()
    return (
        Trial(
            name="quantization-none",
            title=f"unquantised base weights instead of {storage.name}",
            settings=("model.quantization=none",),
            cause="base weights are dequantised for every product",
            phase="passes",
            price=storage.dense_price,
            stability_risk="low",
        ),
    )


def _products(context: Context) -> tuple[Trial, ...]:
    if context.plan.compute_dtype.value != "float32":
        return ()
    is_old = context.plan.device.value == "cuda" and context.facts.gpu.capability < (8, 0)
    choice = "float16" if is_old else "bfloat16"
    return (
        Trial(
            name=f"compute-{choice}",
            title=f"products in {choice} instead of float32",
            settings=(f"model.compute_dtype={choice}",),
            cause="products in float32",
            phase="passes",
            price=f"products are rounded to {choice}",
            accuracy_risk="low",
            stability_risk="moderate" if is_old else "none",
        ),
    )


def gains(baseline: Plan, changed: Plan) -> bool:
    """16 bits in place of 32, on a GPU."""
    return baseline.compute_dtype.value == "float32" and changed.device.value == "cuda"
