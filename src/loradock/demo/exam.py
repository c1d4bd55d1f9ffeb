"""The demo's exam: held-out questions answered greedily, before and after training, by exact match."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.data.formats import alpaca

DIRECTORY = Path(__file__).parent
CONFIG = DIRECTORY / "config.yaml"
MAX_NEW_TOKENS = 48


def resolved(config: RunConfig) -> RunConfig:
    """The demo's configuration with its own model and data as absolute paths; what the user changed stays."""
    sources = tuple(source.model_copy(update={"path": inside(source.path)}) for source in config.data.sources)
    validation = config.data.validation
    update = {"sources": sources, "validation": inside(validation) if isinstance(validation, str) else validation}
    return config.model_copy(
        update={
            "name": config.name or "demo",
            "model": config.model.model_copy(update={"name": inside(config.model.name)}),
            "data": config.data.model_copy(update=update),
        }
    )


def inside(path: str) -> str:
    """A path of the demo's own directory where it names something there, else the path itself."""
    packaged_path = DIRECTORY / path
    return str(packaged_path) if packaged_path.exists() else path


def hold(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Score the model: `accuracy` in percent, and every held-out question with its answer."""
    rows = load_heldout()
    questions = [alpaca.conversation(row).messages[0].content for row in rows]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    answers = answer(model, tokenizer, prompts, max_new_tokens=MAX_NEW_TOKENS)
    answered = [
        {"question": question, "expected": row["output"], "answer": given.strip()}
        for question, row, given in zip(questions, rows, answers, strict=True)
    ]
    return {"accuracy": exact_match(answers, [row["output"] for row in rows]), "rows": len(rows), "answers": answered}


def verdict(scores: dict[str, Any]) -> list[str]:
    """What the demo prints at its end: one question that training mended, and the accuracy before and after."""
    score_before, score_after = scores["before"], scores["after"]
    pairs = list(zip(score_before["answers"], score_after["answers"], strict=True))
    mended = [(old, new) for old, new in pairs if old["answer"] != old["expected"] == new["answer"]]
    old, new = (mended or pairs)[0]
    return [
        f"one of {len(mended)} questions that it now answers right: {' / '.join(new['question'].split(chr(10) * 2))}",
        f"  expected: {new['expected']}",
        f"  before:   {old['answer']}",
        f"  after:    {new['answer']}",
        f"accuracy before: {score_before['accuracy']:.1f} %  after: {score_after['accuracy']:.1f} %",
    ]


def load_heldout() -> list[dict[str, str]]:
    """The 105 held-out rows, in file order: `instruction`, `input`, `output`, all text. None was trained on."""
    text = (DIRECTORY / "heldout.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Percentage (0 to 100) of predictions equal to their reference.

    White space around the text is ignored; everything else counts, letter case, commas and order too, so a right
    answer that rambles on is wrong. Raises ValueError where the lengths differ or there is nothing to score.
    """
    if not references:
        raise ValueError("nothing to score: references is empty")
    hits = sum(p.strip() == r.strip() for p, r in zip(predictions, references, strict=True))
    return 100 * hits / len(references)


def answer(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, batch: int = 32
) -> list[str]:
    """One greedy continuation a prompt, as text without special tokens.

    `prompts` are token ids with the generation header at their end; they are padded on the left, so a batch gives
    what each prompt gives alone. The model's mode (train or eval) is put back afterwards.
    """
    import torch

    was_training = model.training
    model.eval()
    answers: list[str] = []
    device = next(model.parameters()).device
    pad = tokenizer.pad_token_id
    try:
        for start in range(0, len(prompts), batch):
            group = prompts[start : start + batch]
            width = max(len(prompt) for prompt in group)
            ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in group], device=device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in group], device=device)
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    temperature=None,
                    top_p=None,
                    top_k=None,
                    use_cache=True,
                    pad_token_id=pad,
                    eos_token_id=tokenizer.eos_token_id,
                )
            answers += [tokenizer.decode(row[width:], skip_special_tokens=True) for row in out]
    finally:
        model.train(was_training)
    return answers
