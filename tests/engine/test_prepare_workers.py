"""Several processes that tokenise: the same set to the bit, whoever of them ends when."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prepare_case import Case, Prepared, make_tokenizer, write_jsonl

from stoker.engine import prepare, sources, tokenise
from stoker.errors import StokerError
from stoker.facts import machine, setup_times
from stoker.rundir.layout import RunDir

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are forked, and looked up in /proc"),
]
SPLIT: dict[str, Any] = {"eval": "10%", "pack": True, "on_bad_row": "skip", "length": 64}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer)
    rows: list[Any] = [{"text": f"wagon {i} " + "go " * (i % 40)} for i in range(300)]
    rows[77] = "{oops"
    write_jsonl(case.folder / "rows.jsonl", rows)
    turns = [[{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "司炉 " * i}] for i in range(40)]
    write_jsonl(case.folder / "chats.jsonl", [{"messages": one} for one in turns])
    (case.folder / "plain.txt").write_text("".join(f"line {i} of the train\n" for i in range(900)), encoding="utf-8")
    (case.folder / "table.csv").write_text("prompt,completion\n" + "a,b c\n" * 50, encoding="utf-8")
    return case


SOURCES = [{"path": "rows.jsonl", "weight": 1.5}, {"path": "chats.jsonl"}, {"path": "plain.txt"}, {"path": "table.csv"}]


def small_parts(workers: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "cpu_count", lambda: workers)
    patch.setattr(setup_times, "SEVERAL_BYTES", 0)
    patch.setattr(prepare, "SHARD_TOKENS", 300)
    patch.setattr(sources, "BATCH_ROWS", 8)
    patch.setattr(sources, "_TEXT_CHARACTERS", 3000)


def prepared_by(case: Case, workers: int, name: str, patch: pytest.MonkeyPatch) -> Prepared:
    small_parts(workers, patch)
    return case.prepare(name=name, data={"train": SOURCES, **SPLIT})


def test_any_number_of_processes_makes_the_same_set(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [prepared_by(case, workers, f"by{workers}", monkeypatch) for workers in (1, 2, 4)]
    assert found[0].report == found[1].report == found[2].report
    assert len(found[0].report.train.shards) > 10
    bad = {(one.run_dir.data / "bad_rows.jsonl").read_bytes() for one in found}
    assert len(bad) == 1
    assert b'"row": 78' in bad.pop()


PROGRAM = """
import os, signal, sys
from pathlib import Path
import pytest
sys.path.insert(0, sys.argv[3])
from test_prepare_workers import small_parts
from stoker.engine import prepare
small_parts(2, pytest.MonkeyPatch())
left = [int(sys.argv[2])]
plain = prepare.PreparePass.commit
def commit(job):
    plain(job)
    left[0] -= 1
    if not left[0]:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        (Path(sys.argv[1]) / "children").write_text(children)
        os.kill(os.getpid(), signal.SIGKILL)
prepare.PreparePass.commit = commit
prepare.main(Path(sys.argv[1]))
"""


def killed_at(commit: int, run_dir: RunDir) -> list[int]:
    """End the preparing process behind a commit; the processes it had."""
    command = [sys.executable, "-c", PROGRAM, str(run_dir.path), str(commit), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return [int(pid) for pid in (run_dir.path / "children").read_text().split()]


@pytest.mark.parametrize("commit", [1, 5])
def test_a_killed_pass_leaves_no_process_and_goes_on_to_the_same_set(
    case: Case, commit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepared_by(case, 1, "whole", monkeypatch)
    run_dir = case.make("killed", data={"train": SOURCES, **SPLIT})
    children = killed_at(commit, run_dir)
    assert len(children) == 2
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline, "a process outlived the one that started it"
        time.sleep(0.1)
    small_parts(2, monkeypatch)
    prepare.main(run_dir.path)
    assert Prepared(run_dir).report == whole.report


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def test_the_work_of_a_process_that_is_ended_is_done(
    case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the kernel ends one when memory runs out."""
    whole = prepared_by(case, 1, "whole", monkeypatch)
    plain, parent = tokenise.Tokeniser.__call__, os.getpid()

    def dying(self: Any, given: Any) -> Any:
        if os.getpid() != parent and any("wagon 120 " in str(row) for _, row in given.rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, given)

    monkeypatch.setattr(tokenise.Tokeniser, "__call__", dying)
    assert prepared_by(case, 2, "again", monkeypatch).report == whole.report
    assert "was ended" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [1, 3])
def test_problems_are_said_in_the_order_of_the_rows(case: Case, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad row of the first file, not the second file that cannot be read at all."""
    (case.folder / "broken.jsonl").write_bytes(b'{"text": "\xff"}\n')
    small_parts(workers, monkeypatch)
    train = [{"path": "rows.jsonl"}, {"path": "broken.jsonl"}]
    for on_bad_row, code in (("stop", "STK302"), ("skip", "STK314")):
        with pytest.raises(StokerError) as caught:
            case.prepare(name=on_bad_row, data={"train": train, "on_bad_row": on_bad_row})
        assert caught.value.code == code
