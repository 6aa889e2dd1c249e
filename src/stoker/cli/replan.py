"""`stoker replan`: after a run ran out of memory, the next rung of the ladder. Started by the supervisor."""

from contextlib import closing

from stoker.cli import console
from stoker.errors import StokerError
from stoker.launch import gather
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan, Rung
from stoker.rundir import files, layout
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir


def replan(name: str, step: int) -> None:
    """Write a plan that needs less memory with the same batch and length, and note both."""
    run_dir = layout.find(name)
    with closing(EventLog(run_dir.events_file)) as events:
        try:
            before, after = _replan(run_dir, step)
        except StokerError as error:
            events.error(error, "supervisor")
            raise
        events.write("replan", step=step, before=_cut(before), after=_cut(after))
    console.talk("train.replanned", changes=changes(_cut(before), _cut(after)))


def _replan(run_dir: RunDir, step: int) -> tuple[Plan, Plan]:
    before = files.read_record(run_dir.plan_file, Plan)
    failed = Rung(
        strategy=before.strategy,
        gradient_checkpointing=before.gradient_checkpointing,
        micro=before.batch.micro,
        card=before.card,
        step=step,
    )
    noted = before.model_copy(update={"out_of_memory": [*before.out_of_memory, failed]})
    files.write_json(run_dir.plan_file, noted.model_dump())
    run_file = run_dir.file()
    after = make_plan(gather.inputs(run_file, run_dir, gather.machine(None, run_file.run)))
    files.write_json(run_dir.plan_file, after.model_dump())
    return before, after


def _cut(plan: Plan) -> dict[str, object]:
    """How the work is cut to the memory."""
    return {
        "micro": plan.batch.micro,
        "accumulation": plan.batch.accumulation,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "strategy": plan.strategy,
    }


def changes(before: dict[str, object], after: dict[str, object]) -> str:
    """`micro 8 -> 4, accumulation 1 -> 2`."""
    return ", ".join(f"{key} {before[key]} -> {after[key]}" for key in before if before[key] != after[key])
