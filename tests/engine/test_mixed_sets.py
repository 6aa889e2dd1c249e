"""Prepared sets mixed by reference: the set that their rows would have become at once, and no token copied."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from prepare_case import Case, Prepared, make_tokenizer, write_jsonl

from stoker.config import load
from stoker.engine import prepare
from stoker.errors import StokerError
from stoker.launch import plan_inputs
from stoker.rows import mixture
from stoker.rundir import events, layout, prepared, set_list
from stoker.rundir.layout import RunDir
from stoker.store import sets

NAMES = ("wiki", "code", "qa")
SHARES = ("60%", "30%", "10%")

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer)
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 300)
    monkeypatch.setattr("stoker.engine.sources.BATCH_ROWS", 8)
    for name, count in zip(NAMES, (90, 7, 40), strict=True):
        write_jsonl(case.folder / f"{name}.jsonl", [{"text": f"{name} {i} " + "go " * (i % 9)} for i in range(count)])
    return case


def one_by_one(case: Case, **data: Any) -> list[Prepared]:
    return [case.prepare(name=name, data={"train": f"{name}.jsonl", "pack": True, **data}) for name in NAMES]


def listed(where: str = "run:{}", **words: str) -> list[dict[str, str]]:
    return [{"path": where.format(name), "share": share, **words} for name, share in zip(NAMES, SHARES, strict=True)]


def bring(run_dir: RunDir) -> Prepared:
    sets.bring(run_dir, run_dir.run(), run_dir.folder())
    prepare.main(run_dir.path)  # compares the tokenizer
    return Prepared(run_dir)


def test_sets_prepared_one_by_one_are_the_set_prepared_at_once(case: Case) -> None:
    sources = [{"path": f"{name}.jsonl", "share": share} for name, share in zip(NAMES, SHARES, strict=True)]
    at_once = case.prepare(name="at-once", data={"train": sources, "pack": True}).report
    singles = one_by_one(case)
    run_dir = case.make("mixed", data={"train": None, "set": listed(), "pack": True})
    looked = sets.look(run_dir.run(), run_dir.folder())
    report = bring(run_dir).report
    assert report.train == looked.train == at_once.train
    assert report.digest == looked.digest == at_once.digest
    prepared.check_digests(run_dir.data, report)
    prepared.check_sizes(run_dir.data, "train", report.train)
    counts = ("rows_read", "length_histogram", "highest_token", "vocab")
    assert all(getattr(report, name) == getattr(at_once, name) for name in counts)
    first = singles[0].run_dir.data / "train/shard-00000/tokens.bin"
    assert first.samefile(run_dir.data / "train/shard-00000/tokens.bin"), "a second name, no copy"
    assert not list(run_dir.store_folder.glob("set*")), "nothing is left beside it"


@pytest.mark.parametrize("eval_rows", [{}, {"eval": "10%"}])
def test_they_come_from_stores_too_with_their_eval_rows(case: Case, eval_rows: dict[str, str]) -> None:
    singles = one_by_one(case, **eval_rows)
    (case.folder / "store").mkdir()
    for name, single in zip(NAMES, singles, strict=True):
        sets.push(single.run_dir, f"store/{name}", case.folder)
    made = bring(case.make("mixed", data={"train": None, "set": listed("store/{}"), "pack": True, **eval_rows}))
    assert [source.name for source in made.report.train.sources] == list(NAMES)
    assert [len(row) for row in made.rows()] == [len(row) for single in singles for row in single.rows()]
    held = [single.report.eval.sequences for single in singles if single.report.eval]
    assert (made.report.eval.sequences if made.report.eval else 0) == sum(held)
    assert prepared.current_report(made.run_dir, made.run_dir.run(), case.folder) == made.report


def test_another_list_of_sets_is_brought_anew(case: Case) -> None:
    one_by_one(case)
    bring(case.make("mixed", data={"train": None, "set": listed(), "pack": True}))
    other = [{"path": "run:qa", "share": "100%"}]
    (case.folder / "mixed.yaml").write_text(
        (case.folder / "mixed.yaml").read_text().replace(json.dumps(listed()), json.dumps(other))
    )
    run_dir = layout.create(load.load(str(case.folder / "mixed.yaml")))
    assert prepared.current_report(run_dir, run_dir.run(), case.folder) is None
    assert [source.name for source in bring(run_dir).report.train.sources] == ["qa"]


def test_a_set_is_used_once_its_tokenizer_was_compared(case: Case) -> None:
    one_by_one(case)
    run_dir = case.make("mixed", data={"train": None, "set": listed(), "pack": True})
    sets.bring(run_dir, run_dir.run(), run_dir.folder())
    assert prepared.current_report(run_dir, run_dir.run(), case.folder) is None, "killed before the comparison"
    make_tokenizer(case.tokenizer, more=("<more>",))
    for _ in range(2):
        with pytest.raises(StokerError, match="STK346"):
            prepare.main(run_dir.path)
        assert prepared.current_report(run_dir, run_dir.run(), case.folder) is None


def test_data_of_another_origin_is_never_taken_for_the_run_s(case: Case) -> None:
    """A run file that goes from sets to rows and back, before anything was trained."""
    one_by_one(case)
    text = case.folder / "mixed.yaml"
    made = bring(case.make("mixed", data={"train": None, "set": listed(), "pack": True}))
    sets_file = text.read_text()
    gone = case.make("mixed", data={"train": "gone.jsonl", "pack": True})
    assert prepared.current_report(gone, gone.run(), case.folder) is None, "rows that are not there are not the sets"
    rows = case.prepare(name="mixed", data={"train": "qa.jsonl", "pack": True}).report
    assert rows.digest != made.report.digest
    text.write_text(sets_file)
    again = layout.create(load.load(str(text)))
    assert prepared.current_report(again, again.run(), case.folder) is None
    assert bring(again).report.digest == made.report.digest


def test_a_pushed_mixture_is_mixed_by_stages_and_by_nothing_else(case: Case) -> None:
    one_by_one(case)
    mixed = bring(case.make("mixed", data={"train": None, "set": listed(), "pack": True}))
    sets.push(mixed.run_dir, "pushed", case.folder)
    stages = [{"mix": dict(zip(NAMES, SHARES, strict=True))}]
    again = bring(case.make("again", data={"train": None, "set": "pushed", "stages": stages, "pack": True}))
    found = [mixture.of(one.run_dir.run(), one.report.train) for one in (mixed, again)]
    assert found[0] == found[1]
    with pytest.raises(StokerError, match="STK342"):
        bring(case.make("plain", data={"train": None, "set": "pushed", "pack": True}))
    other = case.make("other", data={"train": None, "set": "pushed", "stages": [{"mix": {"wikki": "100%"}}]})
    with pytest.raises(StokerError, match="STK161"):
        mixture.of(other.run(), again.report.train)
    with pytest.raises(StokerError, match="STK342"):
        bring(case.make("no", data={"train": None, "set": "run:wiki", "stages": stages, "pack": True}))


def test_a_run_without_data_is_named(case: Case) -> None:
    one_by_one(case)
    case.make("empty", data={"train": "wiki.jsonl"})
    with pytest.raises(StokerError, match="STK349"):
        bring(case.make("mixed", data={"train": None, "set": "run:empty"}))


def test_nothing_is_fetched_of_sets_that_do_not_agree(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one(case)
    case.prepare(name="qa", data={"train": "qa.jsonl", "pack": True, "length": 64})
    monkeypatch.setattr(sets, "_link", lambda *_, **__: pytest.fail("brought"))
    run_dir = case.make("mixed", data={"train": None, "set": listed(), "pack": True})
    for look in (lambda: sets.look(run_dir.run(), run_dir.folder()), lambda: bring(run_dir)):
        with pytest.raises(StokerError, match="STK342"):
            look()


def test_sets_of_two_tokenizers_are_refused(case: Case) -> None:
    one_by_one(case)
    make_tokenizer(case.tokenizer, more=("<more>",))
    case.prepare(name="qa", data={"train": "qa.jsonl", "pack": True})
    with pytest.raises(StokerError) as refused:
        bring(case.make("mixed", data={"train": None, "set": listed(), "pack": True}))
    assert (refused.value.code, refused.value.fields) == ("STK348", {"first": "wiki", "other": "qa"})


def test_a_set_of_another_length_is_refused_by_its_address(case: Case) -> None:
    one_by_one(case)
    case.prepare(name="code", data={"train": "code.jsonl", "pack": True, "length": 64})
    with pytest.raises(StokerError) as refused:
        bring(case.make("mixed", data={"train": None, "set": listed(), "pack": True}))
    assert (refused.value.code, refused.value.fields["store"]) == ("STK342", "run:code")


MIXED = 'set: [{path: "run:wiki", share: 70%}, {path: "run:code", share: 30%}]'
TRAINED = """
model: {base}
data: {{{data}, length: 48}}
tune: {{method: lora, rank: 2}}
train: {{steps: 12, batch: 4, learning_rate: 1e-2, warmup: 0}}
save: {{every: 3 steps, keep: 2}}
where: {{gpus: 0, micro: 1}}
"""


def test_a_trained_run_asks_for_the_sets_it_was_trained_on(tmp_path: Path) -> None:
    """Another set was pushed to the same address since, and the run's own data is not on this machine."""
    base = tiny_run.make_base_model(tmp_path / "base", width=32, layers=1)
    (tmp_path / "store").mkdir()
    for round_, name in enumerate(("wiki", "code", "code")):
        text = f"name: {name}{round_}\n" + TRAINED.format(base=base, data="train: rows.jsonl")
        one = tiny_run.make_run(tmp_path, text, tiny_run.random_rows(20 + round_, seed=round_, longest=48))
        if round_ < 2:
            sets.push(one, f"store/{name}", tmp_path)
    words = "set: [{path: store/wiki, share: 70%}, {path: store/code, share: 30%}]"
    (tmp_path / "mixed.yaml").write_text(TRAINED.format(base=base, data=words))
    run_file = load.load(str(tmp_path / "mixed.yaml"))
    run_dir = layout.create(run_file)
    digest = sets.bring(run_dir, run_file.run, tmp_path).digest
    tiny_run.plan(run_dir, run_file)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    sets.push(one, "store/code", tmp_path)
    shutil.rmtree(run_dir.data)
    assert sets.bring(run_dir, run_file.run, tmp_path).digest == digest
    # Where they cannot be had, the data that is here stays.
    moved = run_file.run.model_copy(
        update={
            "data": run_file.run.data.model_copy(
                update={
                    "set": [
                        one.model_copy(update={"path": f"run:{name}"})
                        for one, name in zip(run_file.run.data.set, ("wiki0", "code2"), strict=True)
                    ]
                }
            )
        }
    )
    with pytest.raises(StokerError, match="STK410"):
        sets.bring(run_dir, moved, tmp_path)
    report = prepared.read_report(run_dir.data)
    assert report is not None
    assert report.digest == digest


def test_a_mixture_of_sets_trains_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", width=32, layers=1)
    for number, name in enumerate(("wiki", "code")):
        text = f"name: {name}\n" + TRAINED.format(base=base, data="train: rows.jsonl")
        tiny_run.make_run(tmp_path, text, tiny_run.random_rows(20 + number, seed=number, longest=48))
    weights = []
    for name, kill_after in (("whole", None), ("killed", 7)):
        (tmp_path / f"{name}.yaml").write_text(TRAINED.format(base=base, data=MIXED))
        run_file = load.load(str(tmp_path / f"{name}.yaml"))
        run_dir = layout.create(run_file)
        sets.bring(run_dir, run_file.run, run_file.folder)
        tiny_run.plan(run_dir, run_file)
        if kill_after:
            assert tiny_run.train(run_dir, kill_after=kill_after) == -9
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        seen = events.steps(run_dir.events_file)[12]["sources"]
        assert sum(count for count, _ in seen.values()) == 48
        weights.append((tiny_run.weights_sha(run_dir.final), seen))
    assert weights[0] == weights[1]
    assert set_list.read(layout.named("whole").data) is not None
    assert plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)).data.sources
