"""The ways in which processes share a model.

ZeRO-2 cuts gradients and optimiser state (Rajbhandari et al. 2020, stages 1 and 2), FSDP and ZeRO-3 the weights as well
(stage 3). A base whose weights are cut is read part by part, so that no process has a whole matrix.
"""

from __future__ import annotations

from loradock.catalog.engines.base import Cannot, Mode

PARTS: Cannot = {
    "outlier columns": "int8 layers keep statistics that are not cut",
    "changed base": "lora.init {config.lora.init} takes unquantised base weights apart",
    "prequantised": "weights that files hold quantised are not cut among GPUs",
}
"""What needs whole matrices."""
PLAIN: Cannot = {
    "dora": "it has no DoRA",
    "modules_to_save": "it trains adapters only, no modules_to_save",
    "neftune": "it has no NEFTune noise",
    "optimizer": "its optimiser is adamw_fused, not {config.train.optimizer}",
}
"""What only autograd over the whole PEFT model has."""
ONE_RATE = "its optimiser has one learning rate, and train.loraplus_lr_ratio is {config.train.loraplus_lr_ratio:g}"

STATES = "DeepSpeed shards the two moments of AdamW in 32 bits, and {config.train.optimizer} keeps others"

ROWS = "rows of the embedding (tokenizer.add_tokens) are trained where a process has the optimiser to itself"

ALONE = Mode(name="none")
"""One process, which has the model to itself."""
DDP = Mode(name="ddp")
FSDP = Mode(
    name="fsdp",
    cuts_state=True,
    cuts_weights=True,
    cannot={
        **PARTS,
        "float16": "float16 needs a loss scale, which it does not keep",
        "compile": "its layers are not compiled",
        "whole model": "objective {config.objective} needs the whole model on each GPU",
        "loraplus": ONE_RATE,
        "new tokens": ROWS,
        **PLAIN,
    },
)
ZERO2 = Mode(
    name="zero2",
    cuts_state=True,
    zero_stage=2,
    cannot={"loraplus": ONE_RATE, "other states": STATES, "new tokens": ROWS},
)
ZERO3 = Mode(
    name="zero3",
    cuts_state=True,
    cuts_weights=True,
    zero_stage=3,
    cannot={
        **PARTS,
        "loraplus": ONE_RATE,
        "other states": STATES,
        "new tokens": ROWS,
        "dora": "DoRA takes the norms of unquantised base weights",
        "modules_to_save": "modules_to_save copies unquantised base weights",
    },
)
