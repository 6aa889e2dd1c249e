"""C8: hostile files. What a stranger may put under every file name we open: nothing of it executes, leads out or leaks.

Each case is a hostile file (tests/campaigns/hostile.py) in an otherwise good folder, and one thing a user does with it,
in a process of its own. Watched: a canary that gadgets touch; Python's audit hook (files opened outside, processes
started, pickles read); the kernel's inotify on decoys outside, which sees every language; all output, for secrets put
into environment, arguments, addresses and run files. Controls do the forbidden thing and must be noticed.
"""

import contextlib
import ctypes
import gc
import hashlib
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hostile
import tiny_run
from campaign import Campaign
from hostile import EVIL_MODULE, Hostile
from huggingface_hub import constants

from stoker.errors import StokerError, StokerErrors
from stoker.facts import machine
from stoker.rundir import checkpoints, file_check, files
from stoker.rundir.layout import RunDir

gc.collect()
gc.freeze()  # children do not look through it again

REPOSITORY = Path(__file__).resolve().parents[2]
ALLOWED = [
    *map(Path, {sys.prefix, sys.base_prefix, str(REPOSITORY), constants.HF_HOME}),
    *map(Path, ("/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin")),
    *(Path("/etc") / name for name in ("localtime", "timezone", "mime.types", "os-release", "hosts", "resolv.conf")),
    *(Path("/etc") / name for name in ("nsswitch.conf", "gai.conf", "host.conf", "services", "ssl", "ld.so.cache")),
]
STARTS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"}
WEIGHING = "-m stoker.engine.weigh "
ENDS = ("went on", "refused in words")
"""How a hostile file may end what is done with it; a traceback is for mistakes of ours."""
CASE_SECONDS = 120
CANARY = "Canary7f3aD0notLeak9c51e2b8"
SECRETS = {
    "HF_TOKEN": f"hf_{CANARY}",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_ACCESS_KEY_ID": f"AKIA{CANARY}",
    "WANDB_API_KEY": CANARY,
    "OPENAI_API_KEY": f"sk-{CANARY}",
    "STOKER_API_TOKEN": CANARY,
}


def run(campaign: Campaign) -> None:
    """Controls first, then the corpus (or a seeded part of it), then secrets."""
    template = _template(campaign.folder / "template")
    _controls(campaign, template)
    corpus = hostile.corpus()
    secrets = _secrets()
    campaign.measured["corpus"] = {"files": len(corpus), "secrets": len(secrets)}
    chance = campaign.random("corpus")
    wanted = max(0, campaign.n - len(secrets)) if campaign.n >= len(secrets) * 2 else campaign.n // 2
    for one in corpus if wanted >= len(corpus) else _some(chance, corpus, wanted):
        ended, wrong = _case(campaign.folder / "case", template, one)
        campaign.case(one.kind.split()[0], ended)
        if ended not in ENDS:
            wrong.append(f"{ended}: {_last_line(campaign.folder / 'case' / 'output')}")
        if wrong:
            campaign.fail(one.title, "; ".join(wrong))
    for title, act in secrets if wanted >= len(corpus) else chance.sample(secrets, campaign.n - wanted):
        ended, wrong = _leak(campaign.folder / "case", template, act)
        campaign.case("secret", ended)
        if wrong:
            campaign.fail(title, "; ".join(wrong))


def _some(chance: Random, corpus: list[Hostile], wanted: int) -> list[Hostile]:
    """A part of the corpus: one of every kind before a second of any."""
    mixed, met = chance.sample(corpus, len(corpus)), Counter[str]()
    turns = []
    for one in mixed:
        kind = one.kind.split()[0]
        turns.append(met[kind])
        met[kind] += 1
    in_turn = sorted(zip(turns, range(len(mixed)), strict=True))
    return [mixed[place] for _, place in in_turn[:wanted]]


# ---- a good folder


TEXT = """
model: base
data: {train: rows.jsonl, length: 64}
tune: {method: lora, rank: 4}
train: {batch: 4, steps: 4, epochs: 9, learning_rate: 1e-3}
save: {every: 2 steps, keep: 2}
where: {micro: 4}
native: {trainer: {report_to: none}}
"""


