"""What a run reads: the run file's sources expanded to files, in a fixed order. Knows names and sizes, not contents."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from stoker.config import dataset_info, load, mixing
from stoker.config.data_section import Source
from stoker.config.pipeline_steps import Decontamination
from stoker.config.run import Run
from stoker.errors import StokerError, checked_name, closest
from stoker.rundir import artifacts, digests, files, layout
from stoker.rundir.layout import RunDir

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
MARKDOWN = ".md"  # text like `.txt`; next to other files it is a page about them, and not read
PIPELINE_SUFFIXES = (".jsonl", ".csv", ".parquet", ".warc")
"""What datatrove has a reader for."""
REMOTE = ("hub:", "modelscope:")
EARLIER_RUN = "run:"
SHIPPED = "recipe:"
"""Files that come with Stoker's recipes."""
ADAPTER_NAME = "adapter_config.json"
"""A folder with it holds an adapter."""
_NOT_TOKENIZER = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".index.json"),
    *(".md", ".png", ".jpg", "generation_config.json", "adapter_config.json"),
)
"""Ends of names of a model's files that tokenising does not depend on: weights, pages, how it is sampled. All others
count: which files a tokenizer reads (`vocab.json`, `merges.txt`, `tokenizer.model`) is up to its class."""


def train_sources(run: Run) -> list[Source]:
    """The training sources, however the run file writes them; none where it names a prepared set."""
    return mixing.sources(run.data)


def eval_share(run: Run) -> str | None:
    """`2%` where eval rows are taken from the training rows."""
    asked = run.data.eval
    return asked if asked and asked.rstrip().endswith("%") else None


def eval_source(run: Run) -> Source | None:
    """The source of its own that eval rows come from, if there is one."""
    asked = run.data.eval if run.data.set is None else None
    return Source(path=asked, columns=run.data.columns) if asked and not eval_share(run) else None


def model_path(name: str, folder: Path) -> str:
    """A model's folder: a local one, or the result of the run in `run:NAME`; else the hub id unchanged."""
    if name.startswith(EARLIER_RUN):
        run_dir = layout.find(name.removeprefix(EARLIER_RUN))
        if not run_dir.final.is_dir():
            raise StokerError("STK502", name=run_dir.name)
        return str(whole_model(run_dir).resolve())
    local = folder / name
    if (local / ADAPTER_NAME).is_file():
        raise StokerError("STK142", path=name)
    return str(local.resolve()) if local.exists() else name


def whole_model(run_dir: RunDir) -> Path:
    """What a run made, as a whole model: transformers would load an adapter with its base, and lose it in training."""
    if not (run_dir.final / ADAPTER_NAME).is_file():
        return run_dir.final
    if not artifacts.is_accepted(run_dir, "merged"):
        raise StokerError("STK143", name=run_dir.name)
    return artifacts.folder(run_dir, "merged")


def is_remote(path: str) -> bool:
    """Whether a source is a dataset of a hub."""
    return path.startswith(REMOTE)


def kind(path: Path) -> str:
    """The suffix that says how to read a file: `.jsonl` for `a.jsonl` and `a.jsonl.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def expand(path: str, folder: Path, kinds: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """The files a source names: a file, all of known kinds below a folder, or what a glob matches; sorted."""
    if not path.strip():
        raise StokerError("STK315")
    if path.startswith(SHIPPED):
        path, folder = path.removeprefix(SHIPPED), load.recipes_folder()
    path = dataset_info.resolve(Source(path=path), folder).path
    kinds = (*kinds, MARKDOWN) if ".txt" in kinds else kinds
    full = folder / path
    below = [full] if full.is_file() else _below(full) if full.is_dir() else []
    found = _known(below, kinds)
    if below and not found:
        raise _unsupported(path, below[0], kinds)
    found = _matches(path, folder, kinds) if not found and set("*?[") & set(path) else found
    if not found:
        in_gbk = folder / path.encode("gbk", "replace").decode("utf-8", "surrogateescape")
        checked_name(in_gbk if _exists(in_gbk) else full)
        nearest = "" if full.exists() else closest(path, _beside(path, folder))
        raise StokerError("STK301", path=path, folder=folder, nearest=nearest)
    if kinds != dataset_info.KINDS and (listed := [one for one in found if one.name == dataset_info.NAME]):
        raise dataset_info.not_named(label(listed[0], folder), dataset_info.sets(listed[0]))
    return [checked_name(one) for one in found]


def _exists(path: Path) -> bool:
    """Whether there is such a file; a name that this file system refuses, as macOS' does what is not UTF-8, is none."""
    with contextlib.suppress(OSError):
        return path.exists()
    return False


def _unsupported(where: str, path: Path, kinds: tuple[str, ...]) -> StokerError:
    return StokerError("STK331" if kinds == PIPELINE_SUFFIXES else "STK308", where, suffix=path.suffix)


def _beside(path: str, folder: Path) -> list[str]:
    """What is in the folder that a path names, written like the path."""
    with contextlib.suppress(OSError):
        return sorted((PurePath(path).parent / one.name).as_posix() for one in (folder / path).parent.iterdir())
    return []


