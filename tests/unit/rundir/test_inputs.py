"""What a run reads: sources expanded to files, without looking into them."""

import errno
import os
import shlex
import sys
from pathlib import Path

import pytest
from failing_disk import unlistable

from stoker.config import load
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import inputs, prepared


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.jsonl",
        "a.csv",
        "sub/c.txt",
        "sub/d.jsonl.gz",
        "sub/.hidden/e.txt",
        ".f.jsonl",
        "notes.md",
        "notes.rst",
    ):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("x", encoding="utf-8")
    return tmp_path


def key(asked: Run, folder: Path) -> str:
    return prepared.key_of(asked, inputs.facts(asked, folder))


def names(path: str, folder: Path) -> list[str]:
    return [inputs.label(file, folder) for file in inputs.expand(path, folder)]


def run(data: str, **words: str) -> Run:
    extra = "\n".join(f"{key}: {value}" for key, value in words.items())
    return load.parse(f"model: m\ndata: {data}\n{extra}", "run.yaml")


def test_pages_are_text_unless_they_are_about_other_files(tmp_path: Path) -> None:
    for name in ("notes/a.md", "notes/deep/b.md", "rows/a.jsonl", "rows/README.md", "rows/c.txt", "t/a.txt", "t/b.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert names("notes", tmp_path) == ["notes/a.md", "notes/deep/b.md"]
    assert names("t", tmp_path) == ["t/a.txt"]
    assert names("rows", tmp_path) == names("rows/*", tmp_path) == ["rows/a.jsonl", "rows/c.txt"]
    assert names("rows/*.md", tmp_path) == ["rows/README.md"]


def test_a_folder_gives_all_known_files_below_it_in_order(folder: Path) -> None:
    assert names("data", folder) == ["data/a.csv", "data/b.jsonl", "data/sub/c.txt", "data/sub/d.jsonl.gz"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("data/*.jsonl", ["data/.f.jsonl", "data/b.jsonl"]),
        ("data/**/*.txt", ["data/sub/.hidden/e.txt", "data/sub/c.txt"]),
        ("data/**/*.md", ["data/notes.md"]),
        ("data/notes.md", ["data/notes.md"]),
        ("data/su?", ["data/sub/c.txt", "data/sub/d.jsonl.gz"]),
        ("data/*", ["data/.f.jsonl", "data/a.csv", "data/b.jsonl", "data/sub/c.txt", "data/sub/d.jsonl.gz"]),
    ],
)
def test_a_glob_gives_what_it_matches_in_order(folder: Path, pattern: str, found: list[str]) -> None:
    assert names(pattern, folder) == found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no file can have such a name")
