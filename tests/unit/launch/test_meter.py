"""The end of a run on a rented machine: its command runs after a verified copy, or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from settle_case import Box, commit
from store_case import HASTY

from stoker.launch import meter
from stoker.rundir import events, lock, pulled
from stoker.rundir.layout import RunDir
from stoker.store import opening, push, verification

pytestmark = pytest.mark.skipif(os.name == "nt", reason="boxes are not Windows")

RELEASE = "where: {after: release}\n"
SECRET = "very-secret-value-of-the-platform"


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setenv("SETTLE_TEST_KEY", SECRET)
    monkeypatch.setattr(opening, "Patience", lambda: HASTY)
    return


def ready(box: Box, state: str = "done", **options: Any) -> RunDir:
    fields = {key: options.pop(key) for key in ("spent", "asked", "reason") if key in options}
    run_dir = box.run(**options)
    commit(run_dir, final=state == "done")
    box.ended(run_dir, state, **fields)
    return run_dir


def test_the_machine_is_switched_off_once_the_copy_is_verified(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]
    assert (tmp_path / "ran").read_text() == f"stopped {SECRET}\n"
    assert box.kinds() == ["stopping"]
    record = meter.settled(run_dir)
    assert (record["state"], record["copy"], record["verb"]) == ("stopping", "store", "stop")
    assert [one["state"] for one in events.read(run_dir.events_file) if one["event"] == "settled"][-1] == "stopping"


def test_a_copy_that_lacks_in_the_store_is_made_first(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    assert not box.is_copied(run_dir)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]


def test_a_damaged_copy_is_none(tmp_path: Path) -> None:
    """By the store's listing all is there; read back, it is not, and is made anew."""
    box = Box(tmp_path)
    run_dir = ready(box)
    push.push(run_dir)
    (damaged,) = (box.shared / "store").glob("tiny/checkpoints/*/model.safetensors")
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    assert not box.is_copied(run_dir)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]


def test_while_the_store_is_down_the_machine_stays_on_and_the_user_is_told(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    (box.shared / "store").write_text("no folder: the store is down")
    box.on_wait = lambda passed: (box.shared / "store").unlink(missing_ok=True) if 30000 < passed < 30100 else None
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting"] * 4 + ["stopping"]  # after 0, 1, 3 and 7 hours
    assert box.witnessed == ["whole"]


def test_a_verified_pull_is_a_copy(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None)

    def pull(passed: float) -> None:
        if 600 < passed < 700:
            home = RunDir(tmp_path / "laptop" / "tiny")
            shutil.copytree(run_dir.path, home.path, dirs_exist_ok=True)
            pulled.write(run_dir, pulled.standing(home))

    box.on_wait = pull
    assert box.settle(run_dir, act=lambda *_: _gone()) == "gone"
    assert meter.settled(run_dir)["copy"] == "pulled"
    assert box.kinds() == ["waiting", "stopping"]


def test_a_pull_of_something_older_is_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 3600}})
    pulled.write(run_dir, pulled.standing(run_dir).model_copy(update={"final": "0" * 64}))
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "stopping"]
    assert "last minute" in box.news[-1].text


def test_a_store_on_the_machine_itself_is_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store="disk", plan={"limits": {"time_seconds": 3600}})
    push.push(run_dir)
    box.settle(run_dir)
    assert box.kinds() == ["waiting", "stopping"]
    assert "on the machine itself" in box.news[0].text


def test_in_the_last_minute_what_can_be_undone_runs_if_the_disk_survives_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, words=RELEASE, plan={"after": "release", "limits": {"money_seconds": 1000}})
    assert box.settle(run_dir) == "gone"
    assert 840 <= box.now - 1_800_000_000 <= 900  # 100 s were spent before
    assert box.acts == [["/bin/sh", str(box.script)]]
    assert meter.settled(run_dir)["verb"] == "stop"


def test_in_the_last_minute_a_machine_that_would_lose_the_run_stays_on(tmp_path: Path) -> None:
    box = Box(tmp_path, survives_stop=False)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 1000}})
    box.on_wait = lambda passed: pulled.write(run_dir, pulled.standing(run_dir)) if 5000 < passed < 5050 else None
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "trouble", "waiting", "stopping"]
    assert box.now - 1_800_000_000 > 5000


def test_what_cannot_be_undone_needs_the_run_files_word(tmp_path: Path) -> None:
    for name, words, expected in (("asked", RELEASE, "release"), ("not", "", "stop")):
        box = Box(tmp_path / name)
        run_dir = ready(box, words=words, plan={"after": "release"})  # a plan alone is not enough
        assert box.settle(run_dir) == "gone"
        assert meter.settled(run_dir)["verb"] == expected
        assert box.witnessed == ["whole"]


def test_a_release_waits_for_a_verified_copy_for_ever(tmp_path: Path) -> None:
    box = Box(tmp_path, stop=False)
    run_dir = ready(box, store=None, words=RELEASE, plan={"after": "release", "limits": {"time_seconds": 1000}})
    with pytest.raises(AssertionError, match="never end"):
        box.settle(run_dir, longest_wait_seconds=86400, look_seconds=3600)
    assert box.acts == []
    assert "trouble" in box.kinds()


