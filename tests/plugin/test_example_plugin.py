"""A package of somebody else, installed in a fresh environment beside Stoker: what it adds works, under its name."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from store_case import commit, make_run

EXAMPLE = Path(__file__).with_name("stoker-example-plugin")
PACKAGE = "stoker-example-plugin 0.1.0"
HAIKU = {"lines": ["an old silent pond", "a frog jumps into the pond", "splash! silence again"]}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the example, this environment's packages behind it."""
    folder = tmp_path_factory.mktemp("plugin")
    venv.create(folder / "venv", symlinks=os.name != "nt")
    paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    here = sysconfig.get_path("purelib")
    behind = Path(sysconfig.get_path("purelib", vars=paths)) / "behind.pth"
    behind.write_text(f"import site; site.addsitedir({here!r})\n", encoding="utf-8")
    program = Path(sysconfig.get_path("scripts", vars=paths)) / "python"
    source = shutil.copytree(EXAMPLE, folder / "source")
    if importlib.util.find_spec("uv"):
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(program), "--offline"]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(program), "install", "--quiet", "--no-index"]
    subprocess.run([*install, "--no-deps", "--no-build-isolation", str(source)], check=True)
    return program


@pytest.fixture
def stoker(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Stoker":
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_EXAMPLE_SHELF", str(tmp_path / "shelves"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.chdir(tmp_path)
    return Stoker(python)


class Stoker:
    """The command line in the environment with the example."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [self._python, "-m", "stoker", *words], capture_output=True, text=True, encoding="utf-8", check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def test_a_recipe_is_listed_with_its_package_and_planned(stoker: Stoker) -> None:
    assert f"`haiku_tiny` ({PACKAGE})" in stoker("plan", "haiku_tny", code=1)
    plan = json.loads(stoker("plan", "haiku_tiny", "--card", "RTX4090", "--json"))
    assert plan["batch"]["effective"] == 4


def test_a_mistake_in_a_recipe_names_its_package(stoker: Stoker) -> None:
    said = stoker("plan", "haiku_tiny", "--gpus", "3", "--card", "RTX4090", code=1)
    assert f"haiku_tiny.yaml ({PACKAGE}):5: train.batch" in said


def test_a_format_that_nobody_provides_is_refused_with_the_ones_there_are(stoker: Stoker) -> None:
    said = stoker("plan", "haiku_tiny", "--set", "data.format=sonnet", "--card", "RTX4090", code=1)
    assert f"`haiku` ({PACKAGE})" in said


def test_a_store_is_pushed_to(stoker: Stoker, tmp_path: Path) -> None:
    commit(make_run(tmp_path / "runs", Path("shelf:"), **{"shelf:": "shelf://upper/left"}), 10)
    (tmp_path / "shelves" / "upper").mkdir(parents=True)
    stoker("push", "tiny")
    assert (tmp_path / "shelves" / "upper" / "left" / "tiny").is_dir()
    (copied,) = json.loads(stoker("runs", "--store", "shelf://upper/left", "--json"))
    assert copied["name"] == "tiny"


def test_what_a_store_says_is_said_with_its_package(stoker: Stoker, tmp_path: Path) -> None:
    commit(make_run(tmp_path / "runs", Path("shelf:"), **{"shelf:": "shelf://closed/x"}), 10)
    assert f"`shelf` of the package {PACKAGE}" in stoker("push", "tiny", code=1)
    assert f"`shelf` ({PACKAGE})" in stoker("runs", "--store", "drawer://x", code=1)


def test_a_place_is_found_and_its_options_are_checked(stoker: Stoker, tmp_path: Path) -> None:
    words = ["train", "haiku_tiny", "--on", "desk"]
    (tmp_path / "haiku.jsonl").write_text((json.dumps(HAIKU) + "\n") * 20, encoding="utf-8")
    assert "drawer 2: stoker train haiku_tiny.yaml" in stoker(*words, "--set", "native.desk.drawer=2")
    assert f"native.desk.drawr ({PACKAGE})" in stoker(*words, "--set", "native.desk.drawr=2", code=1)
    assert f"`desk` ({PACKAGE})" in stoker("plan", "haiku_tiny", "--set", "where.place=dsk", code=1)


@pytest.mark.parametrize("format_", ["auto", "haiku"])
def test_rows_of_a_format_are_prepared(stoker: Stoker, tmp_path: Path, format_: str) -> None:
    rows = [HAIKU] * 20
    (tmp_path / "haiku.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    said = stoker("prepare", "haiku_tiny", "--set", f"data.format={format_}")
    assert f"haiku ({PACKAGE})" in said
    report = json.loads((tmp_path / "runs" / "haiku_tiny" / "data" / "report.json").read_text(encoding="utf-8"))
    (found,) = report["detected"]
    assert (found["format"], found["package"], found["rows"], found["bad_rows"]) == ("haiku", PACKAGE, 20, 0)


def test_an_objective_trains(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "haiku.jsonl").write_text((json.dumps(HAIKU) + "\n") * 20, encoding="utf-8")
    words = ["--set", "train.objective=row_mean", "--set", "data.pack=false", "--set", "where.gpus=0"]
    stoker("train", "haiku_tiny", *words)
    log = (tmp_path / "runs" / "haiku_tiny" / "events.jsonl").read_text(encoding="utf-8")
    steps = [event for event in map(json.loads, log.splitlines()) if event["event"] == "step"]
    assert len(steps) == 5
    assert all(step["figures"] == {"rows": 1.0} for step in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]


def test_an_objective_that_nobody_provides_is_refused_with_the_ones_there_are(stoker: Stoker) -> None:
    said = stoker("plan", "haiku_tiny", "--set", "train.objective=row_men", "--card", "RTX4090", code=1)
    assert f"`row_mean` ({PACKAGE})" in said


def test_a_row_that_a_format_refuses_is_named_with_its_package(stoker: Stoker, tmp_path: Path) -> None:
    rows = [*[HAIKU] * 20, {"lines": ["one"]}]
    (tmp_path / "haiku.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    said = stoker("prepare", "haiku_tiny", code=1)
    assert "haiku.jsonl:21" in said
    assert f"a haiku has 3 lines, not 1 ({PACKAGE})" in said
