"""C9: what saving costs: the stall of the step loop, the digests' share of a save, the overhead of `save.every: auto`.

A larger real model (`STOKER_CAMPAIGN_WIDTH`) is trained in full. First `--n` saves, one every few steps, in the
background: a stall of at most one step (median; the worst is told), digests (those of the read-back as well) at most a
tenth of a save, and what one save really took from training against the interval the engine chose from its own
estimate: at most 3.5 %. Then the same training with `save.every: auto`, where failures are so frequent that its cap
alone decides, and with no save at all: the part of the time that is not steps may differ by at most 3.5 %. No control.
"""

import datetime
import os
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign

from stoker.facts import failures
from stoker.plan import save_interval
from stoker.rundir import events, files

WIDTH = int(os.environ.get("STOKER_CAMPAIGN_WIDTH", 512))
STEPS_BETWEEN = 12
AUTO_SECONDS = 240.0
"""Of training with `save.every: auto`, and without saves."""
BETWEEN_FAILURES_SECONDS = 60.0
"""So often that Young's rule wants more saves than the cap allows: the most they may ever take."""
PLACES = ("local", "colab", "sky")
NEVER = 10**6
DIGEST_SHARE = 0.1


def run(campaign: Campaign) -> None:
    base = _model(campaign.folder / "base")
    dense = _train(campaign, base, "dense", f"{STEPS_BETWEEN} steps", STEPS_BETWEEN * campaign.n)
    if dense is None:
        return
    step = _measure(campaign, dense)
    steps = max(10, round(AUTO_SECONDS / step))
    shares = {}
    for name, every in (("none", f"{NEVER} steps"), ("auto", "auto")):
        said = _train(campaign, base, name, every, steps)
        if said is None:
            return
        shares[name] = _not_steps(campaign, name, said)
    overhead = shares["auto"] - shares["none"]
    campaign.measured["overhead_percent_of_a_run_with_auto"] = round(100 * overhead, 2)
    if overhead > save_interval.OVERHEAD_CAP:
        campaign.fail(["auto"], f"{100 * overhead:.2f} % of the time")


def _train(campaign: Campaign, base: Path, name: str, every: str, steps: int) -> list[dict[str, Any]] | None:
    """Train in full; all events, or none where it failed."""
    words = trainings.text(
        base,
        method="full",
        data="{train: rows.jsonl, length: 64, pack: true}",
        train=f"{{batch: 8, steps: {steps}, learning_rate: 1e-4}}",
        save=f"{{every: {every}, keep: 2}}",
        where="{micro: 4}",
    )
    run_dir = trainings.make(campaign.folder / name, words, rows=64)
    plan = files.read_json(run_dir.plan_file)
    plan["intervals"]["between_failures_seconds"] = BETWEEN_FAILURES_SECONDS
    files.write_json(run_dir.plan_file, plan)
    code = trainings.start(run_dir, before=_timed).wait(seconds=7200)
    said = list(events.read(run_dir.events_file))
    if code != 0:
        campaign.fail([name], trainings.log_of(run_dir))
    shutil.rmtree(run_dir.checkpoints)
    shutil.rmtree(run_dir.artifacts, ignore_errors=True)
    return said if code == 0 else None


def _not_steps(campaign: Campaign, name: str, said: list[dict[str, Any]]) -> float:
    """The part of the time between the first and the last step that undisturbed steps do not explain."""
    steps = [event for event in said if event["event"] == "step"]
    whole = _at(steps[-1]) - _at(steps[0])
    alone, _ = _steps(said)
    share = 1 - (len(steps) - 1) * statistics.mean(_middle(alone)) / whole
    inner = sum(event["event"] == "checkpoint" and event["step"] < steps[-1]["step"] for event in said)
    campaign.measured[f"run_{name}"] = {
        "seconds": round(whole, 1),
        "steps": len(steps),
        "saves": inner,
        "seconds_between_saves": round(whole / (inner + 1), 1),
        "not_steps_percent": round(100 * share, 2),
    }
    return share


def _middle(values: list[float]) -> list[float]:
    """Without the tenth at either end: what a shared machine does now and then."""
    cut = len(values) // 10
    return sorted(values)[cut : len(values) - cut]


