"""The Go templates of a Modelfile write what the Jinja templates do that training used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from export_gguf.go import render
from tiny import BASE
from transformers import AutoTokenizer

from loradock.use.gguf import modelfile

TALKS = [
    [{"role": "user", "content": "How tall is K2?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How tall\nis {K2}?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b 日本"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ],
]


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(BASE)


@pytest.mark.parametrize("name", modelfile.FORMS)
def test_a_form_writes_what_its_jinja_template_writes_after_bos(tokenizer: Any, name: str) -> None:
    jinja = modelfile.jinja_of(name)
    form = modelfile.FORMS[name].replace("EOS", tokenizer.eos_token)
    for talk in TALKS:
        wanted = tokenizer.apply_chat_template(
            talk, chat_template=jinja, tokenize=False, add_generation_prompt=True, bos_token=""
        )
        assert render(form, talk) == wanted
    tokenizer.chat_template = jinja
    assert modelfile.form_of(tokenizer) == modelfile.Form(name=name, system=None)


def test_a_template_is_known_by_what_it_writes_and_its_system_message_is_kept(tokenizer: Any) -> None:
    begins = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    tokenizer.chat_template = begins + modelfile.jinja_of("chatml").replace("- for message", " for message")
    assert modelfile.form_of(tokenizer) == modelfile.Form(name="chatml", system="You are kind.")
    text = modelfile.text(Path("a/b.gguf"), modelfile.form_of(tokenizer), eos="</s>", ends=["</s>", "<|im_end|>"])
    assert text.startswith('FROM ./b.gguf\nTEMPLATE """')
    assert text.endswith('SYSTEM """You are kind."""\nPARAMETER stop "</s>"\nPARAMETER stop "<|im_end|>"\n')


def test_arguments_of_training_are_in_the_template_and_what_they_add_is_in_the_modelfile(tokenizer: Any) -> None:
    """As enable_thinking has it in Qwen 3: a prompt without thoughts ends with empty ones."""
    end = "{% if add_generation_prompt and enable_thinking is false %}{{ '<think>\\n\\n</think>' + after }}{% endif %}"
    plain = modelfile.jinja_of("chatml") + end
    tokenizer.chat_template = modelfile.with_arguments(plain, {"enable_thinking": False, "after": "\n\n\"'日"})
    form = modelfile.form_of(tokenizer)
    assert form == modelfile.Form(name="chatml", system=None, tail="<think>\n\n</think>\n\n\"'日")
    (template,) = re.findall('"""(.*?)"""', modelfile.text(Path("b.gguf"), form, eos="</s>", ends=[]), re.DOTALL)
    for talk in TALKS:
        wanted = tokenizer.apply_chat_template(
            talk,
            chat_template=plain,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
            after="\n\n\"'日",
        )
        assert render(template, talk) == wanted
    tokenizer.chat_template = modelfile.with_arguments(plain, {"enable_thinking": False, "after": "{{ .Tools }}"})
    assert modelfile.form_of(tokenizer) is None


@pytest.mark.parametrize("template", ["{{ messages[0].content | upper }}", "{{ raise_exception('no') }}", None])
def test_another_template_has_no_form(tokenizer: Any, template: str | None) -> None:
    tokenizer.chat_template = template
    assert modelfile.form_of(tokenizer) is None
    assert "TEMPLATE" not in modelfile.text(Path("b.gguf"), None, eos="</s>", ends=[]).replace("No TEMPLATE", "")


def test_a_first_token_that_only_looks_like_bos_is_not_put_twice(tokenizer: Any) -> None:
    tokenizer.chat_template = "<s>{{ messages[0].content }}"
    assert not modelfile.writes_bos(tokenizer)
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    assert modelfile.writes_bos(tokenizer)
