"""The demo's exam: held-out questions answered greedily, before and after training, by exact match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.demo.task import exact_match, load_heldout
from loradock.formats import alpaca
from loradock.model.generate import answer

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
    own = DIRECTORY / path
    return str(own) if own.exists() else path


def hold(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Score the model: `accuracy` in percent, and the first row with its answer as `sample`."""
    rows = load_heldout()
    questions = [alpaca.conversation(row).messages[0].content for row in rows]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    answers = answer(model, tokenizer, prompts, max_new_tokens=MAX_NEW_TOKENS)
    return {
        "accuracy": exact_match(answers, [row["output"] for row in rows]),
        "rows": len(rows),
        "sample": {"question": questions[0], "expected": rows[0]["output"], "answer": answers[0].strip()},
    }


def verdict(scores: dict[str, Any]) -> list[str]:
    """What the demo prints at its end; the last line is the accuracy before and after."""
    before, after = scores["before"], scores["after"]
    question = " / ".join(after["sample"]["question"].split("\n\n"))
    return [
        f"question: {question}",
        f"  expected: {after['sample']['expected']}",
        f"  before:   {before['sample']['answer']}",
        f"  after:    {after['sample']['answer']}",
        f"accuracy before: {before['accuracy']:.1f} %  after: {after['accuracy']:.1f} %",
    ]
