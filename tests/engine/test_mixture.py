"""A mixture prepared, ordered and trained: shards by source, the order of a replay, exact over kills and ranks."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run
from mixed_run import ROWS, SIZES, make
from mixture_case import any_case, replayed, run_of, split_of
from prepare_case import Case, Prepared, prepare_killed, write_jsonl
from prepare_case import make_tokenizer as make_bpe

from stoker.api import forking
from stoker.engine import prepare
from stoker.engine.mixed_order import MixedOrder
from stoker.errors import StokerError
from stoker.rows import mixture
from stoker.rundir import checkpoints, events, files, layout
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")


# ---- order


def test_the_order_is_that_of_a_replay() -> None:
    generator = random.Random(7)
    for _ in range(40):
        run, split = any_case(generator)
        mixed = mixture.of(run, split)
        assert mixed is not None
        order = MixedOrder("digest", 42, mixed, run.train.batch)
        steps = list(replayed(mixed, "digest", 42, run.train.batch))
        assert len(steps) == mixture.total_steps(run, split)
        places = generator.sample(range(len(steps)), min(8, len(steps)))
        assert [order.sequences(place) for place in places] == [steps[place] for place in places]
        assert [one for step in range(len(steps)) for one in order.sequences(step)] == [one for s in steps for one in s]


def test_a_source_is_seen_whole_before_any_of_it_comes_again() -> None:
    run = run_of("[{share: 50%, mix: {wiki: 90%, code: 10%}}, {share: 50%, mix: {wiki: 10%, code: 90%}}]")
    split = split_of([50, 30, 9, 9], [9, 9, 9, 9])
    mixed = mixture.of(run, split)
    assert mixed is not None
    order = MixedOrder("digest", 42, mixed, 8)
    read = [one for step in range(40) for one in order.sequences(step)]
    for source in mixed.sources:
        own = [one for one in read if source.first <= one < source.first + source.sequences]
        epochs = [own[at : at + source.sequences] for at in range(0, len(own), source.sequences)]
        assert all(len(set(one)) == len(one) for one in epochs)
        assert len({tuple(one) for one in epochs}) == len(epochs), "every epoch has an order of its own"


def test_the_order_of_a_mixture_is_frozen() -> None:
    """Like that of a plain order: it may change only together with `order.VERSION`."""
    run = run_of("[{mix: {wiki: 60%, code: 40%}}]", "steps: 4, batch: 5", ("wiki", "code"))
    mixed = mixture.of(run, split_of([6, 7], [10, 5]))
    assert mixed is not None
    order = MixedOrder("golden", 42, mixed, 5)
    assert [order.sequences(step) for step in range(4)] == [
        [5, 3, 9, 11, 12],
        [2, 4, 8, 7, 6],
        [0, 1, 10, 6, 9],
        [2, 3, 5, 12, 8],
    ]


def test_a_seek_into_a_billion_sequences_is_immediate() -> None:
    run = run_of("[{tokens: 9T, mix: {wiki: 60%, code: 39%, qa: 1%}}]", "batch: 64")
    mixed = mixture.of(run, split_of([10**9, 10**8, 10**6, 5], [2000, 2000, 700.5, 3]))
    assert mixed is not None
    start = time.process_time()
    for step in (0, 10**6, mixed.sequences // 64 - 1):
        assert len(MixedOrder("digest", 42, mixed, 64).sequences(step)) == 64
    assert time.process_time() - start < 1


# ---- prepare


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_bpe(case.tokenizer)
    return case


def test_every_source_has_shards_of_its_own_and_the_report_names_them(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 300)
    monkeypatch.setattr("stoker.engine.sources.BATCH_ROWS", 8)
    for name, count in (("wiki", 90), ("code", 7), ("qa", 40)):
        write_jsonl(case.folder / f"{name}.jsonl", [{"text": f"{name} {i} " + "go " * (i % 9)} for i in range(count)])
    sources = [{"path": f"{name}.jsonl", "epochs": 1} for name in ("wiki", "code", "qa")]
    made = case.prepare(name="mixed", data={"train": sources, "pack": True, "eval": "5%"})
    train, rows = made.report.train, made.rows()
    assert len(train.shards) > 3
    assert [source.name for source in train.sources] == ["wiki", "code", "qa"]
    assert sum(source.sequences for source in train.sources) == train.sequences == len(rows)
    for source in train.sources:
        own = [segment for row in rows[source.first : source.first + source.sequences] for segment in row]
        assert sum(map(len, own)) == source.tokens
        assert all(_text(made, segment).startswith(source.name) for segment in own)
    assert (
        case.prepare(name="plain", data={"train": [{"path": one["path"]} for one in sources]}).report.train.sources
        == []
    )


def test_a_prepare_that_is_killed_between_sources_ends_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wiki", "code"):
        write_jsonl(case.folder / f"{name}.jsonl", [{"text": f"{name} {i}"} for i in range(30)])
    data = {"train": [{"path": "wiki.jsonl", "epochs": 1}, {"path": "code.jsonl", "epochs": 2}], "pack": True}
    whole = case.prepare(name="whole", data=data).report
    run_dir = case.make("killed", data=data)
    prepare_killed(run_dir, 1, monkeypatch)
    prepare.main(run_dir.path)
    assert Prepared(run_dir).report == whole


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_source_that_a_pipeline_emptied_keeps_its_place_also_after_a_kill(
    case: Case, monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """The others' shards stay theirs, and no file is read twice."""
    names = ("wiki", "code", "qa")
    for name in names:
        (case.folder / name).mkdir()
        for number in range(3):
            rows = [{"text": f"{name} {number} {i}"} for i in range(12)]
            write_jsonl(case.folder / name / f"{number}.jsonl", rows)
    all_inputs = prepare._inputs

    def some_inputs(*words: Any) -> list[prepare.Input]:
        found = all_inputs(*words)
        found[empty].files = []
        return found

    monkeypatch.setattr(prepare, "_inputs", some_inputs)
    monkeypatch.setattr(prepare.sources, "require_all", lambda *_: None)  # not asked where there is a pipeline
    data = {"train": [{"path": name, "epochs": 1} for name in names], "pack": True}
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 60)
    whole = case.prepare(name="whole", data=data).report
    counts = {one.name: one.sequences for one in whole.train.sources}
    assert list(counts) == list(names)
    assert [name for name, count in counts.items() if not count] == [names[empty]]
    assert whole.rows_read == 72
    run_dir = case.make("killed", data=data)
    prepare_killed(run_dir, 4, monkeypatch)
    prepare.main(run_dir.path)
    assert Prepared(run_dir).report == whole


