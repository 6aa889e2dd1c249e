"""Several prepared sets as one, for a mixture: the shards of each under new numbers, and a report of all.

No token is read or copied: files get second names. What is taken of each set, and when, says `rows/mixture.py`.
"""

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from stoker.errors import StokerError
from stoker.rundir import files, prepared
from stoker.rundir.checkpoints import FileEntry
from stoker.rundir.prepared import Report, SourceCount, Split
from stoker.rundir.set_list import SetList


def link(names: Sequence[str], folders: Sequence[Path], target: Path, where: str) -> SetList:
    """Put sets together in a folder.

    Args:
        names: What the mixture calls them.
        folders: A whole set each.
        target: Made anew.
        where: The address that the list has of them.
    """
    reports = [prepared.read_report(folder) for folder in folders]
    found = together(names, [report for report in reports if report is not None])
    shutil.rmtree(target, ignore_errors=True)
    for split in ("train", "eval"):
        for folder, shard, number in _numbered(folders, reports, split):
            (target / split / number).mkdir(parents=True)
            for name in prepared.SHARD_FILES:
                files.link(folder / split / shard / name, target / split / number / name)
    shutil.copytree(folders[0] / prepared.TOKENIZER_NAME, target / prepared.TOKENIZER_NAME)
    prepared.write_report(target, found)
    sealed = prepared.read_report(target)
    assert sealed is not None
    report_file = prepared.report_file(target)
    digests = {**sealed.files, report_file.name: files.sha256(report_file)}
    entries = {name: FileEntry(bytes=(target / name).stat().st_size, sha256=one) for name, one in digests.items()}
    parts = {name: report.digest for name, report in zip(names, reports, strict=True) if report}
    return SetList(digest=sealed.digest, files=entries, where=where, parts=parts).sealed()


def together(names: Sequence[str], reports: Sequence[Report]) -> Report:
    """The report of several sets as one; each is a source of its own.

    The entropy is the mean of theirs: what a model of all frequencies would reach is no less.
    """
    first = reports[0]
    for name, report in zip(names, reports, strict=True):
        if report.tokenizer != first.tokenizer or not _tokenizer(report):
            raise StokerError("STK348", first=names[0], other=name)
    train = _split("train", names, [report.train for report in reports])
    held = [report.eval for report in reports if report.eval is not None]
    histogram: Counter[str] = Counter()
    for report in reports:
        histogram.update(report.length_histogram)
    known = [report.highest_token for report in reports if report.highest_token is not None]
    entropies = [report.unigram_entropy * report.train.trained_tokens for report in reports]
    counted = first.model_copy(
        update={
            "key": "",
            "words": "",
            "sources": [],
            "highest_token": max(known) if len(known) == len(reports) else None,
            "detected": [one for report in reports for one in report.detected],
            "rows_read": sum(report.rows_read for report in reports),
            "bad_rows": sum(report.bad_rows for report in reports),
            "truncated_rows": sum(report.truncated_rows for report in reports),
            "context_answers": sum(report.context_answers for report in reports),
            "length_histogram": dict(histogram),
            "pack_efficiency": train.tokens / (train.sequences * first.length),
            "unigram_entropy": math.fsum(entropies) / train.trained_tokens,
            "pipeline": None,
            "survey": None,
            "train": train,
            "eval": _split("eval", names, held).model_copy(update={"sources": []}) if held else None,
        }
    )
    return counted.model_copy(update={"digest": prepared.digest(counted.train, counted.eval, _tokenizer(first))})


def _tokenizer(report: Report) -> str:
    return report.tokenizer.get(prepared.TOKENIZER_FILE, "")


def _numbered(folders: Sequence[Path], reports: Sequence[Report | None], split: str) -> Iterator[tuple[Path, str, str]]:
    """Each shard of a split with its folder, under its old and its new name."""
    for number, (folder, shard) in enumerate(
        (folder, shard)
        for folder, report in zip(folders, reports, strict=True)
        for shard in getattr(getattr(report, split), "shards", ())
    ):
        yield folder, shard, prepared.shard_name(number)


def _split(split: str, names: Sequence[str], splits: Sequence[Split]) -> Split:
    firsts = itertools.accumulate((one.sequences for one in splits), initial=0)
    shards = [(one, shard) for one in splits for shard in one.shards]
    return Split(
        sequences=sum(one.sequences for one in splits),
        segments=sum(one.segments for one in splits),
        tokens=sum(one.tokens for one in splits),
        trained_tokens=sum(one.trained_tokens for one in splits),
        longest=max(one.longest for one in splits),
        longest_segment=max(one.longest_segment for one in splits),
        shards=[prepared.shard_name(number) for number in range(len(shards))],
        files={
            f"{split}/{prepared.shard_name(number)}/{name}": one.files[f"{split}/{shard}/{name}"]
            for number, (one, shard) in enumerate(shards)
            for name in prepared.SHARD_FILES
        },
        sources=[
            SourceCount(name=name, first=first, sequences=one.sequences, tokens=one.tokens)
            for name, first, one in zip(names, firsts, splits, strict=False)
        ],
    )
