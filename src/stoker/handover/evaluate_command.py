"""`stoker eval`: eval loss, answers to task files, samples before and after, win rate, the harness' own tasks."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.artifacts import exclusive, harness
from stoker.config import load, objectives
from stoker.config.run import Shape
from stoker.errors import StokerError
from stoker.handover import artifact_commands, judges, win_rate, writing_models
from stoker.handover.judges import Judge
from stoker.launch import programs
from stoker.plan.plan import Plan
from stoker.report import sample_words
from stoker.rundir import artifacts, checkpoints, files, layout, prepared
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.terminal import console, objective_words

LOADABLE = ("final", "merged", "export", "int8")
"""Artifacts that transformers loads in Stoker's own environment."""
_FIGURES = ("eval_loss", "perplexity", "figures", "trained_tokens", "sequences", "seconds")
_TASK = ("task", "measure", "rows", "right", "answers", "seconds")
_SENTENCES = {"exact_match": "eval.exact_match", "multiple_choice": "eval.multiple_choice"}
_SAMPLE = ("prompt", "wanted", "before", "after")
_PAIRS = 100
"""That a judge compares, unless `--samples` says another number."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What to measure beside the loss."""

    artifact: str | None
    tasks: list[str]
    samples: int
    harness: str | None
    judge: str | None

    @property
    def pairs(self) -> int:
        """That a judge compares."""
        return self.samples or _PAIRS


def evaluate(name: str, asked: EvaluationRequest, *, as_json: bool) -> None:
    """Evaluate a run's model and print the results."""
    run_dir = layout.find(name)
    if asked.tasks or asked.samples or asked.harness or asked.judge:
        writing_models.require(run_dir, "stoker eval --task/--samples/--judge/--harness")
    check_artifact(run_dir, asked.artifact)
    with exclusive.evaluating(run_dir):
        found = _evaluated(run_dir, asked)
    if as_json:
        console.data_json(found)
        return
    for line in lines(found):
        console.data(line)


def _evaluated(run_dir: RunDir, asked: EvaluationRequest) -> dict[str, Any]:
    judge = _judge(run_dir, asked) if asked.judge else None
    alone = asked.judge and not asked.tasks
    found = {} if alone or (asked.harness and not _own_work(run_dir, asked)) else _measure(run_dir, asked)
    if judge:
        found["win_rate"] = _compared(run_dir, asked, judge)
    if asked.harness:
        found["harness"] = _harness(run_dir, asked.artifact, asked.harness)
    return found


def check_artifact(run_dir: RunDir, artifact: str | None) -> None:
    """The artifact exists, and transformers can load it; without one, training has made something."""
    if artifact is None:
        if not run_dir.final.is_dir() and not checkpoints.committed(run_dir.checkpoints):
            raise StokerError("STK502", name=run_dir.name)
        return
    folder = run_dir.artifacts
    there = sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())
    if artifact not in there:
        raise StokerError("STK617", name=run_dir.name, artifact=artifact, there=there or "-")
    if artifact not in LOADABLE:
        raise StokerError("STK510", artifact=artifact, choices=list(LOADABLE))


def _judge(run_dir: RunDir, asked: EvaluationRequest) -> Judge:
    """Who judges; what it needs is looked at before anything is generated."""
    run, name = run_dir.run(), str(asked.judge)
    if asked.artifact:
        raise StokerError("STK506", problem=messages.text("eval.judge_artifact"), command="stoker eval")
    if isinstance(run.model, Shape) or objectives.facts(run.train.objective).trains_all:
        raise StokerError("STK524", name=run_dir.name)
    report = prepared.read_report(run_dir.data)
    if report is None or report.eval is None:
        raise StokerError("STK503", name=run_dir.name)
    judge = judges.find(name)
    if judge.host:
        console.talk("eval.sent", host=judge.host, pairs=asked.pairs)
    judge.check()
    return judge


