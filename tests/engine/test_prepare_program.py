"""The program as a whole: splits and weights, tokenizers, keys, resume after a kill, and the command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from prepare_case import CORPUS, Case, Prepared, make_tokenizer, write_jsonl

from stoker.config.run import Run, Shape
from stoker.engine import prepare, show, tokenizer
from stoker.errors import StokerError
from stoker.rundir import events, files, inputs, layout, prepared
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer)
    return case


def numbered(count: int, name: str = "wagon") -> list[dict[str, str]]:
    return [{"text": f"{name} {number}"} for number in range(count)]


def texts(prepared: Prepared, split: str = "train") -> list[str]:
    return [text.removesuffix("<|im_end|>") for text in prepared.texts(split)]


# ---- splits and weights


def test_an_eval_share_is_exact_and_never_trained(case: Case) -> None:
    made = case.prepare(numbered(250), data={"eval": "2%"})
    trained, held = set(texts(made)), set(texts(made, "eval"))
    assert (len(trained), len(held)) == (245, 5)
    assert trained | held == {row["text"] for row in numbered(250)}


def test_an_eval_share_of_a_tiny_set_is_at_least_one_row(case: Case) -> None:
    for count in (2, 3, 7, 20):
        made = case.prepare(numbered(count), name=f"run{count}", data={"eval": "2%"})
        assert (len(made.segments()), len(made.segments("eval"))) == (count - 1, 1)


def test_an_eval_share_follows_the_seed_and_not_the_rows_behind(case: Case) -> None:
    asked: dict[str, Any] = {"data": {"eval": "10%"}}
    first = texts(case.prepare(numbered(100), name="a", **asked), "eval")
    longer = texts(case.prepare(numbered(150), name="b", **asked), "eval")
    other = texts(case.prepare(numbered(100), name="c", train={"seed": 7}, **asked), "eval")
    assert longer[: len(first)] == first
    assert other != first


@pytest.mark.parametrize(("count", "share"), [(1, "2%"), (10, "100%")])
def test_a_share_that_leaves_a_split_empty_is_an_error(case: Case, count: int, share: str) -> None:
    with pytest.raises(StokerError) as caught:
        case.prepare(numbered(count), data={"eval": share})
    assert caught.value.code == "STK307"


def test_eval_rows_of_their_own_file_are_all_eval(case: Case) -> None:
    write_jsonl(case.folder / "held.jsonl", numbered(3, "held"))
    made = case.prepare(numbered(10), data={"eval": "held.jsonl"})
    assert texts(made) == [row["text"] for row in numbered(10)]
    assert texts(made, "eval") == ["held 0", "held 1", "held 2"]
    assert [entry["path"] for entry in made.report.detected] == ["train.jsonl", "held.jsonl"]


def test_eval_of_a_text_file_is_drawn_from_its_pieces(case: Case) -> None:
    (case.folder / "text.txt").write_text("".join(f"line {i} of the train\n" for i in range(400)))
    made = case.prepare(data={"train": "text.txt", "eval": "5%", "length": 32})
    pieces = made.report.train.segments + made.report.eval.segments  # type: ignore[union-attr]  # it has eval
    assert made.report.eval is not None
    assert abs(made.report.eval.segments - 0.05 * pieces) <= 1


def test_weights_repeat_rows_or_take_a_seeded_share_and_eval_rows_never_return(case: Case) -> None:
    for name in ("twice", "once", "half"):
        write_jsonl(case.folder / f"{name}.jsonl", numbered(40, name))
    sources = [{"path": "twice.jsonl", "weight": 2}, {"path": "once.jsonl"}, {"path": "half.jsonl", "weight": 0.5}]
    made = case.prepare(data={"train": sources, "eval": "10%"})
    trained, held = texts(made), texts(made, "eval")
    assert len(held) == 12
    assert not set(trained) & set(held)
    count = {name: [t for t in trained if t.startswith(name)] for name in ("twice", "once", "half")}
    assert {text: count["twice"].count(text) for text in set(count["twice"])} == dict.fromkeys(count["twice"], 2)
    assert len(set(count["twice"])) == 36
    assert len(count["once"]) == 36
    assert len(count["half"]) == len(set(count["half"]))
    assert 14 <= len(count["half"]) <= 20


def test_a_whole_half_is_exactly_half(case: Case) -> None:
    made = case.prepare(numbered(40), data={"train": {"path": "train.jsonl", "weight": 0.5}})
    assert len(set(texts(made))) == 20


# ---- the report and the files


def test_the_report_counts_what_the_files_hold(case: Case) -> None:
    rows = [{"prompt": f"wagon {i}", "completion": "go " * (1 + i % 9)} for i in range(60)]
    made = case.prepare(rows, data={"pack": True, "eval": "10%", "length": 64})
    report, train = made.report, made.report.train
    segments = made.segments()
    assert train.segments == len(segments) == 54
    assert train.sequences == len(made.rows())
    assert train.tokens == sum(map(len, segments))
    assert train.trained_tokens == sum(int((s >= 0).sum()) for s in segments)
    assert train.longest == max(sum(map(len, row)) for row in made.rows()) <= 64
    assert train.longest_segment == max(map(len, segments))
    assert report.pack_efficiency == pytest.approx(train.tokens / (train.sequences * 64))
    everything = [made.ids(segment) for split in ("train", "eval") for segment in made.segments(split)]
    assert report.highest_token == max(map(max, everything))
    assert sum(report.length_histogram.values()) == train.segments
    assert report.length_histogram["64"] == sum(32 < len(s) <= 64 for s in segments)
    trained = np.concatenate([s[s >= 0] for s in segments])
    share = np.unique(trained, return_counts=True)[1] / len(trained)
    assert report.unigram_entropy == pytest.approx(float(-(share * np.log(share)).sum()))
    assert all(files.sha256(made.run_dir.data / name) == digest for name, digest in train.files.items())
    per_row = np.fromfile(made.run_dir.data / "train/shard-00000/trained.bin", dtype="<i4")
    assert per_row.tolist() == [sum(int((s >= 0).sum()) for s in row) for row in made.rows()]
    assert all(segment[0] < 0 for segment in segments)


def test_packing_changes_rows_and_not_documents(case: Case) -> None:
    packed = case.prepare(numbered(50), name="packed", data={"pack": True})
    loose = case.prepare(name="loose")
    assert sorted(packed.texts()) == sorted(loose.texts())
    assert packed.report.train.sequences < loose.report.train.sequences == 50


# ---- keys


def test_a_second_run_with_the_same_key_does_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case.prepare(numbered(5))

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("it was prepared again")

    monkeypatch.setattr(prepare, "_open", fail)
    assert prepare.main(made.run_dir.path) == 0


def test_a_changed_source_is_prepared_again(case: Case) -> None:
    before = case.prepare(numbered(5))
    after = case.prepare(numbered(6))
    assert before.report.key != after.report.key
    assert after.report.train.segments == 6


def test_a_set_that_misses_a_file_is_prepared_again(case: Case) -> None:
    made = case.prepare(numbered(5))
    (made.run_dir.data / "train/shard-00000/tokens.bin").unlink()
    assert case.prepare().report == made.report
    assert len(Prepared(made.run_dir).segments()) == 5


def test_a_set_that_travelled_without_its_sources_counts(case: Case) -> None:
    made = case.prepare(numbered(5))
    (case.folder / "train.jsonl").unlink()
    assert prepare.main(made.run_dir.path) == 0
    assert Prepared(made.run_dir).report == made.report


# ---- resume

KILLED = """
import os, signal, sys
from pathlib import Path
from stoker.engine import prepare, shards, sources
prepare.SHARD_TOKENS, sources.BATCH_ROWS = 200, 8
left = [int(sys.argv[2])]
def dying(plain):
    def write(*args, **kwargs):
        result = plain(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return write
if sys.argv[3] == "commit":
    prepare.PreparePass.commit = dying(prepare.PreparePass.commit)
else:
    shards._write_array = dying(shards._write_array)
prepare.main(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("where", "count"), [("commit", 1), ("commit", 3), ("write", 3), ("write", 21)])
def test_after_a_kill_finished_shards_stay_and_the_result_is_the_same(
    case: Case, where: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.engine import sources

    rows: list[Any] = [{"text": f"wagon {i} " + "go " * (i % 7)} for i in range(120)]
    rows[50] = "oops"
    write_jsonl(case.folder / "train.jsonl", rows[:70])
    write_jsonl(case.folder / "more.jsonl", rows[70:])
    data = {
        "train": [{"path": "train.jsonl", "weight": 1.5}, {"path": "more.jsonl"}],
        "eval": "10%",
        "pack": True,
        "on_bad_row": "skip",
    }
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 200)
    monkeypatch.setattr(sources, "BATCH_ROWS", 8)
    whole = case.prepare(name="whole", data=data)
    assert len(whole.report.train.shards) > 4
    run_dir = case.make("killed", data=data)
    command = [sys.executable, "-c", KILLED, str(run_dir.path), str(count), where]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert prepared.read_report(run_dir.data) is None
    kept = {path: path.stat().st_mtime_ns for path in run_dir.data.glob("train/shard-*/tokens.bin")}
    assert len(files.read_json(run_dir.data / "progress.json")["train"]) == (count if where == "commit" else count // 8)
    prepare.main(run_dir.path)
    resumed = Prepared(run_dir)
    assert resumed.report == whole.report
    assert (run_dir.data / "bad_rows.jsonl").read_bytes() == (whole.run_dir.data / "bad_rows.jsonl").read_bytes()
    done = count if where == "commit" else count // 8
    stayed = [path for path, time in kept.items() if path.stat().st_mtime_ns == time]
    assert len(stayed) >= done
    assert not (run_dir.data / "progress.json").exists()


# ---- tokenizers


def scratch(case: Case, vocab: int, rows: list[dict[str, str]], name: str = "run", **words: Any) -> Prepared:
    return case.prepare(rows, name=name, tokenizer={"train": "bpe", "vocab": vocab}, **words)


def test_a_trained_tokenizer_has_the_vocabulary_asked_for_and_round_trips_text(case: Case) -> None:
    from transformers import AutoTokenizer

    made = scratch(case, 300, [{"text": text} for text in CORPUS], train={"objective": "pretrain"})
    loaded = AutoTokenizer.from_pretrained(made.run_dir.data / "tokenizer")
    assert made.report.vocab == len(loaded) == 300
    for text in [*CORPUS, "unseen: Ω≈ç√ ﷽ \t tabs", ""]:
        assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded("<|endoftext|>")["input_ids"] == [loaded.eos_token_id] == [loaded.bos_token_id]
    assert loaded.pad_token == "<|pad|>"
    assert loaded.pad_token_id != loaded.eos_token_id


def test_a_trained_tokenizer_is_the_same_every_time(case: Case) -> None:
    rows = [{"text": text * 3} for text in CORPUS]
    first, second = (scratch(case, 330, rows, name) for name in ("a", "b"))
    assert first.report.digest == second.report.digest


def test_a_trained_tokenizer_serves_conversations_later(case: Case) -> None:
    """Its template marks the assistant's words; through transformers they come out the same as through us."""
    from transformers import AutoTokenizer

    base = scratch(case, 300, [{"text": text} for text in CORPUS])
    turn = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "七节 🎉"}]
    folder = str(base.run_dir.data / "tokenizer")
    made = case.prepare([{"messages": turn}], name="later", tokenizer=folder)
    assert made.only() == [
        ("<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n", False),
        ("七节 🎉<|im_end|>", True),
        ("\n", False),
    ]
    loaded = AutoTokenizer.from_pretrained(folder)
    theirs = loaded.apply_chat_template(turn, return_assistant_tokens_mask=True)
    (segment,) = made.segments()
    assert theirs["input_ids"] == made.ids(segment)
    assert theirs["assistant_masks"] == [int(token >= 0) for token in segment.tolist()]
    same_run = case.prepare([{"messages": turn}], name="own", tokenizer={"train": "bpe", "vocab": 270})
    assert same_run.runs(same_run.segments()[0])[1] == ("七节 🎉<|im_end|>", True)


