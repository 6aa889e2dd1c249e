"""C9: what saving costs: the stall of the step loop, the digests' share of a save, the overhead at the auto interval.

A larger real model (`STOKER_CAMPAIGN_WIDTH`) is trained in full; `--n` saves are measured, one every few steps, in the
background. Bars: a stall of at most one step (median), digests at most a tenth of a save, and at most 3.5 % of the time
at the interval that `save.every: auto` would take. The overhead is measured, not computed: steps that ran beside a save
are compared with those that did not. No control: it measures.
"""

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign

from stoker.facts import failures
from stoker.plan import saving
from stoker.rundir import events

WIDTH = int(os.environ.get("STOKER_CAMPAIGN_WIDTH", 512))
STEPS_BETWEEN = 12


def run(campaign: Campaign) -> None:
    base = _model(campaign.folder / "base")
    steps = STEPS_BETWEEN * campaign.n
    words = trainings.text(
        base,
        method="full",
        data="{train: rows.jsonl, length: 64, pack: true}",
        train=f"{{batch: 8, steps: {steps}, learning_rate: 1e-4}}",
        save=f"{{every: {STEPS_BETWEEN} steps, keep: 2}}",
        where="{micro: 4}",
    )
    run_dir = trainings.make(campaign.folder / "run", words, rows=64)
    attempt = trainings.start(run_dir, before=_timed)
    code = attempt.wait(seconds=7200)
    if code != 0:
        campaign.fail([], trainings.log_of(run_dir))
        return
    _measure(campaign, list(events.read(run_dir.events_file)))


def _model(folder: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tiny_run.make_tokenizer(folder)
    return folder


def _timed() -> None:
    """Note when a save is being written, and how long its digests take."""
    from stoker.engine import saving as engine
    from stoker.rundir import files

    plain_save, plain_digest = engine.Saver._save, files.sha256
    spent = {"digest": 0.0}
    lock = threading.Lock()

    def digest(*args: Any, **kwargs: Any) -> str:
        started = time.thread_time()
        found = plain_digest(*args, **kwargs)
        with lock:
            spent["digest"] += time.thread_time() - started
        return found

    def save(self: Any, job: Any) -> None:
        spent["digest"] = 0.0
        self.events.write("save_begins", step=job.step)
        started = time.perf_counter()
        plain_save(self, job)
        seconds = time.perf_counter() - started
        self.events.write("save_ends", step=job.step, seconds=seconds, digest_seconds=spent["digest"])

    engine.Saver._save = save  # type: ignore[method-assign]
    files.sha256 = digest  # type: ignore[assignment]


def _measure(campaign: Campaign, said: list[dict[str, Any]]) -> None:
    beside, alone, saves, stalls, writing = [], [], [], [], False
    for event in said:
        if event["event"] == "save_begins":
            writing = True
        elif event["event"] == "save_ends":
            writing = False
            saves.append(event)
        elif event["event"] == "checkpoint":
            stalls.append(event["stall_seconds"])
            campaign.case()
        elif event["event"] == "step" and event["step"] > 2:
            (beside if writing else alone).append(event["seconds"])
    step = statistics.median(alone)
    slower = max(0.0, sum(beside) - len(beside) * step) / max(1, len(saves))
    stall = statistics.median(stalls)
    cost = stall + slower
    size = next(e["bytes"] for e in said if e["event"] == "checkpoint")
    campaign.measured |= {
        "checkpoint_bytes": size,
        "step_seconds_median": round(step, 4),
        "stall_seconds_median": round(stall, 4),
        "stall_in_steps": round(stall / step, 3),
        "write_seconds_median": round(statistics.median(s["seconds"] for s in saves), 3),
        "digest_share_of_a_save": round(sum(s["digest_seconds"] for s in saves) / sum(s["seconds"] for s in saves), 3),
        "slower_steps_seconds_per_save": round(slower, 3),
        "cost_seconds_per_save": round(cost, 3),
    }
    for place in ("local", "colab", "sky"):
        interval = saving.interval_seconds(cost, failures.seconds_between(place, 1))
        campaign.measured[f"overhead_percent_{place}"] = round(100 * cost / interval, 3)
        campaign.measured[f"interval_seconds_{place}"] = round(interval, 1)
        if cost / interval > saving.OVERHEAD_CAP + 1e-9:
            campaign.fail([place], f"{100 * cost / interval:.2f} % at {place}")
    if stall > step:
        campaign.fail(["stall"], f"{stall:.3f} s against a step of {step:.3f} s")
    if campaign.measured["digest_share_of_a_save"] > 0.1:
        campaign.fail(["digest"], f"{campaign.measured['digest_share_of_a_save']:.1%} of a save")
