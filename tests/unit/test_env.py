"""The list of environment variables: the only door to them."""

import ast
import re
from pathlib import Path

import pytest

from stoker import env
from stoker.errors import StokerError

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"


def test_a_variable_is_read_with_a_default_where_it_is_unset_or_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", "elsewhere")
    assert env.read(env.RUNS, "runs") == "elsewhere"
    monkeypatch.setenv("STOKER_RUNS", "")
    assert env.read(env.RUNS, "runs") == "runs"
    monkeypatch.delenv("STOKER_RUNS")
    assert env.read(env.RUNS) == ""


def test_a_child_gets_this_environment_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", "a")
    monkeypatch.setenv("STOKER_LANG", "en")
    child = env.child_environment({"STOKER_LANG": "zh", "X": "1"})
    assert (child["STOKER_RUNS"], child["STOKER_LANG"], child["X"]) == ("a", "zh", "1")
    assert env.read(env.LANG) == "en"


def test_every_variable_is_listed_once_and_explained_in_both_languages() -> None:
    declared = [value for value in vars(env).values() if isinstance(value, env.Variable)]
    assert sorted(declared, key=id) == sorted(env.VARIABLES, key=id)
    assert len({variable.name for variable in env.VARIABLES}) == len(env.VARIABLES)
    for variable in env.VARIABLES:
        assert re.search(r"[a-z]{3}", variable.english)
        assert re.search(r"[\u4e00-\u9fff]", variable.chinese)


def test_nothing_else_in_the_house_reads_the_environment() -> None:
    """Programs in another tool's environment or inside a bundle have nothing of ours to import."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name not in ("env.py", "bundle_main.py")
        and path.parent.name != "foreign"
        and _reads_environment(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def _reads_environment(text: str) -> bool:
    """Whether code does; a notebook's cell that stands in a string is another machine's."""
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    return bool(names & {"environ", "environb", "getenv"})


def test_the_check_sees_a_reader() -> None:
    assert _reads_environment("import os\nos.environ['A']")
    assert not _reads_environment("cell = 'os.environ'")


def test_tokens_and_passwords_are_masked_wherever_an_error_says_them(monkeypatch: pytest.MonkeyPatch) -> None:
    token, password = "hf_" + "a1" * 12, "s3cretword"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", password)
    error = StokerError("STK101", f"run.yaml:3: {token}", path=f"s3://key:{password}@b", nearest=password)
    said = [str(error), error.what, error.hint, str(error.to_json()), env.masked(error.where)]
    assert not [one for one in said if token in one or password in one]
    assert "***" in error.what


def test_an_ordinary_address_is_not_masked() -> None:
    assert env.masked("ssh://me@host/path and s3://bucket/x") == "ssh://me@host/path and s3://bucket/x"
