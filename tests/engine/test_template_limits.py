"""A chat template of a stranger ends: in time, in memory, in size; an honest one pays nothing for that."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.config import objectives
from stoker.engine import template_limits
from stoker.engine.rendering import Renderer
from stoker.errors import StokerError
from stoker.rows.turns import Conversation, Turn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")

CHAT = Conversation((Turn("user", "a"), Turn("assistant", "b")))
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
DOUBLED = "{% set n = namespace(t='aa') %}" + "{% set n.t = n.t + n.t %}" * 26 + "{{ n.t }}"
TEMPLATES = {
    "loops": (LOOPS, "processor time"),
    "a power": ("{% set x = 9 ** (10 ** 12) %}", "rendering"),
    "a text": ("{{ messages[0].content * 10 ** 11 }}", "memory"),
    "a list": ("{% set x = [0] * 10 ** 11 %}", "memory"),
    "a width": ("{{ '%100000000000d' % 1 }}", "memory"),
    "a doubled text": (DOUBLED, "characters"),
}
EQUAL = (
    "{% set n = namespace(a=[1], b=[1]) %}"
    "{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
)
"""2^60 comparisons, all in C: no exception gets in."""


def renderer(template: str) -> Renderer:
    tokenizer: Any = SimpleNamespace(name="evil", template=template, template_fields={}, special_tokens=())
    return Renderer(tokenizer, objectives.facts("pretrain"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "_SECONDS", 1.0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_without_end_is_named(kind: str) -> None:
    template, reason = TEMPLATES[kind]
    started = time.process_time()
    with pytest.raises(StokerError) as refused:
        renderer(template)._render_chats([CHAT, CHAT])
    assert refused.value.code == "STK513"
    assert reason in refused.value.what
    assert time.process_time() - started < 20


def test_a_range_of_a_billion_is_a_bad_row() -> None:
    (bad,) = renderer("{% for i in range(10 ** 9) %}{% endfor %}")._render_chats([CHAT])
    assert "Range" in bad.text


def test_where_no_exception_gets_in_the_kernel_ends_the_program() -> None:
    program = f"""
import sys; sys.path.insert(0, {__file__.rpartition("/")[0]!r})
import test_template_limits as own
own.template_limits._SECONDS = 1.0
own.renderer({EQUAL!r})._render_chats([own.CHAT])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120)
    assert ended.returncode == -signal.SIGPROF, ended.stderr


def test_an_honest_template_is_untouched_and_costs_nothing_more() -> None:
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    made, chats = renderer(template), [CHAT] * 200
    made._render_chats(chats)
    handlers = signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_PROF)
    started = time.process_time()
    with template_limits.limited("x", 200):
        pass
    limits = time.process_time() - started
    started = time.process_time()
    found = made._render_chats(chats)
    assert [one.text for one in found] == ["<user>a\n<assistant>b\n"] * 200
    assert limits < 0.05 * (time.process_time() - started)
    assert handlers == (signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_PROF))