@pytest.mark.parametrize("family", get_args(Shape.model_fields["shape"].annotation))
def test_a_trained_tokenizer_is_read_the_same_beside_a_model_of_its_family(case: Case, family: str) -> None:
    """Transformers chooses a tokenizer's class by the model's config.json; none may change the tokens."""
    from transformers import AutoTokenizer

    text = "In 1616 and 2024 they said DON'T, don't; it's\n\n  10 o'clock\t列车 2024 年 🎉!!\n"
    shape = {"shape": family, "layers": 1, "width": 64, "heads": 1}
    made = case.prepare([{"text": text}] * 9, model=shape, tokenizer={"train": "bpe", "vocab": 300})
    folder = made.run_dir.data / "tokenizer"
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    loaded = AutoTokenizer.from_pretrained(folder)
    assert [*loaded(text)["input_ids"], loaded.eos_token_id] == made.ids(made.segments()[0])
    assert (loaded.eos_token, loaded.pad_token, len(loaded)) == ("<|endoftext|>", "<|pad|>", 300)
    assert loaded.chat_template == tokenizer.CHAT_TEMPLATE


def test_a_vocabulary_the_text_cannot_fill_is_an_error(case: Case) -> None:
    with pytest.raises(StokerError) as caught:
        scratch(case, 5000, [{"text": "too little"}])
    assert caught.value.code == "STK316"
    assert 260 <= caught.value.fields["found"] < 300


