"""SIGKILL of trainings of every objective at random instants, half of them inside reference passes and rollouts.

After each kill the same program is started again until the run is done. Its losses, eval losses, final weights, last
checkpoint and reference values must be those of a run that was never touched, to the last bit; no row of a reference
may be lost or computed twice, no answers of a step committed twice, no prompt skipped or repeated, no start may fail. A
kill is inside a reference pass where this start had written rows of it and it was not whole; inside a rollout where
a rank was generating. In the children both are slowed down, so that there is something to hit. Controls: rows of a
reference that were written and not counted are kept, committed answers are generated again with other draws, and the
optimizer's state is not put back.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asked_run
import controls
import paired_run
import taught_run
import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.rundir import events, files
from stoker.rundir.layout import RunDir

KINDS: dict[str, dict[str, str]] = {
    "dpo": {"method": "lora"},
    "kto": {"method": "full"},
    "dpo, two ranks": {"where": ", processes: 2, strategy: ddp", "more": ", exact: true"},
    "kto, shards": {"where": ", processes: 2, strategy: fsdp2", "more": ", exact: true"},
    "simpo": {"method": "lora"},
    "orpo": {"method": "full"},
    "reward": {"method": "lora"},
    "grpo": {"method": "lora"},
    "grpo, two ranks": {"where": ", processes: 2, strategy: ddp", "more": ", exact: true"},
    "grpo, shards": {"where": ", processes: 2, strategy: fsdp2", "more": ", exact: true"},
    "distill": {"method": "lora"},
    "distill, two ranks": {"where": ", processes: 2, strategy: ddp", "more": ", exact: true"},
}
WITH_PASS = tuple(kind for kind in KINDS if kind.startswith(("dpo", "kto", "grpo", "distill")))
"""Those with a reference pass or rollouts."""
INSIDE = "kills inside a reference pass or a rollout"
GENERATING = "generating"
"""A file in the run directory while a rank generates."""
KILLS_PER_RUN = 5
STEPS = 20
ROWS = 96
SLOW_SECONDS = 0.05
"""Of each batch of a reference pass, in the children."""
ANY_SECONDS = 2.5
HANG_SECONDS = 300.0


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base")
    known: dict[str, tuple[RunDir, Outcome, dict[str, str]]] = {}
    number = 0
    while campaign.done < campaign.n and not campaign.hopeless:
        inside = 2 * campaign.counts[INSIDE] < campaign.n
        kinds = WITH_PASS if inside else tuple(KINDS)
        kind = min(kinds, key=lambda kind: campaign.counts[f"kills: {kind}"])
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
        _one_run(campaign, kind, number, *known[kind])
        campaign.counts[f"runs: {kind}"] += 1
        number += 1
    if 2 * campaign.counts[INSIDE] < campaign.n:
        campaign.fail(["inside"], f"only {campaign.counts[INSIDE]} {INSIDE}")
    for kind in KINDS if campaign.n >= 20 else ("dpo", "grpo"):
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
            _one_run(campaign, kind, number, *known[kind])
            number += 1
    _controls(campaign, known)


def _untouched(campaign: Campaign, kind: str, base: Path) -> tuple[RunDir, Outcome, dict[str, str]]:
    """A run, and what it ends with when nobody touches it."""
    made = _made(campaign.folder / kind.replace(", ", "-").replace(" ", "-"), kind, base)
    attempt = trainings.start(trainings.again(made, campaign.folder / f"whole {kind}"))
    assert attempt.wait() == 0, trainings.log_of(attempt.run_dir)
    return made, trainings.outcome(attempt.run_dir), _tables(attempt.run_dir)


def _made(folder: Path, kind: str, base: Path) -> RunDir:
    objective, words = kind.partition(",")[0], dict(KINDS[kind])
    words["more"] = words.get("more", "") + ", eval_every: 7 steps"
    counts = ((ROWS, 5), (11, 6))
    if objective == "grpo":
        rows, held = (asked_run.prompts(*one) for one in counts)
        return asked_run.made(folder, asked_run.text(base, steps=STEPS, save="2 steps", **words), rows, held)
    if objective == "distill":
        rows, held = (asked_run.prompts(*one) for one in counts)
        text = taught_run.text(base, taught_run.teacher(folder / "teacher"), steps=STEPS, save="2 steps", **words)
    else:
        rows, held = (paired_run.rows_of(objective, *one) for one in counts)
        text = paired_run.text(base, steps=STEPS, objective=objective, **words)
    return tiny_run.make_run(folder, text.replace("every: 5 steps", "every: 2 steps"), rows, held)


def _one_run(
    campaign: Campaign, kind: str, number: int, template: RunDir, wanted: Outcome, tables: dict[str, str]
) -> None:
    """Kill a run again and again until it is done."""
    random = campaign.random(number)
    run_dir = trainings.again(template, campaign.folder / "killed")
    kills = 0
    while True:
        before = _counted(run_dir)
        for path in run_dir.path.glob(f"{GENERATING}*"):
            path.unlink()
        attempt = trainings.start(run_dir, before=lambda: _slow(run_dir))
        in_pass = kind in WITH_PASS and 2 * campaign.counts[INSIDE] < campaign.n
        if kills >= KILLS_PER_RUN or campaign.done >= campaign.n:
            break
        if not _kill(attempt, random, before, in_pass=in_pass, generates=kind.startswith(("grpo", "distill"))):
            break
        kills += 1
        inside = _generating(run_dir) or (_counted(run_dir) > before and not _is_whole(run_dir))
        campaign.case("kills", f"kills: {kind}", *([INSIDE] if inside else []))
    if attempt.wait() != 0:
        campaign.fail([number, kills], f"{kind} {attempt.codes}: {trainings.log_of(run_dir)}")
    elif wrong := _judge(run_dir, wanted, tables):
        campaign.fail([number, kills], f"{kind}: {wrong}")
    campaign.counts["resumes"] += sum(e["event"] == "attempt" and e["resumed_step"] > 0 for e in _events(run_dir))


def _kill(attempt: trainings.Attempt, random: Any, before: int, *, in_pass: bool, generates: bool) -> bool:
    """Wait for an instant and kill; False where the training ended before."""
    run_dir = attempt.run_dir
    if not in_pass or generates:
        _wait(attempt, random.uniform(0.0, ANY_SECONDS))
    if in_pass and generates:
        _wait(attempt, HANG_SECONDS, lambda: _generating(run_dir))
        _wait(attempt, random.uniform(0.0, SLOW_SECONDS))
    elif in_pass:
        _wait(attempt, HANG_SECONDS, lambda: _counted(run_dir) > before or _is_whole(run_dir))
        _wait(attempt, random.uniform(0.0, 4 * SLOW_SECONDS))
    if not attempt.running():
        return False
    attempt.kill()
    return True


def _wait(attempt: trainings.Attempt, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
    late = time.monotonic() + seconds
    while time.monotonic() < late and attempt.running() and not until():
        time.sleep(0.002)


def _slow(run_dir: RunDir) -> None:
    """Every batch of a reference pass and of a rollout takes a while: in the children only."""
    from stoker.engine import reference, sampler

    append, generate = reference._append, sampler.generate
    mark = run_dir.path / f"{GENERATING}.{os.getpid()}"

    def slow_append(path: Path, values: Any) -> None:
        time.sleep(SLOW_SECONDS)
        append(path, values)

    def slow_generate(*words: Any, **options: Any) -> Any:
        mark.touch()
        found = generate(*words, **options)
        time.sleep(SLOW_SECONDS)
        mark.unlink()
        return found

    reference._append, reference._COMMIT_SECONDS = slow_append, 0.0
    sampler.generate = slow_generate


# ---- what is judged


def _index(run_dir: RunDir) -> dict[str, Any]:
    path = run_dir.data / "reference" / "index.json"
    return files.read_json(path) if path.is_file() else {}


def _counted(run_dir: RunDir) -> int:
    """Rows of the reference that are counted."""
    return sum(_index(run_dir).get("rows", {}).values())


def _is_whole(run_dir: RunDir) -> bool:
    return "files" in _index(run_dir)


def _generating(run_dir: RunDir) -> bool:
    return any(run_dir.path.glob(f"{GENERATING}.*"))


def _tables(run_dir: RunDir) -> dict[str, str]:
    return {path.name: files.sha256(path) for path in sorted((run_dir.data / "reference").glob("*.bin"))}


def _events(run_dir: RunDir) -> list[dict[str, Any]]:
    return list(events.read(run_dir.events_file))


def _judge(run_dir: RunDir, wanted: Outcome, tables: dict[str, str]) -> str:
    found = _events(run_dir)
    if rejected := [e for e in found if e["event"] == "rejected"]:
        return f"rejected {rejected}"
    if tiers := {e["tier"] for e in found if e["event"] == "attempt"} - {"EXACT"}:
        return f"tiers {tiers}"
    if _tables(run_dir) != tables:
        return "reference values differ"
    for name in {e["split"] for e in found if e["event"] == "reference"}:
        done = [e["done"] for e in found if e["event"] == "reference" and e["split"] == name]
        if len(done) != len(set(done)) or done != sorted(done):
            return f"rows of {name} were computed twice: {done}"
    made = [e["step"] for e in found if e["event"] == "rollout"]
    if len(made) != len(set(made)):
        return f"answers were committed twice: {made}"
    tiny_run.sequences(run_dir)  # every row once, in its order
    return trainings.difference(trainings.outcome(run_dir), wanted)


# ---- controls


def _controls(campaign: Campaign, known: dict[str, tuple[RunDir, Outcome, dict[str, str]]]) -> None:
    run_dir = trainings.again(known["dpo"][0], campaign.folder / "control")
    assert trainings.start(run_dir, before=_killed_between_write_and_count).wait() == -signal.SIGKILL
    _control(campaign, "rows that were not counted are kept", run_dir, _uncounted_rows_are_kept, *known["dpo"][1:])
    run_dir = _begun(campaign, known["dpo"][0])
    _control(campaign, "the optimizer's state is not put back", run_dir, controls.no_optimizer, *known["dpo"][1:])
    run_dir = _begun(campaign, known["grpo"][0])
    _control(campaign, "committed answers are generated again", run_dir, _other_draws, *known["grpo"][1:])


def _begun(campaign: Campaign, template: RunDir) -> RunDir:
    """A run that was killed behind its first checkpoint."""
    attempt = trainings.start(trainings.again(template, campaign.folder / "control"))
    while attempt.running() and not list(attempt.run_dir.checkpoints.glob("step-*")):
        time.sleep(0.01)
    attempt.kill()
    return attempt.run_dir


def _control(
    campaign: Campaign,
    name: str,
    run_dir: RunDir,
    before: Callable[[], None],
    wanted: Outcome,
    tables: dict[str, str],
) -> None:
    attempt = trainings.start(run_dir, before=before)
    wrong = f"exit codes {list(attempt.codes.values())}" if attempt.wait() else _judge(run_dir, wanted, tables)
    campaign.control(name, caught=bool(wrong), what=wrong)


def _other_draws() -> None:
    from stoker.engine import rollout_files, sampler

    plain = sampler.draws
    rollout_files.find = lambda rollouts, step: None
    sampler.draws = lambda seed, *rest: plain(seed + 1, *rest)


def _killed_between_write_and_count() -> None:
    from stoker.engine import reference

    count = reference._count

    def ended(path: Path, rows: int) -> None:
        if path.stat().st_size:
            os.kill(os.getpid(), signal.SIGKILL)
        count(path, rows)

    reference._count, reference._COMMIT_SECONDS = ended, 0.0


def _uncounted_rows_are_kept() -> None:
    from stoker.engine import reference

    def done_items(path: Path, sequences: int, batch: int, together: int) -> int:
        return -(-reference._index(path.parent)["rows"][path.name] // batch)

    reference._done_items = done_items