def _template(folder: Path) -> Path:
    """A base model with a tokenizer, rows, and a run that was trained to its end."""
    tiny_run.make_base_model(folder / "base")
    tiny_run.make_tokenizer(folder / "base")
    turns = [{"role": "user", "content": "w3 w4"}, {"role": "assistant", "content": "w5 w6 w7"}]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"messages": turns}) for _ in range(12)))
    (folder / "rows.json").write_text(json.dumps([{"messages": turns}]))
    run_dir = tiny_run.make_run(folder, TEXT, tiny_run.random_rows(12, seed=5, longest=64))
    assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()
    return folder


def _jail(case: Path, template: Path) -> RunDir:
    """A copy of the good folder with decoys around it."""
    shutil.rmtree(case, ignore_errors=True)
    jail = case / "jail"
    shutil.copytree(template, jail)
    for outside in (case / "outside", jail / "outside"):
        outside.mkdir()
        (outside / "decoy").write_bytes(b"PRIVATE")
        (outside / "config.json").write_text("{}")
    module = f"import pathlib; pathlib.Path({str(case / 'EXECUTED')!r}).touch()\nclass Evil: pass\n"
    for place in (jail, jail / "base", jail / "runs/run/artifacts/final", case / "outside"):
        (place / f"{EVIL_MODULE}.py").write_text(module)
    run_dir = RunDir(jail / "runs" / "run")
    manifest = files.read_json(run_dir.manifest_file)
    files.write_json(run_dir.manifest_file, {**manifest, "folder": str(jail)})
    return run_dir


# ---- one case


def _case(case: Path, template: Path, one: Hostile) -> tuple[str, list[str]]:
    run_dir = _jail(case, template)
    content = one.content(case / "EXECUTED", case / "outside" / "decoy")
    PLACES[one.place](run_dir, one, content)
    return _watched(case, lambda: ACTIONS[one.action](run_dir, one))


def _watched(case: Path, act: Callable[[], Any]) -> tuple[str, list[str]]:
    """Do something in a child; how it ended, and everything that must not have happened."""
    seen = Inotify([case / "outside", case / "jail" / "outside"])
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = _child(case, act)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    wrong = [f"{what} in {folder.name}" for folder, what in seen.events()]
    audit = case / "audit"
    wrong += audit.read_text().splitlines() if audit.exists() else []
    if (case / "EXECUTED").exists():
        wrong.append("executed")
    ended = {0: "went on", 1: "refused in words", 2: "ended by an exception"}.get(code, f"ended with {code}")
    return ended, sorted(set(wrong))


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _child(case: Path, act: Callable[[], Any]) -> int:
    import logging
    import traceback

    os.chdir(case / "jail")
    sys.path.insert(0, str(case / "jail"))  # as `python -m` has it
    home = {"STOKER_RUNS": str(case / "jail" / "runs"), "STOKER_HOME": str(case / "jail" / "home")}
    os.environ |= {**home, "STOKER_LANG": "en"}
    tempfile.tempdir = str(case / "jail")
    with (case / "output").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
    logging.disable(logging.WARNING)
    signal.alarm(CASE_SECONDS)
    _audit(case)
    try:
        act()
    except (StokerError, StokerErrors) as error:
        print(error)
        return 1
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # counted, and its traceback is searched for secrets
        traceback.print_exc()
        return 2
    return 0