def _at(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["at"]).timestamp()


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
    spent = {"digest": 0.0, "read_back": 0.0}
    lock = threading.Lock()

    def digest(*args: Any, **kwargs: Any) -> str:
        started = time.thread_time()
        found = plain_digest(*args, **kwargs)
        with lock:
            spent["read_back" if kwargs.get("from_disk") else "digest"] += time.thread_time() - started
        return found

    def save(self: Any, job: Any) -> None:
        spent.update(digest=0.0, read_back=0.0)
        self.events.write("save_begins", step=job.step)
        started = time.perf_counter()
        plain_save(self, job)
        seconds = time.perf_counter() - started
        digests = {f"{name}_seconds": taken for name, taken in spent.items()}
        estimate = {"cost_seconds": self.cost_seconds, "write_seconds": self._write_seconds}
        self.events.write("save_ends", step=job.step, seconds=seconds, **digests, **estimate)

    engine.Saver._save = save  # type: ignore[method-assign]
    files.sha256 = digest  # type: ignore[assignment]


def _steps(said: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds of steps with no save beside them, and of those with one."""
    alone: list[float] = []
    beside: list[float] = []
    writing = touched = False
    for event in said:
        if event["event"] == "save_begins":
            writing = touched = True
        elif event["event"] == "save_ends":
            writing = False
        elif event["event"] == "step":
            if event["step"] > 2:
                (beside if touched else alone).append(event["seconds"])
            touched = writing
    return alone, beside


def _measure(campaign: Campaign, said: list[dict[str, Any]]) -> float:
    """What one save takes, and whether that is within the bars; the seconds of a step."""
    saves = [event for event in said if event["event"] == "save_ends"]
    stalls = [event["stall_seconds"] for event in said if event["event"] == "checkpoint"]
    for _ in stalls:
        campaign.case()
    alone, beside = _steps(said)
    step, stall = statistics.median(alone), statistics.median(stalls)
    slower = max(0.0, sum(beside) - len(beside) * statistics.mean(_middle(alone))) / len(saves)
    cost = statistics.mean(stalls) + slower
    campaign.measured |= {
        "checkpoint_bytes": next(event["bytes"] for event in said if event["event"] == "checkpoint"),
        "step_seconds_median": round(step, 4),
        "stall_seconds_median": round(stall, 4),
        "stall_seconds_worst": round(max(stalls), 4),
        "stall_in_steps": round(stall / step, 3),
        "stall_in_steps_worst": round(max(stalls) / step, 3),
        "write_seconds_median": round(statistics.median(s["seconds"] for s in saves), 3),
        "digest_share_of_a_save": _share(saves, "digest_seconds", "read_back_seconds"),
        "digest_share_of_reading_back": _share(saves, "read_back_seconds"),
        "slower_steps_seconds_per_save": round(slower, 3),
        "cost_seconds_per_save": round(cost, 3),
        "cost_seconds_the_engine_saw": round(statistics.median(s["cost_seconds"] for s in saves), 3),
    }
    for place in PLACES:
        _compare(campaign, place, cost, saves)
    if stall > step:
        campaign.fail(["stall"], f"{stall:.3f} s against a step of {step:.3f} s")
    if campaign.measured["digest_share_of_a_save"] > DIGEST_SHARE:
        campaign.fail(["digest"], f"{campaign.measured['digest_share_of_a_save']:.1%} of a save")
    return step


def _share(saves: list[dict[str, Any]], *names: str) -> float:
    return round(sum(save[name] for save in saves for name in names) / sum(save["seconds"] for save in saves), 3)


def _compare(campaign: Campaign, place: str, cost: float, saves: list[dict[str, Any]]) -> None:
    """What a save took, measured from outside, against the interval that the engine took from its own estimate."""
    between = failures.seconds_between(place, 1)
    chosen = [save_interval.interval_seconds(one["cost_seconds"], between, one["write_seconds"]) for one in saves]
    interval = statistics.mean(chosen)
    campaign.measured[f"interval_seconds_{place}"] = round(interval, 1)
    campaign.measured[f"overhead_percent_{place}"] = round(100 * cost / interval, 3)
    if cost / interval > save_interval.OVERHEAD_CAP:
        campaign.fail([place], f"{100 * cost / interval:.2f} % at {place}")