def test_a_name_that_is_not_utf8_is_refused_in_words_that_can_be_written(tmp_path: Path) -> None:
    other = os.fsdecode("b训练".encode("gbk"))
    for name in (f"data/a/{other}.jsonl", f"{other}/a.jsonl", f"mixed/{other}.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    for path, folder in (("data", "data/a"), ("data/*/*", "data/a"), ("b训练/a.jsonl", "."), ("b训练", ".")):
        with pytest.raises(StokerError) as caught:
            inputs.expand(path, tmp_path)
        assert caught.value.code == "STK365"
        assert caught.value.fields["folder"] == tmp_path / folder
        assert r"bѵ\udcc1\udcb7" in caught.value.what
        str(caught.value).encode()
    with pytest.raises(StokerError) as caught:
        inputs.expand("mixed/b训.jsonl", tmp_path)
    assert caught.value.code == "STK301"
    assert r"mixed/bѵ\udcc1\udcb7.jsonl" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no file can have such a name")
def test_the_command_that_renames_is_whole_where_the_folder_has_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    (folder / os.fsdecode("训练.jsonl".encode("gbk"))).write_text("x", encoding="utf-8")
    for language in ("en", "zh"):
        monkeypatch.setenv("STOKER_LANG", language)
        with pytest.raises(StokerError) as caught:
            inputs.expand("my data", tmp_path)
        command = caught.value.hint.split("`")[1]
        assert shlex.split(command)[-1] == f"{folder}/*"


def test_a_name_that_the_file_system_refuses_is_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def of_macos(path: str | Path, **options: bool) -> os.stat_result:
        if not str(path).isprintable():
            raise OSError(errno.EILSEQ, "Illegal byte sequence", path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", of_macos)
    with pytest.raises(StokerError) as caught:
        inputs.expand("训练.jsonl", tmp_path)
    assert caught.value.code == "STK301"


@pytest.fixture
def linked(folder: Path) -> Path:
    """`folder`, with a link to a folder outside of it that leads on to another one."""
    for name in ("nas/shared/g.jsonl", "nas/other/deep/h.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x", encoding="utf-8")
    (folder / "data/shared").symlink_to(folder / "nas/shared", target_is_directory=True)
    (folder / "nas/shared/other").symlink_to(folder / "nas/other", target_is_directory=True)
    return folder


def test_a_linked_folder_is_read_like_any_other(linked: Path) -> None:
    own = ["data/a.csv", "data/b.jsonl"]
    behind = ["data/shared/g.jsonl", "data/shared/other/deep/h.jsonl"]
    assert names("data", linked) == [*own, *behind, "data/sub/c.txt", "data/sub/d.jsonl.gz"]
    assert names("data/**/*.jsonl", linked) == ["data/.f.jsonl", "data/b.jsonl", *behind]
    assert names("data/**/deep/**/*.jsonl", linked) == behind[1:]
    assert names("data/**", linked) == [*own, *behind, *names("data/**/.hidden", linked), *names("data/sub", linked)]
    assert names("data/*", linked) == ["data/.f.jsonl", *names("data", linked)]


def test_a_link_to_what_is_there_anyway_adds_nothing(folder: Path) -> None:
    before = {path: names(path, folder) for path in ("data", "data/**/*.txt", "data/**")}
    for name, target in {"again": "sub", "self": ".", "up": "..", "sub/top": "../../data", "round": "round"}.items():
        (folder / "data" / name).symlink_to(target, target_is_directory=True)
    assert {path: names(path, folder) for path in before} == before


def test_an_absolute_path_or_glob_is_taken_as_it_is(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert inputs.expand(str(folder / "data/b.jsonl"), elsewhere) == [folder / "data/b.jsonl"]
    assert inputs.expand(str(folder / "data/*.csv"), elsewhere) == [folder / "data/a.csv"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nothing.jsonl", "STK301"),
        ("nothing/*.jsonl", "STK301"),
        ("data/notes.rst", "STK308"),
        ("data/*.rst", "STK308"),
        ("papers", "STK308"),
        (" ", "STK315"),
    ],
)
def test_a_source_that_gives_no_file_is_an_error(folder: Path, path: str, code: str) -> None:
    (folder / "papers").mkdir()
    (folder / "papers" / "a.pdf").touch()
    with pytest.raises(StokerError) as caught:
        inputs.expand(path, folder)
    assert caught.value.code == code


def test_a_misspelt_file_names_the_closest(folder: Path) -> None:
    for path in ("data/bb.jsonl", str(folder / "data/bb.jsonl")):
        with pytest.raises(StokerError) as caught:
            inputs.expand(path, folder)
        assert f"closest: `{path.replace('bb', 'b')}`" in caught.value.hint


def test_an_eval_share_is_told_from_a_source_of_its_own() -> None:
    share, own, none = (run(f"{{train: a.jsonl{rest}}}") for rest in (", eval: 2 %", ", eval: b.jsonl", ""))
    assert (inputs.eval_share(share), inputs.eval_source(share)) == ("2 %", None)
    assert inputs.eval_share(own) is None
    assert inputs.eval_source(own).path == "b.jsonl"  # type: ignore[union-attr]  # it is there
    assert (inputs.eval_share(none), inputs.eval_source(none)) == (None, None)


def test_the_key_follows_the_files_and_hub_sources_need_none(folder: Path) -> None:
    asked = run("{train: data/*.jsonl}")
    first = key(asked, folder)
    assert key(asked, folder) == first
    os.utime(folder / "data/b.jsonl", ns=(1, 1))
    assert key(asked, folder) == first, "copied files have other times and the same content"
    (folder / "data/b.jsonl").write_text("y", encoding="utf-8")
    changed = key(asked, folder)
    (folder / "data/g.jsonl").write_text("x", encoding="utf-8")
    assert len({first, changed, key(asked, folder)}) == 3
    hub = [key(run(f"{{train: {{path: 'hub:a/b', split: {split}}}}}"), folder) for split in ("train", "test")]
    assert len(set(hub)) == 2


def test_the_key_follows_a_local_models_tokenizer(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model/tokenizer.json").write_text("{}", encoding="utf-8")
    asked = load.parse("model: model\ndata: {train: data/b.jsonl}", "run.yaml")
    before = key(asked, folder)
    (folder / "model/tokenizer.json").write_text("{ }", encoding="utf-8")
    assert key(asked, folder) != before


def test_declared_sizes_do_not_change_the_key(folder: Path) -> None:
    plain, declared = run("{train: data/b.jsonl}"), run("{train: data/b.jsonl, rows: 5, tokens: 9}")
    assert key(plain, folder) == key(declared, folder)


@pytest.mark.parametrize(
    "changed",
    ["vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "config.json", "qwen.tiktoken"],
)
def test_every_file_a_tokenizer_may_read_is_in_the_key(folder: Path, changed: str) -> None:
    base = folder / "base"
    base.mkdir()
    for name in ("tokenizer_config.json", changed, "model.safetensors", "README.md"):
        (base / name).write_text("{}", encoding="utf-8")
    asked = load.parse("model: base\ndata: {train: data/b.jsonl}\n", "run.yaml")
    before = key(asked, folder)
    for name in ("model.safetensors", "README.md"):
        (base / name).write_text("other", encoding="utf-8")
    assert key(asked, folder) == before
    (base / changed).write_text("other", encoding="utf-8")
    assert key(asked, folder) != before


def test_a_folder_that_cannot_be_listed_is_not_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlistable(monkeypatch, folder / "data" / "sub")
    for path in ("data", "data/**/*.txt"):
        with pytest.raises(StokerError) as caught:
            inputs.expand(path, folder)
        assert (caught.value.code, caught.value.fields["path"]) == ("STK121", str(folder / "data" / "sub"))


def test_what_only_the_administrator_of_a_disk_can_list_holds_no_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data" / "lost+found").mkdir()
    unlistable(monkeypatch, folder / "data" / "lost+found", errno.EACCES)
    assert [path.name for path in inputs.expand("data", folder)] == ["a.csv", "b.jsonl", "c.txt", "d.jsonl.gz"]