def _audit(case: Path) -> None:
    """Write down every file opened outside, process started and global unpickled from now on."""
    log = os.open(case / "audit", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    own = [case / "jail", *ALLOWED]
    ours = {str(case / "output"), str(case / "audit")}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            inside = any(path == str(one) or path.startswith(f"{one}/") for one in own)
            if not inside and path not in ours:
                os.write(log, f"opened {path}\n".encode())
        elif event in STARTS and not _weighs(arguments):
            os.write(log, f"started {event} {arguments[:2]!r}\n".encode())
        elif event == "pickle.find_class":
            os.write(log, f"unpickled {arguments!r}\n".encode())

    sys.addaudithook(hook)


def _weighs(arguments: tuple[Any, ...]) -> bool:
    """Whether it is our own program that counts a model of an unknown family: what that opens, the kernel sees."""
    return arguments[0] == sys.executable and WEIGHING in " ".join(map(str, arguments[1]))


class Inotify:
    """What the kernel saw of some folders: opens, writes and new files by anyone."""

    _OPEN, _MODIFY, _CREATE = 0x20, 0x2, 0x100

    def __init__(self, folders: list[Path]) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._file = self._library.inotify_init1(os.O_NONBLOCK)
        mask = self._OPEN | self._MODIFY | self._CREATE
        self._folders = {}
        for folder in folders:
            watch = self._library.inotify_add_watch(self._file, os.fsencode(folder), mask)
            self._folders[watch] = folder

    def events(self) -> list[tuple[Path, str]]:
        """Since the beginning; looking at the folder itself is not counted."""
        try:
            raw = os.read(self._file, 1 << 16)
        except BlockingIOError:
            raw = b""
        os.close(self._file)
        found, at = [], 0
        while at < len(raw):
            watch, mask, _, length = struct.unpack_from("iIII", raw, at)
            name = raw[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length
            if name:
                what = "opened" if mask & self._OPEN else "written"
                found.append((self._folders[watch], f"{what} {name}"))
        return found


# ---- where a hostile file is put


def _into_base(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    folder = run_dir.folder() / "base"
    _merge_json(folder / one.name, content)
    if one.name.endswith(("bin", "index.json")):
        (folder / "model.safetensors").unlink()  # or nobody looks at it


def _into_checkpoint(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    """The newest checkpoint but the last, its record made right again: the attacker can do that too."""
    folder = run_dir.checkpoints
    shutil.rmtree(run_dir.artifacts)
    if one.action == "resume":
        shutil.rmtree(folder / "step-00000004")
    step = folder / ("step-00000002" if one.action == "resume" else "step-00000004")
    names = {}
    if one.name == "COMMIT.json":
        names = {json.loads(content)["outside"]: {"bytes": 7, "sha256": PRIVATE_SHA}}
    else:
        _merge_json(step / one.name, content)
        if one.name.endswith((".bin", ".pt", ".pth")):
            (step / "adapter_model.safetensors").unlink()
    _record(step, names)


PRIVATE_SHA = hashlib.sha256(b"PRIVATE").hexdigest()


def _record(step: Path, more: dict[str, Any]) -> None:
    commit = files.read_json(step / "COMMIT.json")
    inner = [path for path in step.rglob("*") if path.is_file() and path.name != "COMMIT.json"]
    entries = {
        path.relative_to(step).as_posix(): {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
        for path in inner
    }
    said = {**commit, "files": {**entries, **more}}
    said.pop("digest")
    said["digest"] = checkpoints._digest(said)
    (step / "COMMIT.json").write_text(files.json_text(said), encoding="utf-8")


def _into_final(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    _merge_json(run_dir.final / one.name, content)
    if one.name.endswith(".bin"):
        (run_dir.final / "adapter_model.safetensors").unlink()


def _into_rows(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    (run_dir.folder() / "rows.jsonl").unlink()
    (run_dir.folder() / one.name).write_bytes(content)
    _rewrite(run_dir, "rows.jsonl", one.name)


def _rewrite(run_dir: RunDir, old: str, new: str) -> None:
    tiny_run.rewrite(run_dir, old, new)
    shutil.copyfile(run_dir.run_file, run_dir.folder() / "run.yaml")


def _into_prepared(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    (run_dir.data / one.name).write_bytes(content)


def _into_run(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    if one.name == "plan.json" and content[:1] == b"{":
        plan = files.read_json(run_dir.plan_file)
        for dotted, value in json.loads(content).items():
            *parents, last = dotted.split(".")
            target = plan
            for parent in parents:
                target = target[parent]
            target[last] = value
        if "trust_remote_code" in str(content):
            code = {"auto_map": {"AutoConfig": f"{EVIL_MODULE}.Evil", "AutoModelForCausalLM": f"{EVIL_MODULE}.Evil"}}
            config = run_dir.folder() / "base" / "config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), **code, "model_type": "evil"}))
        content = json.dumps(plan).encode()
    (run_dir.path / one.name).write_bytes(content)


def _into_file(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    (run_dir.folder() / "run.yaml").write_bytes(content)


def _into_store(run_dir: RunDir, one: Hostile, content: bytes) -> None:
    """A store that held a good copy until somebody changed its record."""
    from stoker.store import push

    store = run_dir.folder() / "store"
    _rewrite(run_dir, "keep: 2", f"keep: 2, store: {store}")
    push.push(run_dir)
    names = {json.loads(content)["outside"]: {"bytes": 7, "sha256": PRIVATE_SHA}}
    for record in store.rglob("COMMIT.json"):
        _record(record.parent, names)
    shutil.rmtree(run_dir.checkpoints)


def _merge_json(path: Path, content: bytes) -> None:
    """A hostile word among good ones, where both are JSON; else the file as it is."""
    try:
        value = json.loads(content)
        good = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        path.write_bytes(content)
        return
    path.write_text(json.dumps({**good, **value}))


PLACES: dict[str, Callable[[RunDir, Hostile, bytes], None]] = {
    "base": _into_base,
    "checkpoint": _into_checkpoint,
    "final": _into_final,
    "rows": _into_rows,
    "prepared": _into_prepared,
    "run": _into_run,
    "file": _into_file,
    "store": _into_store,
}


# ---- what a user then does


def _command(*words: str) -> int:
    from stoker.cli.main import main

    sys.argv = ["stoker", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _plan(run_dir: RunDir, one: Hostile) -> None:
    sys.exit(_command("plan", "run.yaml"))


def _prepare(run_dir: RunDir, one: Hostile) -> None:
    from stoker.engine import prepare

    shutil.rmtree(run_dir.data)
    prepare.main(run_dir.path)


def _train(run_dir: RunDir, one: Hostile) -> None:
    """From step 0, as `stoker train` does: planned anew, then trained."""
    from stoker.engine import train
    from stoker.launch import plan_inputs
    from stoker.plan.make import make_plan

    for path in (run_dir.checkpoints, run_dir.artifacts):
        shutil.rmtree(path, ignore_errors=True)
    run_file = run_dir.file()
    with contextlib.suppress(StokerError):  # refused already; what would the trainer do?
        plan = make_plan(plan_inputs.inputs(run_file, run_dir, MACHINE))
        files.write_json(run_dir.plan_file, plan.model_dump())
    train.main(run_dir.path)


def _resume(run_dir: RunDir, one: Hostile) -> None:
    from stoker.engine import train

    train.main(run_dir.path)


def _chat(run_dir: RunDir, one: Hostile) -> None:
    from stoker.engine import generate

    _, tokenizer = generate.load(run_dir)
    turns = [{"role": "user", "content": "w3"}]
    generate.prompt_ids(tokenizer, turns, plain=generate.is_plain(run_dir, tokenizer))


def _merge(run_dir: RunDir, one: Hostile) -> None:
    from stoker.engine import merge

    merge.main(run_dir.path)


def _look(run_dir: RunDir, one: Hostile) -> None:
    codes = [
        _command("runs", "--json"),
        _command("watch", "run", "--once"),
        _command("watch", "run", "--json"),
        _command("verify", "run"),
    ]
    sys.exit(max(codes))


def _stop(run_dir: RunDir, one: Hostile) -> None:
    sys.exit(_command("stop", "run"))


def _pull(run_dir: RunDir, one: Hostile) -> None:
    from stoker.api import store_return
    from stoker.terminal import console

    store_return.bring(run_dir, run_dir.run(), console.talk)
    assert not checkpoints.committed(run_dir.checkpoints), "a copy with names that lead out was taken"


ACTIONS: dict[str, Callable[[RunDir, Hostile], None]] = {
    "plan": _plan,
    "prepare": _prepare,
    "train": _train,
    "resume": _resume,
    "finish": _resume,
    "chat": _chat,
    "merge": _merge,
    "look": _look,
    "stop": _stop,
    "pull": _pull,
}


# ---- secrets


def _secrets() -> list[tuple[str, Callable[[RunDir], None]]]:
    """Every channel a secret may come in by, and what a user then does."""

    def command(*words: str, **settings: str) -> Callable[[RunDir], None]:
        def act(run_dir: RunDir) -> None:
            os.environ |= {"HF_HUB_OFFLINE": "0", **settings}
            _command(*words)

        return act

    def file(line: str, *words: str) -> Callable[[RunDir], None]:
        def act(run_dir: RunDir) -> None:
            path = run_dir.folder() / "secret.yaml"
            path.write_text(TEXT + line + "\n")
            try:
                _command(*words, str(path))
            finally:
                path.unlink()

        return act

    def program(act: Callable[[RunDir], Any]) -> Callable[[RunDir], None]:
        return lambda run_dir: act(run_dir)

    address = f"user:{CANARY}@127.0.0.1:9"
    return [
        ("environment: train", program(lambda run_dir: _train(run_dir, BENIGN))),
        ("environment: resume", program(_crash)),
        ("environment: prepare", program(lambda run_dir: _prepare(run_dir, BENIGN))),
        ("environment: chat", program(lambda run_dir: _chat(run_dir, BENIGN))),
        ("environment: merge", program(lambda run_dir: _merge(run_dir, BENIGN))),
        ("environment: plan", command("plan", "run.yaml")),
        ("environment: runs", command("runs", "--json")),
        ("environment: watch", command("watch", "run", "--once")),
        ("environment: doctor", command("doctor", "--json")),
        ("argument: store", command("plan", "run.yaml", "--set", f"save.store=s3://key:{CANARY}@bucket/x")),
        ("argument: store, train", command("train", "run.yaml", "--set", f"save.store=s3://key:{CANARY}@bucket/x")),
        ("argument: model", command("plan", "run.yaml", "--set", f"model=https://{address}/m")),
        ("argument: data", command("prepare", "run.yaml", "--set", f"data.train=https://{address}/rows.jsonl")),
        ("argument: token", command("plan", "run.yaml", "--set", f"native.trainer.hub_token=hf_{CANARY}")),
        ("argument: unknown word", command("plan", "run.yaml", "--set", f"nonsense=hf_{CANARY}")),
        ("argument: run file", command("plan", f"https://{address}/run.yaml")),
        ("argument: runs of a store", command("runs", "--store", f"s3://key:{CANARY}@bucket/x")),
        ("address: hub", command("plan", "run.yaml", "--set", "model=owner/name", HF_ENDPOINT=f"http://{address}")),
        ("address: proxy", command("plan", "run.yaml", "--set", "model=owner/name", HTTPS_PROXY=f"http://{address}")),
        (
            "address: store",
            command("runs", "--store", "s3://bucket/x", AWS_ENDPOINT_URL=f"http://{address}"),
        ),
        ("run file: address", file(f"budget: {{money: 's3://key:{CANARY}@b'}}", "plan")),
        ("run file: comment", file(f"# token hf_{CANARY}", "plan")),
        ("run file: unknown key", file(f"hf_{CANARY}: 1", "plan")),
        ("run file: name", file(f"name: hf_{CANARY}", "train")),
    ]


MACHINE = machine.examine()
BENIGN = Hostile("none", "none", "", lambda *_: b"", "")


def _crash(run_dir: RunDir) -> None:
    """A trainer that ends in a traceback, with locals that hold its environment."""
    from stoker.engine import program, rehearsal, train

    def boom(*_: Any, **__: Any) -> Any:
        settings = dict(os.environ)
        raise RuntimeError(f"broken with {len(settings)} settings")

    shutil.rmtree(run_dir.checkpoints / "step-00000004")
    shutil.rmtree(run_dir.artifacts)
    rehearsal.rehearse = boom
    sys.argv = ["train", str(run_dir.path)]
    program.run(train.main)


def _leak(case: Path, template: Path, act: Callable[[RunDir], None]) -> tuple[str, list[str]]:
    run_dir = _jail(case, template)

    def with_secrets() -> None:
        from stoker.store.store_protocol import Patience

        Patience.pause = lambda *_: None  # type: ignore[method-assign]  # nothing leaks while it waits
        os.environ |= SECRETS
        act(run_dir)

    ended, _ = _watched(case, with_secrets)
    return ended, _leaks(case)


def _leaks(case: Path) -> list[str]:
    needle = CANARY.encode()
    paths = [path for path in case.rglob("*") if path.is_file() and path.name != "audit"]
    return [f"leaked into {path.relative_to(case)}" for path in paths if needle in path.read_bytes()]


# ---- controls: each does what must not happen


def _controls(campaign: Campaign, template: Path) -> None:
    case = campaign.folder / "case"
    for name, forbidden in CONTROLS.items():
        run_dir = _jail(case, template)
        _, wrong = _watched(case, lambda: forbidden(run_dir, case))  # done before the next
        campaign.control(name, caught=bool(wrong), what="; ".join(wrong))
    run_dir = _jail(case, template)

    def leaks() -> None:
        os.environ |= SECRETS
        (run_dir.logs / "careless.log").write_text(json.dumps(dict(os.environ)))

    _watched(case, leaks)
    campaign.control("the environment in a log", caught=bool(_leaks(case)), what="; ".join(_leaks(case)))
    _control_names(campaign, case, template)


def _unpickle(run_dir: RunDir, case: Path) -> None:
    import pickle

    pickle.loads(hostile.PICKLES["os.system"](case / "EXECUTED", case))


def _torch_load(run_dir: RunDir, case: Path) -> None:
    import io

    import torch

    torch.load(io.BytesIO(hostile.PICKLES["torch zip"](case / "EXECUTED", case)), weights_only=False)


def _unsafe_yaml(run_dir: RunDir, case: Path) -> None:
    import yaml

    yaml.unsafe_load(hostile._yaml(hostile.YAML_TAGS[0], "x")(case / "EXECUTED", case))


def _open_decoy(run_dir: RunDir, case: Path) -> None:
    (case / "outside" / "decoy").read_bytes()


def _open_in_rust(run_dir: RunDir, case: Path) -> None:
    """An open that Python's hook does not see."""
    from safetensors import safe_open

    with contextlib.suppress(Exception):
        safe_open(case / "outside" / "decoy", framework="pt")


def _plain_template(run_dir: RunDir, case: Path) -> None:
    import jinja2

    text = hostile.TEMPLATES[0].replace("CANARY", str(case / "EXECUTED"))
    jinja2.Environment().from_string(text).render()


def _remote_code(run_dir: RunDir, case: Path) -> None:
    import importlib

    importlib.import_module(EVIL_MODULE)


CONTROLS: dict[str, Callable[[RunDir, Path], None]] = {
    "pickle.loads": _unpickle,
    "torch.load without weights_only": _torch_load,
    "yaml.unsafe_load": _unsafe_yaml,
    "a file outside": _open_decoy,
    "a file outside, opened in Rust": _open_in_rust,
    "a template without a sandbox": _plain_template,
    "a module of the model's folder": _remote_code,
}


def _control_names(campaign: Campaign, case: Path, template: Path) -> None:
    """Without the check of names, a checkpoint's record leads out."""
    kept = file_check.is_inside
    file_check.is_inside = lambda _: True  # the forked child inherits it
    try:
        one = next(one for one in hostile.corpus() if one.kind.startswith("record") and one.action == "resume")
        _, wrong = _case(case, template, one)
    finally:
        file_check.is_inside = kept
    campaign.control("no check of names in a record", caught=bool(wrong), what="; ".join(wrong))
