"""What a training on generated answers needs, asked before anything is prepared."""

from pathlib import Path

import pytest

from stoker.api import planning
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import shapes
from stoker.launch import answer_needs

FUNCTION = "{function: 'rewards.py:even', isolation: none}"


def refused(folder: Path, objective: str, options: str) -> tuple[str, str]:
    """The code and the place with which a run is refused; empty where it is not."""
    data = "data: {train: a.jsonl, pack: false, length: 2048}"
    text = f"model: m\n{data}\ntrain: {{objective: {objective}, batch: 8, {objective}: {{{options}}}}}\n"
    try:
        answer_needs.check(load.parse(text, "run.yaml"), folder)
    except StokerError as error:
        return error.code, error.where
    return "", ""


@pytest.fixture(autouse=True)
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "tools"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def even(completions, **_): return [0.0] * len(completions)\n", ""),
        ("import nowhere\n", "STK461"),
        ("", "STK461"),
    ],
)
def test_a_function_is_loaded_once_to_see_that_it_can_be(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "rewards.py").write_text(text)
    found, where = refused(tmp_path, "grpo", f"rewards: [{FUNCTION}]")
    assert found == code
    assert where == ("train.grpo.rewards[0]" if code else "")


@pytest.mark.parametrize(
    "options", ["rewards: [{exact: {column: answer}}], sampler: vllm", "teacher: t, sampler: vllm"]
)
def test_vllm_that_is_not_installed_is_said_at_the_word_that_asks_for_it(tmp_path: Path, options: str) -> None:
    objective = "distill" if "teacher" in options else "grpo"
    assert refused(tmp_path, objective, options) == ("STK601", f"train.{objective}.sampler")
    assert refused(tmp_path, objective, options.replace(", sampler: vllm", "")) == ("", "")
    python = tmp_path / "tools" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert refused(tmp_path, objective, options) == ("", "")


@pytest.mark.parametrize("sampler", ["vllm", "transformers"])
def test_a_plan_says_what_it_counts_of_a_sampler_of_its_own(tmp_path: Path, sampler: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "one and one?", "answer": "2"}\n' * 16)
    grpo = f"{{group: 4, sampler: {sampler}, rewards: [{{exact: {{column: answer}}}}]}}"
    text = f"""
name: asked
model: Qwen/Qwen2.5-0.5B-Instruct
data: {{train: a.jsonl, pack: false, length: 1024}}
tune: {{method: lora}}
train: {{objective: grpo, batch: 8, grpo: {grpo}}}
"""
    (tmp_path / "run.yaml").write_text(text)
    found = [
        one.fields for one in planning.plan(str(tmp_path / "run.yaml"), card="4090").reasons if one.key == "why.sampler"
    ]
    size = 2 * shapes.resolve("Qwen/Qwen2.5-0.5B-Instruct", tmp_path).shape.parameters() / 1e9
    assert found == ([{"weights": f"{size:.1f}"}] if sampler == "vllm" else [])


def test_a_training_that_generates_nothing_needs_none_of_it(tmp_path: Path) -> None:
    answer_needs.check(load.parse("model: m\ndata: {train: a.jsonl}\n", "run.yaml"), tmp_path)
