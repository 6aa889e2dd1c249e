"""The pieces that published chat templates write around turns, and templates that have none."""

from pathlib import Path
from typing import Any

import pytest
from prepare_case import Case
from prepare_case import make_tokenizer as make_chat_tokenizer
from template_case import ENDS, find, make_tokenizer, published
from transformers import AutoTokenizer

from stoker.engine import conversation_samples, generate

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize("name", ENDS)
def test_the_pieces_of_published_templates_render_every_sample(tokenizer: Any, name: str) -> None:
    pieces = find(tokenizer, published(name), ENDS[name])
    assert pieces is not None
    messages = [{"role": "user", "content": "How many wagons?"}]
    assert pieces.render(messages) == generate.rendered(tokenizer, messages, add_generation_prompt=True)


SYSTEM_LAST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.last and messages[0].role == 'system' %}"
    "{{ messages[0].content + '\n\n' }}{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
NUMBERED = "{% for m in messages %}{{ loop.index ~ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
LOWER = "{% for m in messages %}{{ m.role + ': ' + m.content | upper + '\n' }}{% endfor %}"


@pytest.mark.parametrize("template", [SYSTEM_LAST, NUMBERED, LOWER])
def test_a_template_that_is_more_than_pieces_has_none(tokenizer: Any, template: str) -> None:
    assert find(tokenizer, template, "</s>") is None


def test_a_default_system_prompt_belongs_to_the_opening(tokenizer: Any) -> None:
    pieces = find(tokenizer, published("qwen2_5"), "<|im_end|>")
    assert pieces is not None
    assert "You are Qwen" in pieces.opening
    assert pieces.user.before == "<|im_start|>user\n"
    assert pieces.assistant.after == "<|im_end|>\n"
    assert pieces.system is not None
    assert "You are Qwen" not in pieces.system.before


# ---- the system prompt of the rows


def rows(*systems: str | None) -> list[dict[str, Any]]:
    asked = [{"role": "user", "content": "How many wagons?"}, {"role": "assistant", "content": "Seven."}]
    told = [[{"role": "system", "content": one}] if one else [] for one in systems]
    return [{"messages": [*one, *asked]} for one in told]


@pytest.mark.parametrize(
    ("systems", "found"),
    [
        (["You are a stoker. 你是司炉。"] * 3, "You are a stoker. 你是司炉。"),
        (["You are a stoker."] * 2 + ["You are a guard."], None),
        (["You are a stoker."] * 2 + ["You are a stoker. Really."], None),
        (["You are a stoker."] * 2 + [None], None),
        ([None] * 3, None),
    ],
)
@pytest.mark.parametrize("pack", [True, False])
def test_a_system_prompt_counts_only_if_all_rows_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systems: list[str | None], found: str | None, *, pack: bool
) -> None:
    case = Case(tmp_path, monkeypatch)
    make_chat_tokenizer(case.tokenizer)
    run_dir = case.prepare(rows(*systems), data={"pack": pack}).run_dir
    tokenizer = AutoTokenizer.from_pretrained(case.tokenizer)
    assert conversation_samples.constant_system(run_dir, tokenizer) == found
