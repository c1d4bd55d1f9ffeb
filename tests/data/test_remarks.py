"""What is told of rows that are trained otherwise than their author may expect, each with rows of which it is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data.test_turns import ENDS, template_of, tokenizer_of

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.prepare import prepare

QUESTION = {"role": "user", "content": "2 + 2?"}
THOUGHT = "<think>\n\n</think>\n\n"


def told(
    folder: Path, name: str, rows: Sequence[dict[str, Any]], *, own: bool = False, source: dict[str, Any] | None = None
) -> tuple[str, ...]:
    """The notes about rows prepared with a template, of a tokenizer that brings it itself where it is its `own`."""
    file, template = folder / "rows.jsonl", folder / "t.jinja"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    template.write_text(template_of(name))
    tokenizer = tokenizer_of(name)
    tokenizer.chat_template = template_of(name) if own else None
    sources = (SourceConfig.model_validate({"path": str(file)} | (source or {})),)
    data = DataConfig(sources=sources, template="auto" if own else str(template))
    return prepare(data, tokenizer=tokenizer, cache_dir=folder / "cache").notes


def talk(*answers: str) -> dict[str, Any]:
    turns = [each for answer in answers for each in (QUESTION, {"role": "assistant", "content": answer})]
    return {"messages": turns}


def test_a_generation_prompt_that_no_row_follows_is_told_with_what_it_writes(tmp_path: Path) -> None:
    (note,) = told(tmp_path, "trl/deepseek_r1_distill", [talk("4."), talk("5.")])
    assert note.startswith("warning: in 2 of 2 rows no answer begins where the generation prompt of the template")
    assert r'it writes "<think>\n"' in note
    assert "--set data.template=FILE.jinja" in note


def test_a_template_that_opens_the_last_answer_alone_otherwise_is_told_with_the_remedy(tmp_path: Path) -> None:
    rows = [talk("4."), talk("4.", "5."), talk("4.", "5.", "6.")]
    (note,) = told(tmp_path, "trl/qwen3", rows)
    assert note.startswith("warning: in 2 of 3 rows the template")
    assert json.dumps(THOUGHT) in note
    assert "--set data.loss=completion" in note


@pytest.mark.parametrize("name", ENDS)
def test_templates_whose_rows_are_what_inference_asks_for_are_silent(name: str, tmp_path: Path) -> None:
    """Of one turn; of two where each is opened alike. Told are those that are known to differ, and no other."""
    notes = told(tmp_path, name, [talk("4."), talk("4.", "5.")])
    opens_a_thought = {"trl/deepseekv3", "trl/deepseek_r1_distill"}
    is_unequal = {"trl/qwen3", "trl/qwen3_5_nothink", "trl/qwen3_5_think"}
    kinds = [("no answer begins" in note, "before the last answer" in note) for note in notes]
    expected = [(True, False)] if name in opens_a_thought else [(False, True)] if name in is_unequal else []
    assert kinds == expected, notes


def test_prompts_without_the_models_own_template_are_told_with_options_that_train_with_it(tmp_path: Path) -> None:
    row = {"question": "2 + 2?", "answer": "4."}
    fields = {"prompt": "question", "completion": "answer"}
    (note,) = told(tmp_path, "trl/qwen2_5", [row], own=True, source={"fields": fields})
    assert note.startswith("warning: in 1 of 1 rows prompt and completion are text")
    assert "--set data.sources.0.format=alpaca" in note
    assert "--set 'data.sources.0.fields={instruction: question, output: answer}'" in note
    remedy = {"format": "alpaca", "fields": {"instruction": "question", "output": "answer"}}
    assert told(tmp_path, "trl/qwen2_5", [row], own=True, source=remedy) == ()
    assert told(tmp_path, "alpaca", [row], source={"fields": fields}) == (), "nothing else is asked of this model"


def test_an_answer_with_an_end_of_its_own_and_text_of_a_template_are_told_without_a_warning(tmp_path: Path) -> None:
    (note,) = told(tmp_path, "chatml", [talk("4.<|im_end|>\n"), talk("5.")])
    assert note.startswith('in 1 of 2 rows the answer ends with "<|im_end|>" of its own')
    text = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4.<|im_end|>\n"
    (note,) = told(tmp_path, "chatml", [{"text": text}, {"text": "plain"}])
    assert note.startswith("in 1 of 2 rows the text is one that a chat template wrote")
