"""Bundles and notebooks: what is packed, what unpacks, and what is refused."""

import ast
import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stoker.config import load
from stoker.config.run import Run
from stoker.hosts import wheel
from stoker.places import bundle, bundle_main
from stoker.places.package import Package

TEXT = "model: {shape: llama, layers: 1, width: 8, heads: 1}\ntokenizer: {train: bpe, vocab: 300}\n"
CANARY = "hf_" + "canary" * 5


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def _built_once(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.wheel, "build", lambda folder: Path(shutil.copy(built, folder)))


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT + "data: {train: rows.txt}\n")
    (tmp_path / "rows.txt").write_text("one row\n")
    return path


def _run(path: Path, *overrides: str) -> Run:
    return load.load(str(path), list(overrides)).run


def _package(path: Path, prepared: bool = True) -> Package:
    return Package(
        name="tiny",
        files={"inputs/tiny/tiny.yaml": path, "runs/tiny/data/rows.bin": path.parent / "rows.txt"},
        folder="inputs/tiny",
        words=("train", "tiny.yaml", "--set", "where.place=local", "--detach"),
        digests={},
        prepared=prepared,
    )


def _bundle(run_file: Path, name: str = "tiny.zip", *overrides: str) -> bundle.Bundle:
    return bundle.make(_package(run_file), _run(run_file, *overrides), run_file.parent / name)


def test_equal_content_gives_equal_bytes(run_file: Path) -> None:
    one, other = _bundle(run_file, "one.zip"), _bundle(run_file, "other.zip")
    assert one.path.read_bytes() == other.path.read_bytes()
    run_file.write_text(run_file.read_text() + "# changed\n")
    assert _bundle(run_file, "third.zip").digest != one.digest


def test_a_bundle_holds_the_wheel_the_inputs_and_their_digests(run_file: Path) -> None:
    made = _bundle(run_file)
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
        record = json.loads(archive.read("bundle.json"))
        names = set(archive.namelist())
    assert names == {"bundle.json", "__main__.py", *record["files"]}
    assert record["files"]["inputs/tiny/tiny.yaml"]["sha256"] == hashlib.sha256(run_file.read_bytes()).hexdigest()
    assert record["wheel"] in record["files"]
    assert record["words"] == ["train", "tiny.yaml", "--set", "where.place=local"]


@pytest.mark.parametrize(
    ("overrides", "prepared", "extras"),
    [
        ([], True, "train"),
        ([], False, "train,data"),
        (["save.store=s3://bucket/a"], True, "train,store"),
        (["save.store=/content/drive/MyDrive/stoker"], True, "train"),
    ],
)
def test_no_more_is_installed_than_the_run_needs(
    run_file: Path, overrides: list[str], prepared: bool, extras: str
) -> None:
    made = bundle.make(_package(run_file, prepared), _run(run_file, *overrides), run_file.parent / "tiny.zip")
    assert made.record["extras"] == extras


