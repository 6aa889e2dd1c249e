"""The mistakes people make most: each is answered once, with its cause and a remedy, in both languages, before anything
is trained or paid for.

What needs torch, a box or a queue is answered by a test elsewhere; its row here names that test.
"""

import dataclasses
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from errors.data_files import DATA_CASES
from errors.expected import Expected, err
from errors.run_files import BOTH, DATA, MODEL, RUN_FILES
from errors.terminal import Terminal
from made_runs import make_run

from stoker.messages import CATALOGUES

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "run.yaml", "--card", "RTX4090")
PLAN_T4 = ("plan", "run.yaml", "--card", "T4")
TRAIN = ("train", "run.yaml")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What somebody wrote and typed, and the answer."""

    text: str | bytes
    words: tuple[str, ...]
    answer: Expected
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def tracker(names: str) -> str:
    return BOTH + f"native:\n  trainer: {{report_to: {names}}}\n"


MISTAKES: dict[str, Mistake] = {
    # the YAML
    "a key misspelt": Mistake(BOTH + "train: {epoch: 1}\n", PLAN, err("STK104", "run.yaml:3: train.epoch", "epochs")),
    "a key twice": Mistake(BOTH + "train: {batch: 1, batch: 2}\n", PLAN, err("STK103", "run.yaml:3: train.batch")),
    "indentation": Mistake(MODEL + "data:\n  train: a\n eval: 2%\n", PLAN, err("STK102", "run.yaml:4", "indentation")),
    "a tab": Mistake(MODEL + "data:\n\ttrain: a\n", PLAN, err("STK102", "run.yaml:3", "tab", "spaces")),
    "a full-width colon": Mistake("model：Qwen\n" + DATA, PLAN, err("STK102", "run.yaml:1", "write `:`")),
    "full-width quotes": Mistake("model: “Qwen”\n" + DATA, PLAN, err("STK102", "run.yaml:1: model", 'write `"`')),
    "a quote left open": Mistake('model: "abc\n' + DATA, PLAN, err("STK102", "run.yaml:1", "never closed")),
    "a Windows path": Mistake(MODEL + 'data: {train: "C:\\data"}\n', PLAN, err("STK102", "run.yaml:2", "backslash")),
    "a glob without quotes": Mistake(MODEL + "data: {train: *.jsonl}\n", PLAN, err("STK102", "run.yaml:2", "quotes")),
    "a file saved as GBK": Mistake(
        f"{MODEL}# 数据\n{DATA}".encode("gbk"), PLAN, err("STK117", "run.yaml:2", "UTF-8", "iconv")
    ),
    "a comment glued to a value": Mistake(
        BOTH + "train: {epochs: 3#three}\n", PLAN, err("STK106", "run.yaml:3: train.epochs", "`3#three`")
    ),
    "another trainer's file": Mistake(
        "model_name_or_path: m\nstage: sft\n", PLAN, err("STK189", "run.yaml:1: model_name_or_path", "init --from")
    ),
    # values
    "a learning rate of 2": Mistake(
        BOTH + "train: {learning_rate: 2}\n", PLAN, err("STK107", "run.yaml:3: train.learning_rate", "<= 1")
    ),
    "a batch of 0": Mistake(BOTH + "train: {batch: 0}\n", PLAN, err("STK107", "run.yaml:3: train.batch", ">= 1")),
    "minus one epoch": Mistake(BOTH + "train: {epochs: -1}\n", PLAN, err("STK107", "run.yaml:3: train.epochs", ">= 1")),
    "half an epoch": Mistake(BOTH + "train: {epochs: 0.5}\n", PLAN, err("STK106", "run.yaml:3: train.epochs")),
    "a warm-up as a fraction": Mistake(
        BOTH + "train: {warmup: 0.03}\n", PLAN, err("STK109", "run.yaml:3: train.warmup", "`3%`")
    ),
    "every row for eval": Mistake(
        MODEL + "data: {train: a, eval: 100%, tokens: 1000}\n", PLAN, err("STK307", "run.yaml:2: data.eval", "100%")
    ),
    "a name with a space": Mistake("name: my run\n" + BOTH, PLAN, err("STK156", "run.yaml:1: name", "`my-run_1`")),
    "a price without a currency": Mistake(
        BOTH + "where: {price: 2.5/h}\n", PLAN, err("STK109", "run.yaml:3: where.price", "`2.5 CNY/h`")
    ),
    "a price without a currency, typed": Mistake(
        BOTH, (*PLAN, "--price", "2.5"), err("STK109", "--price", "`2.5CNY/h`")
    ),
    "a budget in yen or yuan": Mistake(
        BOTH + "budget: {money: ¥50}\n", PLAN, err("STK109", "run.yaml:3: budget.money", "`50 CNY`")
    ),
    "a token in the run file": Mistake(
        BOTH + "# hf_abcdefghijklmnopqrstuvwxyz\n", PLAN, err("STK115", "run.yaml:3", "environment")
    ),
    # files and names
    "no such run file": Mistake("", ("plan", "rum.yaml"), err("STK101", "", "`run.yaml`")),
    "no such data": Mistake(
        MODEL + "data: {train: b.jsonl}\n", PLAN, err("STK301", "run.yaml:2: data.train", "`b.jsonl`")
    ),
    "an empty data file": Mistake(
        MODEL + "data: {train: a.jsonl}\n", PLAN, err("STK364", "run.yaml:2: data.train", "empty"), {"a.jsonl": b""}
    ),
    "another folder than the runs'": Mistake("", ("watch", "medical"), err("STK501", "", "`medical`", "stoker runs")),
    "no such model": Mistake(
        "model: nobody/nothing\n" + DATA, PLAN, err("STK205", "run.yaml:1: model", "check the name")
    ),
    **{
        f"a model's folder misspelt, {words[0]}": Mistake(
            "model: ./smolm2\n" + DATA,
            words,
            err("STK465", "run.yaml:1: model", "smolm2", "`smollm2`"),
            {"smollm2/config.json": b"{}", "a.jsonl": b'{"text": "a"}\n'},
        )
        for words in (TRAIN, ("prepare", "run.yaml"))
    },
    "a length beyond the model's": Mistake(
        "model: openai-community/gpt2\ndata: {train: a, length: 2048, tokens: 1000}\n",
        PLAN,
        err("STK214", "run.yaml:2: data.length", "1024"),
    ),
    # the command line
    "a command misspelt": Mistake(BOTH, ("pln", "run.yaml"), err("STK506", "", "`pln`", "`plan`")),
    "an override without a value": Mistake(
        BOTH, ("plan", "run.yaml", "--set", "train.epochs"), err("STK113", "--set train.epochs", "train.epochs=1")
    ),
    "an override of nothing": Mistake(
        BOTH, (*PLAN, "--set", "train.epoch=1"), err("STK104", "--set train.epoch", "`train.epochs`")
    ),
    "a card misspelt": Mistake(BOTH, ("plan", "run.yaml", "--card", "RTX409O"), err("STK203", "--card", "RTX4090")),
    "more GPUs than there are": Mistake(
        BOTH, ("plan", "run.yaml", "--gpus", "4"), err("STK208", "--set where.gpus", "4")
    ),
    "a batch the GPUs cannot share": Mistake(
        BOTH + "train: {batch: 16}\n", (*PLAN_T4, "--gpus", "3"), err("STK201", "run.yaml:3: train.batch", "15, 18")
    ),
    # what a card cannot do
    "bf16 on a T4": Mistake(
        BOTH + "where: {precision: bf16}\n", PLAN_T4, err("STK210", "run.yaml:3: where.precision", "T4")
    ),
    "flash attention on a T4": Mistake(
        BOTH + "where: {attention: flash_attention_2}\n", PLAN_T4, err("STK212", "run.yaml:3: where.attention", "T4")
    ),
    # stores, boxes, trackers
    "a store that is none": Mistake(
        BOTH + "save: {store: 's4://bucket/x'}\n", TRAIN, err("STK650", "", "`s4://bucket/x`", "s3://")
    ),
    "a box nobody added": Mistake(BOTH, (*TRAIN, "--on", "gpu1"), err("STK720", "", "`gpu1`", "stoker hosts add gpu1")),
    "a box that is a place": Mistake(
        BOTH + "where: {place: autodl}\n", PLAN, err("STK108", "run.yaml:3: where.place", "`ssh`")
    ),
    "a tracker misspelt": Mistake(
        tracker("[wnadb]"), TRAIN, err("STK526", "run.yaml:4: native.trainer.report_to", "`wandb`")
    ),
    "a tracker that is not installed": Mistake(
        tracker("dvclive"), TRAIN, err("STK215", "run.yaml:4: native.trainer.report_to", "pip install dvclive")
    ),
    # another trainer's file
    "a stage Stoker does not have": Mistake(
        "model_name_or_path: m\nstage: ppo\n",
        ("init", "--from", "run.yaml", "b.yaml"),
        err("STK182", "run.yaml:2: stage"),
    ),
}

ELSEWHERE: dict[str, tuple[str, str]] = {
    "columns of other names": ("STK303", "data: unknown keys"),
    "preferences as examples": ("STK317", "data: answers that are compared"),
    "a table with semicolons": ("STK466", "data: a table with semicolons"),
    "no chat template": ("STK306", "data: conversations without a template"),
    "rows longer than the length": ("STK305", "data: answers beyond the length"),
    "one row to hold out": ("STK307", "data: one row to share"),
    "an empty eval file": ("STK364", "data: an empty eval file"),
    "data saved as GBK": ("STK314", "data: Chinese as Windows writes it"),
    "a spreadsheet": ("STK308", "data: a spreadsheet"),
    "adapter options in full tuning": ("STK137", "run: an adapter's key in full tuning"),
    "a hub dataset without its package": ("STK309", "data: a hub that needs a package"),
    "Stoker without its extra": (
        "STK406",
        "tests/light/test_programs.py::test_missing_packages_are_named_before_anything_starts",
    ),
    "a model too large for the card": (
        "STK202",
        "tests/cli/test_errors.py::test_training_that_cannot_work_is_refused_before_it_starts",
    ),
    "two launches of one run": (
        "STK411",
        "tests/unit/launch/test_training.py::test_a_run_whose_lock_is_held_is_not_idle_whatever_pid_its_files_name",
    ),
    "a run file edited after training": (
        "STK401",
        "tests/unit/rundir/test_layout.py::test_an_edited_copy_of_the_run_file_changes_nothing_and_is_another_run",
    ),
    "prepared data deleted after training": (
        "STK415",
        "tests/unit/api/test_preparation.py::test_a_trained_run_whose_set_is_gone_is_not_prepared_anew",
    ),
    "a full disk": ("STK407", "tests/engine/test_train.py::test_a_full_disk_is_found_in_the_rehearsal"),
    "a box that does not respond": (
        "STK723",
        "tests/places/test_hosts.py::test_a_machine_that_does_not_answer_is_named",
    ),
    "a key the box does not take": (
        "STK725",
        "tests/places/test_hosts.py::test_a_password_installs_a_key_once_and_stays_nowhere",
    ),
    "another box at the same address": (
        "STK729",
        "tests/places/test_hosts.py::test_another_machine_at_the_same_address_is_refused",
    ),
    "an exception that repeats": (
        "STK673",
        "tests/supervise/test_supervisor.py::test_the_same_surprise_at_the_same_step_ends_it",
    ),
}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "SWANLAB_API_KEY", "SWANLAB_MODE", "NETRC", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return Terminal(tmp_path, monkeypatch, capsys)


def nothing_was_trained(folder: Path) -> bool:
    """No plan, no supervisor, no checkpoint."""
    left = {path.name for path in (folder / "runs").rglob("*") if path.is_file()}
    return not left & {"plan.json", "process.json", "supervisor.json", "COMMIT.json"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_its_cause_and_a_remedy(terminal: Terminal, name: str) -> None:
    mistake = MISTAKES[name]
    content = mistake.text.encode() if isinstance(mistake.text, str) else mistake.text
    (terminal.folder / "run.yaml").write_bytes(content)
    for file, data in mistake.files.items():
        (terminal.folder / file).parent.mkdir(exist_ok=True)
        (terminal.folder / file).write_bytes(data)
    terminal.refuses([mistake.answer], *mistake.words)
    assert nothing_was_trained(terminal.folder)


def test_a_check_for_something_trained_finds_it(tmp_path: Path) -> None:
    (make_run(tmp_path / "runs", "x") / "plan.json").write_text("{}")
    assert not nothing_was_trained(tmp_path)


def test_there_are_forty_and_the_rows_for_other_tests_name_tests_that_are_there() -> None:
    assert len(MISTAKES) >= 40
    for name, (code, where) in ELSEWHERE.items():
        table, _, case = where.partition(": ")
        if case:
            expected = DATA_CASES[case].expected if table == "data" else RUN_FILES[case][1]
            assert code in {one.code for one in expected}, name
            continue
        file, _, test = where.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert code in text, name
        assert f"def {test}(" in text, name


@pytest.mark.parametrize("language", sorted(CATALOGUES))
def test_every_answer_has_a_cause_and_a_remedy(language: str) -> None:
    codes = {one.answer.code for one in MISTAKES.values()} | {code for code, _ in ELSEWHERE.values()}
    assert {
        code for code in codes if not CATALOGUES[language][code] or not CATALOGUES[language][f"{code}.hint"]
    } == set()


def test_an_empty_file_is_not_sent_to_a_list_of_bad_rows(terminal: Terminal) -> None:
    terminal.write(MODEL + "data: {train: a.jsonl}\n")
    terminal.write("\n\n", "a.jsonl")
    (said,) = terminal.refuses([err("STK364", "run.yaml:2: data.train")], *PLAN)
    assert "bad_rows" not in said.hint


# ---- what is no mistake


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + BOTH.replace("\n", "\r\n").encode(),
        (BOTH + 'train: {learning_rate: "1e-4"}\n').encode(),
        (BOTH + "train: {learning_rate: 1e-4}\n").encode(),
    ],
    ids=["a byte-order mark and Windows' lines", "a number as text", "an exponent without a point"],
)
def test_what_people_fear_and_what_works(terminal: Terminal, text: bytes) -> None:
    (terminal.folder / "run.yaml").write_bytes(text)
    code, _, talk = terminal.run("en", *PLAN)
    assert (code, talk) == (0, "")


# ---- trackers


def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A package of this name, and a home without a login."""
    (folder / "site" / name).mkdir(parents=True)
    (folder / "site" / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder / "site"))
    monkeypatch.setattr(Path, "home", lambda: folder)


