"""The model card and the training curve: what lies beside an adapter for the next person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis.report.content import REVISION, content, evaluations, metrics
from PIL import Image
from tiny import BASE
from transformers import AutoTokenizer

from loradock.plan.plan import shown
from loradock.training.observers import loss_curve, model_card
from loradock.training.run import trained_prompt


def written(directory: Path, *, lines: bool = True, prompt: str | None = "<s>[INST] ... [/INST]", **known: Any) -> str:
    file = directory / "README.md"
    model_card.write(content(directory, **known), evaluations() if lines else [], file, prompt=prompt)
    return file.read_text(encoding="utf-8")


def test_the_card_begins_with_metadata_that_yaml_reads(tmp_path: Path) -> None:
    front = yaml.safe_load(written(tmp_path).split("---")[1])
    assert front["base_model"] == "mistralai/Mistral-7B-v0.3"
    assert (front["library_name"], front["pipeline_tag"]) == ("peft", "text-generation")


def test_the_card_holds_the_facts_of_the_run(tmp_path: Path) -> None:
    text = written(tmp_path)
    for fact in (
        "# mistral-rows-001",
        REVISION,
        "r=8, alpha=32",
        "q_proj",
        "0.0002, cosine",
        "NVIDIA H200",
        "torch 2.10.0",
        "bitsandbytes 0.50.2",
        "c0ffee",
        "| rows.jsonl | sha256 abababababababab |",
        "10000 trained, 100 held out",
        "1,660,000, of which 830,000 are learned",
        "| loss on | assistant |",
        "| steps | 40 |",
        "flash_attention_2 (flash-attn 2.8.3 is installed",
        "| 40 | 1.2500 | 3.490 |",
        "![training curve](training_curve.png)",
        f'from_pretrained("mistralai/Mistral-7B-v0.3", revision="{REVISION}", quantization_config=BitsAndBytesConfig(',
        'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bf',
        "apply_chat_template",
        "```text\n<s>[INST] ... [/INST]\n```",
    ):
        assert fact in text, fact


def test_the_card_puts_a_question_with_the_arguments_of_the_template(tmp_path: Path) -> None:
    """Without them its lines would write another prompt than the one above them, which training read."""
    card = content(tmp_path)
    card["config"]["data"]["template_arguments"] = {"enable_thinking": False, "style": 'a "b"'}
    model_card.write(card, [], tmp_path / "README.md", prompt="...")
    calls = [line for line in (tmp_path / "README.md").read_text("utf-8").splitlines() if "apply_chat_template" in line]
    assert [line.partition('"pt"')[2] for line in calls] == [""", enable_thinking=False, style='a "b"')"""]
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.chat_template = "{{ messages[0].content }}{{ style }}"
    assert trained_prompt(tokenizer, {"style": "!"}) == "...!"


def test_the_card_of_a_run_on_raw_text_shows_no_chat_template(tmp_path: Path) -> None:
    text = written(tmp_path, prompt=None)
    assert "chat_template" not in text
    assert 'prompt = tokenizer("..."' in text
    assert "without a chat template" in text


def test_a_base_in_the_hubs_cache_is_named_by_its_id_and_one_elsewhere_by_its_path_alone(tmp_path: Path) -> None:
    cached = {"revision": None, "path": "/srv/cache/models--Qwen--Qwen3-8B/snapshots/abc"}
    assert model_card.hub_id("/srv/anything", cached) == "Qwen/Qwen3-8B"
    assert model_card.hub_id("/models/mine", {"revision": None, "path": "/models/mine"}) is None


def test_the_card_says_why_each_decision_was_taken(tmp_path: Path) -> None:
    known = content(tmp_path)
    text = written(tmp_path)
    for decision in known["plan"]["decisions"]:
        assert f"| {decision['name']} | {shown(decision['value'])} ({decision['why']})" in text


def test_every_row_of_a_table_has_two_cells(tmp_path: Path) -> None:
    assert model_card.table("T", [("a", "x|y")]).splitlines()[-1] == "| a | x/y |"
    rows = [line for line in written(tmp_path, lines=False).splitlines() if line.startswith("| ")]
    assert all(line.count("|") == 3 for line in rows)


def test_a_card_without_revision_evaluation_or_quantiser_leaves_them_out(tmp_path: Path) -> None:
    packages = {"torch": "2.10.0", "peft": "0.21.2", "transformers": "5.23.0"}
    text = written(tmp_path, lines=False, revision=None, packages=packages, gpus=())
    assert "revision=" not in text
    assert "None" not in text
    assert "perplexity" not in text
    assert "bitsandbytes" not in text
    assert "| device | CPU |" in text
    assert "training_curve.png" in text


@pytest.mark.parametrize("steps", [0, 1, 40])
@pytest.mark.parametrize("has_evaluations", [True, False])
def test_the_curve_is_a_png_of_960_by_540(tmp_path: Path, steps: int, has_evaluations: bool) -> None:
    file = tmp_path / "curve.png"
    loss_curve.draw(metrics(steps), evaluations() if has_evaluations else [], file)
    with Image.open(file) as image:
        image.load()
        assert (image.format, image.size) == ("PNG", (960, 540))


def test_the_curve_shows_the_losses_in_their_colours(tmp_path: Path) -> None:
    def colours(with_evaluations: bool) -> set[tuple[int, ...]]:
        file = tmp_path / "curve.png"
        loss_curve.draw(metrics(), evaluations() if with_evaluations else [], file)
        with Image.open(file) as image:
            found = image.convert("RGB").getcolors(1 << 20)
        return {colour for count, colour in found or [] if isinstance(colour, tuple) and count > 20}

    blue, red = (0x1F, 0x6F, 0x8B), (0xC0, 0x39, 0x2B)
    assert {blue, red} <= colours(with_evaluations=True)
    assert red not in colours(with_evaluations=False)


def test_the_card_says_from_which_step_an_accepted_change_holds(tmp_path: Path) -> None:
    rate = {"train.learning_rate": {"was": "0.0002", "now": "0.0001"}}
    weights = {"base.weights": {"was": "ab" * 32, "now": "cd" * 32}}
    undone = {"lora.dropout": {"was": "0", "now": "0.1"}}
    attempts = [
        {"status": "stopped"},
        {"status": "stopped", "resumed_from": "checkpoint-2", "allowed_changes": rate},
        {"status": "failed", "resumed_from": "checkpoint-6", "allowed_changes": undone},
        {"status": "stopped", "resumed_from": "checkpoint-6"},
    ]
    card = {"attempts": attempts, "resumed_from": "checkpoint-9", "allowed_changes": weights}
    file = tmp_path / "README.md"
    model_card.write(content(tmp_path) | card, [], file)
    text = file.read_text(encoding="utf-8")
    assert "| from step 3 | train.learning_rate was 0.0002, now 0.0001 |" in text
    assert "| from step 10 | base.weights was abababababab, now cdcdcdcdcdcd |" in text
    assert "lora.dropout was" not in text, "the attempt that changed it was gone back on"
    assert "from step" not in written(tmp_path)
