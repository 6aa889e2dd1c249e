"""The end of a run on a rented machine: its command runs after a verified copy, or not at all."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from settle_case import BEGAN, Box, commit
from store_case import HASTY

from stoker.cli import internal_commands as command
from stoker.rundir import artifacts, events, files, lock, pulled
from stoker.rundir.layout import RunDir
from stoker.settle import meter, notify, platform_command, settled_record
from stoker.settle.notify import News
from stoker.store import opening, push, verification
from stoker.supervise import limit_watch, processes
from stoker.terminal import console

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
    record = settled_record.read(run_dir)
    assert (record["state"], record["copy"], record["verb"]) == ("stopping", "store", "stop")
    assert [one["state"] for one in events.read(run_dir.events_file) if one["event"] == "settled"][-1] == "stopping"


def test_a_copy_that_lacks_in_the_store_is_made_first(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    assert not box.is_copied(run_dir)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]


def test_a_damaged_copy_is_none(tmp_path: Path) -> None:
    """By the store's listing all is there; read back, it is not. The machine waits for a pull; nothing is deleted."""
    box = Box(tmp_path)
    run_dir = ready(box)
    push.push(run_dir)
    (damaged,) = (box.shared / "store").glob("tiny/checkpoints/*/model.safetensors")
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    before = stored_files(box)
    box.on_wait = lambda passed: pulled.write(run_dir, pulled.standing(run_dir)) if 600 < passed < 700 else None
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "stopping"]
    assert "another digest" in box.news[0].text
    assert settled_record.read(run_dir)["copy"] == "pulled"
    assert before <= stored_files(box)


def stored_files(box: Box) -> set[str]:
    return {str(path) for path in (box.shared / "store").rglob("*") if path.is_file()}


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
    assert settled_record.read(run_dir)["copy"] == "pulled"
    assert box.kinds() == ["waiting", "stopping"]


def test_a_pull_of_something_older_is_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 3600}})
    pulled.write(run_dir, pulled.standing(run_dir).model_copy(update={"final": "0" * 64}))
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "stopping"]
    assert "Last minute" in box.news[-1].text


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
    assert 840 <= box.now - BEGAN <= 900  # 100 s were spent before
    assert box.acts == [["/bin/sh", str(box.script)]]
    assert settled_record.read(run_dir)["verb"] == "stop"


def test_in_the_last_minute_a_machine_that_would_lose_the_run_stays_on(tmp_path: Path) -> None:
    box = Box(tmp_path, survives_stop=False)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 1000}})
    box.on_wait = lambda passed: pulled.write(run_dir, pulled.standing(run_dir)) if 5000 < passed < 5050 else None
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "trouble", "waiting", "stopping"]
    assert box.now - BEGAN > 5000


def test_what_cannot_be_undone_needs_the_run_files_word(tmp_path: Path) -> None:
    for name, words, expected in (("asked", RELEASE, "release"), ("not", "", "stop")):
        box = Box(tmp_path / name)
        run_dir = ready(box, words=words, plan={"after": "release"})  # a plan alone is not enough
        assert box.settle(run_dir) == "gone"
        assert settled_record.read(run_dir)["verb"] == expected
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
    assert settled_record.read(run_dir)["verb"] == "stop"


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
    assert box.now - BEGAN <= 60


def test_a_run_that_failed_leaves_time_to_mend_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "failed", reason="STK304")
    assert box.settle(run_dir) == "gone"
    assert 600 <= box.now - BEGAN <= 700
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
    assert box.now - BEGAN > 5000


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
    with lock.held(settled_record.lock_path(run_dir)):
        pass
    assert box.news == []


def test_waiting_counts_as_spent(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 5000}})
    box.settle(run_dir)
    assert json.loads(settled_record.path(run_dir).read_text())["spent_seconds"] == pytest.approx(4940, abs=10)


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
        assert len(platform_command.own_interpreter(["/bin/sh", str(script)])) == expected
    assert platform_command.own_interpreter(["runpodctl", "pod", "stop", "x"]) == ["runpodctl", "pod", "stop", "x"]


# ---- other runs of the machine


