"""Collects the facts a plan follows from: the model's shape, the data's size, the machine, a price."""

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.config import load, mixing, objectives, values
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import cards, failures, platforms
from stoker.facts.machine import Machine, examine
from stoker.facts.mirrors import Network
from stoker.facts.platforms import Platform
from stoker.facts.shapes import ResolvedShape
from stoker.generating import generated_step
from stoker.generating.generated_step import AnswerFacts
from stoker.hosts import mirror_probe
from stoker.launch import attention_probe, nodes, raw_data, weighing
from stoker.launch.deadline import deadline
from stoker.plan import checks, choices, data, money
from stoker.plan.data import DataFacts
from stoker.plan.make import Inputs
from stoker.plan.moves import Earlier
from stoker.plan.plan import Plan, Reason, Rung
from stoker.rewards import function_file
from stoker.rundir import checkpoints, files, layout, prepared, set_list, training_words
from stoker.rundir import inputs as paths
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.store import sets
from stoker.teaching.taught_step import NOBODY, TeacherFacts

_FORWARD_OF_FULL, _FORWARD_OF_ADAPTER = 1 / 3, 1 / 2
"""About how much of a step its forward pass is."""
_JUDGED_TABLES = 2
"""Of judged answers: the reference of each, and of the answer of another row to its prompt."""
_VALUE_BYTES = 4
_UNPACKED = {".gz": 4, ".parquet": 3}
"""About how many times as large the text is."""


def machine(card: str | None, run: Run, run_dir: RunDir | None = None) -> Machine:
    """This machine, or one with the card and count the run asks for; one entry for each that trains."""
    if card is not None:
        return Machine.of_card(cards.find(card), _last(run.where.gpus), nodes=choices.nodes(run))
    together = nodes.read(run_dir.nodes_file) if run_dir else None
    here = attention_probe.tried(examine()) if run.where.attention in ("auto", "flash_attention_2") else examine()
    return here.model_copy(update={"nodes": len(together.present) if together else 1})


def _last(gpus: int | str) -> int:
    """How many cards a machine must have: a count, or up to the last one named."""
    if isinstance(gpus, int):
        return max(1, gpus)
    return 1 if gpus == "all" else 1 + max(int(number) for number in gpus.split(","))


def _count(gpus: int | str, found: int) -> int:
    """How many cards train."""
    if isinstance(gpus, int):
        return gpus
    return found if gpus == "all" else len(gpus.split(","))


@dataclass(frozen=True)
class Elsewhere:
    """What is known of another machine's surroundings; this one's own are looked at."""

    network: Network
    platform: Platform | None
    setup: tuple[Reason, ...] = ()
    """How Stoker is installed there."""


def inputs(run_file: RunFile, run_dir: RunDir | None, on: Machine, elsewhere: Elsewhere | None = None) -> Inputs:
    """All inputs of a plan.

    Args:
        run_file: The run.
        run_dir: Its directory, once there is one.
        on: The machine it is planned for.
        elsewhere: Where it is not this one.
    """
    platform = elsewhere.platform if elsewhere else platforms.here() if on.examined else None
    run = _with_deepspeed(run_file)
    report = _report(run_file, run_dir)
    begun = run_dir or _begun(run_file)
    shape = _shape(run_file)
    finished = begun is not None and begun.final.is_dir()
    if objectives.facts(run.train.objective).prompts and not finished:
        function_file.check(run.train.grpo.rewards or [], run_file.folder)
    card = on.devices[0].card if on.devices else None
    offer = money.offer(run, card, max(1, _count(run.where.gpus, len(on.devices))))
    vocab, highest = (report.vocab, report.highest_token) if report else (None, None)
    return Inputs(
        run=run,
        machine=on,
        shape=shape,
        data=_data(run_file, report, shape),
        offer=offer,
        vocab=vocab,
        highest_token=highest,
        earlier=_earlier(begun, run_file.run),
        out_of_memory=_out_of_memory(begun),
        deadline=deadline() if run_dir is not None and not elsewhere else None,
        place=_place(run, platform),
        platform=platform,
        network=elsewhere.network if elsewhere else mirror_probe.inherited(),
        setup=(*(elsewhere.setup if elsewhere else ()), *(() if begun else _refusal(run_file))),
        nodes=_names(run_dir) if not elsewhere else (),
        elsewhere=elsewhere is not None,
        teacher=_teacher(run_file, shape),
    )


