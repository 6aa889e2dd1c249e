"""Serving without a model: the command line, the token, what an engine's death says, and how everything is ended."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from made_runs import is_held

from stoker.artifacts import benchmark, exclusive, model_server, ports
from stoker.artifacts.endpoint import Endpoint
from stoker.artifacts.model_server import Model, Server
from stoker.artifacts.serving_choices import Serving
from stoker.config import load
from stoker.errors import StokerError
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

SECRET = "a-secret-nobody-may-see"


def planned(**facts: Any) -> Serving:
    known = {
        "engine": "vllm",
        "device": "cpu",
        "tensor_parallel": 1,
        "gpus": [],
        "dtype": "float32",
        "max_model_len": 128,
        "weights_bytes": 1,
        "cache_bytes": 1,
        "options": {"dtype": "float32", "enforce_eager": True},
        "reasons": [],
    }
    return Serving.model_validate({**known, **facts})


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.delenv("STOKER_API_TOKEN", raising=False)
    (tmp_path / "night").mkdir()
    return RunDir(tmp_path / "night")


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


# ---- the command line


def test_the_server_listens_on_loopback_behind_the_guard() -> None:
    words = model_server.command(Model("export", Path("/m")), planned(), "night", 8123)
    assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert option(words, "--host") == "127.0.0.1"
    assert option(words, "--port") == "8123"
    assert option(words, "--middleware") == "stoker_guard.Guard"
    assert option(words, "--served-model-name") == "night"
    assert "--enforce-eager" in words
    assert "--api-key" not in words


def test_an_adapter_is_served_under_the_runs_name_beside_its_base() -> None:
    model = Model("adapter", Path("/base"), adapter=Path("/a,b=c"), settings=Path("/s"))
    words = model_server.command(model, planned(), "night", 8000)
    assert option(words, "--model") == "/base"
    assert option(words, "--served-model-name") == "night-base"
    assert json.loads(option(words, "--lora-modules")) == {"name": "night", "path": "/a,b=c"}
    assert option(words, "--tokenizer") == "/a,b=c"
    assert option(words, "--generation-config") == "/s"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--max-num-seqs"]),
        (False, ["--no-max-num-seqs"]),
        (8, ["--max-num-seqs", "8"]),
        (None, []),
        ([1, 2], ["--max-num-seqs", "1", "2"]),
        ({"a": 1}, ["--max-num-seqs", '{"a": 1}']),
    ],
)
def test_native_values_become_vllms_flags(value: Any, words: list[str]) -> None:
    command = model_server.command(Model("export", Path("/m")), planned(options={"max_num_seqs": value}), "n", 1)
    assert command[12:] == words


def test_a_switch_without_a_no_form_is_left_out() -> None:
    command = model_server.command(Model("export", Path("/m")), planned(options={"disable_log_stats": False}), "n", 1)
    assert not [word for word in command if "disable-log-stats" in word]


def test_every_process_of_the_server_is_told_to_stay_on_loopback() -> None:
    settings = model_server.environment(planned(gpus=[2, 3]), SECRET)
    assert settings["VLLM_HOST_IP"] == "127.0.0.1"
    assert settings["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert settings["VLLM_API_KEY"] == SECRET
    assert settings["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (Path(settings["PYTHONPATH"]) / "stoker_guard.py").is_file()
    assert "CUDA_VISIBLE_DEVICES" not in model_server.environment(planned(), SECRET)


# ---- the token


def test_a_token_is_drawn_once_and_kept_where_only_its_owner_can_read_it(run_dir: RunDir) -> None:
    first = model_server.token(run_dir)
    assert len(first) >= 40
    assert model_server.token(run_dir) == first
    assert stat.S_IMODE(run_dir.token_file.stat().st_mode) == 0o600


def test_a_token_file_others_could_read_is_closed(run_dir: RunDir) -> None:
    model_server.token(run_dir)
    run_dir.token_file.chmod(0o644)
    model_server.token(run_dir)
    assert stat.S_IMODE(run_dir.token_file.stat().st_mode) == 0o600


def test_a_given_token_is_taken_and_not_written_down(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_API_TOKEN", SECRET)
    assert model_server.token(run_dir) == SECRET
    assert not run_dir.token_file.exists()


@pytest.mark.parametrize("bad", ["short", "with a space in it", "令牌令牌令牌令牌"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setenv("STOKER_API_TOKEN", bad)
    with pytest.raises(StokerError) as caught:
        model_server.token(run_dir)
    assert caught.value.code == "STK627"
    assert bad not in str(caught.value)


def test_a_token_is_not_shown_by_accident() -> None:
    assert SECRET not in repr(Endpoint("http://127.0.0.1:1/v1", SECRET, "m"))


# ---- what goes wrong


def test_a_taken_port_is_named(run_dir: RunDir) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StokerError) as caught:
            ports.require_free(port)
    assert (caught.value.code, caught.value.fields["port"]) == ("STK620", port)
    if sys.platform == "linux":  # this process holds it
        assert f"(pid {os.getpid()})" in caught.value.what
    ports.require_free(port)  # the control: it is free again


def test_a_port_of_nobody_is_held_by_nobody() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert ports.held_by(port) == ""


LOG = """(EngineCore pid=7) ERROR 11-18 10:01:02 [core.py:1120] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-18 10:01:02 [core.py:1120]   File "vllm/{place}.py", line 3, in check
(EngineCore pid=7) ERROR 11-18 10:01:02 [core.py:1120] ValueError: heads of size 16 are not supported
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
the key was {secret}
"""


def dead(tmp_path: Path, log: str, source: str = "export") -> Server:
    path = tmp_path / "serve-1.log"
    path.write_text(log)
    return Server(1, 8000, "vllm", source, "/m", "night", str(path), "now")


def test_a_death_is_told_with_its_cause_and_the_last_lines(tmp_path: Path) -> None:
    error = model_server.died(1, dead(tmp_path, LOG.format(secret=SECRET, place="attention")), SECRET)
    assert error.code == "STK621"
    assert error.fields["cause"] == "ValueError: heads of size 16 are not supported"
    assert "Engine core initialization failed" in error.hint
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("source", "place", "code"),
    [("adapter", "lora/layers", "STK478"), ("adapter", "attention", "STK621"), ("merged", "lora/layers", "STK621")],
)
def test_an_adapter_that_the_server_cannot_take_is_to_be_merged(
    tmp_path: Path, source: str, place: str, code: str
) -> None:
    error = model_server.died(1, dead(tmp_path, LOG.format(secret=SECRET, place=place), source), SECRET)
    assert error.code == code
    assert ("stoker merge night" in error.hint) == (code == "STK478")
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (1, "ValueError: No available memory for the cache blocks."),
        (-9, "loading"),
    ],
)
def test_too_little_memory_is_told_as_such(tmp_path: Path, code: int, line: str) -> None:
    assert model_server.died(code, dead(tmp_path, line), SECRET).code == "STK622"


def test_a_server_that_dies_while_starting_leaves_nothing(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    monkeypatch.setattr(model_server, "find_engine", lambda: ("vllm", Path(sys.executable)))
    monkeypatch.setattr(model_server, "find_model", lambda *_: Model("export", Path("/m")))
    monkeypatch.setattr(model_server, "plan", lambda *_: planned())
    monkeypatch.setattr(model_server, "run_as_asked", lambda *_: None)
    monkeypatch.setattr(model_server, "command", lambda *_: ["-c", f"{code}; raise ValueError('no such head')"])
    started: list[Server] = []
    launch = model_server.launch
    monkeypatch.setattr(model_server, "launch", lambda *a: (started.append((made := launch(*a))[0]), made)[1])
    with pytest.raises(StokerError) as caught:
        model_server.start(run_dir, free_port(), [], lambda _: None)
    assert (caught.value.code, caught.value.fields["cause"]) == ("STK621", "ValueError: no such head")
    assert processes.group_members(started[0].pid) == []
    assert not run_dir.serving_file.exists()


# ---- whose process it is, and how it ends

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1]])
print("up", flush=True)
time.sleep(60)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def recorded(run_dir: RunDir, pid: int, folder: str = "/m", port: int = 8000) -> Server:
    while len(processes.words_of(pid)) < 2:  # between its start and its command line
        time.sleep(0.01)
    server = Server(pid, port, "vllm", "export", folder, "night", "x.log", "now")
    run_dir.serving_file.write_text(json.dumps(vars(server)))
    return server


def test_a_pid_that_now_belongs_to_another_process_is_not_ended(run_dir: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "/other", "8000"]) as other:
        recorded(run_dir, other.pid)
        assert model_server.find(run_dir) is None
        assert model_server.stop(run_dir) is None
        assert other.poll() is None
        other.kill()
    assert not run_dir.serving_file.exists()


def test_a_record_that_cannot_be_read_is_no_server(run_dir: RunDir) -> None:
    run_dir.serving_file.write_text('{"pid": 1}')
    assert model_server.find(run_dir) is None


@pytest.mark.skipif(os.name == "nt", reason="process groups are POSIX'")
def test_ending_leaves_no_process_of_the_group_however_stubborn(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_TERMINATE_SECONDS", 0.5)
    monkeypatch.setattr(processes, "_LEFT_SECONDS", 0.5)
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, STUBBORN, "/m", "8000"], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()
    recorded(run_dir, process.pid)
    deadline = time.monotonic() + 10
    while len(processes.group_members(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes.group_members(process.pid)) == 2
    ended = model_server.stop(run_dir)
    assert ended
    assert ended.pid == process.pid
    assert processes.group_members(process.pid) == []
    process.wait()
    process.stdout.close()


WAITS = ["-c", "import time; time.sleep(60)", "/m"]
"""The arguments of a server that answers nobody."""


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a model."""
    monkeypatch.setattr(model_server, "find_engine", lambda: ("vllm", Path(sys.executable)))
    monkeypatch.setattr(model_server, "find_model", lambda *_: Model("export", Path("/m")))
    monkeypatch.setattr(model_server, "plan", lambda *_: planned())
    monkeypatch.setattr(model_server, "run_as_asked", lambda *_: None)
    monkeypatch.setattr(model_server, "command", lambda *words: [*WAITS, str(words[-1])])


