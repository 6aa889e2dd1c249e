"""`data.pipeline`: steps by datatrove's names; what it does not have is refused, with the line and the nearest name."""

import pytest

from stoker.config import load, native
from stoker.config.pipeline_steps import Block, Decontamination
from stoker.config.run import Run
from stoker.errors import StokerErrors
from stoker.rundir import prepared, training_words

HEAD = """
model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
"""


def run(pipeline: str, more: str = "") -> Run:
    return load.parse(f"{HEAD}data:\n  train: raw.jsonl\n  pipeline:\n{pipeline}\n{more}", "run.yaml")


def refused(pipeline: str, more: str = "") -> list[str]:
    with pytest.raises(StokerErrors) as caught:
        run(pipeline, more)
    return [f"{error.code} {error.where}" for error in caught.value.errors]


def test_steps_are_read_in_their_order() -> None:
    steps = run(
        "    - step: MinhashDedup\n      options: {n_grams: 13}\n    - {step: NGramsDecont, against: eval.jsonl}"
    )
    first, second = steps.data.pipeline or []
    assert isinstance(first, Block)
    assert first.options == {"n_grams": 13}
    assert isinstance(second, Decontamination)
    assert second.eval_sets == ["eval.jsonl"]


def test_every_step_has_its_options_listed() -> None:
    names = {*Block.model_fields["step"].annotation.__args__, "NGramsDecont"}  # type: ignore[union-attr]
    assert names == native.step_options().keys()


def test_an_option_that_a_block_does_not_have_is_refused_with_its_line() -> None:
    words = "    - step: GopherQualityFilter\n      options:\n        min_words: 3\n        stop_words: [a]"
    assert refused(words) == ["STK165 run.yaml:9: data.pipeline[0].options.min_words"]


def test_the_nearest_option_is_named() -> None:
    with pytest.raises(StokerErrors) as caught:
        run("    - {step: MinhashDedup, options: {ngrams: 3}}")
    assert "`n_grams`" in str(caught.value.errors[0].hint)


@pytest.mark.parametrize(
    "words",
    [
        "    - step: MinHashDedup",
        "    - {step: MinhashDedup, against: eval.jsonl}",
        "    - step: NGramsDecont",
        "    - MinhashDedup",
        "    []",
    ],
)
def test_what_is_no_step_is_refused(words: str) -> None:
    (problem,) = refused(words)
    assert problem.startswith("STK1")
    assert "data.pipeline" in problem


@pytest.mark.parametrize("option", ["tasks: 8", "skip_completed: false", "env_command: reboot", "venv_path: x"])
def test_what_the_stages_decide_cannot_be_set(option: str) -> None:
    (problem,) = refused("    - step: ExactDedup", f"native: {{datatrove: {{{option}}}}}")
    assert problem.startswith("STK166")


def test_the_executor_is_no_word_of_the_training_and_the_steps_are() -> None:
    one, two = (run("    - step: ExactDedup", f"native: {{datatrove: {{workers: {n}}}}}") for n in (1, 2))
    assert training_words.changed(one, two) == []
    assert training_words.changed(one, run("    - step: MinhashDedup")) != []


def test_a_set_that_was_prepared_before_there_were_pipelines_keeps_its_key() -> None:
    plain = load.parse(f"{HEAD}data: {{train: raw.jsonl}}", "run.yaml")
    assert prepared.words(plain) == "17994290ff375571c90c5539bd629bbeeff24fd69e5e4ca0616ed5d445457116"
    assert prepared.words(plain) != prepared.words(run("    - step: ExactDedup"))
