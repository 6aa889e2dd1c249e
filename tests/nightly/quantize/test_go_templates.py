"""Published chat templates, rendered by transformers and by the Go template that is found for them, through real Go."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import go_renderer
import pytest
from template_case import ENDS, find, make_tokenizer, published

from stoker.artifacts.turn_pieces import TurnPieces
from stoker.engine import generate

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(go_renderer.GO is None, reason="no Go toolchain"),
]

OWN = {
    "first mistral": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}",
    "odd characters": "{% for m in messages %}"
    "{{ '\"\\\\' + m.role + '\\u3000{{x}}\\t' + m.content + '\U0001f600\\u200d;' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\"\\\\assistant\\u3000{{x}}\\t' }}{% endif %}",
}
SAID = ['He said "{{ .System }}"', "第一行\n第二行　全角", "a\\b `c` \U0001f469\u200d\U0001f4bb", "<|im_start|>user"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("words"))


def conversations(pieces: TurnPieces) -> list[list[dict[str, str]]]:
    """Of several lengths, in words that mean something to templates and to Go."""
    roles = [["user"], ["user", "assistant", "user"], ["user", "assistant"] * 3 + ["user"]]
    roles += [["system", *one] for one in roles] if pieces.system else []
    return [
        [{"role": role, "content": SAID[(at + shift) % len(SAID)]} for at, role in enumerate(one)]
        for one in roles
        for shift in range(len(SAID))
    ]


def test_go_renders_what_transformers_renders(tokenizer: Any, tmp_path: Path) -> None:
    cases, expected = [], []
    for name, template in {**{name: published(name) for name in ENDS}, **OWN}.items():
        pieces = find(tokenizer, template, ENDS.get(name, ";"))
        assert pieces is not None, name
        for messages in conversations(pieces):
            cases.append((pieces.go_template(), messages))
            expected.append(generate.rendered(tokenizer, messages, add_generation_prompt=True))
    assert go_renderer.render(tmp_path, cases) == expected
    assert len(expected) > 200


def test_a_changed_piece_is_seen(tokenizer: Any, tmp_path: Path) -> None:
    """The control: the comparison above can fail."""
    pieces = find(tokenizer, published("qwen2_5"), "<|im_end|>")
    assert pieces is not None
    messages = [{"role": "user", "content": "a"}]
    expected = generate.rendered(tokenizer, messages, add_generation_prompt=True)
    wrong = replace(pieces, answer=pieces.answer.rstrip())
    assert go_renderer.render(tmp_path, [(pieces.go_template(), messages)]) == [expected]
    assert go_renderer.render(tmp_path, [(wrong.go_template(), messages)]) != [expected]


def test_a_system_prompt_that_the_template_refuses_is_left_out(tokenizer: Any, tmp_path: Path) -> None:
    pieces = find(tokenizer, published("gemma"), "<end_of_turn>")
    assert pieces is not None
    assert pieces.system is None
    user = {"role": "user", "content": "a"}
    with_system = [{"role": "system", "content": "b"}, user]
    one, other = go_renderer.render(tmp_path, [(pieces.go_template(), m) for m in ([user], with_system)])
    assert one == other