def test_a_server_is_looked_for_and_recorded_under_one_lock(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    def watch(name: str) -> None:
        was: Any = getattr(model_server, name)
        lock = exclusive.serving_lock(run_dir)
        monkeypatch.setattr(model_server, name, lambda *words: (seen.append((name, is_held(lock))), was(*words))[1])

    stand_in(monkeypatch)
    for name in ("find", "find_model", "launch"):
        watch(name)
    started: list[subprocess.Popen[bytes]] = []

    def ready(process: "subprocess.Popen[bytes]", *_: Any) -> None:
        started.append(process)
        seen.append(("ready", run_dir.serving_file.exists()))

    monkeypatch.setattr(model_server, "wait_until_ready", ready)
    server, _ = model_server.start(run_dir, free_port(), [], lambda _: None)
    assert model_server.stop(run_dir) == server
    started[0].wait()
    expected = [("find", True), ("find_model", True), ("launch", True), ("ready", True)]
    assert seen == expected


def ends_beside_another(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """A server fails to start while another one has taken its place in the record."""
    stand_in(monkeypatch)
    another = {**vars(Server(1, 8000, "vllm", "export", "/m", "night", "x.log", "now"))}

    def replaced(*_: Any) -> None:
        run_dir.serving_file.write_text(json.dumps(another))
        raise StokerError("STK626", minutes=60, log="x.log")

    monkeypatch.setattr(model_server, "wait_until_ready", replaced)
    with pytest.raises(StokerError, match="STK626"):
        start()
    assert json.loads(run_dir.serving_file.read_text()) == another


def test_a_failed_start_leaves_the_record_of_another_server(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_beside_another(run_dir, monkeypatch, lambda: model_server.start(run_dir, free_port(), [], lambda _: None))


def test_a_failed_measurement_leaves_the_record_of_another_server(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure() -> None:
        with benchmark._server(run_dir, Model("export", Path("/m")), planned(), Path(sys.executable)):
            pass

    ends_beside_another(run_dir, monkeypatch, measure)


def test_who_started_a_server_ends_no_other(run_dir: RunDir) -> None:
    with subprocess.Popen([sys.executable, *WAITS, "8000"], start_new_session=True) as process:
        server = recorded(run_dir, process.pid)
        earlier = Server(**{**vars(server), "pid": 1, "started": "before"})
        assert model_server.stop(run_dir, earlier) is None
        assert model_server.find(run_dir) == server
        process.kill()


def test_a_second_server_of_a_run_is_refused(run_dir: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "/m", "8000"]) as process:
        recorded(run_dir, process.pid)
        with pytest.raises(StokerError) as caught:
            model_server.start(run_dir, 8000, [], lambda _: None)
        process.kill()
    assert (caught.value.code, caught.value.fields["pid"]) == ("STK623", process.pid)


# ---- what is served


def finished(run_dir: RunDir, **adapter: Any) -> None:
    run_dir.final.mkdir(parents=True)
    config = {"r": 8, "target_modules": ["model.layers.0.q_proj"], "bias": "none", **adapter}
    (run_dir.final / "adapter_config.json").write_text(json.dumps(config))


LORA = load.parse("model: m\ndata: {train: a.jsonl}\ntune: {method: lora}\n", "run.yaml")


def test_nothing_is_served_before_it_is_trained(run_dir: RunDir) -> None:
    with pytest.raises(StokerError) as caught:
        model_server.find_model(run_dir, LORA, "vllm")
    assert caught.value.code == "STK502"


@pytest.mark.parametrize("names", [("merged",), ("export",), ("merged", "export")])
def test_an_export_comes_before_a_merged_model_before_the_adapter(run_dir: RunDir, names: tuple[str, ...]) -> None:
    finished(run_dir)
    for name in names:
        (run_dir.artifacts / name).mkdir()
        (run_dir.artifacts / name / "config.json").write_text("{}")
    assert model_server.find_model(run_dir, LORA, "vllm").source == names[-1]


@pytest.mark.parametrize(
    ("adapter", "option"),
    [
        ({"use_dora": True}, "use_dora: True"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save: ['embed_tokens']"),
        ({"target_modules": ["q_proj", "lm_head"]}, "tune.targets: ['lm_head']"),
    ],
)
def test_an_adapter_vllm_would_compute_otherwise_must_be_merged_first(
    run_dir: RunDir, adapter: dict[str, Any], option: str
) -> None:
    finished(run_dir, **adapter)
    with pytest.raises(StokerError) as caught:
        model_server.find_model(run_dir, LORA, "vllm")
    assert (caught.value.code, caught.value.fields["option"]) == ("STK625", option)


def test_only_words_of_serving_can_be_set(run_dir: RunDir) -> None:
    with pytest.raises(StokerError) as caught:
        model_server.run_as_asked(run_dir, ["train.epochs=1"])
    assert caught.value.code == "STK629"
