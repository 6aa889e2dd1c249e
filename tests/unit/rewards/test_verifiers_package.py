"""What is known of the tool `verifiers` and its environments without starting it."""

from pathlib import Path

import pytest

from stoker import tools
from stoker.config.rewards import Reward
from stoker.errors import StokerError
from stoker.rewards import scorer, verifiers_package

REWARD = Reward.model_validate({"verifiers": {"environment": "my-env"}, "isolation": "none"})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of a tool that is installed."""
    folder = tmp_path / "tools" / "verifiers"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    found = folder / "lib" / "python3.12" / "site-packages"
    (found / "verifiers").mkdir(parents=True)
    (found / "verifiers-0.4.0.dist-info").mkdir()
    (found / "my_env").mkdir()
    (found / "my_env" / "__init__.py").write_bytes(b"first")
    (found / "one_file.py").write_bytes(b"second")
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "tools"))
    return found


def test_a_tool_that_is_not_installed_is_said_at_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path))
    with pytest.raises(StokerError) as caught, scorer.opened([REWARD], tmp_path):
        pass
    assert (caught.value.code, caught.value.where) == ("STK601", "train.grpo.rewards[0]")
    assert tools.VERIFIERS.packages in caught.value.hint


@pytest.mark.parametrize("name", ["my-env", "my_env", "Owner/My-Env@1.2"])
def test_a_package_is_found_as_verifiers_finds_it(packages: Path, name: str) -> None:
    (packages / "my_env-1.0.dist-info").mkdir(exist_ok=True)
    (packages / "pip-26.0.dist-info").mkdir(exist_ok=True)
    (packages / "my_env" / "words.txt").write_bytes(b"what it asks")
    (packages / "my_env" / "__pycache__").mkdir(exist_ok=True)
    (packages / "my_env" / "__pycache__" / "x.pyc").touch()
    assert verifiers_package.versions() == ["my_env-1.0.dist-info", "verifiers-0.4.0.dist-info"]
    assert verifiers_package.contents(name) == [b"first", b"what it asks"]
    assert verifiers_package.contents("one-file") == [b"second"]
    assert verifiers_package.contents("none") == []


def test_the_digest_follows_the_texts_and_another_one_the_versions(packages: Path, tmp_path: Path) -> None:
    first = scorer.files_digest([REWARD], tmp_path)
    assert scorer.files_digest([REWARD], tmp_path) == first
    (packages / "one_file.py").write_bytes(b"of another environment")
    assert scorer.files_digest([REWARD], tmp_path) == first
    (packages / "my_env" / "more.py").write_bytes(b"third")
    second, before = scorer.files_digest([REWARD], tmp_path), scorer.packages_digest([REWARD])
    assert second != first
    (packages / "verifiers-0.4.0.dist-info").rename(packages / "verifiers-0.4.1.dist-info")
    assert scorer.files_digest([REWARD], tmp_path) == second, "a newer package is not another reward"
    assert scorer.packages_digest([REWARD]) != before
    assert scorer.packages_digest([]) == ""


def test_one_whose_files_are_not_among_the_packages_is_elsewhere(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verifiers_package.is_elsewhere("none")
    assert not verifiers_package.is_elsewhere("my-env")
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "nowhere"))
    assert not verifiers_package.is_elsewhere("none")  # the packages themselves are somewhere else


def test_a_tool_that_is_gone_is_said_and_is_no_other_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path))
    with pytest.raises(StokerError) as caught:
        scorer.files_digest([REWARD], tmp_path)
    assert (caught.value.code, caught.value.where) == ("STK601", "train.grpo.rewards[0]")
    assert not scorer.files_digest([Reward.model_validate({"regex": {"pattern": "."}})], tmp_path)


def test_a_sandbox_is_shown_the_environment_and_its_python_but_never_all(tmp_path: Path) -> None:
    base = tmp_path / "python3.12"
    python = tmp_path / "verifiers" / "bin" / "python"
    for folder in (base / "bin", python.parent):
        folder.mkdir(parents=True)
    (base / "bin" / "python3.12").touch()
    python.symlink_to(base / "bin" / "python3.12")
    settings = tmp_path / "verifiers" / "pyvenv.cfg"
    settings.write_text(f"home = {base}/bin\nversion = 3.12\n")
    assert tools.installation(python) == (tmp_path / "verifiers", base)
    settings.write_text("home = /bin\n")
    assert tools.installation(python) == (tmp_path / "verifiers", base)


def test_of_a_folder_of_links_a_sandbox_is_shown_the_link_alone(tmp_path: Path) -> None:
    """`~/.local/bin/python3.12`: what else is in `~/.local` is the user's. A linked folder of one Python is shown."""
    base = tmp_path / "python3.12.8"
    own, python = tmp_path / "home/.local/bin/python3.12", tmp_path / "verifiers/bin/python"
    for folder in (base / "bin", python.parent, own.parent):
        folder.mkdir(parents=True)
    (base / "bin" / "python3.12").touch()
    own.symlink_to(base / "bin" / "python3.12")
    python.symlink_to(own)
    (tmp_path / "verifiers" / "pyvenv.cfg").write_text(f"home = {own.parent}\n")
    assert tools.installation(python) == (tmp_path / "verifiers", own, base)
    (tmp_path / "python3.12").symlink_to(base)
    python.unlink()
    python.symlink_to(tmp_path / "python3.12/bin/python3.12")
    assert tools.installation(python) == (tmp_path / "verifiers", tmp_path / "python3.12", base)
    python.unlink()
    python.write_bytes(b"a copy")
    (tmp_path / "verifiers" / "pyvenv.cfg").write_text(f"home = {base}/bin\nexecutable = {base}/bin/python3.12\n")
    assert tools.installation(python) == (tmp_path / "verifiers", base)