def _names(run_dir: RunDir | None) -> tuple[str, ...]:
    """The machines that train together here."""
    together = nodes.read(run_dir.nodes_file) if run_dir else None
    return together.present if together else ()


def _place(run: Run, platform: Platform | None) -> str:
    """Where failures are counted: the platform it is on, or the kind of place that was asked for."""
    here = (platform.name, platform.kind) if platform else ()
    asked = "queue" if run.where.place == "slurm" else run.where.place
    return failures.known_place(*here, asked)


def _with_deepspeed(run_file: RunFile) -> Run:
    """The run with the DeepSpeed configuration itself, where the run file names a file."""
    run, stated = run_file.run, run_file.run.native.deepspeed
    if not isinstance(stated, str):
        return run
    path = run_file.folder / stated
    try:
        content = files.read_json(path)
    except (OSError, ValueError) as error:
        raise StokerError("STK219", path=path, reason=error) from error
    native = run.native.model_copy(update={"deepspeed": content})
    return run.model_copy(update={"native": native})


def counted(report: Report, run: Run) -> DataFacts:
    """Counted facts."""
    tokens = report.train.tokens + (report.eval.tokens if report.eval else 0)
    return DataFacts(
        sequences=report.train.sequences,
        tokens=report.train.tokens,
        longest=report.train.longest,
        longest_segment=report.train.longest_segment,
        digest=report.digest,
        has_eval=report.eval is not None,
        disk_bytes=_disk_bytes(report, run, 4 * tokens),
        sources=tuple(report.train.sources),
    )


def _disk_bytes(report: Report, run: Run, tokens_bytes: int) -> int:
    """What the set takes here; of one that is streamed, its index, its eval rows and what is read ahead."""
    if not run.data.stream:
        return tokens_bytes
    train, held = report.train, report.eval
    per_row, per_segment = 8 + 4 + set_list.SUM_BYTES, 8
    index = per_row * train.sequences + per_segment * train.segments
    return index + (4 * held.tokens if held else 0) + min(values.size_bytes(run.data.cache), 4 * train.tokens)


def record(run_dir: RunDir, run_file: RunFile, on: Machine, data_digest: str) -> None:
    """Record in the manifest what the run is about to be made with."""
    layout.record(
        run_dir,
        versions=on.packages,
        machine=on.model_dump(exclude={"packages"}),
        data_digest=data_digest,
        git=_git_state(run_file.folder),
    )


