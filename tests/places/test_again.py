"""The same command again: a run under way, its data and its environment are left alone; what is no part of it goes."""

from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest
from laptop import laptop

from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.box_environment import EXTRAS
from stoker.hosts.shell import Ssh
from stoker.places.box import Box
from stoker.places.box_setup import BoxInstallation
from stoker.places.package import Package
from stoker.rundir import files

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(bool(boxes.available()), reason=boxes.available() or "-"),
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[boxes.Box, Box]]:
    folder = tmp_path_factory.mktemp("again")
    with boxes.autodl(folder) as box, laptop(folder) as mine, pytest.MonkeyPatch.context() as patch:
        mine.knows(box)
        for name in ("STOKER_HOME", "STOKER_SSH_CONFIG"):
            patch.setenv(name, mine.env[name])
        line = Ssh(known.find("box"))
        yield box, Box(line, line.host, load.load("scratch_tiny").run)
        line.close()


def _package(folder: Path, *names: str, run: str = "again") -> Package:
    """Files by their names on the box; each holds its own name."""
    made = {}
    for name in names:
        path = folder / name.replace("/", "-")
        path.write_text(name)
        made[name] = path
    return Package(run, made, f"inputs/{run}", ("train", "none.yaml", "--detach"), {}, prepared=False)


def _at(box: boxes.Box, place: Box, name: str) -> Path:
    return box.root / place.base.lstrip("/") / name


def test_a_file_that_is_no_longer_sent_is_no_longer_read(there: tuple[boxes.Box, Box], tmp_path: Path) -> None:
    box, place = there
    place.put(_package(tmp_path, "inputs/again/rows/a.jsonl", "inputs/again/rows/b.jsonl"))
    assert _at(box, place, "inputs/again/rows/b.jsonl").read_text() == "inputs/again/rows/b.jsonl"
    place.put(_package(tmp_path, "inputs/again/rows/a.jsonl"))
    assert [path.name for path in _at(box, place, "inputs/again/rows").iterdir()] == ["a.jsonl"]


def test_each_stoker_has_an_environment_of_its_own(there: tuple[boxes.Box, Box], tmp_path: Path) -> None:
    box, place = there
    place.put(_package(tmp_path, "inputs/again/a"))
    first = place._mark
    installed = next(_at(box, place, f"envs/{first}").glob("lib/*/site-packages/stoker/__init__.py"))
    before = installed.stat().st_ino
    name = next(f"wheels/{p.parent.name}/{p.name}" for p in _at(box, place, "wheels").glob("*/*.whl"))
    place._set_up(BoxInstallation(place.setup(), name, "another", EXTRAS, ()))
    assert place._mark != first
    assert installed.stat().st_ino == before
    assert (_at(box, place, "env")).readlink() == Path(f"envs/{place._mark}")


def test_the_data_of_a_run_with_checkpoints_is_not_replaced(there: tuple[boxes.Box, Box], tmp_path: Path) -> None:
    box, place = there
    run = _at(box, place, "runs/trained")
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "checkpoints" / "step-00000001" / "COMMIT.json").write_text("{}")
    (run / "data").mkdir()
    (run / "data" / "report.json").write_text("another set")
    other = _package(tmp_path, "runs/trained/data/report.json", "runs/trained/data/x", run="trained")
    place.put(other)
    assert place.kept_data, "the launch says so"
    assert not (run / "data" / "x").exists()
    assert (run / "data" / "report.json").read_text() == "another set"
    (run / "data" / "report.json").write_text(other.files["runs/trained/data/report.json"].read_text())
    place.put(other)
    assert not place.kept_data
    assert not (run / "data" / "x").exists()  # the same set: nothing of it is sent


def test_a_launch_under_way_is_not_started_over(there: tuple[boxes.Box, Box], tmp_path: Path) -> None:
    box, place = there
    logs = _at(box, place, "runs/slow/logs")
    logs.mkdir(parents=True)
    place.shell.run(
        f"sh -c 'sleep 60; : launch.code' >/dev/null 2>&1 & echo $! > {place.base}/runs/slow/logs/launch.pid"
    )
    assert place.status("slow") == {"name": "slow", "state": "running", "step": 0}
    with pytest.raises(StokerError) as told:
        place.put(_package(tmp_path, "inputs/slow/a", run="slow"))
    assert told.value.code == "STK411"
    (logs / "launch.code").write_text("0")
    assert place.status("slow") is None


def test_a_launch_that_fails_is_settled_as_a_failed_run(there: tuple[boxes.Box, Box], tmp_path: Path) -> None:
    box, place = there
    place.put(sent := _package(tmp_path, "inputs/broken/a", run="broken"))
    _at(box, place, "inputs/broken/none.yaml").write_text(
        "name: broken\nmodel: {shape: llama, layers: 1, width: 64, heads: 1}\ntokenizer: {train: bpe, vocab: 300}\n"
        "data: {train: nothing.txt, length: 64}\ntrain: {objective: pretrain, steps: 1}\n"
    )
    with pytest.raises(StokerError) as told:
        place.start(sent)
    assert told.value.code == "STK708"
    assert "nothing.txt" in told.value.where
    verdict = files.read_json(_at(box, place, "runs/broken/supervisor.json"))
    assert (verdict["state"], verdict["reason"], verdict["after"]) == ("failed", "launch", "stop")
    assert boxes._until(lambda: _at(box, place, "runs/broken/settled.json").exists(), "nobody settles") or True