def test_nothing_committed_is_no_reason_to_release(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = box.run(words=RELEASE, plan={"after": "release"})
    box.ended(run_dir, "failed")
    box.witness = lambda _: None  # type: ignore[method-assign]
    assert box.settle(run_dir) == "gone"
    assert meter.settled(run_dir)["verb"] == "stop"


def test_a_run_that_somebody_stopped_leaves_the_machine_on(tmp_path: Path) -> None:
    for asked in ("user", "signal", ""):
        box = Box(tmp_path / (asked or "nobody"))
        run_dir = ready(box, "stopped", asked=asked)
        assert box.settle(run_dir) == "stayed"
        assert box.acts == []
        assert "You stopped it" in box.news[0].text


def test_a_run_that_a_budget_stopped_is_settled(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "stopped", asked="money", reason="store", plan={"limits": {"money_seconds": 101}})
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]
    assert box.now - 1_800_000_000 <= 60


def test_a_run_that_failed_leaves_time_to_mend_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "failed", reason="STK304")
    assert box.settle(run_dir) == "gone"
    assert 600 <= box.now - 1_800_000_000 <= 700
    assert "failed" in box.news[0].text


def test_started_again_meanwhile_it_is_left_alone(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "failed")
    held = []

    def start(passed: float) -> None:
        if passed > 300 and not held:
            held.append(hold(run_dir.supervisor_lock))

    box.on_wait = start
    assert box.settle(run_dir) == "again"
    release(held[0])
    assert box.acts == []


def test_other_runs_of_the_machine_are_waited_for(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir, other = ready(box), box.run(name="other")
    held = hold(other.supervisor_lock)
    box.on_wait = lambda passed: release(held) if 5000 < passed < 5021 else None
    assert box.settle(run_dir) == "gone"
    assert box.now - 1_800_000_000 > 5000


def test_a_command_that_fails_is_tried_again_and_said_without_its_secret(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    box.script.write_text("echo no power for $TOKEN; exit 3\n")
    box.on_wait = lambda passed: box.script.write_text("exit 0\n") if passed > 50 else None
    assert box.settle(run_dir) == "gone"
    assert len(box.acts) > 1
    assert box.kinds() == ["stopping", "trouble"]
    assert "exit 3: no power for ***" in box.news[1].text
    for path in run_dir.path.rglob("*"):
        assert not path.is_file() or SECRET not in path.read_text(errors="replace"), path


def test_a_command_without_effect_is_said(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    assert box.settle(run_dir, act=lambda *_: "", tries_most=3) == "stayed"
    assert "no effect" in box.news[1].text


def test_a_machine_without_the_commands_variable_stays_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SETTLE_TEST_KEY")
    box = Box(tmp_path)
    assert box.settle(ready(box)) == "stayed"
    assert "SETTLE_TEST_KEY" in box.news[0].text


def test_a_machine_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    box.platform = None  # type: ignore[assignment]
    assert box.settle(run_dir) == "stayed"
    assert [one.text.strip() for one in box.news] == ["The run is done (8 steps)."]


def test_a_run_that_goes_on_is_not_settled(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "running")
    assert box.settle(run_dir) == ""
    with lock.held(meter.settle_lock(run_dir)):
        pass
    assert box.news == []


def test_waiting_counts_as_spent(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 5000}})
    box.settle(run_dir)
    assert json.loads(meter.settled_file(run_dir).read_text())["spent_seconds"] == pytest.approx(4940, abs=10)


def test_sabotaged_verification_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The witness of these tests sees a machine that goes off without a copy."""
    monkeypatch.setattr(verification, "wrong_copy", lambda *_: "")
    box = Box(tmp_path)
    run_dir = ready(box)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["missing"]


def test_a_script_that_names_no_interpreter_runs_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "shutdown"
    for head, expected in ((b"rm -rf trash\n", 2), (b"#!/bin/bash\n", 1), (b"\x7fELF\x02", 1)):
        script.write_bytes(head)
        assert len(meter.own_interpreter(["/bin/sh", str(script)])) == expected
    assert meter.own_interpreter(["runpodctl", "pod", "stop", "x"]) == ["runpodctl", "pod", "stop", "x"]


def _gone() -> str:
    from settle_case import Gone

    raise Gone


# A record lock is between processes: within one, everybody has it.


def hold(path: Path) -> tuple[int, int]:
    """Another process that holds a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end_write)
        with lock.held(path):
            os.write(ready_write, b".")
            os.read(end_read, 1)
        os._exit(0)
    os.read(ready_read, 1)
    for descriptor in (ready_read, ready_write, end_read):
        os.close(descriptor)
    return pid, end_write


def release(held: tuple[int, int]) -> None:
    os.close(held[1])
    os.waitpid(held[0], 0)