def test_secrets_are_packed_by_name_only(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    run = _run(run_file, "save.store=s3://bucket/a")
    made = _bundle(run_file, "tiny.zip", "save.store=s3://bucket/a")
    bundle.write(made, run, run_file.parent / "tiny.ipynb")
    book = (run_file.parent / "tiny.ipynb").read_text()
    assert {"HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(bundle.secret_names(run))
    assert "HF_TOKEN" in book
    assert CANARY not in book
    with zipfile.ZipFile(made.path) as archive:
        assert not any(CANARY.encode() in archive.read(name) for name in archive.namelist())


@pytest.mark.parametrize("store", [None, "/content/drive/MyDrive/stoker", "s3://bucket/a"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_notebook_has_three_cells_of_python(
    run_file: Path, store: str | None, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    run = _run(run_file, *([f"save.store={store}"] if store else []))
    bundle.write(_bundle(run_file), run, run_file.parent / "tiny.ipynb")
    book = json.loads((run_file.parent / "tiny.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert [cell["id"] for cell in book["cells"]] == ["install", "train", "result"]
    sources = ["".join(cell["source"]) for cell in book["cells"]]
    for source in sources:
        ast.parse(source)
    assert ("drive.mount" in sources[0]) == (store is not None and store.startswith("/content/drive"))
    assert ("drive.flush_and_unmount" in sources[2]) == ("drive.mount" in sources[0])


# ---- unpack


def _box(tmp_path: Path, path: Path) -> bundle_main.Installation:
    return bundle_main.Installation(bundle_main.BundleFiles(path), tmp_path / "base", tmp_path / "elsewhere" / "runs")


def test_everything_is_unpacked_once(tmp_path: Path, run_file: Path) -> None:
    box = _box(tmp_path, _bundle(run_file).path)
    box.unpack()
    assert (tmp_path / "base" / "inputs" / "tiny" / "tiny.yaml").read_text() == run_file.read_text()
    written = tmp_path / "elsewhere" / "runs" / "tiny" / "data" / "rows.bin"
    assert written.read_text() == "one row\n"
    before = written.stat().st_mtime_ns
    box.unpack()
    assert written.stat().st_mtime_ns == before
    written.write_text("another row\n")
    box.unpack()
    assert written.read_text() == "one row\n"


def test_a_bundle_that_somebody_unpacked_is_as_good(tmp_path: Path, run_file: Path) -> None:
    with zipfile.ZipFile(_bundle(run_file).path) as archive:
        archive.extractall(tmp_path / "unpacked")
    _box(tmp_path, tmp_path / "unpacked").unpack()
    assert (tmp_path / "base" / "inputs" / "tiny" / "tiny.yaml").is_file()


def _hostile(path: Path, files: dict[str, bytes], record: dict[str, dict[str, Any]], sentences: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bundle.json", json.dumps({"files": record, "sentences": sentences}))
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "name", ["../out", "/out", "inputs/../../out", "a\\..\\out", "C:out", "runs/../../out", "", "inputs/link/out"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, run_file: Path, name: str) -> None:
    sentences = _bundle(run_file).record["sentences"]
    entry = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    path = _hostile(tmp_path / "hostile.zip", {name: b"x"} if name else {}, {name: entry}, sentences)
    (tmp_path / "base" / "inputs").mkdir(parents=True)
    (tmp_path / "base" / "inputs" / "link").symlink_to(tmp_path)
    with pytest.raises(SystemExit):
        _box(tmp_path, path).unpack()
    assert not list(tmp_path.rglob("out"))


@pytest.mark.parametrize(
    ("content", "entry"),
    [
        (b"other", {"bytes": 5, "sha256": hashlib.sha256(b"right").hexdigest()}),
        (b"right and more", {"bytes": 5, "sha256": hashlib.sha256(b"right").hexdigest()}),
        (b"0" * (1 << 24), {"bytes": 5, "sha256": hashlib.sha256(b"right").hexdigest()}),
    ],
)
def test_a_file_that_is_not_what_was_packed_is_refused(
    tmp_path: Path, run_file: Path, content: bytes, entry: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = _bundle(run_file).record["sentences"]
    path = _hostile(tmp_path / "hostile.zip", {"inputs/a": content}, {"inputs/a": entry}, sentences)
    with pytest.raises(SystemExit):
        _box(tmp_path, path).unpack()
    assert [one for one in (tmp_path / "base").rglob("*") if one.is_file()] == []
    assert "inputs/a" in capsys.readouterr().out


# ---- install


def test_the_torch_of_the_image_stays(tmp_path: Path, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bundle_main.subprocess, "call", lambda command: calls.append(command) or 0)
    monkeypatch.setattr(bundle_main, "_installed", {"torch": "2.10.0+cu128", "torchvision": "0.25"}.get)
    box = _box(tmp_path, _bundle(run_file).path)
    box.install()
    (command,) = calls
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    constraints = Path(command[command.index("--constraint") + 1])
    assert constraints.read_text() == "torch==2.10.0+cu128\ntorchvision==0.25\n"
    assert command[-1].endswith(".whl[train]")


def test_another_stoker_of_the_same_version_gives_way(
    tmp_path: Path, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bundle_main.subprocess, "call", lambda command: calls.append(command) or 0)
    monkeypatch.setattr(bundle_main, "_installed", {"stoker": "0.1.0"}.get)
    box = _box(tmp_path, _bundle(run_file).path)
    box.install()
    assert "--force-reinstall" in calls[0]
    assert len(calls) == 2
    box.install()  # nothing changed since
    assert len(calls) == 2


def test_a_failed_install_says_which_torch_is_there(
    tmp_path: Path, run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle_main.subprocess, "call", lambda command: 1)
    monkeypatch.setattr(bundle_main, "_installed", {"torch": "2.6.0"}.get)
    with pytest.raises(SystemExit):
        _box(tmp_path, _bundle(run_file).path).install()
    assert "2.6.0" in capsys.readouterr().out


def test_the_program_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(bundle_main.__file__).read_text(encoding="utf-8"))
    found = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in found} <= set(sys.stdlib_module_names)


# ---- words of the run file


@pytest.mark.parametrize(
    ("option", "code"),
    [("id: a/b", "STK139"), ("kernel_sources: [a/b]", "STK139"), ("enable_gpu: true", "STK110"), ("gpu: 1", "STK111")],
)
def test_what_the_chain_decides_and_what_kaggle_has_not_is_refused(run_file: Path, option: str, code: str) -> None:
    run_file.write_text(run_file.read_text() + f"native: {{kaggle: {{{option}}}}}\n")
    with pytest.raises(Exception, match=code):
        load.load(str(run_file), [])


def test_fields_of_kernel_metadata_pass(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "native: {kaggle: {machine_shape: NvidiaTeslaP100}}\n")
    assert _run(run_file).native.kaggle == {"machine_shape": "NvidiaTeslaP100"}
