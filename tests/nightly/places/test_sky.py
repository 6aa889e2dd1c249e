"""SkyPilot's own code reads what we write for it, in SkyPilot's own environment; no cloud is asked."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker import tools
from stoker.cli import remote
from stoker.cli.remote import TrainOptions
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.places import sky

RUN = """
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, rows: 100, tokens: 100000, length: 64}
train: {objective: pretrain, batch: 8}
save: {store: "s3://bucket/x"}
"""
CASES = {
    "plain": [],
    "spot": ["where.spot=true"],
    "release": ["where.after=release", "where.gpus=2"],
    "own": ["native.sky.accelerators=H100:4", "native.sky.cpus=8+", "native.sky.disk_size=512"],
    "wrong": ["native.sky.disk_tier=7"],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SkyPilot said of every case."""
    python = tools.find(sky.TOOL)
    if python is None:
        pytest.skip("SkyPilot has no environment here (tools/setup_tools.sh)")
    folder = tmp_path_factory.mktemp("sky")
    (folder / "a.txt").write_text("a text\n", encoding="utf-8")
    files, commands = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_RUNS", str(folder / "runs"))
        patch.setenv("AWS_ACCESS_KEY_ID", "an id")
        patch.setattr(programs, "check_engine", lambda: (_ for _ in ()).throw(StokerError("STK402")))
        for name, overrides in CASES.items():
            path = folder / f"{name}.yaml"
            path.write_text(RUN, encoding="utf-8")
            run_file = load.load(str(path), overrides)
            remote.train(
                run_file, str(path), [*overrides, "where.place=sky"], TrainOptions(on="sky", detach=False, yes=True)
            )
            files.append(str(folder / "runs" / name / sky.FILE))
            commands.append(sky.command(run_file.run, Path(files[-1])))
    asked = {"files": files, "commands": commands}
    home = folder / "home"
    home.mkdir()
    names = [*sky.accelerators().values()]
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name("sky_validate.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SKY_NAMES": json.dumps(names),
            "AWS_ACCESS_KEY_ID": "an id",
        },
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return {name: {**said["tasks"][at], "command": said["commands"][at]} for at, name in enumerate(CASES)}


def test_skypilot_reads_the_task_as_it_was_meant(answers: dict[str, Any]) -> None:
    plain = answers["plain"]
    (machine,) = plain["resources"]
    assert plain["name"] == "stoker-plain"
    assert next(iter(machine["accelerators"])) in sky.accelerators().values()
    assert (machine["use_spot"], machine["disk_size"]) == (False, 256)
    assert machine["autostop"] == {"idle_minutes": 5, "down": False}
    assert plain["secrets"] == ["AWS_ACCESS_KEY_ID"]
    assert "--set where.after=stay || code=$?\n" in plain["run"]


def test_skypilot_recovers_a_spot_machine_and_our_own_stop(answers: dict[str, Any]) -> None:
    (machine,) = answers["spot"]["resources"]
    assert machine["use_spot"] is True
    assert machine["job_recovery"]["recover_on_exit_codes"] == [75]


def test_skypilot_takes_what_the_user_passes_through(answers: dict[str, Any]) -> None:
    (machine,) = answers["own"]["resources"]
    assert (machine["accelerators"], machine["disk_size"]) == ({"H100": 4}, 512)
    (released,) = answers["release"]["resources"]
    assert released["autostop"]["down"] is False
    assert list(released["accelerators"].values()) == [2]


def test_skypilot_refuses_what_is_wrong(answers: dict[str, Any]) -> None:
    """So that its silence about the others means something."""
    assert "disk_tier" in answers["wrong"]["refused"]


def test_skypilot_s_command_line_takes_the_command_we_print(answers: dict[str, Any]) -> None:
    assert answers["plain"]["command"]["cluster"] == "stoker-plain"
    assert answers["spot"]["command"]["name"] == "stoker-spot"
    assert answers["spot"]["command"]["secret"] == [["AWS_ACCESS_KEY_ID", "an id"]]
    assert answers["plain"]["command"]["entrypoint"][0].endswith("plain/sky.yaml")