def _text(made: Prepared, segment: np.ndarray) -> str:
    return "".join(text for text, _ in made.runs(segment))


# ---- train


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("base"), dropout=0.1, width=32, layers=1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, base: Path) -> RunDir:
    run_dir = make(tmp_path_factory.mktemp("alone") / "run", base)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


def test_events_and_checkpoints_count_what_was_seen_of_each_source(alone: RunDir) -> None:
    read = tiny_run.sequences(alone)  # each checked against the event's checksum
    firsts = [sum(SIZES[:number]) for number in range(5)]
    counts = {name: [0, 0] for name in ("wiki", "code", "qa", "books")}
    for step, event in sorted(events.steps(alone.events_file).items()):
        for one in read[step]:
            name = list(counts)[max(number for number in range(4) if firsts[number] <= one)]
            counts[name][0] += 1
            counts[name][1] += sum(map(len, ROWS[one]))
        assert event["sources"] == counts
    plan = files.read_json(alone.plan_file)
    assert plan["steps"]["total"] == 20
    assert {one["name"]: one["sequences"] for one in plan["sources"]} == {name: one[0] for name, one in counts.items()}
    (last,) = [one for one in checkpoints.committed(alone.checkpoints) if one.step == 20]
    assert last.commit.source_tokens == {name: one[1] for name, one in counts.items()}


@pytest.mark.parametrize("kill_after", [4, 9, 17])
def test_a_killed_run_ends_with_the_same_weights_and_counts(
    alone: RunDir, base: Path, tmp_path: Path, kill_after: int
) -> None:
    run_dir = make(tmp_path / "run", base)
    assert tiny_run.train(run_dir, kill_after=kill_after) == -9
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(alone.final)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(alone)
    ends = [events.steps(one.events_file)[20]["sources"] for one in (run_dir, alone)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_ranks_reads_the_same_sequences(
    alone: RunDir, base: Path, tmp_path: Path, processes: int
) -> None:
    run_dir = make(tmp_path / "run", base, f", strategy: ddp, processes: {processes}")
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(alone)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(alone.final)


def test_a_fork_goes_on_with_the_mixture_and_cannot_move_its_stages(alone: RunDir, base: Path, tmp_path: Path) -> None:
    parent = make(tmp_path / "run", base)
    assert tiny_run.train(parent, stop_after=5) == 75
    with pytest.raises(StokerError) as caught:
        forking.fork(parent, "longer", ["train.steps=40"], weights_only=False)
    assert caught.value.code == "STK429"
    run_file = forking.fork(parent, "other", [], weights_only=False)
    run_dir = layout.create(run_file)
    tiny_run.plan(run_dir, run_file)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(alone.final)
    assert events.steps(run_dir.events_file)[20]["sources"] == events.steps(alone.events_file)[20]["sources"]
    mixed = forking.fork(parent, "weights", ["data.stages=[{mix: {wiki: 100%}}]"], weights_only=True)
    assert (layout.named("weights").data / "report.json").is_file(), "the set is mixed anew, not prepared anew"
    assert mixed.run.data.stages is not None
