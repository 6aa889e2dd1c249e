"""What `stoker train` is about to do, in three lines: what is trained, where and for how much, saves and the end.

A fourth one says that rows are left out, are repeated or stand in eval, too, where some do.
"""

from pathlib import Path

from stoker import messages
from stoker.api import figures, plan_page
from stoker.config import values
from stoker.config.run import Full, Run
from stoker.plan.plan import Plan
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.survey import findings

_EVERY = {"epoch": "outlook.each_epoch", "auto": "outlook.auto", "never": "outlook.never"}
_AFTER = {"stop": "outlook.after_stop", "release": "outlook.after_release"}


def lines(run: Run, made: Plan, run_dir: RunDir) -> list[str]:
    """The three lines; after what is trained, what is the matter with the rows, if anything is."""
    report = prepared.read_report(run_dir.data)
    return [_what(run, made), *(rows_found(report) if report else []), _where(made), _end(made, run_dir)]


def rows_found(report: Report) -> list[str]:
    """In one line the rows that cannot be used, that repeat others, and that stand in eval, too; none without such."""
    surveyed = findings.read(report.model_dump())
    counts = {"outlook.rows.bad": report.bad_rows}
    if surveyed and surveyed.policy == "drop":
        counts["outlook.rows.dropped"] = surveyed.dropped_rows
    elif surveyed:
        repeated = (surveyed.duplicates or {}).get("train")
        counts["outlook.rows.duplicates"] = repeated.count if repeated else 0
        counts["outlook.rows.leaks"] = surveyed.leaks.count if surveyed.leaks else 0
    read = f"{report.rows_read:,}"
    said = [messages.text(key, count=f"{count:,}", rows=read) for key, count in counts.items() if count]
    return [messages.text("outlook.rows", found=messages.text("list.semicolon").join(said))] if said else []


def uncertain(made: Plan) -> list[str]:
    """What one should know before paying: how it resumes, whether it fits and learns, what is installed, estimated."""
    fits = dict(plan_page.rows_of(made))[messages.text("plan.fits_row")]
    setup = [reason.text for reason in made.reasons if reason.about == "setup"]
    resumed = [plan_page.resume_text(made.resume)] if made.resume else []
    said = [*setup, *plan_page.length_remarks(made.reasons), *plan_page.estimated_remark(made)]
    return [*resumed, *([] if made.fits == "yes" else [fits]), *said]


def _what(run: Run, made: Plan) -> str:
    fields = {
        "parameters": figures.millions(made.model.parameters),
        "sequences": f"{made.data.sequences:,}",
        "tokens": f"{made.data.tokens:,}",
        "batch": made.batch.effective,
        "steps": plan_page.steps_text(made.steps),
    }
    if not isinstance(run.model, str):
        return messages.text("outlook.scratch", model=run.model.shape, **fields)
    method = run.tune.method if isinstance(run.tune, Full) else f"{run.tune.method}, rank {run.tune.rank}"
    name = Path(run.model).name if Path(run.model).is_absolute() else run.model
    trainable = figures.millions(made.model.trainable_parameters)
    return messages.text("outlook.tuned", model=name, method=method, trainable=trainable, **fields)


def _where(made: Plan) -> str:
    card = f"{made.batch.devices} x {made.card}" if made.batch.devices > 1 else made.card
    rows = dict(plan_page.rows_of(made))
    label = messages.text("plan.main_memory" if made.device == "cpu" else "plan.memory")
    said = [figures.time_range((made.time_seconds, *made.time_seconds_range))]
    if made.cost:
        said.append(figures.paid(made.cost))
    elif made.device == "cuda":
        said.append(messages.text("plan.no_price"))
    return messages.text("outlook.where", card=card, figures=said, label=label, memory=rows[label])


def _end(made: Plan, run_dir: RunDir) -> str:
    said = [messages.text("outlook.saves", every=_every(made.intervals.save))]
    if made.store:
        said.append(messages.text("outlook.store", store=made.store))
    if made.intervals.evaluate != "never":
        said.append(messages.text("outlook.evals", every=_every(made.intervals.evaluate)))
    said.append(messages.text("outlook.model", path=run_dir.final))
    if made.after in _AFTER:
        said.append(messages.text(_AFTER[made.after]))
    elif made.cost and made.platform:
        said.append(messages.text("outlook.after_stay"))
    return messages.text("list.semicolon").join(said)


def _every(interval: str) -> str:
    every = values.every(interval)
    if every.kind == "steps":
        return messages.text("outlook.each_steps", steps=f"{every.amount:.0f}")
    if every.kind == "seconds":
        return messages.text("outlook.each_time", time=figures.limit(every.amount))
    return messages.text(_EVERY[every.kind])
