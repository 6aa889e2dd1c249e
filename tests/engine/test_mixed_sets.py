"""Prepared sets mixed by reference: the set that their rows would have become at once, and no token copied."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from prepare_case import Case, Prepared, make_tokenizer, write_jsonl

from stoker.config import load
from stoker.engine import prepare
from stoker.errors import StokerError
from stoker.launch import plan_inputs
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
