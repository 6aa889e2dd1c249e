"""Filters and deduplicates documents with datatrove; runs in the `datatrove` environment.

    stoker_pipeline.py JOB [COMMAND]

JOB is a JSON file that `stoker.launch.pipeline` writes, COMMAND the process that waits and with which it ends.
The job's steps become stages, each an executor of datatrove with a folder of its own; a step that must see all
documents first (a deduplication) begins a new stage. A task that datatrove marked as completed is not run again, so
that a killed pipeline goes on where it was. `done.json` is written last.
"""

import contextlib
import copy
import ctypes
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import multiprocess
import numpy as np
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter, NGramsDecontIndexer
from datatrove.pipeline.dedup import (
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

sys.path.append(str(Path(__file__).parent))  # for the module beside, which `-I` leaves out
from stoker_readers import READERS, REFUSED, Hub, refusing

_FILTERS = {
    one.__name__: one
    for one in (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
    )
}
_OTHERS = {"PIIFormatter": PIIFormatter, "Trafilatura": Trafilatura}
_ATTEMPTS = 3
"""How often a stage is given to Slurm while some of its tasks do not complete."""
_LOOK_SECONDS = 5.0
_DIES_WITH_PARENT = 1
"""`PR_SET_PDEATHSIG` of Linux' prctl."""


# ---- blocks that datatrove lacks


class ReadShare(PipelineStep):
    """Reads what each task was given; datatrove's own readers deal out files whichever source they are of."""

    type, name = "📖 - READER", "Share of the sources"

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.root, self.shares, self.folder = job["root"], job["shares"], job["folder"]
        self.skips = job["on_bad_row"] == "skip"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The documents of a task."""
        share = self.shares[rank]
        if share["kind"] == "hub":
            options = {"name": share["config"], "split": share["split"]}
            reader: Any = Hub(share["files"][0], dataset_options=options)
            documents = reader.run(None, share["part"], share["parts"])
        else:
            reader = READERS[share["kind"]](self.root)
            documents = reader.read_files_shard(share["files"])
        with contextlib.ExitStack() as stack:
            stack.enter_context(refusing(self.folder))
            if self.skips:
                listing = Path(self.folder, "bad_rows", f"{rank:05d}.jsonl")
                listing.parent.mkdir(exist_ok=True)
                reader.listing = stack.enter_context(listing.open("w", encoding="utf-8"))
            for document in documents:
                self.stat_update("total")
                yield document
        if bad := getattr(reader, "num_bad", 0):
            self.stat_update("bad_rows", value=bad)


class ReadStage(PipelineStep):
    """Reads what the task of the same number wrote in an earlier stage; a task without documents wrote no file."""

    type, name = "📖 - READER", "Earlier stage"

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The documents of a task."""
        name = f"{rank:05d}.jsonl"
        if Path(self.folder, name).exists():
            yield from JsonlReader(self.folder, add_file_path=False).read_files_shard([name])


class ReadEvalSets(PipelineStep):
    """Reads files, each list with a reader of its own."""

    type, name = "📖 - READER", "Eval sets"

    def __init__(self, readers: list[Any], files: list[list[str]], folder: str) -> None:
        super().__init__()
        self.readers, self.files, self.folder = readers, files, folder

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """All documents."""
        for reader, files in zip(self.readers, self.files, strict=True):
            reader.needs_text = False  # a row without words gives nothing away
            with refusing(self.folder):
                yield from reader.read_files_shard(files)


class EvalIndex(NGramsDecontIndexer):
    """Indexes the n-grams of eval sets that are files; datatrove's own always goes on to those of lighteval."""

    def __new__(cls, *_: Any, **__: Any) -> "EvalIndex":
        """Without the check for lighteval."""
        return object.__new__(cls)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Write the index."""
        hashes: set[int] = set()
        for document in data:
            self.stat_update("total")
            found = self.compute_hashes(document.text)
            hashes.update(found)
            if not found:
                self.stat_update("without_ngrams")
        found = np.array(sorted(hashes), dtype=self.config.hash_config.np_descr)
        with self.output_folder.open("eval.index.hashes", mode="wb") as file:
            file.write(found.tobytes())


class SlurmStage(SlurmPipelineExecutor):
    """Slurm without the job that merges statistics, left waiting where a stage fails; tasks share no blocks."""

    pipeline: Any

    def launch_merge_stats(self) -> None:
        """Nothing: they are merged at the end."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> Any:
        """A task with blocks of its own, as datatrove's other executors do.

        Here the tasks of a job would share them: counts add up, and which address of its list `PIIFormatter` writes
        would depend on the tasks before.
        """
        shared = self.pipeline
        self.pipeline = copy.deepcopy(shared)
        try:
            return super()._run_for_rank(rank, local_rank, node_rank)
        finally:
            self.pipeline = shared


def all_text(_: Any, row: dict[str, Any], path: str, number: int) -> dict[str, Any]:
    """An eval row as a document: all its words in their order, whatever its keys are."""
    return {"text": "\n".join(strings(row)), "id": f"{path}/{number}", "media": [], "metadata": {}}


def strings(value: Any) -> list[str]:
    """Every text in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for one in inner for text in strings(one)]


def content(document: Document) -> str:
    """What exact duplicates share."""
    return document.text


def as_row(_: Any, document: Document) -> dict[str, str]:
    """A row as `prepare` reads it; what readers add depends on the machine."""
    return {"id": document.id, "text": document.text}


def as_dropped(_: Any, document: Document) -> dict[str, str]:
    """A document that a filter dropped, and why."""
    why = {key: document.metadata[key] for key in ("filter_reason", "contaminated_ngram") if key in document.metadata}
    return {"id": document.id, "text": document.text, **why}


# ---- stages


class Stages:
    """Steps of the run file as executors, run one after the other."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._folder = Path(job["folder"])
        self._tasks = len(job["shares"])
        self._reader: PipelineStep = ReadShare(job)
        self._blocks: list[PipelineStep] = []
        """What is still to be done to the documents that the reader gives."""
        self._count = 0

    def run(self) -> None:
        """Run every stage."""
        for number, step in enumerate(self._job["steps"]):
            name = f"{number:02d}-{step['step']}"
            self._add(step, step["options"], name)
        self._write("output")

    def _add(self, step: dict[str, Any], options: dict[str, Any], name: str) -> None:
        kind = step["step"]
        if kind in _OTHERS:
            self._blocks.append(_OTHERS[kind](**options))
        elif kind in _FILTERS:
            self._blocks.append(_FILTERS[kind](exclusion_writer=self._dropped(name), **options))
        elif kind == "NGramsDecont":
            self._decontaminate(step, dict(options), name)
        elif kind == "ExactDedup":
            self._exact(name)
        else:
            assert kind == "MinhashDedup"
            self._minhash(dict(options), name)

    def _decontaminate(self, step: dict[str, Any], options: dict[str, Any], name: str) -> None:
        language = {"language": options.pop("language")} if "language" in options else {}
        config, index = NGramsDecontConfig(**options), self._path(name, "index")
        readers = [READERS[one["kind"]](self._job["root"], adapter=all_text) for one in step["against"]]
        shares = [one["files"] for one in step["against"]]
        documents = [ReadEvalSets(readers, shares, self._job["folder"]), EvalIndex(index, config=config, **language)]
        self._execute(f"{name}-index", documents, 1)
        self._blocks.append(NGramsDecontFilter(index, config, self._dropped(name), **language))

    def _exact(self, name: str) -> None:
        self._settle(name)
        config = ExactDedupConfig(content_getter=content)
        signatures, duplicates = self._path(name, "signatures"), self._path(name, "duplicates")
        self._execute(f"{name}-signatures", [self._reader, ExactDedupSignature(signatures, config)], self._tasks)
        self._execute(f"{name}-find", [ExactFindDedups(signatures, duplicates, config)], 1)
        self._blocks = [ExactDedupFilter(duplicates, config, self._dropped(name))]

    def _minhash(self, options: dict[str, Any], name: str) -> None:
        self._settle(name)
        language = {"language": options.pop("language")} if "language" in options else {}
        config = MinhashConfig(**options)
        signatures, buckets, remove = (self._path(name, part) for part in ("signatures", "buckets", "remove"))
        first = MinhashDedupSignature(signatures, config, **language)
        self._execute(f"{name}-signatures", [self._reader, first], self._tasks)
        second = MinhashDedupBuckets(signatures, buckets, config=config)
        self._execute(f"{name}-buckets", [second], config.num_buckets)
        self._execute(f"{name}-clusters", [MinhashDedupCluster(buckets, remove, config)], 1)
        self._blocks = [MinhashDedupFilter(remove, self._dropped(name))]

    def _settle(self, name: str) -> None:
        """Write the documents as they are before a step that reads them twice."""
        if self._blocks:
            self._write(f"{name}-documents")

    def _write(self, name: str) -> None:
        folder = str(self._folder / "output") if name == "output" else self._path(name, "documents")
        writer = JsonlWriter(folder, compression=None, adapter=as_row)
        self._execute(name, [self._reader, *self._blocks, writer], self._tasks)
        self._reader, self._blocks = ReadStage(folder), []

    def _dropped(self, name: str) -> JsonlWriter:
        return JsonlWriter(str(self._folder / "dropped" / name), compression=None, adapter=as_dropped)

    def _path(self, name: str, part: str) -> str:
        return str(self._folder / "work" / name / part)

    def _execute(self, name: str, pipeline: list[PipelineStep], tasks: int) -> None:
        """Run a stage to its end; its folder has a number, so that a person sees their order."""
        logs = str(self._folder / "stages" / f"{self._count:02d}.{name}")
        self._count += 1
        options = dict(self._job["executor"])
        if "partition" in options:
            _queued(pipeline, tasks, logs, f"stoker-{self._job['key'][:12]}", options)
        else:
            workers = min(tasks, options.pop("workers", _processors()))
            LocalPipelineExecutor(
                pipeline, tasks=tasks, workers=workers, logging_dir=logs, start_method="fork", **options
            ).run()


def _processors() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _queued(pipeline: list[PipelineStep], tasks: int, logs: str, name: str, options: dict[str, Any]) -> None:
    """Run a stage as jobs of Slurm. Jobs that an earlier start left in the queue are waited for, never doubled."""
    if any(set("\n\r") & set(str(value)) for value in (*options.values(), *options.get("sbatch_args", {}).values())):
        raise SystemExit("an option for Slurm has more than one line")  # datatrove writes them into the job's script
    programs, modules = (shlex.quote(str(Path(path).parent)) for path in (sys.executable, __file__))
    here = f"export PATH={programs}:$PATH PYTHONPATH={modules}"
    for _ in range(_ATTEMPTS):
        stage = SlurmStage(pipeline, tasks, job_name=name, logging_dir=logs, env_command=here, **options)
        _wait_for_queue(name)
        if not stage.get_incomplete_ranks():
            return
        stage.run()
        _wait_for_queue(name)
        if Path(logs).parents[1].joinpath(REFUSED).exists():
            break  # no other attempt reads it otherwise
    left = stage.get_incomplete_ranks()
    if left:
        raise SystemExit(f"tasks {left} of {logs} do not complete; see slurm_logs in there")


def _wait_for_queue(name: str) -> None:
    squeue = shutil.which("squeue")
    assert squeue, "no squeue here: tasks are given to Slurm from a machine that has its commands"
    while subprocess.run([squeue, "-h", "--name", name], capture_output=True, check=True).stdout.strip():  # noqa: S603
        time.sleep(_LOOK_SECONDS)


# ---- the program


def main(path: Path) -> None:
    """Run the job, unless its result is there."""
    job = json.loads(path.read_text(encoding="utf-8"))
    folder = Path(job["folder"])
    done = folder / "done.json"
    with (folder / "lock").open("wb") as lock:
        # Children have the lock, too: nobody begins before the last of a killed pipeline is gone.
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.register_at_fork(after_in_child=_end_with_parent(lock.fileno()))
        multiprocess.set_start_method("fork", force=True)
        if not done.exists():
            Stages(job).run()
            _finish(job, folder, done)


def _end_with(command: int) -> None:
    """End with the process that waits for this one; the workers are killed with it."""
    parent = os.getppid()  # the same, unless what is called Python starts another one
    with contextlib.suppress(ProcessLookupError):
        while os.getppid() == parent:
            os.kill(command, 0)
            time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _finish(job: dict[str, Any], folder: Path, done: Path) -> None:
    """Write what there is now; what only the stages needed is removed."""
    found = sorted((folder / "output").glob("*.jsonl"))
    result = {
        "key": job["key"],
        "version": importlib.metadata.version("datatrove"),
        "files": {one.name: [one.stat().st_size, _sha256(one)] for one in found},
        "stages": _statistics(folder / "stages"),
    }
    os.sync()
    aside = done.with_suffix(".aside")
    aside.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(done)
    shutil.rmtree(folder / "work", ignore_errors=True)


def _end_with_parent(lock: int) -> Callable[[], None]:
    """What a forked process does first: arrange to be killed with its parent, or let go of the lock."""
    if sys.platform != "linux":
        return lambda: os.close(lock)
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def _statistics(folder: Path) -> list[dict[str, Any]]:
    """Counts of every stage, block by block; seconds are left out: they say nothing about the documents."""
    stages = []
    for stage in sorted(folder.iterdir()):
        tasks = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(stage.glob("stats/*.json"))]
        blocks = [{"block": one[0]["name"], "counts": _counts(one)} for one in zip(*tasks, strict=True)]
        stages.append({"stage": stage.name.partition(".")[2], "tasks": len(tasks), "blocks": blocks})
    return stages


def _counts(block: tuple[dict[str, Any], ...]) -> dict[str, int]:
    """Totals over the tasks of a block; datatrove writes a figure of many values with its mean and others."""
    found: dict[str, int] = {}
    for task in block:
        for label, figure in task["stats"].items():
            found[label] = found.get(label, 0) + (figure["total"] if isinstance(figure, dict) else figure)
    return dict(sorted(found.items()))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    # As a module of that name: Slurm's jobs unpickle the blocks above and must find what those use.
    importlib.import_module(Path(__file__).stem).main(Path(sys.argv[1]))