def label(path: Path, folder: Path) -> str:
    """A file's label: relative to the run file's folder (or the recipes') if it is inside."""
    if path.is_relative_to(load.recipes_folder()):
        return SHIPPED + path.relative_to(load.recipes_folder()).as_posix()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def facts(run: Run, folder: Path) -> list[list[Any]]:
    """Name, size and SHA-256 of every local file that `prepare` would read."""
    known = digests.of_all(found := read_files(run, folder))
    return [[label(file, folder), file.stat().st_size, known[file]] for file in found]


def as_now(known: list[list[Any]], folder: Path) -> list[list[Any]]:
    """Facts of files as these are by now; what is not here stays as it is known."""
    digest = digests.of_all([path for name, *_ in known if (path := folder / name).is_file()])
    here = {path: [path.stat().st_size, one] for path, one in digest.items()}
    return [[name, *here.get(folder / name, rest)] for name, *rest in known]


def read_files(run: Run, folder: Path) -> list[Path]:
    """Every local file that `prepare` would read."""
    rows = [file for path, kinds in named(run) if not is_remote(path) for file in expand(path, folder, kinds)]
    return [*rows, *_tokenizer_files(run, folder)]


def without_rows(run: Run, folder: Path) -> set[str]:
    """Labels of local files that `prepare` reads for something else than rows: a tokenizer's, and lists of datasets."""
    lists = dataset_info.lists(path for path, _ in named(run))
    listed = [file for path, kinds in lists for file in expand(path, folder, kinds)]
    return {label(file, folder) for file in (*listed, *_tokenizer_files(run, folder))}


def named(run: Run) -> list[tuple[str, tuple[str, ...]]]:
    """Every source of rows as the run file writes it, and the kinds of files it may be: training data first."""
    found = [*pipeline_reads(run), *([(own.path, SUFFIXES)] if (own := eval_source(run)) else [])]
    return [*found, *dataset_info.lists(path for path, _ in found)]


def pipeline_reads(run: Run) -> list[tuple[str, tuple[str, ...]]]:
    """The training data, and the eval sets that `data.pipeline` keeps out of it."""
    kinds = PIPELINE_SUFFIXES if run.data.pipeline else SUFFIXES
    steps = [step for step in run.data.pipeline or () if isinstance(step, Decontamination)]
    eval_sets = [(path, PIPELINE_SUFFIXES) for step in steps for path in step.eval_sets]
    return [*((source.path, kinds) for source in train_sources(run)), *eval_sets]


def _tokenizer_files(run: Run, folder: Path) -> list[Path]:
    name = run.model if run.tokenizer == "auto" else run.tokenizer
    if not isinstance(name, str):
        return []
    name = model_path(name, folder)
    inner = [*(folder / name).glob("*"), *(folder / name).glob("additional_chat_templates/*")]
    counted = (path for path in inner if not path.name.startswith(".") and not path.name.endswith(_NOT_TOKENIZER))
    return sorted(checked_name(path) for path in counted if path.is_file())


def _matches(pattern: str, folder: Path, kinds: tuple[str, ...]) -> list[Path]:
    anchor = Path(pattern).anchor
    matched = sorted(set(_glob(folder / anchor, pattern[len(anchor) :])))
    found = [file for match in matched for file in (_below(match) if match.is_dir() else [match])]
    known = _known(found, kinds)
    if found and not known:
        raise _unsupported(pattern, found[0], kinds)
    return known


def _glob(root: Path, pattern: str) -> Iterator[Path]:
    """What a pattern matches below a folder; `**` enters linked folders, too."""
    parts = PurePath(pattern).parts
    if "**" not in parts:
        yield from root.glob(pattern)
        return
    at = parts.index("**")
    before, after = PurePath(*parts[:at]), PurePath(*parts[at + 1 :])
    for top in root.glob(str(before)) if before.parts else [root]:
        for folder in _folders(top, hidden=True):
            yield from _glob(folder, str(after)) if after.parts else [folder]


def _below(folder: Path) -> list[Path]:
    """All files below a folder, also in linked folders, without hidden ones."""
    inner = (path for one in _folders(folder, hidden=False) for path in sorted(one.iterdir()))
    return [path for path in inner if path.is_file() and not path.name.startswith(".")]


def _folders(top: Path, *, hidden: bool) -> Iterator[Path]:
    """A folder and all below it, each once; linked ones last, so that a link to what is there anyway adds nothing.

    One that cannot be listed is not left out without a word.
    """

    def refuse(error: OSError) -> None:
        if not files.holds_nothing(error, top):
            raise StokerError("STK121", path=error.filename, reason=error.strerror) from error

    seen: set[str] = set()
    starts = [top]
    while starts:
        links: list[Path] = []
        for parent, names, _ in (found for start in starts for found in os.walk(start, onerror=refuse)):
            names[:] = sorted(name for name in names if hidden or not name.startswith("."))
            if (real := os.path.realpath(parent)) in seen:
                names.clear()
                continue
            seen.add(real)
            yield Path(parent)
            links += [path for path in (Path(parent, name) for name in names) if _leads_elsewhere(path)]
        starts = links


def _leads_elsewhere(path: Path) -> bool:
    """Whether it is a link, and not to a folder that it is in itself."""
    return path.is_symlink() and not path.parent.resolve().is_relative_to(path.resolve())


def _known(paths: Iterable[Path], kinds: tuple[str, ...]) -> list[Path]:
    found = sorted({file for file in paths if kind(file) in kinds}, key=lambda file: file.as_posix())
    return [file for file in found if kind(file) != MARKDOWN] or found
