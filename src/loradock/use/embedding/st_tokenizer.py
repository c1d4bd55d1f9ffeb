"""The tokenizer of an export: what stands before a text is its prompt, what stands after it the tokenizer appends.

sentence-transformers puts a prompt before each text, and counts the prompt's tokens apart to leave them out of a mean.
So the tokenizer of the export writes nothing before a text by itself (the prompt holds BOS where the template writes
it), and it appends the template's end of text. What it makes is compared with the tokens of training before anything
is exported.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loradock.data.formats.base import Side
from loradock.data.formats.fields import RowError
from loradock.data.pairs.preparer import Documents
from loradock.errors import ModelError
from loradock.model.files import json_object
from loradock.model.tokenizer_copy import SETTINGS, as_both_read, write_settings
from loradock.training.recipe import Recipe

PROBES = (*string.ascii_letters, *string.digits, "How tall is K2?", "zwei Wörter, 日本 🙂", "a text of words " * 99)
"""Letters alone, too: where a token holds the end of a prompt and the beginning of a text, it holds such a one."""
REWRITTEN = ("add_bos_token", "add_eos_token", "add_prefix_space")
"""Settings from which some tokenizer classes make their post-processor again when they are loaded."""


def save(tokenizer: Any, recipe: Recipe, folder: Path, *, query: str, passage: str) -> tuple[str, str]:
    """Write the tokenizer of an export to a folder; the prompts for queries and passages with these instructions.

    ModelError where sentence-transformers would make other tokens than those that were trained.
    """
    task = recipe.task(tokenizer)
    arounds = [task.template.around(text) for text in (query, passage)]
    ours = Documents(task)
    ends = {suffix for _, suffix in arounds}
    if len(ends) > 1 or not _is_token(tokenizer, end := ends.pop()):
        what = f"template {recipe.template.name} writes more than one special token after the text"
        raise ModelError(what, hint="sentence-transformers cannot do this: use loradock embed")
    prompts = arounds[0][0], arounds[1][0]
    if recipe.pooling == "mean" and not recipe.pool_instruction and not end:
        _forget_last(tokenizer, prompts)
    _write(tokenizer, folder, end=end, longest=recipe.passage_length)
    _compare(folder, recipe, ours, instruction=query, prompt=prompts[0], limit=recipe.query_length)
    _compare(folder, recipe, ours, instruction=passage, prompt=prompts[1], limit=recipe.passage_length)
    return prompts


def _is_token(tokenizer: Any, text: str) -> bool:
    return not text or text in {str(token) for token in tokenizer.added_tokens_decoder.values()}


def _forget_last(tokenizer: Any, prompts: Sequence[str]) -> None:
    """sentence-transformers counts a prompt one token short that ends in a token declared special, such as a BOS alone.

    The export's tokenizer knows that token, but not as one that stands for something.
    """
    for name in ("bos_token", "sep_token", "cls_token", "unk_token", "mask_token"):
        token = getattr(tokenizer, name)
        if token and any(prompt.endswith(token) for prompt in prompts):
            setattr(tokenizer, name, None)


def _write(tokenizer: Any, folder: Path, *, end: str, longest: int) -> None:
    from tokenizers.processors import TemplateProcessing

    backend = tokenizer.backend_tokenizer
    special = [(end, backend.token_to_id(end))] if end else []
    backend.post_processor = TemplateProcessing(single=["$A", end] if end else ["$A"], special_tokens=special)
    backend.no_truncation()
    backend.no_padding()
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    settings = json_object(folder / SETTINGS)
    settings_written = {name: value for name, value in as_both_read(settings).items() if name not in REWRITTEN}
    settings_written["tokenizer_class"] = "PreTrainedTokenizerFast"  # as tokenizer.json says, and nothing besides
    write_settings(folder, settings_written)


def _compare(folder: Path, recipe: Recipe, ours: Documents, *, instruction: str, prompt: str, limit: int) -> None:
    """ModelError where the tokens of some texts differ, or where the text begins among them."""
    from transformers import AutoTokenizer

    written = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    is_apart = recipe.pooling == "mean" and not recipe.pool_instruction
    for probe in PROBES:
        try:
            expected = ours(Side(instruction, probe), limit=limit)
        except RowError as error:
            raise ModelError(str(error), hint="a shorter --instruction") from error
        ids = written(prompt + probe, truncation=True, max_length=limit)["input_ids"]
        wrong = "make other tokens than training did" if ids != expected.ids else ""
        if is_apart and not wrong and _prompt_tokens(written, prompt) != expected.first_pooled:
            wrong = "pool another first token than training did"
        if wrong:
            what = f"of {prompt[-20:] + probe[:20]!r} sentence-transformers would {wrong}"
            hint = "use loradock embed, or train with embedding.pooling=lasttoken or embedding.pool_instruction=true"
            raise ModelError(what, hint=hint)


def _prompt_tokens(tokenizer: Any, prompt: str) -> int:
    """As sentence-transformers 6 counts them (`Transformer._get_prompt_length`)."""
    ids = tokenizer(prompt)["input_ids"] if prompt else []
    return len(ids) - (ids[-1] in tokenizer.all_special_ids) if ids else 0
