"""`stoker serve` as people see it: the address on stdout, the token nowhere, an endpoint that parts is ended."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import LANGUAGES, CommandLine, make_run

from stoker.artifacts import model_server, parity_gate
from stoker.artifacts.model_server import Server
from stoker.artifacts.serving_choices import Serving
from stoker.errors import StokerError
from stoker.handover import artifact_commands, parity_lines
from stoker.launch import programs
from stoker.messages import in_language
from stoker.plan.plan import Reason
from stoker.rundir.layout import RunDir
from stoker.terminal import console

SERVER = Server(4711, 8123, "vllm", "export", "/m", "night", "runs/night/logs/serve-1.log", "2026-11-15T00:00:00+00:00")
PLAN = Serving(
    engine="vllm",
    device="cpu",
    tensor_parallel=1,
    gpus=[],
    dtype="float32",
    max_model_len=128,
    weights_bytes=1,
    cache_bytes=1,
    options={},
    reasons=[Reason(about="dtype", key="why.serve.dtype", fields={"dtype": "float32"})],
)


@pytest.fixture
def calls(runs: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    (make_run(runs, "night") / "artifacts" / "final").mkdir(parents=True)
    monkeypatch.delenv("STOKER_API_TOKEN", raising=False)
    made: list[Any] = []

    def start(run_dir: Any, port: int, overrides: list[str], on_wait: Any) -> tuple[Server, Serving]:
        made.append(("start", port, overrides))
        on_wait(1.0)
        return SERVER, PLAN

    monkeypatch.setattr(model_server, "start", start)
    monkeypatch.setattr(model_server, "stop", lambda *_: made.append("stop"))
    monkeypatch.setattr(model_server, "find_engine", lambda: ("vllm", Path("python")))
    monkeypatch.setattr(parity_lines, "make_reference", lambda _: made.append("reference"))
    monkeypatch.setattr(parity_lines, "compare", lambda *_: {"agree": 1})
    return made


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_address_is_data_and_how_to_ask_is_talk(
    stoker: CommandLine, calls: list[Any], runs: Path, language: str
) -> None:
    done = stoker("serve", "night", "--port", "8123", language=language)
    assert (done.code, done.out) == (0, "http://127.0.0.1:8123/v1\n")
    assert calls == ["reference", ("start", 8123, [])]  # the trained model is asked while there is memory for it
    assert f"$(cat {runs}/night/serve.token)" in done.err
    assert (runs / "night" / "serve.token").read_text().strip() not in done.err + done.out
    assert "stoker serve night --stop" in done.err
    assert "float32" in done.err


def test_a_given_token_is_named_by_its_variable(
    stoker: CommandLine, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_API_TOKEN", "a-secret-nobody-may-see")
    done = stoker("serve", "night")
    assert "Bearer $STOKER_API_TOKEN" in done.err
    assert "a-secret-nobody-may-see" not in done.err + done.out
    assert json.loads(stoker("serve", "night", "--json").out)["token_file"] is None


def test_json_has_what_a_script_needs_and_no_token(stoker: CommandLine, calls: list[Any], runs: Path) -> None:
    said = json.loads(stoker("serve", "night", "--json").out)
    assert (said["url"], said["pid"], said["model"]) == ("http://127.0.0.1:8123/v1", 4711, "night")
    assert said["plan"]["dtype"] == "float32"
    assert said["parity"] == {"agree": 1}
    assert Path(said["token_file"]).read_text().strip() not in json.dumps(said)


def test_an_endpoint_that_answers_otherwise_is_ended(
    stoker: CommandLine, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(*_: Any) -> None:
        raise StokerError("STK648", url="u", reason="r")

    monkeypatch.setattr(parity_lines, "compare", parts)
    done = stoker("serve", "night")
    assert done.code == 1
    assert "STK648" in done.err
    assert calls[-1] == "stop"
    assert done.out == ""


def test_words_of_serving_can_be_set(stoker: CommandLine, calls: list[Any]) -> None:
    stoker("serve", "night", "--set", "native.vllm.max_num_seqs=4", "--gpus", "0")
    assert calls == ["reference", ("start", 8000, ["native.vllm.max_num_seqs=4", "where.gpus=0"])]


@pytest.mark.parametrize("language", LANGUAGES)
def test_stopping_says_what_it_did(
    stoker: CommandLine, calls: list[Any], monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    idle = stoker("serve", "night", "--stop", language=language)
    monkeypatch.setattr(model_server, "stop", lambda _: SERVER)
    ended = stoker("serve", "night", "--stop", language=language)
    assert (idle.code, ended.code) == (0, 0)
    assert "8123" in ended.err
    assert "8123" not in idle.err
    assert json.loads(stoker("serve", "night", "--stop", "--json").out)["stopped"]["pid"] == 4711


def test_a_port_that_cannot_be_is_refused(stoker: CommandLine, calls: list[Any]) -> None:
    assert "STK506" in stoker("serve", "night", "--port", "70000").err
    assert calls == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("command", "at", "works", "key"),
    [
        (artifact_commands.make_merged, programs, "run_engine", "merge.starting"),
        (parity_lines.make_reference, parity_gate, "make_reference", "parity.asking"),
        (lambda run_dir: parity_lines.compare(run_dir, "merged"), parity_gate, "compare", "parity.comparing"),
    ],
    ids=["merge", "reference", "compare"],
)
def test_what_takes_minutes_is_named_before_it_begins(
    runs: Path, monkeypatch: pytest.MonkeyPatch, language: str, command: Any, at: Any, works: str, key: str
) -> None:
    shown: list[str] = []

    def begun(*_: Any, **__: Any) -> None:
        assert shown == [in_language(language, key)]
        raise StokerError("STK648", url="u", reason="r")  # enough is seen

    monkeypatch.setenv("STOKER_LANG", language)
    monkeypatch.setattr(console.StatusLine, "show", lambda _, line: shown.append(line))
    monkeypatch.setattr(at, works, begun)
    with pytest.raises(StokerError, match="STK648"):
        command(RunDir(make_run(runs, "night")))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_server_that_starts_is_named_with_its_seconds(
    stoker: CommandLine, calls: list[Any], monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(console.StatusLine, "show", lambda _, line: shown.append(line))
    assert stoker("serve", "night", language=language).code == 0
    assert shown == [in_language(language, "serve.starting", seconds=seconds) for seconds in (0, 1)]
