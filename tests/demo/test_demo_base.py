"""The shipped base model: small, loads without a network, and good at the commands that it was trained on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from loradock.demo.corpus import NOUNS, QUESTIONS, SKILLS, ask, commands, draw_list
from loradock.demo.exam import DIRECTORY, exact_match, load_heldout
from loradock.demo.make_base import train_tokenizer

BASE = DIRECTORY / "base"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BASE, local_files_only=True, padding_side="left")


@pytest.fixture(scope="module")
def model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(BASE, local_files_only=True, dtype=torch.float32).eval()


def answers(model: Any, tokenizer: Any, users: list[str]) -> list[str]:
    chats = [[{"role": "user", "content": user}] for user in users]
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
    )
    ids = model.generate(**batch, max_new_tokens=24, do_sample=False)
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_demo_ships_less_than_3_5_megabytes() -> None:
    shipped = [path for path in DIRECTORY.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in shipped) < 3_500_000


def test_the_base_obeys_its_commands_on_fresh_lists(model: Any, tokenizer: Any) -> None:
    rng = random.Random(77)
    asked = [(skill, told, draw_list(rng, skill)) for skill in SKILLS for told in commands()[skill] * 4]
    got = answers(model, tokenizer, [ask(told, nouns) for _, told, nouns in asked])
    assert exact_match(got, [SKILLS[skill](nouns) for skill, _, nouns in asked]) >= 90


def test_the_base_cannot_answer_the_held_out_questions(model: Any, tokenizer: Any) -> None:
    rows = load_heldout()
    got = answers(model, tokenizer, [ask(row["instruction"], [row["input"]]) for row in rows])
    assert exact_match(got, [row["output"] for row in rows]) < 15


def test_every_linear_layer_fills_whole_nf4_blocks(model: Any) -> None:
    import torch

    linears = [module for module in model.model.modules() if isinstance(module, torch.nn.Linear)]
    assert linears
    assert all(linear.in_features % 64 == 0 for linear in linears)


def test_the_tokenizer_gives_back_any_text(tokenizer: Any) -> None:
    for text in (*(q for phrasings in QUESTIONS.values() for q in phrasings), "naïve café, 東京 🦊\n\ttab  two spaces"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_noun_is_one_token_at_the_start_and_after_a_space(tokenizer: Any) -> None:
    assert all(len(tokenizer.encode(start + noun)) == 1 for noun in NOUNS for start in ("", " "))


def test_the_shipped_tokenizer_is_the_one_that_the_script_trains(tokenizer: Any) -> None:
    fresh = train_tokenizer()
    assert fresh.get_vocab() == tokenizer.get_vocab()
    assert fresh.chat_template == tokenizer.chat_template


def test_a_turn_ends_with_the_eos_token_and_a_prompt_is_a_prefix_of_its_chat(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "Hello\n\nriver"}, {"role": "assistant", "content": "river"}]
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<s><|user|>\nHello\n\nriver</s><|assistant|>\n"
    assert whole == prompt + "river" + tokenizer.eos_token
    ids = tokenizer.apply_chat_template(chat, return_dict=False)
    assert ids[: -len(tokenizer.encode("river")) - 1] == tokenizer.encode(prompt)
    assert ids[-1] == tokenizer.eos_token_id
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3


def test_a_system_turn_has_a_place_in_the_template(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<s><|system|>\nBe brief.</s><|user|>\nHello</s>"
    assert len(tokenizer.encode("<|system|><|user|><|assistant|>")) == 3
