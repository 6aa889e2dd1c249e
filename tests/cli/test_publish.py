"""`stoker publish` against a SIMULATION of both hubs' clients in memory, and the names we call against the real ones.

There is no network here: that the hubs themselves answer so is not shown by these tests.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import CommandLine, make_run
from simulated_hubs import LARGE, TOKEN, ClientError, SimulatedHub, SimulatedHuggingFace, SimulatedModelScope

from stoker.artifacts import model_hubs, publishing
from stoker.rundir.layout import RunDir

huggingface_hub = pytest.importorskip("huggingface_hub")
modelscope_hub = pytest.importorskip("modelscope_hub")

CALLS: dict[Any, dict[str, tuple[str, ...]]] = {
    huggingface_hub.HfApi: {
        "whoami": (),
        "repo_info": ("repo_id",),
        "list_repo_tree": ("repo_id", "recursive"),
        "create_repo": ("repo_id", "private"),
        "preupload_lfs_files": ("repo_id", "additions", "free_memory"),
        "create_commit": ("repo_id", "operations", "commit_message"),
    },
    modelscope_hub.HubApi: {
        "whoami": (),
        "get_repo": ("repo_id", "repo_type"),
        "list_repo_files": ("repo_id", "repo_type"),
        "create_repo": ("repo_id", "repo_type", "visibility"),
        "upload_folder": (
            *("repo_id", "repo_type", "folder_path", "allow_patterns", "commit_message", "disable_tqdm"),
            *("use_cache", "tracker_path"),
        ),
    },
}


@pytest.mark.parametrize(("client", "call"), [(client, call) for client, calls in CALLS.items() for call in calls])
def test_the_calls_we_make_are_the_clients_own(client: Any, call: str) -> None:
    assert set(CALLS[client][call]) <= set(inspect.signature(getattr(client, call)).parameters)


def test_the_fields_we_read_are_the_clients_own() -> None:
    assert {"path", "size", "type", "sha256"} <= set(modelscope_hub.FileInfo.__dataclass_fields__)
    assert {"private", "visibility"} <= set(modelscope_hub.RepoInfo.__dataclass_fields__)
    assert "status_code" in inspect.signature(modelscope_hub.APIError).parameters
    assert int(modelscope_hub.Visibility.PUBLIC) == model_hubs.PUBLIC_VISIBILITY


# ---- the command


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished adapter; the export's place is taken by a folder, as nothing heavy runs here."""
    run_dir = RunDir(make_run(tmp_path / "runs", "done"))
    run_dir.run_file.write_text(
        "model: acme/base\ndata: {train: rows.jsonl, length: 64}\ntune: {method: lora, rank: 8}\n"
    )
    run_dir.final.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    (run_dir.final / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(200))
    (run_dir.final / "adapter_config.json").write_text('{"base_model_name_or_path": "/data/base", "r": 8}')
    (run_dir.final / "tokenizer.json").write_text('{"model": {"vocab": {}}}' + " " * LARGE)
    (run_dir.final / "rows.jsonl").write_text('{"text": "a row of training data"}')
    (run_dir.final / "events.jsonl").write_text('{"event": "step"}')
    return tmp_path / "runs"


@pytest.fixture(params=["hf", "modelscope"])
def address(request: pytest.FixtureRequest) -> str:
    return f"{request.param}:me/taught"


@pytest.fixture
def hub(address: str, monkeypatch: pytest.MonkeyPatch) -> SimulatedHub:
    simulated = SimulatedHuggingFace() if address.startswith("hf:") else SimulatedModelScope()
    monkeypatch.setattr(model_hubs, "_client", lambda *_: simulated)
    monkeypatch.setattr("stoker.handover.publish_command._adapter_card", lambda _: "---\nlicense: mit\n---\n# card\n")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return simulated


Publish = Any


@pytest.fixture
def publish(runs: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Publish:
    command = CommandLine(runs, monkeypatch, capsys)

    def asked(*words: str, stdin: str = "", language: str = "en") -> Any:
        said = ["publish", "done", "--to", address, "--artifact", "adapter", *words]
        return command(*said, stdin=stdin, language=language)

    return asked


NAMES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}


def test_an_adapter_is_sent_private_and_nothing_else(publish: Publish, hub: SimulatedHub, runs: Path) -> None:
    done = publish("--yes", "--json")
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert (shown["what"], shown["private"]) == ("adapter", True)
    assert hub.private is True
    assert set(hub.files) == NAMES == set(shown["files"])
    assert set(shown["left_out"]) == {"rows.jsonl", "events.jsonl"}
    everything = b"".join(hub.files.values())
    for planted in (b"a row of training data", b'"step"', b"/data/base", TOKEN.encode(), str(runs).encode()):
        assert planted not in everything
    assert '"published"' in (runs / "done" / "events.jsonl").read_text()
    assert not (runs / "done" / "artifacts" / ".publish.tmp").exists()


@pytest.mark.parametrize("model", ["models/qwen", "run:my-secret-run", "/data/base"])
def test_a_private_base_is_not_sent_as_a_name_of_the_hub(
    publish: Publish, hub: SimulatedHub, runs: Path, model: str
) -> None:
    (runs / "models" / "qwen").mkdir(parents=True)
    run_file = runs / "done" / "run.yaml"
    run_file.write_text(run_file.read_text().replace("acme/base", f"'{model}'"))
    assert publish("--yes").code == 0
    assert json.loads(hub.files["adapter_config.json"]) == {"base_model_name_or_path": None, "r": 8}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_asks_and_takes_no_for_an_answer(publish: Publish, hub: SimulatedHub, language: str) -> None:
    done = publish(stdin="n\n", language=language)
    assert done.code == 1
    assert not hub.exists
    assert {"en": "Nothing was uploaded", "zh": "什么都没有上传"}[language] in done.err
    assert {"en": "the adapter without its base", "zh": "适配器，不含基座模型"}[language] in done.err
    assert publish(stdin="y\n").code == 0
    assert set(hub.files) == NAMES


