"""Templates that hide the assistant's text: where it is found all the same, and what is said where it is not."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.data.formats.base import Conversation, Message, RowError
from loradock.data.pool import ChunkPreparer, Task
from loradock.data.render import Loss, Renderer
from loradock.data.templates import NAMES, ChatTemplate, named, resolve
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, InputMissing, ModelError

TWO_TURNS = (
    Message("user", "one"),
    Message("assistant", "first answer"),
    Message("user", "first answer"),
    Message("assistant", "first answer"),
)


def learned(template: str, messages: tuple[Message, ...] = TWO_TURNS, *, loss: Loss = "assistant") -> list[str]:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    render = Renderer(
        ChatTemplate("test", template),
        special_tokens=special,
        end_tokens=["<s>", "</s>", "<|user|>", "<|end|>"],
        loss=loss,
    )
    rendering = render(Conversation(messages))
    return [rendering.text[start:end] for start, end in rendering.spans]


def test_generation_blocks_say_what_is_learned() -> None:
    template = (
        "{% for m in messages %}<|user|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    )
    assert learned(template) == ["first answer<|end|>"] * 2
    assert learned(template, loss="completion") == ["first answer<|end|>"]


def test_generation_blocks_without_the_end_of_turn_are_extended_over_it() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "<|end|>{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    )
    assert learned(template) == ["first answer<|end|>"] * 2


def test_a_template_that_ends_no_turn_gets_eos_and_never_learns_the_next_header() -> None:
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{% endfor %}"
    assert learned(template) == ["first answer", "first answer</s>"]


def test_a_special_token_that_opens_the_next_turn_is_not_taken_for_an_end() -> None:
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{% endfor %}<|end|>"
    assert learned(template) == ["first answer", "first answer<|end|>"]


def test_an_end_marker_that_is_plain_text_is_learned_up_to_eos() -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}[/end]\n{% endfor %}"
    assert learned(template) == ["first answer[/end]\n", "first answer[/end]\n</s>"]


def test_a_template_that_cuts_earlier_thoughts_is_located_by_its_prefixes() -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[1] }}"
        "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
    )
    messages = (Message("user", "q"), Message("assistant", "<think>so</think>yes"))
    assert learned(template, messages) == ["yes<|end|>"]
    assert learned(template) == ["first answer<|end|>"] * 2


def test_newlines_that_a_template_strips_alone_do_not_hide_the_answer() -> None:
    """Qwen 3's last turn: an empty thought that is not learned, then the answer without its first newlines."""
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}\n{% if loop.last %}<think>\n\n</think>\n\n"
        "{{ m.content.lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
    )
    answers = tuple(Message(m.role, f"\n\n{m.content} \n" if m.role == "assistant" else m.content) for m in TWO_TURNS)
    assert learned(template, answers) == ["\n\nfirst answer \n<|end|>", "first answer \n<|end|>"]


def test_a_template_that_escapes_contents_is_located_by_its_prefixes() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}={{ m.content | tojson }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant={% endif %}"
    )
    messages = (Message("user", "q"), Message("assistant", 'a "quoted" word'))
    assert learned(template, messages) == ['"a \\"quoted\\" word"<|end|>']


def test_a_template_that_moves_the_system_message_behind_is_located() -> None:
    template = (
        "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}"
        "{% if loop.last %}<|end|>{% endif %}{% endfor %} {{ messages[0].content }}"
    )
    messages = (Message("system", "be brief"), Message("user", "be brief"), Message("assistant", "be brief"))
    assert learned(template, messages) == ["be brief<|end|>"]


def test_a_template_that_hides_the_assistant_is_refused_with_a_remedy() -> None:
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    with pytest.raises(RowError, match=r"template test: cannot locate .*--set data\.template=chatml"):
        learned(template)


def test_a_row_that_the_template_refuses_says_so_in_the_templates_words() -> None:
    with pytest.raises(RowError, match="refuses this conversation: user and assistant turns have to alternate"):
        learned(named("gemma").text, (Message("user", "a"), Message("user", "b"), Message("assistant", "c")))


def test_a_conversation_without_an_answer_is_refused() -> None:
    with pytest.raises(RowError, match="does not end with an assistant turn"):
        learned(named("chatml").text, (Message("user", "a"),))


def test_a_row_whose_answer_the_template_drops_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    silent = ChatTemplate("silent", "{% for m in messages %}{% generation %}{% endgeneration %}{% endfor %}")
    chunk, refused = ChunkPreparer(Task(spec=spec, template=silent, loss="completion"))(
        [(7, Conversation((Message("user", "a"), Message("assistant", "b"))))]
    )
    assert len(chunk.lengths) == 0
    assert [line for line, _ in refused] == [7]


def test_each_named_template_is_found_and_auto_prefers_the_tokenizers_own() -> None:
    assert all(resolve(name, own="x") == named(name) for name in NAMES)
    assert resolve("auto", own="{{ messages }}").text == "{{ messages }}"
    assert resolve("auto", own=None) == named("alpaca")


def test_an_unknown_or_missing_template_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="chatmll") as unknown:
        resolve("chatmll", own=None)
    assert "--set data.template=chatml" in str(unknown.value)
    with pytest.raises(InputMissing, match=r"no/such\.jinja"):
        resolve("no/such.jinja", own=None)


def test_a_tokenizer_without_eos_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    mute = PreTrainedTokenizerFast(tokenizer_object=tokenizers["byte-level"].backend_tokenizer)
    with pytest.raises(ModelError, match="no eos_token"):
        TokenizerSpec.of(mute)