@pytest.mark.parametrize(
    ("name", "command", "mode"),
    [("wandb", "wandb login", "WANDB_MODE=offline"), ("swanlab", "swanlab login", "SWANLAB_MODE=local")],
)
def test_a_tracker_without_a_login_is_refused_before_the_first_step(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, command: str, mode: str
) -> None:
    _installed(terminal.folder, monkeypatch, name)
    terminal.write(tracker(name))
    expected = err("STK527", "run.yaml:4: native.trainer.report_to", f"`{command}`", f"`{mode}`")
    terminal.refuses([expected], *TRAIN)
    assert nothing_was_trained(terminal.folder)


# ---- a taken port


def test_a_taken_port_is_said_before_any_model_is_loaded(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (make_run(terminal.folder / "runs", "night") / "artifacts" / "final").mkdir(parents=True)
    monkeypatch.setattr("stoker.handover.parity_lines.make_reference", lambda _: pytest.fail("a model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        terminal.refuses([err("STK620", "", port, "--port")], "serve", "night", "--port", port)


# ---- a gated model


class _Hub(BaseHTTPRequestHandler):
    """Answers as Hugging Face's hub does to somebody without a token."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("X-Error-Code", "GatedRepo" if "gated" in self.path else "RepoNotFound")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_a_gated_model_is_told_from_one_that_does_not_exist(terminal: Terminal) -> None:
    terminal.write("model: owner/gated\n" + DATA)
    terminal.refuses([err("STK188", "run.yaml:1: model", "HF_TOKEN", "`hf download owner/gated config.json`")], *PLAN)
    terminal.write("model: owner/absent\n" + DATA)
    terminal.refuses([err("STK205", "run.yaml:1: model")], *PLAN)
