"""What Stoker does with a family, seen on its tiny model through Stoker's own path: plan, prepare, train, commands.

A cell `works`, is `refused` when planning (or by its command, before anything is made) with an error's code, or `fails`
later, which is a defect.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import forked_programs
import pytest
import tiny_families
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from stoker.cli.main import app
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts.families import MERGED
from stoker.launch import plan_inputs, programs
from stoker.plan import parity_limits
from stoker.plan.make import make_plan
from stoker.rundir import artifacts, files, layout
from stoker.rundir.layout import RunDir

LEFT_ALONE = ("vision", "visual", "projector", "router", ".gate.", "shared_expert_gate", "norm", "embed")
GATE = {"PROMPTS": 12, "LEAST_PROMPTS": 12, "ANSWER_TOKENS": 8, "CORPUS_TOKENS": 256}
"""The parity gate's sizes here: every weight is compared all the same, of the answers fewer."""
_REFUSALS = ("STK237",)
"""Of commands after training: said before anything is made."""
_LEAKS = "STK433"
_NO_ADAPTER = "STK233"
_MERGE_FIRST = ("STK478", "STK625")
"""Of an adapter that vLLM cannot serve beside its base; the hint is to merge it."""
_SERVED_WITH = dict.fromkeys(("llama4", "llama4_text"), ("--set", "native.vllm.block_size=64"))
"""Blocks of the cache that fit a tiny model's chunks of attention; published ones are of 8,192 tokens."""
TAUGHT_STEPS = 40
_OF_AN_ADAPTER = ("packing", "merge", "export", "vllm")
"""Cells that go on from the LoRA run; where that is refused, from the full one."""


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    outcome: Literal["works", "refused", "fails"]
    code: str = ""
    """Of the error, where there is one."""
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of its sentence."""
    how: str = ""
    """How packed documents are arranged, or that vLLM serves merged weights only."""
    reason: str = ""
    """Why it fails, or why weights were merged."""
    seconds: float = 0.0


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Programs are forked, the gate asks fewer prompts."""
    with pytest.MonkeyPatch.context() as patch:
        forked_programs.use(patch)
        for name, number in GATE.items():
            patch.setattr(parity_limits, name, number)
        patch.setenv("STOKER_LANG", "en")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


