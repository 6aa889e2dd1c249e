"""The model card of an export: front matter for the hub, then one table in English and the same in Chinese.

Everything in it was recorded by the run: nothing is asked, measured or guessed here.
"""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from stoker import messages
from stoker.api import figures
from stoker.config import mixing
from stoker.config.run import Run, Shape
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.rundir import events, files, inputs, layout, prepared
from stoker.rundir.layout import RunDir

FILE_NAME = "README.md"
_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
_LAST_STEPS = 10
_ADAPTER_LIBRARY = "peft"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""What can be one: every other name is a path, or another run."""
_PUBLIC = ("hub:", "modelscope:", "recipe:")
"""What everybody can look up is named whole; folders, buckets and hosts are the user's own."""
_SAME_WEIGHTS = (None, "final", "merged", "export")


@dataclass(frozen=True)
class CardKind:
    """What is described, and how it is loaded."""

    library: str
    """The hub's name of the library that reads the files."""
    use: str
    """Key of the sentence that says how to use them."""


WHOLE = CardKind("transformers", "card.use")


def is_ours(folder: Path) -> bool:
    """Whether a folder holds an export made by Stoker, by its card."""
    path = folder / FILE_NAME
    return path.is_file() and "\nstoker:\n" in path.read_text(encoding="utf-8", errors="replace").partition("\n---")[0]


def text(run_dir: RunDir, exported: dict[str, Any], parity: dict[str, Any] | None, kind: CardKind = WHOLE) -> str:
    """The card.

    Args:
        run_dir: The run.
        exported: The `exported` event: dtype, bytes, licence.
        parity: How the export compares with the trained model; None where it is the trained model.
        kind: What is exported.
    """
    run = run_dir.run()
    rows = _rows(run_dir, run, exported, parity)
    head = f"---\n{_front_matter(run_dir, run, exported, kind)}---\n\n# {run_dir.name}\n"
    return "\n".join([head, *(_section(language, run_dir, rows, kind) for language in ("en", "zh"))])


def hub_id(run_dir: RunDir) -> str | None:
    """The hub's id of the model that was loaded; None of a folder, of what another run made, and of no model."""
    model = run_dir.run().model
    if isinstance(model, Shape) or not _HUB_ID.fullmatch(model):
        return None
    # The plan remembers a folder that was moved or deleted since.
    made = files.read_record(run_dir.plan_file, Plan) if run_dir.plan_file.exists() else None
    is_folder = (made is not None and made.model.origin == "local") or (run_dir.folder() / model).exists()
    return None if is_folder else model


def first_hub_id(run_dir: RunDir) -> str | None:
    """The same, of the first run where each was trained on what the one before it made."""
    seen: set[str] = set()
    while isinstance(model := run_dir.run().model, str) and model.startswith(inputs.EARLIER_RUN):
        if model in seen:  # a name was used again: what it was then is not known
            return None
        seen.add(model)
        try:
            run_dir = layout.find(model.removeprefix(inputs.EARLIER_RUN))
        except StokerError:  # it is gone
            return None
    return hub_id(run_dir)


def _base_id(run_dir: RunDir, kind: CardKind) -> str | None:
    """The base model's id; an adapter fits the very model it was trained on, and none that came before."""
    return hub_id(run_dir) if kind.library == _ADAPTER_LIBRARY else first_hub_id(run_dir)


def _base_label(run_dir: RunDir, kind: CardKind) -> str | None:
    """What the text calls the base model: no path of this machine."""
    model = run_dir.run().model
    if isinstance(model, Shape):
        return None
    return _base_id(run_dir, kind) or _last(model.removeprefix(inputs.EARLIER_RUN))


def _last(path: str) -> str:
    """The last part of a path of any system: a run may have been written on another."""
    return PureWindowsPath(path).name


def losses(run_dir: RunDir) -> dict[str, float]:
    """Measured: the mean training loss of the last steps, and the newest eval loss."""
    steps = events.newest_steps(run_dir.events_file, _LAST_STEPS)
    known = [loss for step in sorted(steps) if (loss := events.loss(steps[step])) is not None]
    last = known[-_LAST_STEPS:]
    found = {"train": sum(last) / len(last), "steps": float(len(last))} if last else {}
    measured = [event["eval_loss"] for event in _measured(run_dir) if _is_eval(event)]
    if measured:
        found["eval"] = min(measured) if run_dir.run().save.best else measured[-1]
    return found


def _measured(run_dir: RunDir) -> list[dict[str, Any]]:
    """What training measured on its way, and what `stoker eval` did since the last step: of these very weights."""
    on_the_way: list[dict[str, Any]] = []
    since: list[dict[str, Any]] = []
    for event in events.skim(run_dir.events_file):
        if event["event"] == "step":
            since.clear()
        elif event["event"] == "eval":
            on_the_way.append(event)
        elif event["event"] in ("evaluated", "task"):
            since.append(event)
    return [*on_the_way, *since]


def _is_eval(event: dict[str, Any]) -> bool:
    """Whether it was measured on these weights: quantised ones do not count."""
    if not isinstance(event.get("eval_loss"), float):
        return False
    return event["event"] == "eval" or (event["event"] == "evaluated" and event.get("artifact") in _SAME_WEIGHTS)