def test_a_no_is_an_error_for_a_program(publish: Publish, hub: SimulatedHub) -> None:
    done = publish("--json", stdin="n\n")
    assert (done.code, hub.exists) == (1, False)
    assert json.loads(done.out)["error"]["code"] == "STK550"
    assert "Nothing was uploaded" in done.err


def test_public_is_said_and_only_on_request(publish: Publish, hub: SimulatedHub) -> None:
    done = publish("--public", "--yes")
    assert done.code == 0
    assert hub.private is False
    assert "PUBLIC" in done.err
    refused = publish("--yes")
    assert "STK534" in refused.err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_private_repository_is_not_called_public(
    publish: Publish, hub: SimulatedHub, runs: Path, language: str
) -> None:
    hub.exists, hub.private = True, True
    done = publish("--public", "--yes", "--json", language=language)
    assert done.code == 0, done.err
    assert json.loads(done.out)["private"] is True
    assert {"en": "stays private", "zh": "仍为私有"}[language] in done.err
    assert {"en": "PUBLIC", "zh": "所有人都能看到"}[language] not in done.err
    published = [json.loads(line) for line in (runs / "done" / "events.jsonl").read_text().splitlines()]
    assert published[-1]["event"] == "published"
    assert published[-1]["private"] is True
    hub.private = False  # as by its settings
    assert json.loads(publish("--public", "--yes", "--json").out)["private"] is False


def test_a_planted_secret_is_not_sent(publish: Publish, hub: SimulatedHub, runs: Path) -> None:
    file = runs / "done" / "artifacts" / "final" / "tokenizer_config.json"
    file.write_text(json.dumps({"auth": TOKEN}))
    done = publish("--yes")
    assert done.code == 1
    assert "STK535" in done.err
    assert TOKEN not in done.err
    assert not hub.exists
    assert not (runs / "done" / "artifacts" / ".publish.tmp").exists()
    file.write_text("{}")
    assert publish("--yes").code == 0


def test_a_wrong_token_is_said_without_it(publish: Publish, hub: SimulatedHub) -> None:
    hub.token_error = ClientError(401, f"Invalid credentials: {TOKEN}")
    done = publish("--yes")
    assert done.code == 1
    assert "STK532" in done.err
    assert TOKEN not in done.err
    assert not hub.exists


def test_errors_without_a_status_are_known_by_name(publish: Publish, hub: SimulatedHub) -> None:
    errors = {"LocalTokenNotFoundError": huggingface_hub.errors, "AuthenticationError": modelscope_hub.errors}
    errors |= {"PermissionDeniedError": modelscope_hub.errors}
    assert set(errors) == set(model_hubs._NO_TOKEN)
    assert hasattr(modelscope_hub.errors, model_hubs._EXISTS)
    for name, module in errors.items():
        hub.token_error = getattr(module, name)("no token here")
        assert "STK532" in publish("--yes").err, name


def test_no_network_is_said(publish: Publish, hub: SimulatedHub) -> None:
    hub.token_error = ConnectionError("Name or service not known")
    done = publish("--yes")
    assert (done.code, "STK536" in done.err) == (1, True)


def test_a_name_with_other_files_is_taken(publish: Publish, hub: SimulatedHub) -> None:
    hub.exists, hub.private, hub.files = True, True, {".gitattributes": b"", "pytorch_model.bin": b"theirs"}
    done = publish("--yes")
    assert (done.code, "STK533" in done.err) == (1, True)
    assert "pytorch_model.bin" in done.err
    assert not hub.sent
    hub.files = {".gitattributes": b""}  # the control: an empty one is used
    assert publish("--yes").code == 0


def test_an_interrupted_upload_goes_on_with_what_is_missing(publish: Publish, hub: SimulatedHub) -> None:
    hub.cut_after = 1
    cut = publish("--yes")
    assert (cut.code, "STK536" in cut.err) == (1, True)
    assert TOKEN not in cut.err
    first = list(hub.sent)
    assert len(first) == 1
    hub.cut_after = None
    assert publish("--yes").code == 0
    assert set(hub.files) == NAMES
    assert hub.sent.count(first[0]) == 1


def test_what_reads_back_otherwise_is_not_called_published(
    publish: Publish, hub: SimulatedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = "list_repo_tree" if isinstance(hub, SimulatedHuggingFace) else "list_repo_files"
    monkeypatch.setattr(type(hub), listing, lambda *_, **__: [])
    done = publish("--yes")
    assert (done.code, "STK537" in done.err) == (1, True)


def test_an_address_of_another_form_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(runs, monkeypatch, capsys)
    for wrong in ("me/taught", "hf:taught", "hf:me/a/b", "s3:me/taught", "hf:../x"):
        assert "STK530" in command("publish", "done", "--to", wrong).err, wrong


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "modelscope_hub", None)
    with pytest.raises(model_hubs.StokerError) as caught:
        model_hubs.open_hub("modelscope:me/taught", Path("unused"))
    assert caught.value.code == "STK538"
    assert "stoker[publish]" in caught.value.hint


def test_the_list_has_no_name_for_rows_or_events() -> None:
    assert not any(name.endswith((".jsonl", ".log", ".bin", ".pt")) for name in publishing._WHOLE + publishing._ADAPTER)
