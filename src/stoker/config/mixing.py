"""What a run file says about mixing its sources: names, stages with shares by tokens, and words that do not agree.

A mixture is asked for by `data.stages`, by `share` or `epochs` at the sources, or by a list of prepared sets. Knows no
data: what a share is in sequences says `rows/mixture.py`.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from stoker.config import dataset_info
from stoker.config.data_section import Data, PreparedSource, Source, Stage
from stoker.config.reader import Document, KeyPath
from stoker.config.run import Run
from stoker.errors import StokerError, closest

_EXTENSIONS = (".gz", ".jsonl", ".json", ".csv", ".parquet", ".txt")
_LENGTHS = ("epochs", "steps")
"""Keys of `train` that say how long a training is."""


def sources(data: Data) -> list[Source]:
    """The training sources, however the run file writes them, with columns; none where it names a prepared set."""
    if data.train is None:
        return []
    if isinstance(data.train, str):
        return [Source(path=data.train, columns=data.columns)]
    listed = [data.train] if isinstance(data.train, Source) else data.train
    return [one if one.columns else one.model_copy(update={"columns": data.columns}) for one in listed]


def set_paths(data: Data) -> list[str]:
    """Where the prepared sets are that a run file names; none where it names rows."""
    return [data.set] if isinstance(data.set, str) else [one.path for one in data.set or ()]


def set_address(data: Data) -> str:
    """Where the set of a run file is, as it writes it; of several sets their names, too."""
    if not isinstance(data.set, list):
        return str(data.set)
    return ", ".join(f"{name_of(one)}: {one.path}" for one in data.set)


def set_words(data: Data) -> list[list[str | float | None]] | None:
    """How several sets are mixed, wherever they are; None without them."""
    return [[name_of(one), one.share, one.epochs] for one in data.set] if isinstance(data.set, list) else None


def parts(data: Data) -> Sequence[Source | PreparedSource]:
    """What a mixture is made of: sources of rows, or prepared sets."""
    return data.set if isinstance(data.set, list) else sources(data)


def name_of(source: Source | PreparedSource) -> str:
    """`wiki` for `data/wiki.jsonl.gz`, `hub:owner/wiki`, `dataset_info.json#wiki`, `run:wiki`, unless it has a name."""
    last = source.path.rpartition(dataset_info.MARK)[2].rstrip("/").replace(":", "/").rpartition("/")[2]
    for extension in _EXTENSIONS:
        last = last.removesuffix(extension)
    return source.name or last or source.path


def names(data: Data) -> list[str]:
    """The names of what is mixed, in order."""
    return [name_of(source) for source in parts(data)]


def is_mixed(data: Data) -> bool:
    """Whether the order of sequences follows a mixture."""
    several = isinstance(data.set, list)
    return several or data.stages is not None or any(source.share or source.epochs for source in sources(data))


def stages(data: Data) -> list[Stage]:
    """The stages by shares of tokens; shares at the sources are one stage. Empty for a mixture by epochs, or none."""
    if data.stages:
        return data.stages
    mix = {name_of(source): source.share for source in parts(data) if source.share}
    return [Stage(mix=mix)] if mix else []


def part(percent: str) -> Fraction:
    """`12.5%` as 1/8, exactly."""
    return Fraction(percent.strip().rstrip("%").rstrip()) / 100


def conflicts(run: Run, document: Document) -> list[StokerError]:
    """What is wrong with a mixture."""
    if not is_mixed(run.data):
        return []
    # Of a set that was prepared as a mixture, the report names the sources.
    sources = [] if isinstance(run.data.set, str) else _source_conflicts(run, document)
    return [*sources, *_stage_conflicts(run, document), *_length_conflicts(run, document)]


def _source_conflicts(run: Run, document: Document) -> Iterator[StokerError]:
    listed, known = parts(run.data), names(run.data)
    key = "set" if run.data.set else "train"
    places: list[KeyPath] = [("data", key)]
    if isinstance(getattr(run.data, key), list):
        places = [("data", key, number) for number in range(len(listed))]
    for number, (source, place) in enumerate(zip(listed, places, strict=True)):
        given = [key for key in ("share", "epochs", "weight") if key in source.model_fields_set]
        if known[number] in known[:number]:
            yield StokerError("STK162", document.where((*place, "name")), name=known[number])
        if run.data.stages and given:
            yield _together(document, (*place, given[0]), f"data.{key}.{given[0]}", "data.stages")
        elif len(given) > 1:
            yield _together(document, (*place, given[1]), f"data.{key}.{given[1]}", f"data.{key}.{given[0]}")
    for word in ("share", "epochs"):
        lacking = [place for source, place in zip(listed, places, strict=True) if getattr(source, word) is None]
        if 0 < len(lacking) < len(listed):
            yield from (StokerError("STK164", document.where(place), key=word) for place in lacking)
    if run.data.stages is None and not any(source.share or source.epochs for source in listed):
        yield StokerError("STK170", document.where(("data", "set")))
    shares = [source.share for source in listed if source.share]
    if len(shares) == len(listed):
        yield from _not_whole(shares, document, ("data", key))


def _stage_conflicts(run: Run, document: Document) -> Iterator[StokerError]:
    listed, known = run.data.stages or [], names(run.data)
    for number, stage in enumerate(listed):
        place: KeyPath = ("data", "stages", number)
        yield from _not_whole(list(stage.mix.values()), document, (*place, "mix"))
        for name in stage.mix:
            if known and name not in known:
                choices, near = [f"`{one}`" for one in known], closest(name, known, 1)
                where = document.where((*place, "mix", name))
                yield StokerError("STK161", where, name=name, choices=choices, nearest=near)
        if stage.share and stage.tokens:
            yield _together(document, (*place, "share"), "data.stages.share", "data.stages.tokens")
    key = "tokens" if any(stage.tokens for stage in listed) else "share"
    lacking = [number for number, stage in enumerate(listed) if getattr(stage, key) is None]
    if lacking and len(listed) > 1:  # a single stage is the whole training
        yield StokerError("STK164", document.where(("data", "stages", lacking[0])), key=key)
    shares = [stage.share for stage in listed if stage.share]
    if shares and len(shares) == len(listed):
        yield from _not_whole(shares, document, ("data", "stages"))


def _length_conflicts(run: Run, document: Document) -> Iterator[StokerError]:
    """A mixture by epochs or by tokens says itself how long the training is."""
    by_tokens = any(stage.tokens for stage in run.data.stages or [])
    said = "data.stages.tokens" if by_tokens else f"data.{'set' if run.data.set else 'train'}.epochs"
    if by_tokens or any(source.epochs for source in parts(run.data)):
        for key in _LENGTHS:
            if key in run.train.model_fields_set and getattr(run.train, key) is not None:
                yield _together(document, ("train", key), f"train.{key}", said)


def _not_whole(shares: Sequence[str], document: Document, place: KeyPath) -> Iterator[StokerError]:
    total = sum(map(part, shares))
    if total != 1:
        given = " + ".join(share.replace(" ", "") for share in shares)
        yield StokerError("STK160", document.where(place), total=f"{float(100 * total):.10g}", given=given)


def _together(document: Document, path: KeyPath, key: str, other: str) -> StokerError:
    return StokerError("STK163", document.where(path), key=key, other=other)
