"""The task file for SkyPilot. What SkyPilot itself makes of it is tested in tests/nightly/places/test_sky.py."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.cli import remote
from stoker.cli.remote import TrainOptions
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import cards
from stoker.launch import programs
from stoker.places import package, sky
from stoker.rundir.layout import RunDir
from stoker.terminal import console

RUN = """
name: My_run.1
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: ../texts/a.txt, rows: 100, tokens: 100000, length: 64}
train: {objective: pretrain, batch: 8}
save: {store: "s3://bucket/x"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_LANG", "en")
    for variable in package.SECRETS:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-canary-5a1b")
    monkeypatch.setattr(programs, "check_engine", lambda: (_ for _ in ()).throw(StokerError("STK402")))
    (tmp_path / "files").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text\n", encoding="utf-8")
    return tmp_path


T4 = "native.sky.accelerators=T4:1"


def emit(folder: Path, *overrides: str, text: str = RUN) -> tuple[dict[str, Any], str]:
    """The task, and the file's text."""
    path = folder / "files" / "run.yaml"
    path.write_text(text, encoding="utf-8")
    remote.train(
        load.load(str(path), list(overrides)), str(path), list(overrides), TrainOptions(on="sky", detach=True, yes=True)
    )
    written = (folder / "runs" / "My_run.1" / "sky.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(written), written


def test_the_task_runs_the_very_same_training_in_the_foreground(folder: Path) -> None:
    task, _ = emit(folder, T4, "train.epochs=2")
    assert task["name"] == "stoker-my-run-1"
    (line,) = [line for line in task["run"].splitlines() if line.startswith("stoker train run.yaml --set ")]
    assert line.endswith(" --set train.epochs=2 --set where.place=local --set where.after=stay || code=$?")
    assert "--detach" not in line
    assert "cd ~/stoker/inputs/My_run.1/files" in task["run"]


def test_what_the_run_needs_lies_in_the_folder_that_is_sent(folder: Path) -> None:
    task, _ = emit(folder, T4)
    stage = Path(task["workdir"])
    assert (stage / "inputs/My_run.1/files/run.yaml").is_file()
    assert (stage / "inputs/My_run.1/texts/a.txt").read_text() == "a text\n"
    (wheel,) = (stage / "wheels").iterdir()
    assert f"wheels/{wheel.name}" in task["setup"]
    emit(folder, T4)
    assert len(list(stage.iterdir())) == 2


def test_the_cheapest_card_that_carries_it_is_asked_for(folder: Path) -> None:
    task, _ = emit(folder)
    name, _, count = task["resources"]["accelerators"].partition(":")
    assert name in sky.accelerators().values()
    assert count == "1"
    two, _ = emit(folder, "where.gpus=2")
    assert two["resources"]["accelerators"].endswith(":2")


def test_the_user_s_own_words_win(folder: Path) -> None:
    own = {"accelerators": "H100:4", "infra": "aws/us-east-1", "autostop": False}
    task, _ = emit(
        folder, *(f"native.sky.{key}={str(value).lower() if value is False else value}" for key, value in own.items())
    )
    assert task["resources"] == own


@pytest.mark.parametrize(
    ("after", "autostop"),
    [
        ("auto", {"idle_minutes": 5, "down": False}),
        ("stop", {"idle_minutes": 5, "down": False}),
        ("release", {"idle_minutes": 5, "down": False}),
        ("stay", None),
    ],
)
def test_skypilot_never_deletes_a_machine_of_its_own_accord(
    folder: Path, after: str, autostop: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emit(folder, T4, f"where.after={after}")[0]["resources"].get("autostop") == autostop
    said = " ".join(capsys.readouterr().err.split())
    assert ("stoker verify My_run.1 --from s3://bucket/x" in said) == (after == "release")
    assert ("sky down stoker-my-run-1" in said) == (after == "release")


FAKE = """\
#!/bin/sh
shift 4  # -X utf8 -m stoker
echo "$*" >> "$HOME/said"
case $1 in
  train) exit {train} ;;
  push) [ "$(grep -c ^push "$HOME/said")" -gt {failures} ] || exit 75 ;;
  verify) [ "$(grep -c ^verify "$HOME/said")" -gt {unverified} ] || exit 1 ;;
esac
"""


def done(
    folder: Path, script: str, train: int, failures: int, unverified: int = 0, made: str = "checkpoints/step-00000009"
) -> tuple[int, list[str]]:
    """What the task's script ends with, and what it said, on a machine whose `stoker` and `sleep` are stand-ins."""
    home = folder / "home"
    for name, text in (
        ("stoker/env/bin/python", FAKE.format(train=train, failures=failures, unverified=unverified)),
        ("bin/sleep", '#!/bin/sh\necho "sleep $*" >> "$HOME/said"\n'),
    ):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "stoker/inputs/My_run.1/files").mkdir(parents=True)
    (home / "stoker/runs/My_run.1" / made).mkdir(parents=True)
    environment = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=60)
    return ended.returncode, [line.split()[0] for line in (home / "said").read_text().splitlines()]


ONCE_MORE = ["push", "sleep"]


@pytest.mark.parametrize("code", [0, 75, 1])
@pytest.mark.parametrize("made", ["checkpoints/step-00000009", "artifacts/final"])
def test_a_task_ends_only_once_its_copy_is_verified(folder: Path, code: int, made: str) -> None:
    script = emit(folder, T4, "where.spot=true")[0]["run"]
    ended = done(folder, script, code, failures=2, unverified=1, made=made)
    assert ended == (code, ["train", *ONCE_MORE * 2, "push", "verify", "sleep", "push", "verify"])


def test_a_run_that_made_nothing_has_nothing_to_wait_for(folder: Path) -> None:
    script = emit(folder, T4, "where.spot=true")[0]["run"]
    assert done(folder, script, 1, failures=9, made="logs") == (1, ["train"])


def test_a_machine_that_is_stopped_with_its_disk_is_not_kept_for_ever(folder: Path) -> None:
    script = emit(folder, T4)[0]["run"]
    assert done(folder, script, 0, failures=999) == (1, ["train", *ONCE_MORE * 59, "push"])


@pytest.mark.parametrize("word", ["where.spot=true", "native.sky.autostop={idle_minutes: 5, down: true}"])
def test_a_machine_that_is_deleted_is_kept_until_the_copy_stands(folder: Path, word: str) -> None:
    script = emit(folder, T4, word)[0]["run"]
    assert done(folder, script, 0, failures=70) == (0, ["train", *ONCE_MORE * 70, "push", "verify"])


def test_a_machine_that_may_be_taken_away_is_a_managed_job_that_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, _ = emit(folder, T4, "where.spot=true")
    assert task["resources"]["use_spot"] is True
    assert task["resources"]["job_recovery"] == {"recover_on_exit_codes": [75]}
    assert "autostop" not in task["resources"]
    path = folder / "runs" / "My_run.1" / "sky.yaml"
    said = capsys.readouterr().out.strip()
    assert said == f"sky jobs launch -n stoker-my-run-1 --secret AWS_SECRET_ACCESS_KEY {path}"


def test_secrets_are_named_and_never_written(folder: Path) -> None:
    task, text = emit(folder, T4)
    assert task["secrets"] == {"AWS_SECRET_ACCESS_KEY": None}
    assert "canary" not in text
    assert "sky launch -c stoker-my-run-1 --secret AWS_SECRET_ACCESS_KEY" in text.splitlines()[1]
    found = [path for path in folder.rglob("*") if path.is_file() and b"canary-5a1b" in path.read_bytes()]
    assert found == []


@pytest.mark.parametrize("store", ["", "save.store=ssh://me@home.example/x", "save.store=copies"])
def test_a_run_without_a_store_every_machine_reaches_is_refused(folder: Path, store: str) -> None:
    text = RUN if store else RUN.replace('save: {store: "s3://bucket/x"}', "")
    with pytest.raises(StokerError) as error:
        emit(folder, *([store] if store else []), text=text)
    assert error.value.code == "STK768"
    assert not (folder / "runs").exists()


def test_a_run_no_card_carries_within_its_budget_is_refused(folder: Path) -> None:
    with pytest.raises(StokerError) as error:
        emit(folder, "data.tokens=10000000000000", "budget.time=1h")
    assert error.value.code == "STK770"


def test_a_large_run_gets_a_larger_disk(folder: Path) -> None:
    text = RUN.replace("layers: 2, width: 64, heads: 2", "layers: 40, width: 5120, heads: 40")
    task, _ = emit(folder, "data.tokens=1000000", text=text)
    assert task["resources"]["disk_size"] > 256


def test_every_name_of_skypilot_belongs_to_a_card_of_the_catalogue() -> None:
    assert set(sky.accelerators()) <= {card.name for card in cards.cards()}
    assert len(set(sky.accelerators().values())) == len(sky.accelerators())


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda task: task.watch("My_run.1", console, once=True, as_json=False), "sky logs stoker-my-run-1"),
        (lambda task: task.stop("My_run.1"), "sky cancel stoker-my-run-1"),
        (lambda task: task.get("My_run.1"), "stoker pull My_run.1 --from s3://bucket/x"),
        (lambda task: task.stop_meter(), "sky stop"),
    ],
)
def test_other_commands_name_skypilot_s_own(ask: Any, words: str) -> None:
    task = sky.Task(load.parse(RUN, "run.yaml"))
    assert (task.facts(), task.status("My_run.1")) == (None, None)
    with pytest.raises(StokerError) as error:
        ask(task)
    assert (error.value.code, error.value.fields["words"]) == ("STK769", words)


def test_the_scripts_are_plain_shell(folder: Path) -> None:
    task, _ = emit(folder, T4)
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)


def test_changing_skypilot_s_words_is_no_change_of_the_training(folder: Path) -> None:
    from stoker.rundir import training_words

    one, other = (load.parse(RUN, "run.yaml", [f"native.sky.infra={cloud}"]) for cloud in ("aws", "gcp"))
    assert training_words.changed(one, other) == []
    assert RunDir(folder).path == folder
