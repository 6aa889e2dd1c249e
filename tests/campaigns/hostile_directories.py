"""Hostile changes to a run directory, drawn from a seed: what C8's directories are made of. Each says what it did.

Every link leads to `outside`, beside the case's own folder; everything executed would touch `EXECUTED` there.
"""

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hostile import EVIL_MODULE

from stoker.rundir.layout import RunDir

ESCAPES = (
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\x1b[38;5;199mred\x1b[0m",
    "\x9b5n",
    "\x1b]52;c;dG91Y2ggQ0FOQVJZ\x07",
    "\x1b]8;;file:///etc/passwd\x1b\\click\x1b]8;;\x1b\\",
    "\x1bP$q\x1b\\",
    "\x1bc",
    "\x08\x08\x08\x7f",
    "first\rsecond",
    "\u202eexe.txt",
    "\x00\x0b\x0c\x0e\x85",
    "[/bold] [link=file:///etc/passwd]x[/]",
    "{0.__class__} %s $(touch CANARY) `touch CANARY`",
)
NUMBERS = (
    "9" * 5000,
    "-" + "9" * 4000,
    "1e999",
    "NaN",
    "-1",
    "9" * 19,
    "[" * 50_000,
    '{"a":' * 3000,
    "true",
    '"x"',
    "{}",
)
PLAIN_FILES = (
    *("events.jsonl", "plan.json", "run.yaml", "manifest.json", "process.json", "supervisor.json", "place.json"),
    *(f"events/000000000000000-000000000004096.{end}" for end in ("jsonl", "summary")),
    *("supervisor.lock", "train.lock", "launch.lock", "settle.lock", "heartbeat", "stop", "nodes.json", "settled.json"),
    *("serving.json", "serve.token", "pulled.json", ".store/token", ".store/keep.lock", ".store/copy.lock"),
    *(f"logs/{name}.log" for name in ("train-1-rank0", "train-9-rank0", "prepare", "merge", "export", "chat", "store")),
    *("logs/supervisor.log", "logs/quantize.log", "logs/parity.log", "logs/evaluate.log", "logs/harness.log"),
    *("checkpoints/step-00000004/COMMIT.json", "checkpoints/step-00000004/state.json", "checkpoints/.store.json"),
    *("checkpoints/step-00000004/adapter_model.safetensors", "checkpoints/step-00000004/trainer_state.json"),
    *("artifacts/final/adapter_config.json", "artifacts/final/adapter_model.safetensors", "artifacts/parity.json"),
    *("artifacts/reference.json", "artifacts/final/tokenizer.json", "data/report.json", "data/bad_rows.jsonl"),
    *("data/train/shard-00000/tokens.bin", "data/tokenizer/tokenizer.json", "data/tokenizer/chat_template.jinja"),
)
FOLDERS = (
    *(
        "events",
        "logs",
        "data",
        "checkpoints",
        "artifacts",
        "evals",
        ".store",
        "checkpoints/step-00000004",
        "artifacts/final",
    ),
    *("checkpoints/.quarantine", "artifacts/.merged.tmp", "artifacts/.export.tmp", "data/tokenizer", "data/train"),
)
RECORDS = tuple(name for name in PLAIN_FILES if name.endswith(".json") and not name.startswith("data/tokenizer"))

Change = Callable[[Random, RunDir, Path], str]


def _link_file(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice(PLAIN_FILES)
    target = chance.choice(("decoy", "home/.bashrc", "home/new", "home/.config", "folder/train-1-rank0.log"))
    return _linked(chance, run_dir, name, outside / target)


def _link_folder(chance: Random, run_dir: RunDir, outside: Path) -> str:
    return _linked(chance, run_dir, chance.choice(FOLDERS), outside / chance.choice(("folder", "home", "none")))


def _linked(chance: Random, run_dir: RunDir, name: str, target: Path) -> str:
    """A link in its place: absolute, relative, or over a second one."""
    path = free(run_dir.path / name)
    how = chance.choice(("absolute", "relative", "twice"))
    if how == "twice":
        second = free(run_dir.path / f"second-{chance.randrange(10**6)}")
        second.symlink_to(target)
        path.symlink_to(second)
    else:
        path.symlink_to(target if how == "absolute" else os.path.relpath(target, path.parent.resolve()))
    return f"{name} -> {target.name} {how}"


def _link_temporary(chance: Random, run_dir: RunDir, outside: Path) -> str:
    """At every temporary name that a process of these numbers may use."""
    name = chance.choice(("manifest.json", "run.yaml", "plan.json", "supervisor.json", "artifacts/parity.json"))
    for pid in range(os.getpid(), os.getpid() + 300):
        path = run_dir.path / name
        path.with_name(f".{path.name}.{pid}.tmp").symlink_to(outside / "home" / ".bashrc")
    return name


def _hard_link(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice(
        [one for one in PLAIN_FILES if one.endswith((".jsonl", ".log", ".lock", "stop", "heartbeat", "token"))]
    )
    os.link(outside / "home" / ".bashrc", free(run_dir.path / name))
    return name


def _device(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice(PLAIN_FILES)
    path = free(run_dir.path / name)
    if chance.random() < 0.7:
        os.mkfifo(path)
        return f"{name} is a pipe"
    with socket.socket(socket.AF_UNIX) as made, contextlib.suppress(OSError):  # a path may be too long for one
        made.bind(str(path))
    return f"{name} is a socket"


def _folder_for_file(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice([one for one in PLAIN_FILES if one != "manifest.json"])
    free(run_dir.path / name).mkdir()
    return name


def free(path: Path) -> Path:
    """Nothing in its place; folders on the way that are links themselves stay as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    return path


def _escape_in_events(chance: Random, run_dir: RunDir, outside: Path) -> str:
    evil = _evil(chance, run_dir)
    at = "2026-11-16T00:00:00+00:00"
    error = {
        "code": chance.choice(("STK413", "STK670", evil)),
        "where": evil,
        "fields": {"model": evil, "reason": evil},
    }
    lines = (
        {"event": "attempt", "tier": evil, "resumed_step": 0, "total_steps": 4, "changed": [evil]},
        {"event": "error", "program": "train", "error": error},
        {"event": "rejected", "path": evil, "reason": evil},
        {"event": "restart", "attempt": 1, "reason": evil, "step": 1, "wait_seconds": evil},
        {"event": "lost", "attempt": 1, "rank": evil, "node": evil, "step": 1, "reason": evil},
        {"event": "save_failed", "step": 3, "error": error},
        {"event": evil},
        {"event": "step", "step": 3, "loss": evil, "epoch": 1, "tokens": 1, "seconds": 1, "wait_seconds": 0},
        {"event": "end", "status": chance.choice(("done", evil)), "step": 4},
    )
    written = chance.sample(lines, 3)
    with _plain(run_dir.events_file).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"at": at, **line}, ensure_ascii=chance.random() < 0.5) + "\n" for line in written)
    return f"{[str(line['event'])[:8] for line in written]} {evil!r}"


def escape_in_log(chance: Random, run_dir: RunDir, outside: Path) -> str:
    evil = _evil(chance, run_dir)
    log = _plain(run_dir.logs / f"train-{chance.choice((1, 7))}-rank0.log")
    log.write_bytes(b"start\n" + evil.encode("utf-8", "replace") + chance.choice((b"\n", b"", b"\xff\x9b\n")))
    return repr(evil)


def _escape_in_record(chance: Random, run_dir: RunDir, outside: Path) -> str:
    """In every text of a record."""
    name, evil = chance.choice(RECORDS), _evil(chance, run_dir)
    path = _plain(run_dir.path / name)
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        value = {"state": "done", "reason": "x", "pid": 1, "host": "x", "on": "x", "beat": "x", "restarts": 1}
    keys = sorted(value) if isinstance(value, dict) else []
    chosen = set(chance.sample(keys, min(len(keys), 3)))
    path.write_text(json.dumps({key: _replaced(one, evil) if key in chosen else one for key, one in value.items()}))
    return f"{name} {sorted(chosen)} {evil!r}"


def _replaced(value: Any, evil: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, evil) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, evil) for one in value]
    return evil if isinstance(value, str) else value


def _escape_in_run_file(chance: Random, run_dir: RunDir, outside: Path) -> str:
    evil = _evil(chance, run_dir)
    path = _plain(run_dir.run_file)
    key = chance.choice(("name", "model", "tokenizer", "unknown"))
    path.write_text(path.read_text() + f"\n{key}: {json.dumps(evil)}\n")
    return f"{key} {evil!r}"


def _strange_number(chance: Random, run_dir: RunDir, outside: Path) -> str:
    """A number of a record without end, or something else in its place."""
    name, number = chance.choice((*RECORDS, "events.jsonl", "run.yaml")), chance.choice(NUMBERS)
    path = _plain(run_dir.path / name)
    text = path.read_text() if path.exists() else '{"pid": 1, "attempt": 1, "spent_seconds": 1}'
    places = [found.span(1) for found in re.finditer(r"[:\[,] *(-?[0-9][0-9.]*)(?=[,}\]\n ])", text)]
    if not places:
        path.write_text(number)
        return f"{name} is {number[:9]}"
    start, end = chance.choice(places)
    path.write_text(text[:start] + number + text[end:])
    return f"{name} {text[max(0, start - 20) : end]!r} {number[:9]}"


def _size(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice(("events.jsonl", "plan.json", "manifest.json", "run.yaml", "logs/train-1-rank0.log"))
    path, kind = _plain(run_dir.path / name), chance.choice(("hole", "line", "nothing", "noise"))
    with path.open("r+b" if path.exists() else "wb") as file:
        if kind == "nothing":
            file.truncate(0)
        elif kind == "hole":
            file.truncate(1 << 28)
        else:
            file.seek(0, 2)
            file.write(b"\n" + (b"a" * (1 << 23) if kind == "line" else chance.randbytes(1 << 16)) + b"\n")
    return f"{name} {kind}"


def _strange_name(chance: Random, run_dir: RunDir, outside: Path) -> str:
    evil = _evil(chance, run_dir).replace("/", "|").replace("\0", "")[:60]
    name = chance.choice(
        (
            *(f"logs/train-{word}-rank0.log" for word in ("x", "9" * 200, evil, "-1", "٣")),
            *(f"checkpoints/step-{word}" for word in ("9" * 40, "00000009", f"00000009{evil}")),
            *(f"artifacts/{evil}", f"checkpoints/{evil}", f"logs/{evil}", evil, "-rf", "\n", "~", "a\nb", "$(touch x)"),
            *("checkpoints/.step-00000009.1.tmp", "checkpoints/.step-x.tmp", "checkpoints/.quarantine/x.9"),
        )
    )
    path = free(run_dir.path / name)
    if chance.random() < 0.5:
        path.mkdir()
        (path / "COMMIT.json").write_text(evil)
    else:
        path.write_text(evil)
    return repr(name)


def _deep(chance: Random, run_dir: RunDir, outside: Path) -> str:
    depth = chance.choice((30, 60, 300))
    path = run_dir.path / chance.choice(("logs", "artifacts", "data", "checkpoints", "."))
    (path / Path(*(["d"] * depth))).mkdir(parents=True, exist_ok=True)
    return f"{depth} in {path.name}"


def _foreign_process(chance: Random, run_dir: RunDir, outside: Path) -> str:
    name = chance.choice(("process.json", "supervisor.json", "serving.json"))
    pid = int(os.environ["CAMPAIGN_PID"])
    record = {
        "pid": pid,
        "port": 1,
        "engine": "vllm",
        "source": "x",
        "folder": "x",
        "model": "x",
        "log": "x",
        "started": "x",
    }
    record |= (
        {"host": "elsewhere", "state": "running", "beat": "2026-11-16T00:00:00+00:00"} if name[:3] == "sup" else {}
    )
    _plain(run_dir.path / name).write_text(json.dumps(record))
    return name


def _code(chance: Random, run_dir: RunDir, outside: Path) -> str:
    """Words that ask for code, in an adapter or a plan."""
    touch = f"touch {outside.parent / 'EXECUTED'}"
    if chance.random() < 0.5:
        path = _plain(run_dir.final / "adapter_config.json")
        evil = {"revision": f"$({touch})", "auto_mapping": {"parent_library": EVIL_MODULE, "base_model_class": "Evil"}}
    else:
        path = _plain(run_dir.plan_file)
        evil = {"argv": ["-c", f"import os; os.system({touch!r})"], "env": {"LD_PRELOAD": touch, "BASH_ENV": touch}}
    value = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**value, **evil}))
    return path.name


def _plain(path: Path) -> Path:
    """A plain file's place: an earlier change may have put a link or a folder there."""
    parents = [one for one in path.parents if one.is_symlink() or one.is_file()]
    for one in parents:
        free(one)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path if path.is_file() and not path.is_symlink() else free(path)


def _evil(chance: Random, run_dir: RunDir) -> str:
    canary = run_dir.path.parents[2] / "EXECUTED"
    return "".join(chance.sample(ESCAPES, chance.choice((1, 2, 3)))).replace("CANARY", str(canary))


KINDS: dict[str, tuple[Change, ...]] = {
    "links": (_link_file, _link_file, _link_folder, _link_temporary, _hard_link),
    "devices": (_device, _folder_for_file),
    "escapes": (_escape_in_events, escape_in_log, _escape_in_record, _escape_in_run_file),
    "sizes": (_size, _strange_number, _strange_number, _deep),
    "names": (_strange_name,),
    "words": (_foreign_process, _code),
}