class Case:
    """A family's tiny model in a folder, and the runs on it."""

    def __init__(self, family: str, folder: Path, **changed: Any) -> None:
        self.family, self.folder, self._changed = family, folder, changed
        folder.mkdir(parents=True, exist_ok=True)
        os.environ |= {"STOKER_RUNS": str(folder / "runs"), "STOKER_HOME": str(folder / "home")}
        tiny_families.save(folder / "base", family, **changed)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows()), encoding="utf-8")
        self.known: dict[str, Cell] = {}
        self._made_by: dict[str, Callable[[], Cell]] = {
            "pretrain": self._pretrain,
            "full": self._full,
            "lora": self._lora,
            "qlora": self._qlora,
            "packing": self._packing,
            "merge": self._merge,
            "export": self._export,
            "gguf": self._gguf,
            "vllm": self._vllm,
        }

    def cell(self, name: str) -> Cell:
        """One cell, and those it needs."""
        if name not in self.known:
            if name in _OF_AN_ADAPTER:
                self.cell("lora")
            started = time.perf_counter()
            found = self._made_by[name]()
            self.known[name] = dataclasses.replace(found, seconds=round(time.perf_counter() - started, 1))
        return self.known[name]

    def _pretrain(self) -> Cell:
        sizes = f"{{shape: {self.family}, layers: 2, width: 64, heads: 2, kv_heads: 1}}"
        sizes = sizes.replace(", kv_heads: 1", "") if self.family == "gpt2" else sizes
        return _tried(lambda: self._planned("pretrain", "{method: full}", model=sizes), _trained_and("export"))

    def _full(self) -> Cell:
        return _tried(lambda: self._planned("full", "{method: full}"), _trained_and("export"))

    def _lora(self) -> Cell:
        return _tried(lambda: self._planned("lora", "{method: lora, rank: 4}"), _adapted)

    def _qlora(self) -> Cell:
        return _tried(lambda: self._planned("qlora", "{method: qlora, rank: 4}"), _trained_and("merge"))

    def _packing(self) -> Cell:
        """As rows with several documents; where the rehearsal sees them leak, as the plan arranges them."""
        asked = [self._packed("rows"), self._packed("auto")]
        first = _tried(asked[0], lambda run_dir: _train(run_dir) or "rows")
        return _tried(asked[1], lambda run_dir: _train(run_dir) or "grouped") if first.code == _LEAKS else first

    def _packed(self, arrange: str) -> Callable[[], RunDir]:
        tune, name = "{method: lora, rank: 4}", f"packed-{arrange}"
        if self.cell("lora").outcome == "refused":
            tune = "{method: full}"
        return lambda: self._planned(name, tune, arrange=arrange, data="length: 128, pack: true")

    def _merge(self) -> Cell:
        return self._after("lora", _merged) or self.cell("lora")

    def _export(self) -> Cell:
        return self._after("lora", _command("export")) or self._after("full", _command("export")) or self.cell("full")

    def _gguf(self) -> Cell:
        """Of a model that knows its answers: between the near ties of a random one, 8 bits choose otherwise."""

        def planned() -> RunDir:
            try:
                return self._planned("taught", "{method: lora, rank: 4}", steps=TAUGHT_STEPS)
            except StokerError as refused:
                if refused.code != _NO_ADAPTER:
                    raise
                return self._planned("taught-whole", "{method: full}", steps=TAUGHT_STEPS)

        return _tried(planned, lambda run_dir: _train(run_dir) or _command("quantize", "--gguf", "q8_0")(run_dir))

    def _vllm(self) -> Cell:
        """The adapter beside its base; where vLLM cannot, merged, as its error says."""
        stated = tiny_families.SERVED.get(self.family, {})
        if stated and not self._changed:
            return Case(self.family, self.folder / "served", **stated).cell("vllm")
        found = self._after("lora", self._served_beside) or self._after("full", self._served) or self.cell("full")
        if found.code not in _MERGE_FIRST:
            return found
        merged = self._after("lora", lambda run_dir: _merged(run_dir) or self._served(run_dir) or MERGED)
        assert merged, "only an adapter is merged"
        return dataclasses.replace(merged, reason=" | ".join(filter(None, [found.reason, merged.reason])))

    def _served_beside(self, run_dir: RunDir) -> str:
        """The adapter alone: `serve` prefers what other cells exported or merged."""
        for name in ("export", "merged"):
            shutil.rmtree(artifacts.folder(run_dir, name), ignore_errors=True)
        return self._served(run_dir)

    def _served(self, run_dir: RunDir) -> str:
        """By vLLM, through the gate."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            return _command("serve", "--port", str(port), *_SERVED_WITH.get(self.family, ()))(run_dir)
        finally:
            _command("serve", "--stop")(run_dir)

    def _after(self, run: str, work: Callable[[RunDir], str]) -> Cell | None:
        """What a command makes of a run that was trained; None where it was refused."""
        trained = self.cell(run)
        if trained.outcome == "refused":
            return None
        if trained.outcome == "fails":
            return trained
        return _tried(lambda: layout.find(run), work)

    def _planned(
        self,
        name: str,
        tune: str,
        *,
        model: str = "base",
        data: str = "length: 128, pack: false",
        arrange: str = "auto",
        steps: int = 2,
    ) -> RunDir:
        """A run directory with its plan and prepared data; raises what planning refuses."""
        where = {"arrange": arrange, "gpus": 0}
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"model: {model}\ntokenizer: base\ndata: {{train: rows.jsonl, {data}}}\ntune: {tune}\n"
            f"train: {{batch: 4, steps: {steps}, learning_rate: 1e-2}}\nwhere: {json.dumps(where)}\n",
            encoding="utf-8",
        )
        run_file = load.load(str(path))
        run_dir = layout.create(run_file)
        programs.run_engine("prepare", run_dir, lambda event: None)
        plan = make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)))
        files.write_json(run_dir.plan_file, plan.model_dump())
        return run_dir


def _tried(plan: Callable[[], RunDir], work: Callable[[RunDir], str]) -> Cell:
    try:
        run_dir = plan()
    except StokerError as error:
        return Cell("refused", error.code, error.to_json()["fields"])
    try:
        return Cell("works", how=work(run_dir))
    except StokerError as error:
        if error.code in _REFUSALS:
            return Cell("refused", error.code, error.to_json()["fields"])
        return Cell("fails", error.code, reason=_whole(error, run_dir))
    except AssertionError as error:
        return Cell("fails", reason=str(error))


def _whole(error: StokerError, run_dir: RunDir) -> str:
    """The sentence; of a program that broke down without a cause in it, the last line of its log too."""
    if "cause" in error.fields:
        return error.what.replace(str(run_dir.path.parents[1]), ".")
    log = Path(str(error.fields.get("log", "")))
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    lines = [line for line in said if "Error" in line][-1:] or said[-1:]
    return " | ".join([error.what, *lines]).replace(str(run_dir.path.parents[1]), ".")


def _train(run_dir: RunDir) -> str:
    assert programs.run_engine("train", run_dir, lambda event: None) == 0
    return ""


def _adapted(run_dir: RunDir) -> str:
    """Trained, and no adapter was left as it began, but for experts that none of the few tokens chose."""
    _train(run_dir)
    adapted = load_file(run_dir.final / "adapter_model.safetensors")
    idle = [name for name, weight in adapted.items() if "lora_B" in name and not weight.any()]
    assert not [name for name in idle if "experts" not in name], f"nothing was learned by {idle[:3]}"
    assert len(idle) < len(adapted) // 4, f"nothing was learned by {len(idle)} of {len(adapted) // 2} adapters"
    return ""


def _trained_and(command: str) -> Callable[[RunDir], str]:
    def work(run_dir: RunDir) -> str:
        _train(run_dir)
        return _command(command)(run_dir)

    return work


def _command(*words: str) -> Callable[[RunDir], str]:
    def work(run_dir: RunDir) -> str:
        done = CliRunner().invoke(app, [words[0], run_dir.name, *words[1:], "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return ""

    return work


def _merged(run_dir: RunDir) -> str:
    """Merged through the gate; what is no adapted layer has the base's bits, in the layout of its files."""
    _command("merge")(run_dir)
    base = run_dir.path.parents[1] / "base"
    folder = artifacts.folder(run_dir, "merged")
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: t.shape for name, t in after.items()} == {name: t.shape for name, t in before.items()}
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    wrong = [name for name in changed if any(word in name for word in LEFT_ALONE)]
    assert changed, "the adapter changes nothing"
    assert not wrong, f"changed: {wrong[:3]}"
    return ""


def _rows() -> list[dict[str, object]]:
    """Short conversations whose answers can be learned."""
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return [
        {
            "messages": [
                {"role": "user", "content": f"How many wagons are {one}?"},
                {"role": "assistant", "content": f"The train pulls {one}. " * (1 + number % 3)},
            ]
        }
        for number, one in enumerate(numbers)
    ]