def _front_matter(run_dir: RunDir, run: Run, exported: dict[str, Any], kind: CardKind) -> str:
    base, manifest = _base_id(run_dir, kind), run_dir.manifest()
    hub = [source.path.partition(":")[2] for source in inputs.train_sources(run) if source.path.startswith("hub:")]
    fields = {
        **({"base_model": base} if base else {}),
        **exported["licence"],
        **({"datasets": hub} if hub else {}),
        "library_name": kind.library,
        "pipeline_tag": "text-generation",
        "tags": ["stoker", run.tune.method],
        "stoker": {"version": manifest.stoker_version, "data_digest": manifest.data_digest},
    }
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _section(language: str, run_dir: RunDir, rows: list[tuple[str, dict[str, Any]]], kind: CardKind) -> str:
    said, run = functools.partial(messages.in_language, language), run_dir.run()
    origin = "scratch" if isinstance(run.model, Shape) else "tuned"
    lines = [
        said("card.title"),
        "",
        said(f"card.{origin}", base=_base_label(run_dir, kind)),
        "",
        "| | |",
        "|---|---|",
        *(f"| {said(f'card.{key}')} | {said(f'card.{key}_value', **fields)} |" for key, fields in rows),
        "",
        said(kind.use, name=run_dir.name),
        "",
    ]
    return "\n".join(lines)


def _rows(
    run_dir: RunDir, run: Run, exported: dict[str, Any], parity: dict[str, Any] | None
) -> list[tuple[str, dict[str, Any]]]:
    plan = files.read_record(run_dir.plan_file, Plan)
    measured = losses(run_dir)
    rows = [
        ("method", {"method": _method(run, plan)}),
        ("training", _training(run, plan)),
        ("data", _data(run_dir, run)),
    ]
    if plan.sources:
        seen = [(one.name.rpartition("\\")[2], one.tokens) for one in plan.sources]
        rows.append(("mixture", {"sources": [f"`{name}` {tokens:,}" for name, tokens in seen]}))
    if origin := run_dir.manifest().forked_from:
        rows.append(("fork", {"run": origin["run"], "step": origin["step"]}))
    if "train" in measured:
        rows.append(("train_loss", {"loss": f"{measured['train']:.4f}", "steps": f"{measured['steps']:.0f}"}))
    if "eval" in measured:
        rows.append(("eval_loss", {"loss": f"{measured['eval']:.4f}"}))
    if scores := _scores(run_dir):
        rows.append(("tasks", {"scores": scores}))
    rows.append(("weights", {"dtype": exported["dtype"], "size": figures.size(exported["bytes"])}))
    if parity is not None:
        counts = {key: f"{parity[key]:,}" for key in ("prompts", "agree", "tokens")}
        rows.append(("same", {**counts, "distance": f"{parity['logit_distance']:.0e}"}))
    return [
        *rows,
        ("made", {"versions": _versions(run_dir), "card": plan.card}),
    ]


def _scores(run_dir: RunDir) -> list[str]:
    """The newest result of each task that these weights were measured by: its file's name, not its folder."""
    found = {
        event["task"]: f"{event['right']:,} / {event['rows']:,}"
        for event in _measured(run_dir)
        if event["event"] == "task" and event.get("artifact") in _SAME_WEIGHTS
    }
    return [f"`{Path(task).name}` {score}" for task, score in found.items()]


def _method(run: Run, plan: Plan) -> str:
    """The method with all options of the adapter."""
    options = {**plan.native.lora, **plan.native.quantization}
    said = (f"{key} {_plain(value)}" for key, value in options.items() if key != "task_type")
    return ", ".join([run.tune.method, *said])


def _training(run: Run, plan: Plan) -> dict[str, Any]:
    train, epochs = run.train, plan.steps.total / plan.steps.per_epoch
    return {
        "objective": train.objective,
        "steps": plan.steps.total,
        "epochs": round(epochs, 2) if epochs % 1 else int(epochs),
        "batch": plan.batch.effective,
        "length": run.data.length,
        "rate": f"{train.learning_rate:g}",
        "schedule": train.schedule,
        "warmup": plan.steps.warmup,
        "precision": plan.precision,
        "seed": train.seed,
    }


def _data(run_dir: RunDir, run: Run) -> dict[str, Any]:
    paths = [source.path for source in inputs.train_sources(run)] or mixing.set_paths(run.data)
    names = [path if path.startswith(_PUBLIC) else _last(path) for path in paths]
    report = prepared.read_report(run_dir.data)
    return {
        "sources": [f"`{name}`" for name in names],
        "rows": f"{report.rows_read:,}" if report else "?",
        "trained": f"{report.train.segments:,}" if report else "?",
        "tokens": f"{report.train.tokens:,}" if report else "?",
        "digest": report.digest if report else "?",
    }


def _versions(run_dir: RunDir) -> list[str]:
    manifest = run_dir.manifest()
    found = {"stoker": manifest.stoker_version, **manifest.versions}
    return [f"{name} {found[name]}" for name in ("stoker", *_PACKAGES) if name in found]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