def test_a_run_that_is_being_launched_is_waited_for(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir, other = ready(box), box.run(name="other")
    held = hold(other.launch_lock)
    box.on_wait = lambda passed: release(held) if 5000 < passed < 5021 else None
    assert box.settle(run_dir) == "gone"
    assert box.now - BEGAN > 5000
    assert box.kinds()[0] == "waiting"
    assert "other" in box.news[0].text


def test_a_run_that_begins_while_the_command_fails_is_not_switched_off(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir, other = ready(box), box.run(name="other")
    held: list[tuple[int, int]] = []
    tried: list[float] = []

    def act(*_: object) -> str:
        tried.append(box.now - BEGAN)
        return "exit 1" if tried[-1] < 5000 else _gone()

    def wait(passed: float) -> None:
        if passed > 200 and not held:
            held.append(hold(other.supervisor_lock))
        if 5000 < passed < 5021:
            release(held[0])

    box.on_wait = wait
    assert box.settle(run_dir, act) == "gone"
    assert len(tried) >= 3
    assert not [at for at in tried if 200 < at < 5000]


def test_a_run_that_has_just_ended_is_settled_first(tmp_path: Path) -> None:
    """Its `settle` is only starting: no lock is held, its copy is not verified."""
    box = Box(tmp_path)
    run_dir, other = ready(box), ready(box, name="other")

    def wait(passed: float) -> None:
        if 200 < passed < 221:
            record = {"state": "verified", "end": settled_record.end_of(files.read_object(other.supervisor_file))}
            settled_record.path(other).write_text(json.dumps(record))

    box.on_wait = wait
    assert box.settle(run_dir) == "gone"
    assert 200 < box.now - BEGAN < 300


def test_a_stale_record_of_another_run_is_none_and_a_killed_one_holds_no_stop_for_ever(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir, other = ready(box), ready(box, name="other")
    settled_record.path(other).write_text(json.dumps({"state": "verified", "end": "of an earlier attempt"}))
    assert box.settle(run_dir) == "gone"
    assert 600 <= box.now - BEGAN < 700


def test_no_release_destroys_the_only_copy_of_a_run_that_stayed(tmp_path: Path) -> None:
    for is_home, expected in ((False, "stop"), (True, "release")):
        box = Box(tmp_path / expected)
        run_dir = ready(box, words=RELEASE, plan={"after": "release"})
        other = ready(box, "stopped", asked="user", name="other")
        assert box.settle(other) == "stayed"
        if is_home:
            pulled.write(other, pulled.standing(other))
        box.news.clear()
        assert box.settle(run_dir) == "gone"
        assert settled_record.read(run_dir)["verb"] == expected


def test_without_another_command_a_release_waits_for_the_other_runs_copy(tmp_path: Path) -> None:
    box = Box(tmp_path, stop=False)
    run_dir = ready(box, words=RELEASE, plan={"after": "release"})
    other = ready(box, "stopped", asked="user", name="other")
    box.on_wait = lambda passed: pulled.write(other, pulled.standing(other)) if 2000 < passed < 2021 else None
    assert box.settle(run_dir) == "gone"
    assert box.now - BEGAN > 2000
    assert "other" in box.news[0].text


def test_a_stop_that_loses_the_disk_waits_for_the_other_runs_copy(tmp_path: Path) -> None:
    box = Box(tmp_path, survives_stop=False)
    run_dir, other = ready(box), ready(box, "stopped", asked="user", name="other")
    box.on_wait = lambda passed: pulled.write(other, pulled.standing(other)) if 2000 < passed < 2021 else None
    assert box.settle(run_dir) == "gone"
    assert box.now - BEGAN > 2000


def test_two_runs_in_their_last_minute_do_not_wait_for_each_other(tmp_path: Path) -> None:
    box = Box(tmp_path)
    limits = {"limits": {"time_seconds": 1000}}
    run_dir, other = ready(box, store=None, plan=limits), ready(box, store=None, plan=limits, name="other")
    held = hold(settled_record.lock_path(other))
    record = {"state": "waiting", "end": settled_record.end_of(files.read_object(other.supervisor_file))}
    settled_record.path(other).write_text(json.dumps(record))

    def wait(passed: float) -> None:
        if settled_record.read(run_dir).get("state") == "last_minute":  # the other sees that, and needs no more
            settled_record.path(other).write_text(json.dumps({**record, "state": "last_minute"}))

    box.on_wait = wait
    assert box.settle(run_dir) == "gone"
    release(held)
    assert box.now - BEGAN < 1000


def test_a_link_to_the_run_itself_is_no_other_run(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    (run_dir.path.parent / "latest").symlink_to(run_dir.path)
    assert box.settle(run_dir) == "gone"
    assert box.now - BEGAN < 100


# ---- what is in the store


def test_nothing_of_another_machine_is_deleted_in_the_store(tmp_path: Path) -> None:
    """This box was cut off; another went on with the run and finished it."""
    for state, final in (("failed", b""), ("done", b"other bytes")):
        box, second = Box(tmp_path / state), Box(tmp_path / f"{state}-second")
        run_dir, elsewhere = ready(box, state), second.run(store=str(box.shared / "store"))
        commit(elsewhere, 16)
        (elsewhere.final / "model.safetensors").write_bytes(final or b"f")
        assert push.push(elsewhere)["copied"]
        before = {path: Path(path).read_bytes() for path in stored_files(box) if "lease" not in path}
        box.on_wait = lambda passed, run_dir=run_dir: (  # type: ignore[misc]
            pulled.write(run_dir, pulled.standing(run_dir)) if 2000 < passed < 2021 else None
        )
        box.settle(run_dir)
        assert "another machine" in box.news[0].text
        for path, content in before.items():
            assert Path(path).read_bytes() == content, path


# ---- what cannot be read


def test_a_checkpoint_that_does_not_verify_is_not_nothing(tmp_path: Path) -> None:
    for older in (False, True):
        box = Box(tmp_path / str(older))
        run_dir = box.run()
        if older:
            commit(run_dir, 4, final=False)
            assert push.push(run_dir)["copied"]
        commit(run_dir, final=False)
        (model,) = run_dir.checkpoints.glob("step-00000008/model.safetensors")
        model.write_bytes(b"x" + model.read_bytes()[1:])
        box.ended(run_dir, "failed")
        with pytest.raises(AssertionError, match="never end"):
            box.settle(run_dir, look_seconds=3600, longest_wait_seconds=86400)
        assert box.acts == []
        assert "step-00000008: model.safetensors has another digest" in box.news[0].text


def test_a_damaged_checkpoint_whose_copy_is_whole_is_copied(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    assert push.push(run_dir)["copied"]
    (model,) = run_dir.checkpoints.glob("step-00000008/model.safetensors")
    model.write_bytes(b"x" + model.read_bytes()[1:])
    box.witness = lambda _: None  # type: ignore[method-assign]
    assert box.settle(run_dir) == "gone"
    assert settled_record.read(run_dir)["copy"] == "store"


def test_a_half_written_checkpoint_never_was_one(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = box.run()
    half = run_dir.checkpoints / "step-00000008"
    half.mkdir(parents=True)
    for name in (".writing", "state.json"):
        (half / name).touch()
    assert pulled.examined(run_dir)[1] == []
    (half / ".writing").unlink()
    assert pulled.examined(run_dir)[1] != []


def test_a_disk_that_cannot_be_read_is_a_reason_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)

    def refuse(folder: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(folder))

    whole = artifacts.digest
    monkeypatch.setattr(artifacts, "digest", refuse)
    box.on_wait = lambda passed: monkeypatch.setattr(artifacts, "digest", whole) if passed > 2000 else None
    assert box.settle(run_dir) == "gone"
    assert box.kinds() == ["waiting", "stopping"]
    assert "Input/output error" in box.news[0].text
    assert box.witnessed == ["whole"]


def test_a_full_disk_does_not_keep_the_meter_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    push.push(run_dir)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    taken = lock.held

    @contextlib.contextmanager
    def refused(path: Path, *how: Any) -> Iterator[bool]:
        if path == settled_record.lock_path(run_dir):
            full()
        with taken(path, *how) as alone:
            yield alone

    monkeypatch.setattr(lock, "held", refused)
    monkeypatch.setattr(files, "write_json", full)
    assert box.settle(run_dir) == "gone"
    assert box.witnessed == ["whole"]


def test_a_log_that_takes_nothing_does_not_keep_hooks_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[News] = []
    monkeypatch.setattr(notify, "tell", lambda news: told.append(news) or {"STOKER_WEBHOOK": "HTTP 500"})
    with contextlib.suppress(OSError), Path("/dev/full").open("w", encoding="utf-8", buffering=1) as log:
        monkeypatch.setattr(console, "stderr", Console(file=log))
        command.tell(News("tiny", "done", "Stoker: tiny", "The run is done."))
        assert len(told) == 1
        told.append(told[0])
    assert len(told) == 2


def test_a_lock_that_may_not_be_opened_may_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(tmp_path)
    run_dir, other = ready(box), box.run(name="other")
    other.supervisor_lock.touch()
    looked = lock.is_held

    def is_held(path: Path) -> bool:
        if path.parent == other.path and box.now < BEGAN + 2000:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return looked(path)

    monkeypatch.setattr(lock, "is_held", is_held)
    assert box.settle(run_dir) == "gone"
    assert box.now - BEGAN >= 2000


# ---- started again and again


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"state": "stopping", "boot": "another"}, ""),  # it went off, and somebody switched it on
        ({"state": "stopping"}, "gone"),  # killed before the command had its effect
        ({"state": "stopping", "boot": "another", "end": "1 earlier"}, "gone"),
        ({"state": "stayed", "reason": "user"}, ""),
        ({"state": "stayed", "reason": "user", "end": "1 earlier"}, "gone"),
        ({"state": "stayed", "reason": "variable"}, "gone"),  # may be set by now
        ({"state": "waiting"}, "gone"),
    ],
)
def test_the_records_say_whether_there_is_anything_to_settle(
    tmp_path: Path, record: dict[str, str], expected: str
) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    end = settled_record.end_of(files.read_object(run_dir.supervisor_file))
    settled_record.path(run_dir).write_text(json.dumps({"end": end, "boot": processes.boot(), **record}))
    assert box.settle(run_dir) == expected
    assert len(box.news) == (expected == "gone")


def test_an_end_is_settled_once(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, "stopped", asked="user")
    assert [box.settle(run_dir), box.settle(run_dir)] == ["stayed", ""]
    box.ended(run_dir, "stopped", asked="user", attempt=2)
    assert box.settle(run_dir) == "stayed"
    assert len(box.news) == 2


def test_a_launch_that_failed_is_settled_without_a_plan(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = box.run()
    run_dir.plan_file.unlink()
    box.ended(run_dir, "failed", reason="launch", after="stop")
    box.witness = lambda _: None  # type: ignore[method-assign]
    assert box.settle(run_dir) == "gone"
    assert 600 <= box.now - BEGAN < 700


def test_while_it_is_launched_again_it_is_not_settled(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    held = hold(run_dir.launch_lock)
    assert box.settle(run_dir) == ""
    release(held)
    assert box.settle(run_dir) == "gone"


def test_who_only_looks_at_the_lock_does_not_turn_it_away(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box)
    held = hold(settled_record.lock_path(run_dir))
    box.on_wait = lambda passed: release(held) if 0 < passed < 0.3 else None
    assert box.settle(run_dir) == "gone"


def test_a_night_switched_off_is_not_spent(tmp_path: Path) -> None:
    box = Box(tmp_path)
    run_dir = ready(box, store=None, plan={"limits": {"time_seconds": 3600}})
    settled = {"state": "waiting", "spent_seconds": 200.0}
    settled_record.path(run_dir).write_text(json.dumps(settled))
    box.now += 40000
    box.on_wait = lambda passed: pulled.write(run_dir, pulled.standing(run_dir)) if 41000 < passed < 41021 else None
    assert box.settle(run_dir) == "gone"
    assert settled_record.read(run_dir)["copy"] == "pulled"
    assert settled_record.read(run_dir)["spent_seconds"] == pytest.approx(1200, abs=60)


def test_a_warning_of_a_limit_that_is_gone_is_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    meter.warn(ready(box), "time", box.news.append)
    assert box.news == []


def test_all_who_ask_for_hooks_mean_the_same() -> None:
    assert set(notify._HOOKS) == set(limit_watch.HOOKS)


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