def _compared(run_dir: RunDir, asked: EvaluationRequest, judge: Judge) -> dict[str, Any]:
    """The win rate, with the file that has all answers and verdicts."""
    name = str(asked.judge)
    kept = run_dir.evals / f"judged-{load.run_name(name.replace('/', '-'))}.jsonl"
    with console.status() as status:

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "evaluating":
                status.show(messages.text("eval.answered", done=event["done"], of=event["of"]))

        programs.run_engine("evaluate", run_dir, show, json.dumps({"pairs": asked.pairs}))
        status.show(messages.text("eval.judging", judge=name))
        found = win_rate.measure(
            name,
            judge,
            run_dir.evals / f"pairs-{asked.pairs}.json",
            kept,
            lambda done, of: status.show(messages.text("eval.judged", judge=name, done=done, of=of)),
        )
    figures = {"judge": name, "host": judge.host, **found.to_json()}
    counted = sum(figures[key] for key in ("wins", "ties", "losses", "unjudged"))
    if counted < asked.pairs:
        console.talk("eval.fewer", there=counted, asked=asked.pairs)
    with closing(EventLog(run_dir.events_file)) as log:
        log.write("judged", **figures, file=kept.name)
    return {**figures, "answers": str(kept)}


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
                found.update({key: event[key] for key in _FIGURES if event.get(key) is not None})
            elif event["event"] == "evaluating":
                status.show(messages.text("eval.progress", **{key: event[key] for key in ("task", "done", "of")}))
            elif event["event"] == "task":
                found.setdefault("tasks", []).append({key: event[key] for key in _TASK})
            elif event["event"] == "sample":
                found.setdefault("samples", []).append({key: event[key] for key in (*_SAMPLE, "turns") if key in event})

        samples = 0 if asked.judge else asked.samples
        words = {"artifact": asked.artifact, "tasks": asked.tasks, "samples": samples}
        programs.run_engine("evaluate", run_dir, take, json.dumps(words))
    return found


def _harness(run_dir: RunDir, artifact: str | None, task_names: str) -> dict[str, Any]:
    """Run the harness; it loads whole models only, so an adapter is merged first."""
    folder = artifacts.folder(run_dir, artifact) if artifact else run_dir.final
    if artifact_commands.has_adapter(run_dir) and artifact in (None, "final"):
        folder = artifact_commands.merged(run_dir) or _merged_now(run_dir)
    plan = files.read_record(run_dir.plan_file, Plan)
    chat = not objectives.facts(run_dir.run().train.objective).trains_all and (folder / "chat_template.jinja").is_file()
    console.talk("eval.harness", folder=folder)
    return harness.run(run_dir, folder, task_names, plan.device, chat=chat)


def _merged_now(run_dir: RunDir) -> Path:
    with exclusive.making(run_dir):
        return artifact_commands.make_merged(run_dir)


def lines(found: dict[str, Any]) -> list[str]:
    """The results as lines of text."""
    said = []
    if "figures" in found:
        fields = {"loss": f"{found['eval_loss']:.4f}", "rows": found["sequences"]}
        said.append(messages.text("eval.figures", **fields, figures=objective_words.figures(found["figures"])))
    elif "eval_loss" in found:
        fields = {"loss": f"{found['eval_loss']:.4f}", "perplexity": f"{found['perplexity']:.2f}"}
        said.append(messages.text("eval.line", **fields, tokens=found["trained_tokens"]))
    for task in found.get("tasks", []):
        fields = {key: task[key] for key in ("task", "right", "rows", "answers")}
        said.append(messages.text(_SENTENCES[task["measure"]], **fields, share=f"{task['right'] / task['rows']:.1%}"))
    for sample in found.get("samples", []):
        shown = {**sample, "prompt": sample_words.asked(sample)}
        said += ["", *(messages.text(f"eval.sample.{key}", text=shown[key]) for key in _SAMPLE if key in shown)]
    if "win_rate" in found:
        said += [
            sample_words.win_rate(found["win_rate"]),
            messages.text("eval.kept", path=found["win_rate"]["answers"]),
        ]
    for task, figures in found.get("harness", {}).items():
        said += [f"{task}  {key}  {value:.4f}" for key, value in figures.items() if isinstance(value, float)]
    return said
