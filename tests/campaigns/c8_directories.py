"""C8, run directories of strangers: links, escapes, sizes, names. No write outside, no execution, no escape.

Each case is a trained run directory with some hostile changes, drawn from the seed, and every command a user has, one
after the other, in a process of its own; every other case on a terminal. Watched: everything outside the run directory
(content, times, modes, new files, what the kernel saw opened), a canary that only code could touch, a process whose pid
the directory names, all output, and how each command ended. Controls take a safeguard away and must be noticed.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import c8
from campaign import Campaign
from hostile_directories import KINDS, Change, escape_in_log, free

from stoker.rundir import in_place
from stoker.rundir.layout import RunDir

CASE_SECONDS = 240
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("runs", "--json"),
    ("watch", "NAME", "--once"),
    ("watch", "NAME", "--json"),
    ("logs", "NAME"),
    ("logs", "NAME", "--lines", "3"),
    ("stop", "NAME"),
    ("verify", "NAME"),
    ("plan", "run.yaml", "--card", "RTX4090"),
    ("push", "NAME"),
    ("pull", "NAME"),
    ("prepare", "run.yaml"),
    ("train", "run.yaml", "--detach"),
    ("serve", "NAME"),
    ("serve", "NAME", "--stop"),
    ("bundle", "run.yaml"),
)
HEAVY: tuple[tuple[str, ...], ...] = (
    ("merge", "NAME"),
    ("export", "NAME"),
    ("quantize", "NAME", "--int8"),
    ("eval", "NAME"),
    ("chat", "NAME"),
)
"""One of them per case: each loads a model."""
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run(campaign: Campaign) -> None:
    """Controls, then the cases."""
    template = c8._template(campaign.folder / "template")
    _controls(campaign, template)
    for number in range(campaign.n):
        if campaign.hopeless:
            break
        chance = campaign.random(number)
        changes = [chance.choice(KINDS[chance.choice(list(KINDS))]) for _ in range(chance.choice((1, 1, 2, 3)))]
        done, found = _case(campaign.folder / "case", template, chance, changes, on_terminal=number % 2 == 1)
        campaign.case(*(change.__name__.strip("_") for change in changes), *found.pop("ended", []))
        campaign.counts["commands"] += found.pop("commands", 0)
        for kind, what in found.items():
            campaign.counts[f"found: {kind}"] += 1
            campaign.fail([number, *done], f"{kind}: {'; '.join(what)}")


# ---- one case


def _case(
    case: Path,
    template: Path,
    chance: Random,
    changes: list[Change],
    *,
    on_terminal: bool,
    heavy: tuple[str, ...] = (),
    prelude: Any = None,
) -> tuple[list[str], dict[str, Any]]:
    """What was changed, and what was found: how commands ended, and by kind what must not have happened."""
    run_dir = c8._jail(case, template)
    outside = case / "outside"
    (outside / "home").mkdir()
    (outside / "home" / ".bashrc").write_text("# mine\n")
    (outside / "folder" / "step-00000004").mkdir(parents=True)
    (outside / "folder" / "train-1-rank0.log").write_text("PRIVATE\n")
    victim = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    try:
        os.environ["CAMPAIGN_PID"] = str(victim.pid)
        done = [f"{change.__name__.strip('_')} {change(chance, run_dir, outside)}" for change in changes]
        words = [*COMMANDS, heavy or chance.choice(HEAVY)]
        before, output = _seen(outside), case / "output"
        watched = c8.Inotify([outside, outside / "home", outside / "folder"])
        ended = _in_child(case, run_dir, output, words, on_terminal=on_terminal, prelude=prelude)
        opened = sorted({what for _, what in watched.events()})
        found = _judged(case, output, before, ended)
        if opened:
            found["opened outside"] = opened
        if victim.poll() is not None:
            found["killed"] = ["a process that the directory names"]
    finally:
        victim.kill()
        victim.wait()
    return done, found


def _judged(case: Path, output: Path, before: dict[str, Any], ended: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"ended": sorted(set(ended)), "commands": len(ended)}
    after = _seen(case / "outside")
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        found["written outside"] = changed
    if (case / "EXECUTED").exists():
        found["executed"] = ["the canary"]
    said = output.read_bytes().decode("utf-8", "replace")
    if raw := RAW.search(said):
        found["escape"] = [repr(said[max(0, raw.start() - 60) : raw.end() + 30])]
    surprises = [line for line in said.splitlines() if line.startswith(("Traceback", "RecursionError", "MemoryError"))]
    if "surprise" in ended or surprises:
        parts = [
            part.strip().splitlines() for part in said.split("$ stoker ") if "Traceback" in part or "STK900" in part
        ]
        found["surprise"] = [" | ".join([part[0], *part[-6:]]) for part in parts]
    if "cut" in ended:
        found["endless"] = ended[-2:]
    return found


def _seen(folder: Path) -> dict[str, Any]:
    """Everything of a folder that a write would change."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns if path.is_file() else 0,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def _in_child(
    case: Path, run_dir: RunDir, output: Path, words: list[tuple[str, ...]], *, on_terminal: bool, prelude: Any
) -> list[str]:
    """Every command; how each ended."""
    terminal, own = os.openpty() if on_terminal else (None, os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    pid = os.fork()
    if pid == 0:
        try:
            _commands(case, run_dir, own, words, on_terminal=on_terminal, prelude=prelude)
        finally:
            os._exit(0)
    os.close(own)
    if terminal is not None:
        _drain(terminal, output)
    _, status = os.waitpid(pid, 0)
    said = (case / "ended").read_text().split("\n") if (case / "ended").exists() else []
    ended = [line.split("\t")[1] for line in said if line]
    return ended if os.waitstatus_to_exitcode(status) == 0 else [*ended, "cut"]


def _drain(terminal: int, output: Path) -> None:
    with output.open("ab") as file, contextlib.suppress(OSError):  # EIO at the end
        while chunk := os.read(terminal, 1 << 16):
            file.write(chunk)
    os.close(terminal)


def _commands(
    case: Path, run_dir: RunDir, own: int, commands: list[tuple[str, ...]], *, on_terminal: bool, prelude: Any
) -> None:
    os.setsid()
    if on_terminal:
        tty.setraw(own)  # line ends as they are written
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, own), (2, own)):
        os.dup2(source, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # until the end
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
    os.chdir(case / "jail")
    for name in ("STOKER_DEADLINE", "NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
    settings = {"HOME": case / "outside" / "home", "STOKER_RUNS": case / "jail" / "runs", "STOKER_TOOLS": case / "none"}
    os.environ |= {name: str(value) for name, value in settings.items()}
    os.environ |= {"STOKER_LANG": "en", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CASE_SECONDS)
    _programs_in_this_process()
    if prelude:
        prelude()
    with (case / "ended").open("a") as ended:
        for words in commands:
            said = [run_dir.name if word == "NAME" else word for word in words]
            began = time.monotonic()
            print(f"$ stoker {' '.join(words)}")
            code = c8._command(*said)
            word = {0: "done", 1: "refused in words", 75: "stopped"}.get(code, "surprise")
            ended.write(f"{' '.join(words)}\t{word}\t{time.monotonic() - began:.1f}\n")
            ended.flush()


def _programs_in_this_process() -> None:
    """The engine's programs without an interpreter each: torch is imported once. No training, no server is started."""
    import importlib

    from stoker.artifacts import model_server
    from stoker.engine import program
    from stoker.errors import EXIT_DONE, EXIT_STOPPED
    from stoker.launch import early_start, programs, training

    def run_engine(name: str, run_dir: RunDir, on_event: Any, *arguments: str) -> int:
        start, kept = programs._end(run_dir), sys.argv
        sys.argv = [f"{name}.py", str(run_dir.path), *arguments]
        with in_place.appending(programs._log(name, run_dir), run_dir.path) as log, _output_into(log.fileno()):
            code = program.run(importlib.import_module(f"stoker.engine.{name}").main)
        sys.argv = kept
        if on_event:
            programs._relay(run_dir, start, on_event)
        if code not in (EXIT_DONE, EXIT_STOPPED):
            programs.raise_engine_error(name, run_dir, code, start)
        return code

    @contextlib.contextmanager
    def open_engine(name: str, run_dir: RunDir, *arguments: str) -> Iterator[Any]:
        run_engine(name, run_dir, None, *arguments)
        sys.exit(0)
        yield

    def started(*_: Any, **__: Any) -> Any:
        sys.exit(0)

    programs.run_engine, programs.open_engine = run_engine, open_engine  # type: ignore[assignment]
    training.start = model_server.launch = started  # type: ignore[assignment]
    early_start.begin = lambda *_: None  # type: ignore[assignment]


@contextlib.contextmanager
def _output_into(log: int) -> Iterator[None]:
    """As a program's own output goes into its log."""
    kept = [os.dup(stream) for stream in (1, 2)]
    for stream in (1, 2):
        os.dup2(log, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        for stream, old in zip((1, 2), kept, strict=True):
            os.dup2(old, stream)
            os.close(old)


# ---- controls


def _controls(campaign: Campaign, template: Path) -> None:
    """With a safeguard away in the child, what it holds must be noticed."""
    for name, (prelude, change, kind) in CONTROLS.items():
        case, merge = campaign.folder / "case", ("merge", "NAME")
        _, found = _case(case, template, Random(name), [change], on_terminal=False, heavy=merge, prelude=prelude)
        campaign.control(name, caught=kind in found, what="; ".join(map(str, found.get(kind, []))))


def _follows_links() -> None:
    """As files were opened before: links in a run directory are neither looked for nor refused."""
    in_place.unusual = lambda _: None
    in_place._refuse_link = lambda _: None
    in_place._NO_LINK = 0


def _takes_any_file() -> None:
    in_place.os.fstat = lambda _: Path(__file__).stat()  # one name, a plain file


def _prints_as_it_is() -> None:
    from stoker.terminal import console

    console.plain = console.json_plain = lambda text: text


def _parses_anything() -> None:
    from stoker.rundir import files

    files.parse_json = json.loads


def _runs_code() -> None:
    os.system(f"touch '{Path.cwd().parent / 'EXECUTED'}'")


def _events_to_bashrc(chance: Random, run_dir: RunDir, outside: Path) -> str:
    free(run_dir.events_file).symlink_to(outside / "home" / ".bashrc")
    return "events.jsonl"


def _log_folder_to_home(chance: Random, run_dir: RunDir, outside: Path) -> str:
    free(run_dir.logs).symlink_to(outside / "home")
    return "logs"


def _events_by_hard_link(chance: Random, run_dir: RunDir, outside: Path) -> str:
    os.link(outside / "home" / ".bashrc", free(run_dir.events_file))
    return "events.jsonl"


def _deep_manifest(chance: Random, run_dir: RunDir, outside: Path) -> str:
    run_dir.manifest_file.write_text("[" * 100_000)
    return "manifest.json"


CONTROLS: dict[str, tuple[Callable[[], None], Change, str]] = {
    "events through a link": (_follows_links, _events_to_bashrc, "written outside"),
    "logs through a linked folder": (_follows_links, _log_folder_to_home, "written outside"),
    "events by a second name": (_takes_any_file, _events_by_hard_link, "written outside"),
    "text printed as it is": (_prints_as_it_is, escape_in_log, "escape"),
    "JSON parsed without a bound": (_parses_anything, _deep_manifest, "surprise"),
    "code that runs": (_runs_code, escape_in_log, "executed"),
}
