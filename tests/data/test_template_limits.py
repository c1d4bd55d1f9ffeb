"""Templates that divide by zero, recurse, overflow, eat memory or never end: refused soon, as what they are."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from loradock.data import chat_template
from loradock.data.formats.base import Conversation, Message
from loradock.data.formats.fields import RowError
from loradock.data.pairs.template import EmbeddingTemplate
from loradock.data.render import Renderer
from loradock.data.templates import Brought, ChatTemplate, resolve
from loradock.errors import ConfigError, InputMissing, ModelError
from loradock.process.bounded import TooMuch, bounded

ASKED = Conversation((Message("user", "one"), Message("assistant", "two")), 0)
FAILING = {
    "division by zero": ("{{ 1 / (messages | length - 2) }}", "ZeroDivisionError"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "overflow": ("{{ 10.0 ** (messages | length * 200) }}", "OverflowError"),
    "a long range": ("{% for i in range(10**9) %}x{% endfor %}", "OverflowError"),
    "a missing key": ("{{ messages.x.y }}", "has no attribute"),
    "a wrong type": ("{{ messages[0]['content'] + 1 }}", "TypeError"),
    "its own refusal": ("{{ raise_exception('never') }}", "never"),
}
ENDLESS = {
    "a number": "{{ 9**(9**9) }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "a text": "{{ 'x' * 10**10 }}",
    "a list": "{{ [0] * 10**10 }}",
    "padding": "{{ 'x' | center(10**10) }}",
    "a long text": "{{ 'x' * 10**8 }}",
}


def renderer(template: str) -> Renderer:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return Renderer(ChatTemplate("test", template), special_tokens=special, end_tokens=["</s>"], loss="auto")


@pytest.mark.parametrize("case", FAILING)
def test_a_template_that_fails_refuses_the_row(case: str) -> None:
    template, words = FAILING[case]
    with pytest.raises(RowError, match=r"the chat template \(test\) refuses this conversation") as refused:
        renderer(template)(ASKED)
    assert words in str(refused.value)


@pytest.mark.thin(4)
@pytest.mark.parametrize("case", ENDLESS)
def test_a_template_without_an_end_is_refused_as_such(case: str) -> None:
    began, limits = time.process_time(), resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ModelError, match=r"the chat template \(test\) (took|wrote) more than|wrote 100,") as refused:
        renderer(ENDLESS[case])(ASKED)
    assert refused.value.exit_code == 78
    assert "--set data.template=alpaca" in str(refused.value)
    assert time.process_time() - began < 5
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def swallowing() -> None:
    """Never ends, and suppresses errors as jinja does where it folds constants."""
    while True:
        with contextlib.suppress(Exception):
            sum(range(1000))


def test_no_except_of_the_code_inside_holds_the_limit_up() -> None:
    with pytest.raises(TooMuch, match="CPU time"), bounded(seconds=0.3, more_bytes=1 << 30):
        swallowing()


def test_what_stays_within_its_limits_leaves_nothing_behind() -> None:
    before = signal.getsignal(signal.SIGVTALRM), resource.getrlimit(resource.RLIMIT_AS)
    with bounded(seconds=1, more_bytes=1 << 30):
        pass
    assert (signal.getsignal(signal.SIGVTALRM), resource.getrlimit(resource.RLIMIT_AS)) == before


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ 9**(9**9) }}", "{{ [0] * 10**10 }}"])
def test_a_template_for_embedding_has_the_same_limits(source: str) -> None:
    template = EmbeddingTemplate("test.jinja", source, {"bos_token": "", "eos_token": "", "prefix": ""})
    with pytest.raises(ConfigError, match=r"embedding\.template: test\.jinja"):
        template.around("find")


def test_a_template_that_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jinja")
    (tmp_path / "b.jinja").symlink_to("/dev/zero")
    for name in ("a.jinja", "b.jinja"):
        with pytest.raises(InputMissing, match="not a regular file"):
            resolve(str(tmp_path / name), own=Brought())


def test_a_conversation_is_rendered_as_transformers_does() -> None:
    written, blocks = chat_template.render(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}",
        [{"role": "user", "content": "a"}],
        name="test",
        given={"eos_token": "</s>"},
    )
    assert (written, blocks) == ("a</s>", [])
