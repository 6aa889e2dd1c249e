"""Plans a run anew after it ran out of memory, or for other machines: same batch and length. For the supervisor."""

from contextlib import closing

from stoker.api.planning import require_possible
from stoker.errors import StokerError
from stoker.launch import nodes, plan_inputs
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan, Rung
from stoker.rundir import files
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir


def replan(run_dir: RunDir, step: int, together: set[str] | None) -> tuple[str, list[str]]:
    """Write a plan that needs less memory, or one for these machines, and an event about it; says what changed."""
    with closing(EventLog(run_dir.events_file)) as events:
        try:
            before, after = _less_memory(run_dir, step) if together is None else _regroup(run_dir, together)
        except StokerError as error:
            events.error(error, "supervisor")
            raise
        events.write("replan", step=step, before=_cut(before), after=_cut(after))
    return said(_cut(before), _cut(after))


def _less_memory(run_dir: RunDir, step: int) -> tuple[Plan, Plan]:
    """The plan of the next rung of the ladder, with the one that failed noted in it."""
    before = files.read_record(run_dir.plan_file, Plan)
    failed = Rung(
        strategy=before.strategy,
        gradient_checkpointing=before.gradient_checkpointing,
        offload_activations=before.offload_activations,
        micro=before.batch.micro,
        card=before.card,
        step=step,
    )
    noted = before.model_copy(update={"out_of_memory": [*before.out_of_memory, failed]})
    files.write_json(run_dir.plan_file, noted.model_dump())
    after = _planned(run_dir)
    files.write_json(run_dir.plan_file, after.model_dump())
    return before, after


def _regroup(run_dir: RunDir, together: set[str]) -> tuple[Plan, Plan]:
    """The plan for the named machines of the run; where there is none, nothing changes."""
    before, record = files.read_record(run_dir.plan_file, Plan), nodes.read(run_dir.nodes_file)
    assert record is not None
    nodes.write(run_dir.nodes_file, record.only(together))
    try:
        after = _planned(run_dir)
        require_possible(run_dir.run(), after)
    except StokerError:
        nodes.write(run_dir.nodes_file, record)
        raise
    files.write_json(run_dir.plan_file, after.model_dump())
    return before, after


def _planned(run_dir: RunDir) -> Plan:
    run_file = run_dir.file()
    return make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run, run_dir)))


def _cut(plan: Plan) -> dict[str, object]:
    """How a step is split."""
    return {
        "micro": plan.batch.micro,
        "accumulation": plan.batch.accumulation,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "offload_activations": plan.offload_activations,
        "strategy": plan.strategy,
        "devices": plan.batch.devices,
    }


def said(before: dict[str, object], after: dict[str, object]) -> tuple[str, list[str]]:
    """The sentence that says why the plan changed, and how: `micro 8 -> 4`, `accumulation 1 -> 2`."""
    key = "train.replanned" if before["devices"] == after["devices"] else "train.regrouped"
    return key, [f"{key} {before[key]} -> {after[key]}" for key in before if before[key] != after[key]]
