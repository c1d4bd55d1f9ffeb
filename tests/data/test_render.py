"""Templates that hide the assistant's text: where it is found all the same, and what is said where it is not."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.data.cache import Chunk
from loradock.data.formats.base import Conversation, Message
from loradock.data.formats.fields import RowError
from loradock.data.remarks import ALTERED
from loradock.data.render import Loss, Renderer
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.spans import Remark
from loradock.data.templates import NAMES, Brought, ChatTemplate, named, resolve
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, InputMissing, ModelError

TWO_TURNS = (
    Message("user", "one"),
    Message("assistant", "first answer"),
    Message("user", "first answer"),
    Message("assistant", "first answer"),
)


def learned(
    template: str, messages: tuple[Message, ...] = TWO_TURNS, *, loss: Loss = "auto", given: int = 0
) -> list[str]:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    render = Renderer(
        ChatTemplate("test", template),
        special_tokens=special,
        end_tokens=["<s>", "</s>", "<|user|>", "<|end|>", "<|im_end|>"],
        loss=loss,
    )
    rendering = render(Conversation(messages, given))
    return [rendering.text[start:end] for start, end in rendering.spans]


ASKS = "{% if add_generation_prompt %}<|user|>assistant: {% endif %}"


def test_generation_blocks_say_where_a_turn_ends_and_the_prompt_where_it_begins() -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}: {% if m.role == 'assistant' %}<think></think>{% generation %}"
        "{{ m.content }} [done]<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}" + ASKS
    )
    assert learned(template) == ["<think></think>first answer [done]<|end|>"] * 2
    assert learned(template, loss="completion") == ["<think></think>first answer [done]<|end|>"]


def test_a_generation_block_that_begins_before_the_prompt_ends_is_learned_from_there() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|user|>assistant: {{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}<|user|>{{ m.role }}: {{ m.content }}{% endif %}\n{% endfor %}" + ASKS
    )
    assert learned(template) == ["first answer<|end|>"] * 2
    assert learned(template, loss="completion") == ["first answer<|end|>"]


def test_generation_blocks_without_the_end_of_turn_are_extended_over_it() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "<|end|>{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    )
    assert learned(template) == ["first answer<|end|>"] * 2


def test_what_a_template_without_a_generation_prompt_writes_in_front_of_an_answer_is_generated_so_it_is_learned() -> (
    None
):
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    assert learned(template) == ["<|user|>assistant: first answer<|end|>"] * 2


def test_a_prompt_that_begins_the_answer_is_not_learned_again() -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|user|>assistant: <think>{% endif %}"
    )
    messages = (Message("user", "q"), Message("assistant", "<think>so</think>yes"))
    assert learned(template, messages) == ["so</think>yes<|end|>"]
    assert learned(template) == ["first answer<|end|>"] * 2, "where no thought is, the turn begins where they part"


def test_an_inner_turn_that_ends_otherwise_than_the_last_learns_its_own_end() -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}"
        "{% if loop.last and m.role == 'assistant' and not add_generation_prompt %}</s>{% else %}<|end|>{% endif %}"
        "{% endfor %}" + ASKS
    )
    assert learned(template) == ["first answer<|end|>", "first answer</s>"]


def test_a_template_that_ends_no_turn_gets_eos_and_never_learns_the_next_header() -> None:
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{% endfor %}" + ASKS
    assert learned(template) == ["first answer", "first answer</s>"]


def test_a_special_token_that_opens_the_next_turn_is_not_taken_for_an_end() -> None:
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<|user|>assistant: {% else %}<|end|>{% endif %}"
    assert learned(template) == ["first answer", "first answer<|end|>"]


def test_an_end_marker_that_is_plain_text_is_learned_up_to_eos() -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}[/end]\n{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant] {% endif %}"
    assert learned(template) == ["first answer[/end]\n", "first answer[/end]\n</s>"]


def test_an_end_token_behind_plain_text_ends_every_turn_and_gets_no_eos_behind_it() -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }} [done]<|end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant] {% endif %}"
    assert learned(template) == ["first answer [done]<|end|>"] * 2


def test_a_template_that_cuts_earlier_thoughts_is_located_by_its_prefixes() -> None:
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[1] }}"
        "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
    )
    messages = (Message("user", "q"), Message("assistant", "<think>so</think>yes"))
    assert learned(template, messages) == ["yes<|end|>"]
    assert learned(template, messages * 2) == ["yes<|end|>"] * 2
    assert learned(template) == ["first answer<|end|>"] * 2


def test_thoughts_that_a_template_keeps_in_the_last_turn_alone_hide_no_turn() -> None:
    """Qwen 3's way: the rendering of two messages is no prefix of that of four."""
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
    )
    messages = (Message("user", "q"), Message("assistant", "<think>so</think>yes"))
    assert learned(template, messages * 2) == ["yes<|end|>", "<think>so</think>yes<|end|>"]


