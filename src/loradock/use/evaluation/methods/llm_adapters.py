"""The protocol of LLM-Adapters, exactly, so that its figures can be compared with published ones.

From its `commonsense_evaluate.py` (repository AGI-Edgerunners/LLM-Adapters): a prompt of its own whatever the model's
template, with the indentation of the program it stands in and a space before a line break; padding on the left with
id 0; 4 beams, at most 32 new tokens; the text after the first `### Response:`, stripped; the first of the task's
answers that stands there, in lower case; none is wrong. Padding is not attended to, as on its CPU path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loradock.errors import OutOfMemory
from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods.base import Work
from loradock.use.evaluation.methods.forward import left_padded
from loradock.use.evaluation.methods.generate import generated
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.evaluation.tasks.base import Task
from loradock.use.evaluation.text_metrics import exact
from loradock.use.inference.opener import Opened

INDENT = " " * 16
INTRODUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request. "
)
RESPONSE = "### Response:"
PADDING, BEAMS, NEW_TOKENS = 0, 4, 32


def prompt_of(instruction: str) -> str:
    """The prompt; its last line is the indentation alone."""
    lines = (INTRODUCTION, "", f"{INDENT}### Instruction:", f"{INDENT}{instruction}", "", f"{INDENT}{RESPONSE}", INDENT)
    return "\n".join(lines)


def response_of(text: str) -> str:
    """The answer in the decoded prompt and what follows it."""
    return text.split(RESPONSE)[1].strip()


class LlmAdapters:
    """See above."""

    name = "generate"
    cpu_tokens: int | None = None

    def __init__(self, opened: Opened, task: Task) -> None:
        self.opened, self._task = opened, task
        self.settings: dict[str, Any] = {"beams": BEAMS, "max_new_tokens": NEW_TOKENS}

    def prepare(self, item: Item) -> Work:
        """The prompt's tokens, with what the tokenizer adds."""
        ids = list(self.opened.tokenizer(prompt_of(item.question))["input_ids"])
        length = len(ids) + NEW_TOKENS
        return Work(item=item, longest=length, tokens=BEAMS * length, logits=BEAMS, given=ids)

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """The best beam of each row."""
        from transformers import GenerationConfig

        model, tokenizer = self.opened.model, self.opened.tokenizer
        ids, mask = left_padded([work.given for work in works], padding=PADDING, device=model.device)
        generation = GenerationConfig(
            num_beams=BEAMS,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=PADDING,
            eos_token_id=self._ends(),
            bos_token_id=tokenizer.bos_token_id,
        )
        try:
            with self.opened.computing():
                sequences = model.generate(input_ids=ids, attention_mask=mask, generation_config=generation)
        except torch.OutOfMemoryError as error:
            what = f"CUDA out of memory with {len(works)} rows of {ids.shape[1]} tokens and {BEAMS} beams"
            raise OutOfMemory(what, hint=f"--batch-tokens {max(ids.shape[1], ids.numel() * BEAMS // 2)}") from error
        outcomes: list[Outcome] = []
        ends = set(self._ends())
        for work, sequence in zip(works, sequences, strict=True):
            text = response_of(tokenizer.decode(sequence, skip_special_tokens=True))
            has_ended = not ends.isdisjoint(sequence[ids.shape[1] :].tolist())
            finish = "stop" if has_ended else "length"
            outcomes.append(generated(work.item, text, finish, extract=self._task.extract, score=exact))
        return outcomes

    def _ends(self) -> list[int]:
        """The ids at which the model's own generation settings stop."""
        eos_ids = getattr(self.opened.model.generation_config, "eos_token_id", None)
        eos_ids = self.opened.tokenizer.eos_token_id if eos_ids is None else eos_ids
        return list(eos_ids) if isinstance(eos_ids, (list, tuple)) else [eos_ids]
