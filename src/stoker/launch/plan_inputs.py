"""Collects the facts a plan follows from: the model's shape, the data's size, the machine, a price."""

import contextlib
import dataclasses
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.config import load, mixing, values
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import cards, failures, platforms
from stoker.facts.machine import Machine, examine
from stoker.facts.mirrors import Network
from stoker.facts.platforms import Platform
from stoker.facts.shapes import ResolvedShape
from stoker.hosts import mirror_probe
from stoker.launch import attention_probe, raw_data, weighing
from stoker.launch.deadline import deadline
from stoker.plan import choices, data, money
from stoker.plan.data import DataFacts
from stoker.plan.make import Inputs
from stoker.plan.moves import Earlier
from stoker.plan.plan import Plan, Reason, Rung
from stoker.rundir import checkpoints, files, layout, nodes, prepared, set_list, training_words
from stoker.rundir import inputs as paths
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.store import sets

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
    try:
        return weighing.resolve(paths.model_path(run.model, folder), folder, run.tokenizer, run.data.length)
    except StokerError:
        if earlier == run.model or earlier not in load.recipe_names():
            raise
        return _shape(load.load(earlier))


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
    """Counted facts win over declared ones, those over what the files on this machine let estimate."""
    if report:
        return counted(report, run_file.run)
    if run_file.run.data.tokens is not None:
        return dataclasses.replace(data.declared(run_file.run), source_bytes=_source_bytes(run_file))
    return raw_data.size(run_file.run, run_file.folder, shape.shape)
