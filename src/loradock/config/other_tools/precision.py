"""In how many bits other tools keep a base and multiply."""

from __future__ import annotations

from loradock.config.other_tools.base import Finish, Translation, as_number, is_on

FOUR_BITS = (None, "nf4")


def dtype(*keys: str) -> Finish:
    """The dtype of products, by flags or by a word under one of `keys`."""
    names = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp16": "float16", "float32": "float32"}

    def finish(translation: Translation) -> None:
        for flag in ("bf16", "pure_bf16", "bfloat16", "fp16", "float16"):
            value = translation.get(flag)
            if value not in (None, "auto") and is_on(value):
                translation.put("model.compute_dtype", "float16" if flag in ("fp16", "float16") else "bfloat16", flag)
                return
        for word in keys:
            value = str(translation.get(word)).removeprefix("torch.")
            if value in names:
                translation.put("model.compute_dtype", names[value], word)

    return finish


def quantised(*, bits: str | None = None) -> Finish:
    """NF4, int8, or 16 bits where neither is asked for."""

    def finish(translation: Translation) -> None:
        found = {4: "load_in_4bit", 8: "load_in_8bit"}
        count = next((count for count, name in found.items() if is_on(translation.get(name))), None)
        name = found.get(count or 0, "load_in_4bit")
        if bits and (asked := as_number(translation.get(bits))):
            count, name = int(asked), bits
        if count not in (None, 4, 8):
            translation.leave(name, f"{count} bits: here 4 (nf4) and 8 (int8), by bitsandbytes")
            return
        storage = {4: "nf4", 8: "int8", None: "none"}[count]
        if translation.given.get(name) is None and count is None:
            name = bits or name
        translation.put("model.quantization", storage, name)
        double = translation.get("double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant")
        if count == 4 and double is not None:
            names = ("double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant")
            translation.put("model.double_quant", is_on(double), *names)
        kind = translation.get("bnb_4bit_quant_type")
        if count == 4 and kind not in FOUR_BITS:
            translation.leave("bnb_4bit_quant_type", f"{kind}: 4 bits are nf4 here")

    return finish
