"""What is published of a run's folder, and what must never be: planted rows, events, secrets and paths."""

import json
from pathlib import Path

import pytest
from made_runs import make_run

from stoker.artifacts import publishing
from stoker.errors import StokerError
from stoker.rundir.layout import RunDir

PLANTED = "MODELSCOPE-PLANTED-SECRET-0123456789"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(make_run(tmp_path / "runs", "done"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model with everything beside it that a run could leave there."""
    folder = tmp_path / "model"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("rows.jsonl", "events.jsonl", "train.log", "training_args.bin", "optimizer.safetensors", ".env"):
        (folder / name).write_text("a row of training data")
    (folder / "checkpoints" / "model.safetensors").write_bytes(weights({}))
    (folder / "config.json").write_text('{"model_type": "llama", "_name_or_path": "/data/secret-project/base"}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "tokenizer_config.json").write_text(
        '{ "eos_token": "<eos>", "model_max_length": 1000000000000000019884624838656 }'
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model-00001-of-00002.safetensors").write_bytes(weights({"format": "pt"}))
    (folder / "README.md").write_text("an earlier card")
    return folder


def weights(metadata: dict[str, str]) -> bytes:
    header = json.dumps({"__metadata__": metadata}).encode()
    return len(header).to_bytes(8, "little") + header


def test_only_files_on_the_list_are_staged(run_dir: RunDir, model: Path) -> None:
    staged = publishing.stage(run_dir, model, "acme/base")
    listed = ["chat_template.jinja", "config.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
    assert staged.names == [*listed, "tokenizer_config.json"]
    assert set(staged.left_out) == {
        *("rows.jsonl", "events.jsonl", "train.log", "training_args.bin", "optimizer.safetensors", ".env"),
        "checkpoints",
    }
    for path in staged.folder.iterdir():
        assert b"a row of training data" not in path.read_bytes()
    assert (staged.folder / listed[2]).samefile(model / listed[2])
    publishing.search(run_dir, staged)
    publishing.discard(run_dir)
    assert not staged.folder.exists()
    assert (model / listed[2]).exists()


def test_places_are_replaced_and_files_without_them_kept_byte_for_byte(run_dir: RunDir, model: Path) -> None:
    staged = publishing.stage(run_dir, model, "acme/base")
    assert json.loads((staged.folder / "config.json").read_text())["_name_or_path"] == "acme/base"
    assert (staged.folder / "tokenizer_config.json").read_bytes() == (model / "tokenizer_config.json").read_bytes()
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "/data/mine/base", "r": 8}')
    (model / "adapter_model.safetensors").write_bytes(weights({}))
    staged = publishing.stage(run_dir, model, "acme/base")
    assert json.loads((staged.folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "acme/base"
    assert "config.json" not in staged.names
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}')
    staged = publishing.stage(run_dir, model, None)
    assert (
        json.loads((staged.folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "Qwen/Qwen3-0.6B"
    )


def test_a_link_is_not_followed(run_dir: RunDir, model: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("a key of this user")
    (model / "merges.txt").symlink_to(tmp_path / "id_rsa")
    staged = publishing.stage(run_dir, model, None)
    assert "merges.txt" not in staged.names
    assert "merges.txt" in staged.left_out
    (model / "merges.txt").unlink()
    (model / "merges.txt").write_text("a b")  # the control
    assert "merges.txt" in publishing.stage(run_dir, model, None).names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", f'{{"note": "{PLANTED}"}}'),
        ("tokenizer.json", f'{{"model": {{"vocab": {{"{PLANTED}": 1}}}}}}'),
        ("chat_template.jinja", "{# hf_abcdefghijklmnopqrstuvwxyz0123 #}"),
        ("config.json", '{"url": "https://me:password@example.org/x"}'),
        ("config.json", '{"note": "ms-01234567-89ab-cdef-0123-456789abcdef"}'),
    ],
)
def test_a_planted_secret_stops_everything(
    run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", PLANTED)
    publishing.search(run_dir, publishing.stage(run_dir, model, None))  # the control: nothing is planted yet
    (model / name).write_text(content)
    with pytest.raises(StokerError) as caught:
        publishing.search(run_dir, publishing.stage(run_dir, model, None))
    assert caught.value.code == "STK535"
    assert name in caught.value.what
    assert PLANTED not in caught.value.what + caught.value.hint


def test_a_secret_in_the_header_of_weights_is_found(
    run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", PLANTED)
    (model / "model.safetensors").write_bytes(weights({"note": PLANTED}))
    with pytest.raises(StokerError, match=r"model\.safetensors"):
        publishing.search(run_dir, publishing.stage(run_dir, model, None))


def test_a_folder_of_this_machine_is_found(run_dir: RunDir, model: Path) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"file": str(run_dir.path.resolve() / "data" / "a")}))
    with pytest.raises(StokerError) as caught:
        publishing.search(run_dir, publishing.stage(run_dir, model, None))
    assert caught.value.code == "STK535"


@pytest.mark.parametrize("said", ["D:/people/me/a", r"d:\People\ME\a", r"D:\\people\\me\\a"])
def test_a_folder_of_windows_is_found_in_any_spelling(
    run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(r"D:\people\me"))
    (model / "tokenizer_config.json").write_text(json.dumps({"file": said}))
    with pytest.raises(StokerError) as caught:
        publishing.search(run_dir, publishing.stage(run_dir, model, None))
    assert caught.value.code == "STK535"


@pytest.mark.parametrize("home", ["/home/张三", "D:\\people\\me"])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "model.safetensors"])
def test_a_folder_that_json_escapes_is_found(
    run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch, home: str, name: str
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    for place, found in ((f"{home}/rows", True), (f"{home}-of-another/rows", False)):
        said = {"file": place}
        assert home not in json.dumps(said), "it would be found without being decoded"
        (model / name).write_bytes(weights(said) if name.endswith("safetensors") else json.dumps(said).encode())
        staged = publishing.stage(run_dir, model, None)
        if found:
            with pytest.raises(StokerError, match=name):
                publishing.search(run_dir, staged)
        else:
            publishing.search(run_dir, staged)


def test_a_root_is_no_folder_to_look_for(run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "chat_template.jinja").write_text("{# https://example.org/a #}")
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    monkeypatch.setattr(Path, "cwd", lambda: Path("/"))
    publishing.search(run_dir, publishing.stage(run_dir, model, None))
    (model / "chat_template.jinja").write_text(f"{{# {run_dir.path.resolve()}/a #}}")  # the control
    with pytest.raises(StokerError):
        publishing.search(run_dir, publishing.stage(run_dir, model, None))


def test_a_short_password_is_not_looked_for_in_a_vocabulary(
    run_dir: RunDir, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "secret")
    (model / "tokenizer.json").write_text('{"model": {"vocab": {"secret": 1}}}')
    publishing.search(run_dir, publishing.stage(run_dir, model, None))
