"""Answers by vLLM, in a process and an environment of its own: started by the first rank, spoken with over pipes.

Before each rollout it is given the weights as they are, as files: those of the whole model, or of the adapter beside
the base model that it loaded itself. It reads them at once and they are deleted, so they hardly ever reach a disk.
While the model trains, it sleeps: on a card, its weights and its cache leave the memory. The other end of the pipes is
`foreign/stoker_vllm.py`.
"""

import contextlib
import functools
import json
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker import env, messages, tools
from stoker.config import objectives
from stoker.config.run import Run
from stoker.engine import arranged, checkpoint, host_copies, rollout_files, trained_on
from stoker.engine.opened import Opened
from stoker.engine.sampler import Generated, Settings
from stoker.errors import StokerError
from stoker.generating.planned_answers import HELD, VLLM_CACHE_BYTES, VLLM_CARD_SHARE
from stoker.plan.plan import Plan
from stoker.rundir import in_place
from stoker.supervise import starting

_PROGRAM = Path(__file__).parent / "foreign" / "stoker_vllm.py"
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_MEMORY_WORDS = ("gpu_memory_utilization", "kv_cache_memory_bytes")
"""Of `native.vllm`; the rest is how a finished model is served."""
_SILENT_SECONDS = 1800.0
"""Loading a large model from a slow disk says nothing for so long; generating says something every second."""
_LOOK_SECONDS = 1.0
_END_SECONDS = 10.0
_LAST_LINES = 12


class VllmSampler:
    """A vLLM as every rank sees it; only the first one has its process."""

    def __init__(self, opened: Opened, python: Path, base: Path | None) -> None:
        """Prepare; the process starts with the first question.

        Args:
            opened: The run.
            python: vLLM's.
            base: The folder of the model that an adapter belongs to; None where the whole model is trained.
        """
        self._opened, self._python, self._base = opened, python, base
        self._folder = rollout_files.folder(opened.run_dir) / ".weights"
        self._process: _Process | None = None

    def answers(
        self,
        model: Any,
        prompts: list[np.ndarray],
        drawn: np.ndarray | None,
        settings: Settings,
        beat: Callable[[], None],
    ) -> list[Generated]:
        """An answer to each prompt by the weights as they are, on the first rank; none on others. A collective call.

        Args:
            model: As it is trained, not wrapped.
            prompts: Token ids.
            drawn: For each answer its numbers, of which the first is its seed; None for the likeliest tokens, whose
                log-probabilities are at temperature 1.
            settings: How.
            beat: Called while vLLM works.
        """
        first = self._opened.ranks.first
        weights = checkpoint.copied_weights(
            model, functools.partial(checkpoint.kept, copy=host_copies.plain, keep=first)
        )
        found: list[Generated] = []
        if first:
            if self._opened.plan.device == "cuda":
                torch.cuda.empty_cache()
            process = self._process or self._start(model, beat)
            self._hand_over(process, model, weights, beat)
            said = process.ask(_question(prompts, drawn, settings), beat)
            process.ask({"sleep": True}, beat)
            found = [
                Generated(np.array(tokens, dtype=np.int32), np.array(values, dtype=np.float32), ended=ended)
                for tokens, values, ended in said["answers"]
            ]
        self._opened.ranks.wait()  # with the long timeout
        return found

    def _start(self, model: Any, beat: Callable[[], None]) -> "_Process":
        """Start vLLM and wait until it has loaded the model, or made room for one."""
        self._empty()
        if self._base is None:
            model.config.save_pretrained(self._folder)
        run_dir = self._opened.run_dir
        log = run_dir.logs / f"sampler-{1 + len(list(run_dir.logs.glob('sampler-*.log')))}.log"
        self._process = _Process(self._python, log, run_dir.path)
        self._process.ask(_load(self._opened, self._base or self._folder, model, adapter=self._base is not None), beat)
        return self._process

    def _hand_over(
        self, process: "_Process", model: Any, weights: dict[str, torch.Tensor], beat: Callable[[], None]
    ) -> None:
        self._empty()
        checkpoint.save_weights(model, self._folder, weights)
        process.ask({"weights": str(self._folder), "adapter": self._base is not None}, beat)
        shutil.rmtree(self._folder)

    def _empty(self) -> None:
        """Also of what an attempt left that was killed."""
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)

    def close(self) -> None:
        """End vLLM."""
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def opened_for(opened: Opened) -> Iterator[VllmSampler | None]:
    """What generates for a run that samples by vLLM, until the block ends; None for another run."""
    run = opened.run
    if not (objectives.facts(run.train.objective).prompts and run.train.answers.sampler == "vllm"):
        yield None
        return
    _require_supported(run, opened.plan)
    python = tools.require(tools.VLLM, f"train.{run.train.objective}.sampler")
    base = None if run.tune.method == "full" else trained_on.folder(opened.run_dir, run).resolve()
    found = VllmSampler(opened, python, base)
    try:
        yield found
    finally:
        found.close()


