"""`stoker eval` and `stoker chat` beside the loss: task files, samples, artifacts, the harness."""

import json
import re
from pathlib import Path
from typing import Any

import adapted_run
import forked_programs
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from typer.testing import CliRunner

from stoker import tools
from stoker.artifacts import harness
from stoker.cli.main import app
from stoker.engine import evaluate, generate, merge, samples, tasks
from stoker.engine import tokenizer as trained_tokenizer
from stoker.errors import StokerError, StokerErrors
from stoker.handover import evaluate_command as words
from stoker.rundir import artifacts, events, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'w90', 'user': 'w91', 'assistant': 'w92'}[m.role] }} {{ m.content }} w93 "
    "{% endfor %}{% if add_generation_prompt %}w92 {% endif %}"
)


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp("run")
    made = adapted_run.make_run(folder, adapted_run.make_base(folder / "base"))
    tokenizer = AutoTokenizer.from_pretrained(made.final)
    tokenizer.add_special_tokens({"additional_special_tokens": ["w93"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(made.final)
    return made


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def evaluated(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> list[dict[str, Any]]:
    """The events of one run of the eval program."""
    before = len(list(events.read(run_dir.events_file))) if run_dir.events_file.exists() else 0
    monkeypatch.setattr("sys.argv", ["evaluate", str(run_dir.path), json.dumps(asked)])
    assert evaluate.main(run_dir.path) == 0
    return list(events.read(run_dir.events_file))[before:]


# ---- tasks


def test_an_answer_counts_only_when_it_matches_exactly(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"w10": " w20 w21\n", "w11": "w20 w21 w22", "w12": "w20", "w13": "W20 w21"}
    longest = []

    def answers(model: Any, tokenizer: Any, prompts: list[torch.Tensor], max_tokens: int) -> list[str]:
        longest.append(max_tokens)
        return [said[tokenizer.decode(prompt[0]).split()[1]] for prompt in prompts]

    monkeypatch.setattr(generate, "answers", answers)
    rows = [{"prompt": prompt, "answer": "w20 w21 "} for prompt in said]
    rows.append({"messages": [{"role": "user", "content": "w12"}], "answer": "w20"})
    (figures,) = (
        e for e in evaluated(run_dir, monkeypatch, tasks=[str(write(tmp_path, *rows))]) if e["event"] == "task"
    )
    assert (figures["measure"], figures["rows"], figures["right"]) == ("exact_match", 5, 2)
    kept = files.read_json(Path(figures["answers"]))
    assert [one["right"] for one in kept] == [True, False, False, False, True]
    assert kept[1] == {"row": 2, "wanted": "w20 w21 ", "answer": "w20 w21 w22", "right": False}
    assert longest == [20, 20, 20, 20, 18]  # twice the right answer's tokens, and some


def test_two_task_files_of_one_name_keep_their_answers_apart(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "answers", lambda *_: ["w20"])
    paths = []
    for number, answer in enumerate(("w20", "w30")):
        folder = tmp_path / ("maths", "law")[number]
        folder.mkdir()
        paths.append(str(write(folder, {"prompt": "w10", "answer": answer})))
    told = [e for e in evaluated(run_dir, monkeypatch, tasks=paths) if e["event"] == "task"]
    name = Path(paths[0]).name
    assert [(one["task"], one["right"]) for one in told] == [(f"maths/{name}", 1), (f"law/{name}", 0)]
    assert [files.read_json(Path(one["answers"]))[0]["wanted"] for one in told] == ["w20", "w30"]


def test_answers_written_at_once_are_those_written_one_by_one(run_dir: RunDir) -> None:
    model, tokenizer = generate.load(run_dir)
    texts = ["w10", "w11 w12 w13 w14 w15 w16", "w17 w18", "w19 w20 w21"]
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
    alone = [generate.answers(model, tokenizer, [prompt], 12)[0] for prompt in prompts]
    assert len(set(alone)) == 4
    assert generate.answers(model, tokenizer, prompts, 12) == alone


def test_a_choice_is_scored_by_the_log_probability_of_its_tokens(run_dir: RunDir) -> None:
    model, tokenizer = generate.load(run_dir)
    question = tasks.Question(1, [{"role": "user", "content": "w10 w11"}], ("w20", "w21 w22 w23", "w24"), 0)
    found = tasks.choice_logprobs(model, tokenizer, question, plain=False)
    for choice, value in zip(question.choices, found, strict=True):
        head = tokenizer("w91 w10 w11 w93 w92").input_ids
        tail = tokenizer(choice).input_ids
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(
                model(input_ids=torch.tensor([head + tail])).logits[0, len(head) - 1 : -1],
                torch.tensor(tail),
                reduction="sum",
            )
        assert value == pytest.approx(-loss.item(), rel=1e-5)


def test_the_best_choice_per_byte_wins_and_the_sum_stands_beside_it(run_dir: RunDir) -> None:
    model, tokenizer = generate.load(run_dir)
    choices = ("w20", " ".join(["w21"] * 8))
    questions = [tasks.Question(1, [{"role": "user", "content": "w10"}], choices, 0)]
    sums = tasks.choice_logprobs(model, tokenizer, questions[0], plain=False)
    (judged,) = tasks.judge(model, tokenizer, questions, plain=False)
    per_byte = [value / len(choice) for value, choice in zip(sums, choices, strict=True)]
    assert judged["answer"] == per_byte.index(max(per_byte))
    assert judged["right_by_sum"] is (sums[0] > sums[1])
    assert sums[0] > sums[1] * 0.5  # eight tokens cost more than one, so the two measures can differ


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        ([1], "expected an object, found `list`"),
        ({"answer": "x"}, "`prompt` is missing"),
        ({"prompt": "x"}, "`answer` is missing"),
        ({"prompt": 1, "answer": "x"}, "`prompt` is not text"),
        ({"prompt": "x", "answer": 4}, "`answer` is not text"),
        ({"prompt": "x", "choices": ["a", "b"]}, "`answer` is missing"),
        ({"prompt": "x", "choices": ["a", "b"], "answer": "a"}, "`answer` is not an integer"),
        ({"prompt": "x", "choices": ["a", "b"], "answer": True}, "`answer` is not an integer"),
        ({"prompt": "x", "choices": ["a", "b"], "answer": 2}, "`answer` is 2, but choices are numbered 0 to 1"),
        ({"prompt": "x", "choices": ["a"], "answer": 0}, "`choices` needs at least two"),
        ({"prompt": "x", "choices": ["a", ""], "answer": 0}, "`choices` is not a list"),
        ({"messages": "x", "answer": "x"}, "`messages` is not a list"),
        ({"messages": [{"role": "user"}], "answer": "x"}, "`content` is missing"),
        (
            {"messages": [{"role": "assistant", "content": "x"}], "answer": "x"},
            "`messages` must end with a user message",
        ),
        (
            {"prompt": "x", "choices": ["a", "b"], "answer": 1},
            "the rows above are of type exact_match; a file must contain one type",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_number_and_reason(tmp_path: Path, row: Any, reason: str) -> None:
    first = {"prompt": "x", "answer": "y"}
    if isinstance(row, dict) and "choices" in row and "one type" not in reason:
        first = {"prompt": "x", "choices": ["a", "b"], "answer": 0}
    with pytest.raises(StokerErrors) as caught:
        tasks.read(write(tmp_path, first, "", row))
    (error,) = caught.value.errors
    assert (error.code, error.where) == ("STK508", "questions.jsonl:3")
    assert error.what == f"the question is invalid: {reason}"


def test_a_task_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", write(tmp_path, "")):
        with pytest.raises(StokerError) as caught:
            tasks.read(path)
        assert caught.value.code == "STK509"
        assert str(path) in caught.value.what


# ---- samples


def test_samples_show_the_base_and_the_trained_model(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [e for e in evaluated(run_dir, monkeypatch, samples=3) if e["event"] == "sample"]
    assert len(found) == 3
    assert all(sample["prompt"] and sample["wanted"] for sample in found)
    assert [s["before"] for s in found] != [s["after"] for s in found]
    base = generate.load_base(run_dir)
    tokenizer = AutoTokenizer.from_pretrained(run_dir.final)
    prompt = tokenizer(found[0]["prompt"], return_tensors="pt").input_ids
    length = 2 * len(tokenizer(found[0]["wanted"]).input_ids) + 16
    assert generate.answers(base, tokenizer, [prompt], length)[0].strip() == found[0]["before"]


CONVERSATIONS = {
    "chatml": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello\nuser<|im_end|>\n<|im_start|>assistant"
    "\n",
    "llama 3": "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello\nuser<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "phi": "<|system|>\nBe kind.<|end|>\n<|user|>\nHello\nuser<|end|>\n<|assistant|>\n",
    "deepseek": "<|system|>Be kind.<｜User｜>Hello\nuser<｜Assistant｜>",
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_turns_are_shown_without_the_marks_of_the_template(name: str) -> None:
    text = CONVERSATIONS[name]
    core = trained_tokenizer.train([["Hello user system"]], 264, "llama")
    marks = re.findall(r"<[|｜][^>]*>", text)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=sorted(set(marks)))
    found = samples.turns(tokenizer, tokenizer(text, add_special_tokens=False).input_ids)
    assert found == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello\nuser"}]
    assert samples.turns(tokenizer, tokenizer("a text\nof its own", add_special_tokens=False).input_ids) == []


# ---- artifacts


def test_an_artifact_answers_in_place_of_the_trained_model(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert merge.main(run_dir.path) == 0
    artifacts.accept(run_dir, "merged")
    model, _ = generate.load(run_dir, "merged")
    assert not hasattr(model, "peft_config")
    path = write(tmp_path, *({"prompt": f"w{i}", "answer": "w5 w6 w7"} for i in range(10, 16)))
    answers = {}
    for artifact in (None, "merged"):
        (figures,) = (
            e for e in evaluated(run_dir, monkeypatch, tasks=[str(path)], artifact=artifact) if e["event"] == "task"
        )
        answers[artifact] = [one["answer"] for one in files.read_json(Path(figures["answers"]))]
    assert answers[None] == answers["merged"]


def test_an_artifact_that_is_not_there_or_not_readable_is_named(run_dir: RunDir) -> None:
    words.check_artifact(run_dir, None)
    words.check_artifact(run_dir, "final")
    with pytest.raises(StokerError) as caught:
        words.check_artifact(run_dir, "int8")
    assert caught.value.code == "STK617"
    assert caught.value.what.startswith(f"`{run_dir.name}` has no artifact `int8`; available: final")
    (run_dir.artifacts / "gguf-q8_0").mkdir()
    with pytest.raises(StokerError) as caught:
        words.check_artifact(run_dir, "gguf-q8_0")
    assert caught.value.code == "STK510"


def test_a_run_without_eval_rows_says_so_unless_something_else_is_asked(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StokerError) as caught:
        evaluated(run_dir, monkeypatch)
    assert caught.value.code == "STK503"


# ---- chat


def chat(run_dir: RunDir, *flags: str, said: str | None = None) -> Any:
    argv = ["chat", str(run_dir.path), *flags, "--json", "--max-tokens", "8"]
    done = CliRunner().invoke(app, argv, input=said, standalone_mode=False)
    if done.exception:
        raise done.exception
    return json.loads(done.stdout)


def test_a_conversation_keeps_its_system_prompt_and_history(run_dir: RunDir) -> None:
    said = chat(run_dir, "--system", "w30 w31", said="w10 w11\nw12\n\n")
    assert [one["role"] for one in said] == ["system", "user", "assistant", "user", "assistant"]
    model, tokenizer = generate.load(run_dir)
    for turn in (2, 4):
        prompt = generate.prompt_ids(tokenizer, said[:turn], plain=False)
        assert "w90 w30 w31 w93" in tokenizer.decode(prompt[0])
        assert said[turn]["content"].strip() == generate.answers(model, tokenizer, [prompt], 8)[0].strip()


# ---- the harness


def test_the_harness_missing_says_how_to_get_it(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path))
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StokerError) as caught:
        harness.run(run_dir, run_dir.final, "arc_easy", "cpu", chat=False)
    assert caught.value.code == "STK601"
    assert 'pip install "lm-eval[hf]"' in caught.value.hint


@pytest.mark.skipif(tools.find(harness.TOOL) is None, reason="lm-evaluation-harness is not installed")
def test_the_harness_measures_what_our_own_task_does(run_dir: RunDir, tmp_path: Path) -> None:
    model, tokenizer = generate.load(run_dir)
    rows = []
    for i in range(10, 22):
        choices = [f"w{20 + i}", f"w{21 + i} w5", "w6 w7 w8"]
        rows.append({"prompt": f"w{i} w{i + 1}", "choices": choices, "answer": i % 3})
    path = write(tmp_path, *rows)
    judged = list(tasks.judge(model, tokenizer, tasks.read(path), plain=False))
    task = {
        "task": "ours",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (tmp_path / "ours.yaml").write_text(json.dumps(task))
    merge.main(run_dir.path)
    folder = artifacts.accept(run_dir, "merged")
    found = harness.run(run_dir, folder, str(tmp_path / "ours.yaml"), "cpu", chat=True)["ours"]
    assert found["acc,none"] * len(rows) == pytest.approx(sum(one["right_by_sum"] for one in judged))
    assert found["acc_norm,none"] * len(rows) == pytest.approx(sum(one["right"] for one in judged))


def test_what_was_found_is_said_in_lines() -> None:
    task = {"task": "a.jsonl", "measure": "exact_match", "rows": 8, "right": 6, "answers": "evals/a.json"}
    found = {
        "eval_loss": 1.5,
        "perplexity": 4.4817,
        "trained_tokens": 90,
        "tasks": [task, {**task, "measure": "multiple_choice"}],
        "samples": [{"prompt": "p", "wanted": "w", "after": "a"}],
        "harness": {"arc": {"acc,none": 0.25, "alias": "arc"}},
    }
    assert words.lines(found) == [
        "eval loss 1.5000, perplexity 4.48, over 90 trained tokens",
        "a.jsonl: 6 of 8 answers match exactly (75.0%); all answers: evals/a.json",
        "a.jsonl: 6 of 8 choices correct (75.0%), by log-probability per byte; all answers: evals/a.json",
        "",
        "prompt:  p",
        "target:  w",
        "after:   a",
        "arc  acc,none  0.2500",
    ]


def test_the_whole_command_prints_json(run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forked_programs.use(monkeypatch)
    path = write(tmp_path, {"prompt": "w10", "answer": "w1"})
    done = CliRunner().invoke(app, ["eval", str(run_dir.path), "--task", str(path), "--json"], standalone_mode=False)
    assert done.exception is None
    assert json.loads(done.stdout)["tasks"][0]["rows"] == 1
