import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts import wheel
from stoker.places import package

RUN = """
name: sent
model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {train: %s, length: 64}
train: {objective: pretrain, batch: 2, steps: 2}
"""


def _package(folder: Path, source: str) -> package.Package:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(RUN % source)
    return package.make(str(path), load.load(str(path), []), [])


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"text": "a"}\n')
    return path


def test_a_run_takes_its_file_and_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    data = _write(tmp_path / "a" / "data" / "rows.jsonl")
    made = _package(tmp_path / "a", "data/rows.jsonl")
    assert made.files == {"inputs/sent/data/rows.jsonl": data, "inputs/sent/run.yaml": tmp_path / "a" / "run.yaml"}
    assert made.folder == "inputs/sent"
    assert made.words == ("train", "run.yaml", "--set", "where.place=local", "--detach")


@pytest.mark.parametrize("where", ["host: box", "hosts: [a, b]"])
def test_the_command_there_reads_a_run_file_that_names_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    data, path = _write(tmp_path / "rows.jsonl"), tmp_path / "run.yaml"
    path.write_text(RUN % data.name + f"where: {{place: ssh, {where}}}\n")
    made = package.make(str(path), load.load(str(path), []), [])
    overrides = [after for word, after in zip(made.words, made.words[1:], strict=False) if word == "--set"]
    assert load.load(str(path), overrides).run.where.place == "local"


def test_paths_that_lead_upwards_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    _write(tmp_path / "data" / "rows.jsonl")
    made = _package(tmp_path / "project" / "runs", "../../data/rows.jsonl")
    assert made.folder == "inputs/sent/project/runs"
    assert set(made.files) == {"inputs/sent/data/rows.jsonl", "inputs/sent/project/runs/run.yaml"}


def test_an_absolute_path_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    data = _write(tmp_path / "rows.jsonl")
    with pytest.raises(StokerError, match=r"rows\.jsonl") as told:
        _package(tmp_path / "a", str(data))
    assert told.value.code == "STK704"


def test_only_variables_that_are_set_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in package.SECRETS:
        monkeypatch.delenv(one.name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    assert package.secrets() == {"HF_TOKEN": "hf_canary"}


def test_the_wheel_is_this_very_stoker_and_equal_each_time(tmp_path: Path) -> None:
    first, second = wheel.build(tmp_path / "a"), wheel.build(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        assert archive.read("stoker/hosts/wheel.py") == Path(wheel.__file__).read_bytes()
        archive.extractall(tmp_path / "out")
    assert "stoker/facts/data/platforms.json" in names
    assert not [name for name in names if "__pycache__" in name]
    said = subprocess.run(
        [sys.executable, "-m", "stoker", "--version"], capture_output=True, text=True, cwd=tmp_path / "out", check=True
    )
    assert said.stdout.strip()


def test_pip_takes_the_wheel(tmp_path: Path) -> None:
    made = wheel.build(tmp_path)
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "to")]
    subprocess.run([*words, str(made)], check=True, capture_output=True)
    assert (tmp_path / "to" / "bin" / "stoker").exists()


def test_a_platform_s_token_goes_to_its_machines_and_keys_with_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STOKER_AUTODL_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "canary")
    run = load.parse(RUN % "a.txt", "run.yaml")
    bucket = run.model_copy(update={"save": run.save.model_copy(update={"store": "s3://bucket/x"})})
    assert set(package.secrets(run, "vast")) == {"HF_TOKEN"}
    assert set(package.secrets(bucket, "autodl")) == {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "STOKER_AUTODL_TOKEN"}
