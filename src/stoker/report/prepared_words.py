"""What was prepared, in sentences: for `stoker prepare` and for the page of a run."""

from stoker import messages
from stoker.config import objectives
from stoker.rundir.prepared import Report


def trained(report: Report) -> list[str]:
    """Sequences, or pairs of answers, and their tokens."""
    train = report.train
    one_each = "prepare.pairs" if objectives.has_pairs(report.objective) else "prepare.unpacked"
    counts = {
        "segments": f"{train.segments:,}",
        "sequences": f"{train.sequences:,}",
        "length": f"{report.length:,}",
        "efficiency": f"{report.pack_efficiency:.1%}",
    }
    share = f"{train.trained_tokens / train.tokens:.1%}" if train.tokens else "-"
    tokens = {"tokens": f"{train.tokens:,}", "trained": f"{train.trained_tokens:,}", "share": share}
    return [
        messages.text("prepare.packed" if report.packed else one_each, **counts),
        messages.text("prepare.tokens", **tokens),
    ]


def held_and_cut(report: Report) -> list[str]:
    """What is held out, and how many rows were cut off; nothing without any."""
    found = []
    if report.eval:
        key = "prepare.pairs.eval" if objectives.has_pairs(report.objective) else "prepare.eval"
        counts = {name: f"{getattr(report.eval, name):,}" for name in ("segments", "sequences", "tokens")}
        found.append(messages.text(key, **counts))
    if report.truncated_rows:
        count, length = f"{report.truncated_rows:,}", f"{report.length:,}"
        found.append(messages.text("prepare.truncated", count=count, length=length))
    return found
