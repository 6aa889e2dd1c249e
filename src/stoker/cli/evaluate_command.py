"""`stoker eval`: loss on the eval split, answers to task files, samples before and after, the harness' own tasks."""

import json
from dataclasses import dataclass
from typing import Any

from stoker import messages
from stoker.artifacts import harness
from stoker.cli import artifact_commands
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, files, layout, prepared
from stoker.rundir.layout import RunDir
from stoker.terminal import console

LOADABLE = ("final", "merged", "export", "int8")
"""Artifacts that transformers loads in Stoker's own environment."""
_FIGURES = ("eval_loss", "perplexity", "trained_tokens", "sequences", "seconds")
_TASK = ("task", "measure", "rows", "right", "answers", "seconds")
_SENTENCES = {"exact_match": "eval.exact_match", "multiple_choice": "eval.multiple_choice"}
_SAMPLE = ("prompt", "wanted", "before", "after")


@dataclass(frozen=True)
class EvaluationRequest:
    """What to measure beside the loss."""

    artifact: str | None
    tasks: list[str]
    samples: int
    harness: str | None


def evaluate(name: str, asked: EvaluationRequest, *, as_json: bool) -> None:
    """Evaluate a run's model and print the results."""
    run_dir = layout.find(name)
    check_artifact(run_dir, asked.artifact)
    found = {} if asked.harness and not _own_work(run_dir, asked) else _measure(run_dir, asked)
    if asked.harness:
        found["harness"] = _harness(run_dir, asked.artifact, asked.harness)
    if as_json:
        console.data_json(found)
        return
    for line in lines(found):
        console.data(line)


def check_artifact(run_dir: RunDir, artifact: str | None) -> None:
    """The artifact exists, and transformers can load it."""
    if artifact is None:
        return
    folder = run_dir.artifacts
    there = sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())
    if artifact not in there:
        raise StokerError("STK617", name=run_dir.name, artifact=artifact, there=there or "-")
    if artifact not in LOADABLE:
        raise StokerError("STK510", artifact=artifact, choices=list(LOADABLE))


def _own_work(run_dir: RunDir, asked: EvaluationRequest) -> bool:
    """Whether there is anything to measure beside the harness' tasks."""
    report = prepared.read_report(run_dir.data)
    return bool(asked.tasks or asked.samples or (report and report.eval))


def _measure(run_dir: RunDir, asked: EvaluationRequest) -> dict[str, Any]:
    """Run the eval program and collect its results."""
    found: dict[str, Any] = {}
    with console.status() as status:

        def take(event: dict[str, Any]) -> None:
            if event["event"] == "evaluated":
                found.update({key: event[key] for key in _FIGURES})
            elif event["event"] == "evaluating":
                status.show(messages.text("eval.progress", **{key: event[key] for key in ("task", "done", "of")}))
            elif event["event"] == "task":
                found.setdefault("tasks", []).append({key: event[key] for key in _TASK})
            elif event["event"] == "sample":
                found.setdefault("samples", []).append({key: event[key] for key in _SAMPLE if key in event})

        words = {"artifact": asked.artifact, "tasks": asked.tasks, "samples": asked.samples}
        programs.run_engine("evaluate", run_dir, take, json.dumps(words))
    return found


def _harness(run_dir: RunDir, artifact: str | None, task_names: str) -> dict[str, Any]:
    """Run the harness; it loads whole models only, so an adapter is merged first."""
    folder = artifacts.folder(run_dir, artifact) if artifact else run_dir.final
    if artifact_commands.has_adapter(run_dir) and artifact in (None, "final"):
        folder = artifact_commands.merged(run_dir) or artifact_commands.make_merged(run_dir)
    plan = files.read_record(run_dir.plan_file, Plan)
    chat = run_dir.run().train.objective != "pretrain" and (folder / "chat_template.jinja").is_file()
    console.talk("eval.harness", folder=folder)
    return harness.run(run_dir, folder, task_names, plan.device, chat=chat)


def lines(found: dict[str, Any]) -> list[str]:
    """The results as lines of text."""
    said = []
    if "eval_loss" in found:
        fields = {"loss": f"{found['eval_loss']:.4f}", "perplexity": f"{found['perplexity']:.2f}"}
        said.append(messages.text("eval.line", **fields, tokens=found["trained_tokens"]))
    for task in found.get("tasks", []):
        fields = {key: task[key] for key in ("task", "right", "rows", "answers")}
        said.append(messages.text(_SENTENCES[task["measure"]], **fields, share=f"{task['right'] / task['rows']:.1%}"))
    for sample in found.get("samples", []):
        said += ["", *(messages.text(f"eval.sample.{key}", text=sample[key]) for key in _SAMPLE if key in sample)]
    for task, figures in found.get("harness", {}).items():
        said += [f"{task}  {key}  {value:.4f}" for key, value in figures.items() if isinstance(value, float)]
    return said
