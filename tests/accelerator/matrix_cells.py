"""One cell of the accelerator matrix: a recipe's settings on a pretended device, through everything a run may meet.

Trained whole; killed and resumed; out of memory; saved; merged. A cell `passes`, is `refused` when it is planned, with
the error's code, or `fails` at one of its parts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pretend_cuda
import pretended_devices
import pytest
import tiny_run
import torch
import trainings
from bitsandbytes import functional as bits
from peft.tuners.lora import LoraLayer
from pretended_devices import DEVICES, TYPES, PretendedDevice
from recipe_settings import ANSWER, BATCH, LENGTH, SAVED_EVERY, STEPS, Setting
from safetensors.torch import load_file

from stoker.engine import generate
from stoker.errors import StokerError
from stoker.rundir import artifacts, checkpoints, events, files
from stoker.rundir.layout import RunDir

PARTS = ("train", "kill", "resume", "out of memory", "save", "merge")
FAULTS = ("wrong device", "wrong type", "lost scaler", "host tensor")
"""Planted to see that a cell finds them."""
FAULTY_SETTING = "lora_qwen3_4b"
"""Of the cells in which they are planted."""
KILLED_AFTER = MEMORY_ENDS_AFTER = SAVED_EVERY + 1
"""Steps: the last save is committed by then."""
_FIRST_SCALE, _FIRST_SCALE_OF_SCORES = 2.0**24, 2.0**18
"""Of the loss in fp16: the gradients of the first steps are not finite, so that a scale that is lost is seen; a score's
are larger than those of tokens."""
_LOST_EACH_OTHER = "STK423"
"""What ranks say whose neighbour ran out of memory before they did."""
_ROUNDING = {"fp32": 2.0**-18, "fp16": 2.0**-10, "bf16": 2.0**-7}
"""Relative: what storing a merged weight in the type of the base may change."""


@dataclass(frozen=True)
class Cell:
    """What became of one cell."""

    outcome: Literal["passes", "refused", "fails"]
    code: str = ""
    """Of the refusal."""
    why: str = ""
    """The refusal in words, or what was wrong."""
    passed: tuple[str, ...] = ()
    """Its parts that passed."""
    seconds: float = 0.0


class Failed(Exception):
    """A check of a part that did not hold."""


def refusal(setting: Setting, device: PretendedDevice) -> str:
    """The code of the error with which planning must refuse a cell; empty where it must train."""
    return "STK216" if device.strategy == "fsdp2" and "optimizer" in setting.words["train"] else ""


def faults(device: PretendedDevice) -> tuple[str, ...]:
    """Faults that a device can have: only fp16 has a scale, fp32 is the type of all, torch moves what it shards."""
    impossible = {"fp16": set(), "bf16": {"lost scaler"}, "fp32": {"lost scaler", "wrong type"}}[device.precision]
    impossible |= {"wrong device"} if device.strategy == "fsdp2" else set()
    return tuple(fault for fault in FAULTS if fault not in impossible)


def make_base(folder: Path) -> Path:
    """The tiny model of every recipe that tunes one: key/value heads are fewer, as in most."""
    tiny_run.make_tokenizer(folder)
    return tiny_run.make_base_model(folder, layers=1, kv_heads=1)


def run(folder: Path, base: Path, setting: Setting, device_name: str, fault: str = "") -> Cell:
    """Run one cell in a folder of its own; with a fault, until it shows."""
    started = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        cell = _Trial(folder, base, setting, DEVICES[device_name], patch).cell(fault)
    return replace(cell, seconds=round(time.perf_counter() - started, 1))


def planned(folder: Path, base: Path, setting: Setting, where: dict[str, Any]) -> RunDir:
    """A run directory with prepared rows and a plan for the devices of this process; raises what planning refuses."""
    data = setting.words["data"]
    asked = setting.objective
    several = data["pack"] or asked.pairs
    rows, held_out = (
        _rows(2 * BATCH, several=several, seed=5),
        _rows(4, several=several, seed=7) if data["eval"] else [],
    )
    if asked.prompts:
        rows, held_out = ([[~abs(one[0][:-ANSWER])] for one in each] for each in (rows, held_out))
    if asked.labels:
        rows = [tiny_run.Undesired(row) if number % 2 else row for number, row in enumerate(rows)]
    return tiny_run.make_run(folder, setting.text(base, where), rows, held_out)


class _Trial:
    """A cell on its way."""

    def __init__(
        self, folder: Path, base: Path, setting: Setting, device: PretendedDevice, patch: pytest.MonkeyPatch
    ) -> None:
        self._folder, self._base, self._setting, self._device, self._patch = folder, base, setting, device, patch
        self._passed: list[str] = []
        patch.setenv("STOKER_RUNS", str(folder / "runs"))
        self._first_scale = _FIRST_SCALE_OF_SCORES if setting.objective.scores else _FIRST_SCALE
        more = {"FIRST_SCALE": str(self._first_scale)} if device.precision == "fp16" else {}
        pretended_devices.use(patch, device, **more)

    def cell(self, fault: str) -> Cell:
        try:
            self._whole, self._killed = (self._planned(name, micro=True) for name in ("whole", "killed"))
            self._short = self._planned("short", micro=False)
        except StokerError as error:
            return Cell("refused", code=error.code, why=str(error).splitlines()[0])
        try:
            for part in PARTS:
                self._take(part, fault)
        except Failed as error:
            return Cell("fails", why=f"{part}: {error}", passed=tuple(self._passed))
        return Cell("passes", passed=tuple(self._passed))

    def _take(self, part: str, fault: str) -> None:
        # Answers are generated as many at once as the plan has room for; the pretended limit is one of tokens.
        beyond = {"merge": not self._setting.adapts, "out of memory": self._setting.objective.prompts}
        if beyond.get(part):
            return
        # A scale is lost by whoever resumes; every other fault is there from the start.
        self._patch.setenv("PRETENDED_FAULT", "" if fault == "lost scaler" and part != "resume" else fault)
        getattr(self, "_" + part.replace(" ", "_"))()
        self._passed.append(part)

    def _planned(self, name: str, *, micro: bool) -> RunDir:
        """A run directory with its plan: with two micro batches a step, or as many as the plan finds best."""
        cut = {"micro": BATCH // self._device.count // 2} if micro else {}
        return planned(self._folder / name, self._base, self._setting, {**self._device.where, **cut})

    # ---- the parts

    def _train(self) -> None:
        plan, device = files.read_json(self._whole.plan_file), self._device
        planned = (plan["precision"], plan["strategy"], plan["batch"]["devices"], plan["batch"]["accumulation"])
        _same(planned, (device.precision, device.strategy, device.count, 2), "the plan")
        _same(pretended_devices.train(self._whole), 0, lambda: tiny_run.said(self._whole))
        _same(_told(self._whole, "end")[-1]["status"], "done", "the end")
        _same(pretended_devices.types(self._whole), {TYPES[device.precision]}, "types of products")
        measured = [one["memory_bytes"] > 0 for one in _told(self._whole, "step")]
        _same(measured, [plan["device"] == "cuda"] * STEPS, "steps with their memory")

    def _kill(self) -> None:
        _same(pretended_devices.train(self._killed, kill_after=KILLED_AFTER), -9, lambda: tiny_run.said(self._killed))

    def _resume(self) -> None:
        _same(pretended_devices.train(self._killed), 0, lambda: tiny_run.said(self._killed))
        _same(_told(self._killed, "attempt")[-1]["resumed_step"], SAVED_EVERY, "the step it resumed from")
        difference = trainings.difference(trainings.outcome(self._killed), trainings.outcome(self._whole))
        _same(difference, "", "bits")

    def _out_of_memory(self) -> None:
        before = files.read_json(self._short.plan_file)["batch"]
        self._patch.setenv("PRETENDED_LARGEST_TOKENS", str(before["micro"] * LENGTH // 2))
        self._patch.setenv("PRETENDED_MEMORY_ENDS_AFTER", str(MEMORY_ENDS_AFTER))
        _same(pretended_devices.supervise(self._short), 0, lambda: pretended_devices.logs(self._short))
        self._patch.delenv("PRETENDED_LARGEST_TOKENS")
        codes = {one["error"]["code"] for one in _told(self._short, "error")}
        _same(codes - {_LOST_EACH_OTHER if self._device.count > 1 else ""}, {"STK408"}, "errors")
        after = files.read_json(self._short.plan_file)["batch"]
        _same(2 * after["micro"], before["micro"], "the micro batch after it")
        _same(after["effective"], before["effective"], "the batch after it")
        _same([one["resumed_step"] for one in _told(self._short, "attempt")], [0, SAVED_EVERY], "attempts")
        _same(_told(self._short, "end")[-1]["status"], "done", "the end")
        _same(tiny_run.sequences(self._short), tiny_run.sequences(self._whole), "sequences of each step")

    def _save(self) -> None:
        for run_dir in (self._whole, self._killed, *([] if self._setting.objective.prompts else [self._short])):
            found = checkpoints.committed(run_dir.checkpoints)
            _same([one.step for one in found], list(range(SAVED_EVERY, STEPS + 1, SAVED_EVERY)), "checkpoints")
            _same([checkpoints.verify(one) for one in found], [""] * len(found), "digests")
        if self._device.precision == "fp16":
            scale = files.read_json(found[-1].path / "state.json")["scaler"]["scale"]
            _same(
                self._first_scale * pretend_cuda.BACKOFF**STEPS < scale < self._first_scale,
                True,
                f"some steps skipped, not all: scale {scale}",
            )

    def _merge(self) -> None:
        _same(pretended_devices.merge(self._killed), 0, "the merge program")
        merged = load_file(artifacts.aside(self._killed, "merged") / "model.safetensors")
        trained, _ = generate.load(self._killed)
        layers = {name: layer for name, layer in trained.named_modules() if isinstance(layer, LoraLayer)}
        _same(bool(layers), True, "adapted layers")
        for name, layer in layers.items():
            base, change = _weight(layer.get_base_layer().weight), layer.get_delta_weight("default").float()
            wanted, found = base + change, merged[f"{name.removeprefix('base_model.model.')}.weight"].float()
            off = ((found - wanted).abs().max() / wanted.abs().max()).item()
            _same(off <= _ROUNDING[self._device.precision], True, f"{name} merged, off by {off:.1e}")
            _same(change.abs().max().item() > 0, True, f"{name} trained")


def _same(found: Any, wanted: Any, what: str | Callable[[], str]) -> None:
    if found != wanted:
        raise Failed(f"{what if isinstance(what, str) else what()[-1500:]}: {found}, not {wanted}")


def _told(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


def _weight(weight: torch.Tensor) -> torch.Tensor:
    """A weight as training used it: 4-bit ones by bitsandbytes itself."""
    state = vars(weight).get("quant_state")
    return (bits.dequantize_4bit(weight.data, state) if state else weight.data).float()


def _rows(count: int, *, several: bool, seed: int) -> list[list[np.ndarray]]:
    """Sequences of which most are full, so that half a micro batch has half its tokens."""
    generator = np.random.default_rng(seed)
    documents = 2 if several else 1
    rows = []
    for number in range(count):
        longest = LENGTH // documents - (5 if number % BATCH == 0 else 0)
        row = [generator.integers(3, tiny_run.VOCAB, longest).astype(np.int32) for _ in range(documents)]
        for tokens in row:
            tokens[0] = ~tokens[0]
        rows.append(row)
    return rows
