"""A run directory as a training process opens it: run, plan and data checked, and the numeric fingerprint.

The fingerprint is everything that decides the bits of a step. Ranks on different machines must agree on what they
train; where only their hardware differs, the fingerprint lists each value.
"""

import hashlib
import json
import socket
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker import env, messages
from stoker.config import objectives
from stoker.config.run import Run
from stoker.engine import models
from stoker.engine.parallel import Ranks
from stoker.engine.pulse import Pulse
from stoker.errors import StokerError
from stoker.facts import machine, own_code
from stoker.plan import moves
from stoker.plan.plan import Plan
from stoker.rewards import scorer
from stoker.rows import order
from stoker.rundir import checkpoints, files, prepared, set_list
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

READ_AT_START_BYTES = 2 << 30
"""Prepared data up to this size is verified before the first step, in a few seconds; larger data during training."""


@dataclass(frozen=True)
class Opened:
    """An opened run directory."""

    run_dir: RunDir
    run: Run
    plan: Plan
    report: Report
    ranks: Ranks
    pulse: Pulse
    events: EventLog
    """Written by the first rank; the others write to the null device."""

    fingerprint: dict[str, str]
    """Everything that decides the bits of a step."""
    words: dict[str, Any]
    """The words of the training as they are at its start, with what it was forked from."""
    reference: dict[str, torch.Tensor] = field(default_factory=dict)
    """By split, for each row: what the objective must know of it from before training, where it must."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        cuda = self.plan.device == "cuda"
        return torch.device("cuda", self.ranks.rank_here) if cuda else torch.device(self.plan.device)

    def autocast(self) -> torch.autocast:
        """The types that the Trainer computes in, for passes beside its own."""
        fp16, bf16 = (bool(self.plan.native.trainer[name]) for name in ("fp16", "bf16"))
        lower = torch.float16 if fp16 else torch.bfloat16
        return torch.autocast(self.device.type, lower, enabled=fp16 or bf16, cache_enabled=False)

    def commit_facts(self, tokens: int, source_tokens: dict[str, int], due: list[str]) -> dict[str, Any]:
        """What a checkpoint records about the training it belongs to.

        Args:
            tokens: Tokens seen so far.
            source_tokens: The same by source of a mixture.
            due: What a stop postponed.
        """
        return {
            "data_digest": self.report.digest,
            "order_version": order.VERSION,
            "world": self.ranks.world,
            "fingerprint": self.fingerprint,
            "words": self.words,
            "tokens": tokens,
            "source_tokens": dict(source_tokens),
            "set_digests": listed.parts if (listed := set_list.read(self.run_dir.data)) else {},
            "events_bytes": self.events.offset,
            "due": due,
        }


def open_run(run_dir: RunDir, plan: Plan, ranks: Ranks, pulse: Pulse) -> Opened:
    """Read and check everything the training needs."""
    pulse.mark = "open"
    run = run_dir.run()
    report = prepared.read_report(run_dir.data)
    if report is None:
        raise StokerError("STK206")
    prepared.check_sizes(run_dir.data, "train", report.train)
    if report.eval is not None:
        prepared.check_sizes(run_dir.data, "eval", report.eval)
    if ranks.first_here and files.folder_bytes(run_dir.data) <= READ_AT_START_BYTES:
        prepared.check_digests(run_dir.data, report)
    _check_machine(plan, report)
    events = EventLog(run_dir.events_file if ranks.first else None)
    firsts = json.loads(ranks.hear(json.dumps(_of_first(run_dir, run) if ranks.first else {})))
    fingerprint = _of_all(ranks, plan, report, _fingerprint(run_dir, run, plan, firsts))
    return Opened(run_dir, run, plan, report, ranks, pulse, events, fingerprint, run_dir.words(run))


def _check_machine(plan: Plan, report: Report) -> None:
    """The machine and the data are those the plan was made for."""
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if plan.device not in (found, "cpu"):
        difference = messages.text("machine.device", planned=plan.device, found=found)
        raise StokerError("STK404", difference=difference)
    if (
        plan.device == "cuda"
        and plan.precision == "bf16"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        difference = messages.text("machine.precision", planned=plan.precision, card=torch.cuda.get_device_name())
        raise StokerError("STK404", difference=difference)
    if plan.data.digest != report.digest:
        raise StokerError("STK410", reason=messages.text("other.prepared"))


def _of_first(run_dir: RunDir, run: Run) -> dict[str, str]:
    """The models that the checkpoint to resume from was trained with, and the rewards.

    The first rank's: only it scores, and others may have neither the checkpoint nor the files.
    """
    found, rewards = checkpoints.next_found(run_dir.checkpoints), run.train.grpo.rewards or []
    return {
        **{name: found.commit.fingerprint.get(name, "") if found else "" for name in ("base", "teacher")},
        "rewards": scorer.files_digest(rewards, run_dir.folder()),
        "reward_packages": scorer.packages_digest(rewards),
    }


def _fingerprint(run_dir: RunDir, run: Run, plan: Plan, firsts: dict[str, str]) -> dict[str, str]:
    """This rank's; some of it the first rank says."""
    cuda, folder, teacher = plan.device == "cuda", run_dir.folder(), run.train.teacher
    generates = objectives.facts(run.train.objective).prompts
    return {
        "device": torch.cuda.get_device_name() if cuda else plan.card,
        "instructions": _instructions(plan),
        "driver": str(torch._C._cuda_getDriverVersion()) if cuda else "",  # type: ignore[attr-defined]  # CUDA builds
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        **({"nccl": ".".join(map(str, torch.cuda.nccl.version()))} if moves.reduces_by_nccl(plan) else {}),
        **machine.installed(moves.libraries(plan)),
        "code": own_code.digest(),
        "base": models.base_digest(run, folder, firsts["base"]),
        **({"teacher": models.weights_digest(teacher, folder, firsts["teacher"])} if teacher else {}),
        **({"sampler": run.train.answers.sampler} if generates else {}),
        **{name: firsts[name] for name in ("rewards", "reward_packages") if firsts[name]},
        **moves.decided(plan),
        "threads": str(torch.get_num_threads()),
    }


