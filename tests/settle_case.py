"""A run that has ended on a box: a platform with folders of a test's own, a command that is recorded, a clock."""

import filecmp
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stoker.facts.platforms import Detection, Meter, Platform, PlatformLimits, Storage, Verb
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.settle import meter, platform_command
from stoker.settle.meter import SettleSettings, Settling
from stoker.settle.notify import News
from stoker.supervise.limits import Clock

BEGAN = 1_800_000_000.0
RUN_YAML = """model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {train: text.txt}
train: {objective: pretrain, batch: 4}
"""
FACTS: dict[str, Any] = {"data_digest": "d1", "order_version": 1, "world": 1, "fingerprint": {}}


class Gone(BaseException):
    """The machine went off: nothing of ours goes on."""


class Box:
    """A box-like tree: `disk` survives a stop if the profile says so, `shared` survives all."""

    def __init__(self, folder: Path, *, survives_stop: bool = True, stop: bool = True, release: bool = True) -> None:
        self.folder = folder.resolve()
        self.disk, self.shared = self.folder / "disk", self.folder / "shared"
        self.shared.mkdir(parents=True)
        self.script = self.folder / "shutdown"
        self.script.write_text(f"echo stopped $TOKEN >> '{self.folder}/ran'\n")  # no interpreter named, as on AutoDL
        stopping = Verb(words=("/bin/sh", str(self.script)), environment={"TOKEN": "$SETTLE_TEST_KEY"})
        releasing = Verb(words=("/bin/sh", str(self.script), "release"))
        self.platform = Platform(
            name="box",
            title="Box",
            kind="ssh",
            detect=Detection(env=(), paths=()),
            storage=(
                Storage(path=str(self.disk), survives_stop=survives_stop, survives_release=False, confidence="G"),
                Storage(path=str(self.shared), survives_stop=True, survives_release=True, confidence="G"),
            ),
            meter=Meter(
                stops_on="stop",
                reversible=stopping if stop else None,
                irreversible=releasing if release else None,
                confidence="G",
            ),
            limits=PlatformLimits(),
            sources=("a test",),
        )
        self.now = BEGAN
        self.news: list[News] = []
        self.acts: list[list[str]] = []
        self.witnessed: list[str] = []
        """At each command, where a whole copy stood: found by comparing bytes, not by our own code."""
        self.on_wait: Callable[[float], None] = lambda _: None

    def run(self, *, words: str = "", store: str | None = "shared", name: str = "tiny", plan: Any = None) -> RunDir:
        """A run directory on the disk."""
        run_dir = RunDir(self.disk / "runs" / name)
        run_dir.path.mkdir(parents=True)
        where = {"shared": str(self.shared / "store"), "disk": str(self.disk / "store")}.get(store or "", store)
        saving = f"save: {{store: {where}, keep: 2}}\n" if where else ""
        run_dir.run_file.write_text(f"{RUN_YAML}{saving}{words}", encoding="utf-8")
        manifest = {
            "name": name,
            "created": "2026-01-01T00:00:00+00:00",
            "stoker_version": "0",
            "run_file": "tiny.yaml",
            "overrides": [],
            "folder": str(self.folder),
        }
        run_dir.manifest_file.write_text(json.dumps(manifest))
        run_dir.plan_file.write_text(json.dumps({"after": "stop", "limits": {}, **(plan or {})}))
        return run_dir

    def ended(self, run_dir: RunDir, state: str = "done", spent: float = 100.0, **fields: Any) -> None:
        """What a supervisor leaves."""
        beat = datetime.fromtimestamp(BEGAN, timezone.utc).isoformat()
        record = {"state": state, "step": 8, "spent_seconds": spent, "beat": beat, **fields}
        run_dir.supervisor_file.write_text(json.dumps(record))

    def settling(self, run_dir: RunDir, act: meter.Act | None = None, **settings: Any) -> Settling:
        """Settle by a clock that only runs while somebody waits."""
        made = Settling(
            run_dir,
            self.platform,
            self.news.append,
            SettleSettings(**{"look_seconds": 20.0, **settings}),
            Clock(lambda: self.now, lambda seconds: self._wait(made, seconds), lambda: self.now),
            act or (lambda words, variables: self.act(run_dir, words, variables)),
        )
        return made

    def settle(self, run_dir: RunDir, act: meter.Act | None = None, **settings: Any) -> str:
        """`gone` where the machine was switched off, else how settling ended."""
        try:
            return self.settling(run_dir, act, **settings).run()
        except Gone:
            return "gone"

    def act(self, run_dir: RunDir, words: list[str], variables: dict[str, str]) -> str:
        """The real command, and the end of this machine."""
        self.witness(run_dir)
        self.acts.append(words)
        if problem := platform_command.run_command(words, variables):
            return problem
        raise Gone

    def witness(self, run_dir: RunDir) -> None:
        """Compare bytes with what is off the disk."""
        self.witnessed.append("whole" if self.is_copied(run_dir) else "missing")

    def is_copied(self, run_dir: RunDir) -> bool:
        newest = checkpoints.committed(run_dir.checkpoints)[-1].path
        there = list((self.shared / "store" / run_dir.name / "checkpoints").glob(f"{newest.name}-*"))
        pairs = [(newest, there[0])] if there else []
        if run_dir.final.is_dir():
            pairs.append((run_dir.final, self.shared / "store" / run_dir.name / "artifacts" / "final"))
        return bool(there) and all(_same(here, copy) for here, copy in pairs)

    def _wait(self, settling: Settling, seconds: float) -> None:
        looking = settling._copy._looking
        if isinstance(looking, threading.Thread):
            looking.join(30)
        time.sleep(0)
        self.now += seconds
        if self.now > BEGAN + 2 * 86400:
            raise AssertionError("it would never end")
        self.on_wait(self.now - BEGAN)

    def kinds(self) -> list[str]:
        """Kinds of news so far."""
        return [one.kind for one in self.news]


def commit(run_dir: RunDir, step: int = 8, *, final: bool = True) -> None:
    """A committed checkpoint, and a finished model."""
    with checkpoints.writing(run_dir.checkpoints, step, **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(b"m" * 3000 + str(step).encode())
        (aside / "trainer_state.json").write_text("{}")
    if final:
        run_dir.final.mkdir(parents=True)
        (run_dir.final / "model.safetensors").write_bytes(b"f" * 2000)


def _same(here: Path, copy: Path) -> bool:
    names = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    return all((copy / name).is_file() and filecmp.cmp(here / name, copy / name, shallow=False) for name in names)