def _require_supported(run: Run, plan: Plan) -> None:
    """Refuse where vLLM would have other weights than the training, or cannot be given them."""
    option = ""
    if run.tune.method == "qlora":
        option = "tune.method: qlora"
    elif plan.strategy.startswith("zero"):
        option = f"where.strategy: {plan.strategy}"
    elif plan.device == "mps":
        option = "where: mps"
    if option:
        raise StokerError("STK475", option=option, word=f"train.{run.train.objective}.sampler")


def _load(opened: Opened, folder: Path, model: Any, *, adapter: bool) -> dict[str, Any]:
    """The order to load a model: EngineArgs of vLLM."""
    cuda, run = opened.plan.device == "cuda", opened.run
    asked = {word: value for word, value in run.native.vllm.items() if word in _MEMORY_WORDS}
    memory = {"gpu_memory_utilization": _share(opened.plan)} if cuda else {"kv_cache_memory_bytes": VLLM_CACHE_BYTES}
    load = {
        "model": str(folder),
        "load_format": "safetensors" if adapter else "dummy",
        "skip_tokenizer_init": True,
        "dtype": _DTYPES[opened.plan.precision],
        "max_model_len": min(
            run.data.length, arranged.longest_prompt(opened.report) + run.train.answers.max_new_tokens
        ),
        "generation_config": "vllm",  # none of the model's own
        "logprobs_mode": "processed_logprobs",  # at the temperature
        "enforce_eager": not cuda,
        **memory,
        **asked,
    }
    return {"load": load, "sleeps": cuda, "rank": _rank(model) if adapter else 0}


def _rank(model: Any) -> int:
    """The largest of the adapter's layers."""
    return max(max([one.r, *one.rank_pattern.values()]) for one in model.peft_config.values())


def _share(plan: Plan) -> float:
    """How much of the card's memory vLLM may take while the training does not compute."""
    stays = sum(plan.memory.parts.get(name, 0) for name in HELD)
    return round(max(0.05, VLLM_CARD_SHARE - stays / plan.memory.available_bytes), 2)


def _question(prompts: list[np.ndarray], drawn: np.ndarray | None, settings: Settings) -> dict[str, Any]:
    return {
        "prompts": [prompt.tolist() for prompt in prompts],
        "seeds": None if drawn is None else [int(numbers[0] * 2**53) for numbers in drawn],
        "temperature": settings.temperature,
        "longest": settings.longest,
        "stops": settings.stops,
    }


class _Process:
    """The running program."""

    def __init__(self, python: Path, log: Path, inside: Path) -> None:
        self._log = log
        with in_place.appending(log, inside) as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own program, no shell
                [str(python), str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=env.child_environment(tools.vllm_variables() | {env.PYTHONPATH.name: ""}),
                **starting.DETACHED,
            )
        self._replies: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, order: dict[str, Any], beat: Callable[[], None]) -> dict[str, Any]:
        """Give an order, and wait until it is done."""
        with contextlib.suppress(OSError):  # it has ended, which the reader finds
            self._process.stdin.write(json.dumps(order).encode() + b"\n")  # type: ignore[union-attr]  # a pipe
            self._process.stdin.flush()  # type: ignore[union-attr]
        heard = time.monotonic()
        while True:
            beat()
            try:
                line = self._replies.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() - heard > _SILENT_SECONDS:
                    raise self._failed(messages.text("reason.no_response", seconds=_SILENT_SECONDS)) from None
                continue
            if not line:
                code = self._process.wait()
                raise self._failed(messages.text("sampler.ended", code=code))
            heard, reply = time.monotonic(), json.loads(line)
            if "alive" not in reply:
                return dict(reply)

    def end(self) -> None:
        """It ends with its stdin; where it does not, it is killed."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        """Whole lines into the queue, an empty one at the end."""
        with self._process.stdout as pipe:  # type: ignore[union-attr]  # a pipe
            for line in pipe:
                self._replies.put(line)
        self._replies.put(b"")

    def _failed(self, reason: str) -> StokerError:
        said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line.rstrip() for line in said if line.strip()][-_LAST_LINES:]
        return StokerError("STK474", reason=reason, log=self._log, lines="\n".join(lines) or "-")