def _instructions(plan: Plan) -> str:
    """What kernels are chosen by: ATen's level and, on a CPU, oneDNN's: its bf16 kernels round otherwise with AMX.

    oneDNN reads each of its variables by two names, the newer one first.
    """
    has = {"AVX512_BF16": torch.cpu._is_avx512_bf16_supported(), "AMX": torch.cpu._is_amx_tile_supported()}
    found = [name for name, there in has.items() if there] if plan.device == "cpu" else []
    if plan.device == "cpu" and (lowered := env.read(env.ONEDNN_MAX_CPU_ISA) or env.read(env.DNNL_MAX_CPU_ISA)):
        found.append(f"<={lowered}")
    mode = env.read(env.ONEDNN_DEFAULT_FPMATH_MODE) or env.read(env.DNNL_DEFAULT_FPMATH_MODE)
    if plan.device == "cpu" and mode:
        found.append(f"fpmath={mode}")
    return " ".join([torch.backends.cpu.get_cpu_capability(), *found])


def _of_all(ranks: Ranks, plan: Plan, report: Report, fingerprint: dict[str, str]) -> dict[str, str]:
    """The fingerprint of all ranks: one value where they agree, else a list. All must train the same run."""
    decided = json.dumps(plan.model_dump(mode="json", exclude={"env", "argv"}), sort_keys=True)
    trains = {
        "Stoker": machine.own_build(),
        "plan.json": hashlib.sha256(decided.encode()).hexdigest(),
        "data": report.digest,
        "model": fingerprint["base"],
        "teacher": fingerprint.get("teacher", ""),
    }
    own = json.dumps({"node": env.read(env.NODE, socket.gethostname()), "trains": trains, "fingerprint": fingerprint})
    everyone = [json.loads(ranks.hear(own, leader)) for leader in range(ranks.world)]
    for rank, one in enumerate(everyone):
        for what, digest in one["trains"].items():
            if digest != everyone[0]["trains"][what]:
                raise StokerError("STK425", rank=rank, node=one["node"], what=what)
    parts = {name: [one["fingerprint"][name] for one in everyone] for name in fingerprint}
    return {name: one[0] if len(set(one)) == 1 else ", ".join(one) for name, one in parts.items()}