def test_newlines_that_a_template_strips_alone_do_not_hide_the_answer() -> None:
    """Qwen 3's last turn: an empty thought behind the generation prompt, and the answer without its first newlines."""
    template = (
        "{% for m in messages %}<|user|>{{ m.role }}\n{% if loop.last %}<think>\n\n</think>\n\n"
        "{{ m.content.lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
    )
    answers = tuple(Message(m.role, f"\n\n{m.content} \n" if m.role == "assistant" else m.content) for m in TWO_TURNS)
    assert learned(template, answers) == ["\n\nfirst answer \n<|end|>", "<think>\n\n</think>\n\nfirst answer \n<|end|>"]


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
    with pytest.raises(RowError, match=r"template test: cannot locate .*--set data\.template=alpaca"):
        learned(template)


def test_a_row_that_the_template_refuses_says_so_in_the_templates_words() -> None:
    with pytest.raises(RowError, match="refuses this conversation: user and assistant turns have to alternate"):
        learned(named("gemma").text, (Message("user", "a"), Message("user", "b"), Message("assistant", "c")))


def test_a_conversation_without_an_answer_is_refused() -> None:
    with pytest.raises(RowError, match="does not end with an assistant turn"):
        learned(named("chatml").text, (Message("user", "a"),))


def test_auto_learns_every_turn_but_those_of_a_rows_prompt() -> None:
    template = named("chatml").text
    assert learned(template) == learned(template, loss="assistant") == ["first answer<|im_end|>"] * 2
    assert learned(template, given=3) == learned(template, loss="completion") == ["first answer<|im_end|>"]
    assert learned(template, given=3, loss="assistant") == ["first answer<|im_end|>"] * 2


def test_a_row_whose_answer_the_template_drops_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    silent = ChatTemplate("silent", "{% for m in messages %}{% generation %}{% endgeneration %}{% endfor %}")
    chunk, refused = ChunkPreparer(Task(spec=spec, template=silent, loss="completion"))(
        [(7, Conversation((Message("user", "a"), Message("assistant", "b"))))]
    )
    assert len(chunk.lengths) == 0
    assert [line for line, _ in refused] == [7]


def test_a_template_that_writes_roles_alone_is_refused_and_one_that_cuts_thoughts_is_counted(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    said = Conversation((Message("user", "q"), Message("assistant", "<think>so</think>yes")))

    def prepared(text: str) -> tuple[Chunk, list[tuple[int | None, str]]]:
        task = Task(spec=spec, template=ChatTemplate("test", text), loss="auto")
        return ChunkPreparer(task)([(7, said)])

    _, refused = prepared("{% for m in messages %}{{ m.role }}{% endfor %}")
    assert [(line, what.partition(";")[0]) for line, what in refused] == [
        (7, "template test leaves out what the assistant says")
    ]
    turn = "{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n"
    chunk, refused = prepared(f"{{% for m in messages %}}{turn}{{% endfor %}}")
    assert (refused, len(chunk.lengths), dict(chunk.remarks)) == ([], 1, {Remark(ALTERED): 1})
    chunk, refused = prepared("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert (refused, len(chunk.lengths), dict(chunk.remarks)) == ([], 1, {})


def test_each_named_template_is_found_and_auto_prefers_the_tokenizers_own() -> None:
    assert all(resolve(name, own=Brought(text="x")) == named(name) for name in NAMES)
    assert resolve("auto", own=Brought(text="{{ messages }}")).text == "{{ messages }}"
    assert resolve("auto", own=Brought()) == named("alpaca")


def test_an_unknown_or_missing_template_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="chatmll") as unknown:
        resolve("chatmll", own=Brought())
    assert "--set data.template=chatml" in str(unknown.value)
    with pytest.raises(InputMissing, match=r"no/such\.jinja"):
        resolve("no/such.jinja", own=Brought())


def test_a_tokenizer_without_eos_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    mute = PreTrainedTokenizerFast(tokenizer_object=tokenizers["byte-level"].backend_tokenizer)
    with pytest.raises(ModelError, match="no eos_token"):
        TokenizerSpec.of(mute)