@pytest.mark.parametrize("broken", ["missing", "not JSON"])
def test_a_tokenizer_that_cannot_be_read_is_named(case: Case, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    name = "nowhere"
    if broken == "not JSON":
        name = "tokenizer"
        (case.tokenizer / "tokenizer.json").write_text("{")
    with pytest.raises(StokerError) as caught:
        case.prepare(numbered(3), tokenizer=name)
    assert (caught.value.code, caught.value.fields["tokenizer"]) == ("STK312", name)
    assert ("no copy of it is on this machine (" in caught.value.what) == (broken == "missing")


def test_a_tokenizer_without_an_end_cannot_prepare_text(case: Case) -> None:
    settings = json.loads((case.tokenizer / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (case.tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(StokerError) as caught:
        case.prepare(numbered(3))
    assert caught.value.code == "STK312"


@pytest.mark.parametrize("family", tokenizer._PLAIN_FAMILIES)
def test_the_short_way_to_a_plain_tokenizer_is_what_auto_would_take(case: Case, family: str) -> None:
    from transformers import AutoTokenizer

    (case.tokenizer / "config.json").write_text(json.dumps({"model_type": family}))
    assert tokenizer._is_plain(case.tokenizer)
    ours, auto = tokenizer._open("x", case.tokenizer), AutoTokenizer.from_pretrained(case.tokenizer)
    assert type(ours) is type(auto)
    assert ours.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()
    assert (ours.special_tokens_map, ours.chat_template) == (auto.special_tokens_map, auto.chat_template)


def test_a_tokenizer_of_a_class_of_its_own_takes_the_long_way(case: Case) -> None:
    settings = json.loads((case.tokenizer / "tokenizer_config.json").read_text())
    for change in ({"tokenizer_class": "Qwen2Tokenizer"}, {"auto_map": {"AutoTokenizer": ["x.py", None]}}):
        (case.tokenizer / "tokenizer_config.json").write_text(json.dumps({**settings, **change}))
        assert not tokenizer._is_plain(case.tokenizer)


def test_the_models_own_tokenizer_is_taken_by_default(case: Case) -> None:
    made = case.prepare(numbered(3), model="tokenizer", tokenizer="auto")
    assert texts(made) == ["wagon 0", "wagon 1", "wagon 2"]


# ---- the program and the command


def test_preparing_text_with_a_tokenizer_of_its_own_loads_neither_torch_nor_transformers(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", [{"text": text} for text in CORPUS])
    run_dir = case.make(tokenizer={"train": "bpe", "vocab": 300}, train={"objective": "pretrain"})
    code = (
        "import sys; from pathlib import Path; from stoker.engine import prepare; "
        f"prepare.main(Path({str(run_dir.path)!r})); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_conversation_with_a_plain_tokenizer_does_not_load_torch(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", [{"prompt": "a", "completion": "b"}])
    run_dir = case.make()
    code = (
        "import sys; from pathlib import Path; from stoker.engine import prepare; "
        f"prepare.main(Path({str(run_dir.path)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def command(case: Case, *words: str, language: str = "en") -> subprocess.CompletedProcess[str]:
    program = "import sys; from stoker.cli.main import main; sys.argv = ['stoker', *sys.argv[1:]]; main()"
    environment = {**os.environ, "STOKER_LANG": language, "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=case.folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_the_command_says_what_was_found_and_shows_rows(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", [{"prompt": "How many?", "completion": "Seven."}] * 4)
    case.make()
    first = command(case, "prepare", "run.yaml", "--show", "1")
    assert first.returncode == 0, first.stderr
    assert "train.jsonl: prompt_completion (has `prompt`, `completion`); rows: 4, bad: 0, files: 1" in first.stdout
    assert "{+Seven.<|im_end|>+}" in first.stdout
    again = command(case, "prepare", "run.yaml", "--json")
    assert json.loads(again.stdout) == prepared.read_report(RunDir(case.folder / "runs/run").data).model_dump()  # type: ignore[union-attr]  # it is there
    both = command(case, "prepare", "run.yaml", "--json", "--show", "2")
    assert [row["row"] for row in json.loads(both.stdout)["rows"]] == [0, 2]
    kinds = [event["event"] for event in events.read(layout.find("run").events_file)]
    assert set(kinds) == {"surveying", "prepare"}


def test_the_command_relays_the_engines_errors_in_the_users_language(case: Case) -> None:
    write_jsonl(case.folder / "train.jsonl", ["oops", {"prompt": "a", "completion": "b"}, "oops"])
    case.make()
    done = command(case, "prepare", "run.yaml", language="zh")
    assert done.returncode == 1
    assert "train.jsonl:1" in done.stderr
    assert "train.jsonl:3" in done.stderr
    assert "2 行不能使用：不是 JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_said_before_the_engine_starts_or_by_it(case: Case) -> None:
    case.make(data={"train": "nothing.jsonl"})
    done = command(case, "prepare", "run.yaml")
    assert (done.returncode, "STK301" in done.stderr) == (1, True)


def test_shown_rows_are_spread_over_the_split(case: Case) -> None:
    made = case.prepare(numbered(10))
    rows = show.shown_rows(made.run_dir, made.report, 3)
    assert [row["row"] for row in rows] == [0, 3, 6]
    assert rows[1]["segments"] == [made.runs(made.segments()[3])]


def test_a_run_is_frozen_enough_for_a_key(case: Case) -> None:
    """What does not change the data does not change its key; what does, does."""
    write_jsonl(case.folder / "train.jsonl", numbered(3))
    run = case.make().run()

    def key(**words: Any) -> str:
        return prepared.key_of(
            Run.model_validate({**run.model_dump(), **words}),
            inputs.facts(Run.model_validate({**run.model_dump(), **words}), case.folder),
        )

    assert key(save={"keep": 9}) == key(train={**run.train.model_dump(), "epochs": 9}) == key()
    assert key(train={**run.train.model_dump(), "seed": 9}) != key()
    assert key(data={**run.data.model_dump(), "length": 9}) != key()


def test_a_full_disk_is_named_whoever_finds_it_full(case: Case) -> None:
    """`tokenizers` raises a plain Exception."""
    write_jsonl(case.folder / "train.jsonl", numbered(20))
    run_dir = case.make()
    program = """
import sys
from pathlib import Path
from stoker.engine import prepare, program, tokenizer
def full(*_):
    (Path(sys.argv[1]) / "data" / ".tokenizer.tmp" / "half").write_text("written")
    raise Exception("No space left on device (os error 28)")
tokenizer.write = full
sys.argv[0] = "prepare.py"
sys.exit(program.run(prepare.main))
"""
    code = subprocess.run([sys.executable, "-c", program, str(run_dir.path)], check=False).returncode
    (error,) = [one["error"] for one in events.read(run_dir.events_file) if one["event"] == "error"]
    assert (code, error["code"]) == (1, "STK901")
    assert "No space left on device" in error["fields"]["reason"]
    assert not list(run_dir.data.glob(".tokenizer.tmp*"))  # its room is needed for what is said