def _git_state(folder: Path) -> str:
    """The commit checked out in a folder, or nothing."""
    git = shutil.which("git")
    if git is None:
        return ""
    commit = _said(git, "-C", str(folder), "rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _said(git, "-C", str(folder), "status", "--porcelain") else commit


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603  # git, no shell
    return done.stdout.strip() if done.returncode == 0 else ""


def _shape(run_file: RunFile) -> ResolvedShape:
    """The model's shape; of a recipe's run that has not been trained yet, the shape the recipe states."""
    run, folder = run_file.run, run_file.folder
    if not isinstance(run.model, str):
        return weighing.resolve(run.model, folder, run.tokenizer, run.data.length)
    earlier = run.model.removeprefix(paths.EARLIER_RUN)
    if earlier != run.model and not run.train.scores:
        _require_words(earlier, run)
    try:
        return weighing.resolve(paths.model_path(run.model, folder), folder, run.tokenizer, run.data.length)
    except StokerError:
        if earlier == run.model or earlier not in load.recipe_names():
            raise
        return _shape(load.load(earlier))


def _require_words(name: str, run: Run) -> None:
    """A reward model has no output for words: transformers would make one of random numbers."""
    try:
        earlier = layout.find(name)
    except StokerError:  # not trained yet
        return
    if earlier.run().train.scores:
        command = f"train.objective: {run.train.objective}"
        raise StokerError("STK444", name=earlier.name, command=command, path=earlier.final)


def _teacher(run_file: RunFile, student: ResolvedShape) -> TeacherFacts:
    """The model that is learned from; of a run without one, nobody."""
    run, folder, name = run_file.run, run_file.folder, run_file.run.train.teacher
    if name is None:
        return NOBODY
    try:
        found = weighing.resolve(paths.model_path(name, folder), folder, length=run.data.length)
        if found.quantised:
            raise checks.in_few_bits(name, found.quantised)
        words, own = found.shape.vocab, student.shape.vocab
        if words != own and student.origin != "run_file":  # a shape gets its own once its tokenizer is known
            raise StokerError("STK469", teacher=name, words=words, own=own)
    except StokerError as error:
        error.where = error.where or run_file.document.where(("train", "distill", "teacher"))
        raise
    return TeacherFacts(found.shape, mixes=0 < run.train.distill.beta < 1, downloaded=found.origin != "local")


def _begun(run_file: RunFile) -> RunDir | None:
    """The directory of this very run, where there is one: then the plan is for its continuation."""
    try:
        run_dir = layout.find(str(run_file.run.name))
        return None if training_words.changed(run_dir.run(), run_file.run) else run_dir
    except StokerError as error:
        if error.code == "STK520":
            raise
        return None


def _refusal(run_file: RunFile) -> list[Reason]:
    """That `stoker train` will refuse: another training has this name."""
    try:
        run_dir = layout.find(str(run_file.run.name))
        changes = training_words.changed(run_dir.run(), run_file.run)
    except StokerError:
        return []
    if not layout.was_trained(run_dir):
        return []
    return [Reason(about="resume", key="why.other_run", fields={"name": run_dir.name, "changes": changes})]


def _earlier(run_dir: RunDir | None, run: Run) -> Earlier | None:
    """The newest checkpoint; the trainer verifies it, a plan does not."""
    found = checkpoints.next_found(run_dir.checkpoints) if run_dir is not None else None
    if run_dir is None or found is None:
        return None
    commit = found.commit
    other = commit.words is not None and bool(training_words.differing(commit.words, run_dir.words(run)))
    forked = commit.forked_from is not None
    return Earlier(commit.step, commit.fingerprint, commit.data_digest, commit.order_version, other, forked)


def _out_of_memory(run_dir: RunDir | None) -> tuple[Rung, ...]:
    """The rungs that ran out of memory under earlier plans; those of another card are ignored by name."""
    if run_dir is None or not run_dir.plan_file.exists():
        return ()
    return tuple(files.read_record(run_dir.plan_file, Plan).out_of_memory)


def _report(run_file: RunFile, run_dir: RunDir | None) -> Report | None:
    """The report of data prepared for this very run, if there is one."""
    run = run_file.run
    if run_dir is None:
        with contextlib.suppress(StokerError):
            run_dir = layout.find(str(run.name))
    report = prepared.current_report(run_dir, run, run_file.folder) if run_dir is not None else None
    if report is not None or run.data.set is None or run.data.tokens is not None:
        return report
    report = sets.look(run, run_file.folder)
    prepared.require_fits(report, run, mixing.set_address(run.data))
    return report


def _source_bytes(run_file: RunFile) -> int:
    """Of the rows' files, unpacked; 0 where they are not on this machine."""
    with contextlib.suppress(StokerError):
        found = paths.read_files(run_file.run, run_file.folder)
        return sum(file.stat().st_size * _UNPACKED.get(file.suffix, 1) for file in found)
    return 0


def _data(run_file: RunFile, report: Report | None, shape: ResolvedShape) -> DataFacts:
    found, run = _sizes(run_file, report, shape), run_file.run
    asked = objectives.facts(run.train.objective)
    if asked.prompts:
        return _answers(found, run, shape)
    if not asked.reference:
        return found
    kind, share = ("full", _FORWARD_OF_FULL) if run.tune.method == "full" else ("adapter", _FORWARD_OF_ADAPTER)
    tables = _JUDGED_TABLES if asked.labels else 1
    reasons = [Reason(about="time_seconds", key=f"why.reference.{kind}", fields={})]
    if asked.labels:
        reasons.append(Reason(about="time_seconds", key="why.divergence", fields={}))
    return dataclasses.replace(
        found,
        disk_bytes=found.disk_bytes + _VALUE_BYTES * tables * asked.segments * found.sequences,
        tokens_before=share * tables * found.tokens,
        tokens_beside=share if asked.labels else 0.0,
        reasons=(*found.reasons, *reasons),
    )


def _answers(found: DataFacts, run: Run, shape: ResolvedShape) -> DataFacts:
    """Prompts as what is trained: so many answers to each, of a length that nobody knows yet."""
    group, longest = run.train.answers.group, run.train.answers.max_new_tokens
    answers = found.sequences * group
    low, expected, high = (found.tokens * group + answers * length for length in (1, (1 + longest) / 2, longest))
    prompt = min(found.longest, run.data.length - longest)
    name = run.train.teacher
    more = [Reason(about="memory", key="why.teacher", fields={"teacher": name})] if name else []
    compared = run.train.objective == "grpo" and run.train.grpo.beta > 0
    if compared:
        more.append(Reason(about="time_seconds", key="why.beta", fields={}))
    if run.train.answers.sampler == "vllm":
        weights = f"{2 * shape.shape.parameters() / 1e9:.1f}"  # in 16 bits
        more.append(Reason(about="memory", key="why.sampler", fields={"weights": weights}))
    low_seconds, high_seconds = generated_step.INTERVAL
    bounds = {"low": f"{low_seconds:g}", "high": f"{high_seconds:g}"}
    fields = {"answers": run.train.batch, "prompts": run.train.rows, "longest": longest, **bounds}
    return dataclasses.replace(
        found,
        answers=AnswerFacts(
            batch=run.train.batch,
            prompts=run.train.rows,
            prompt=found.tokens / found.sequences,
            longest_prompt=prompt,
            longest=longest,
            vllm=run.train.answers.sampler == "vllm",
            compared=compared,
        ),
        tokens_beside=_FORWARD_OF_ADAPTER if compared else 0.0,
        sequences=answers,
        tokens=round(expected),
        longest=prompt + longest,
        longest_segment=prompt + longest,
        interval=(found.interval[0] * low / expected, found.interval[1] * high / expected),
        reasons=(
            *found.reasons,
            Reason(about="time_seconds", key="why.answers" if name else "why.rollouts", fields=fields),
            *more,
        ),
    )


def _sizes(run_file: RunFile, report: Report | None, shape: ResolvedShape) -> DataFacts:
    """Counted facts win over declared ones, those over what the files on this machine let estimate."""
    if report:
        return counted(report, run_file.run)
    if run_file.run.data.tokens is not None:
        found, size = data.declared(run_file.run), _source_bytes(run_file)
        bad = _bad_rows(run_file, shape) if size <= _LOOKED_AT_BYTES else ()
        return dataclasses.replace(found, source_bytes=size, reasons=(*found.reasons, *bad))
    return raw_data.size(run_file.run, run_file.folder, shape.shape)


_LOOKED_AT_BYTES = 1 << 26
"""More is not read where its size is declared: a compressed file would be unpacked to its end."""
_NOT_HERE = ("STK206", "STK301")
"""Errors of data that is not on this machine, or cannot be read here."""


def _bad_rows(run_file: RunFile, shape: ResolvedShape) -> Iterator[Reason]:
    """What is wrong with rows whose number is declared, where they are on this machine: `prepare` would stop at it."""
    if run_file.run.data.set is not None:
        return
    try:
        found = raw_data.size(run_file.run, run_file.folder, shape.shape)
    except StokerError as error:
        if error.code not in _NOT_HERE:
            fields = {"where": error.where or run_file.run.data.train, "code": error.code, "reason": error.what}
            yield Reason(about="data", key="why.data.bad.all", fields=fields)
        return
    except OSError:  # rows that another user reads
        return
    yield from (one for one in found.reasons if one.key.startswith("why.data.bad"))
