"""What a survey found, as lines for a terminal."""

from collections.abc import Mapping, Sequence

from stoker import messages
from stoker.survey.findings import Duplicates, Kind, OddRow, RowGroup, Survey

_SHOWN = 3
_INDENT = "  "


def lines(found: Survey) -> list[str]:
    """A line per finding, below each the first places."""
    said = [*_skipped(found), *_duplicates(found), *_leaks(found), *_contradictions(found)]
    if not said and found.duplicates is not None:
        said = [messages.text("survey.nothing", rows=f"{sum(found.rows.values()):,}")]
    return [*said, *_scripts(found), *_lengths(found), *_kept(found)]


def bad_rows(found: Survey) -> list[str]:
    """A line per reason: how many rows, and the first places."""
    return [
        messages.text(
            "prepare.bad_reason", count=f"{one.count:,}", reason=one.text, places=[str(place) for place in one.places]
        )
        for one in found.bad
    ]


def kinds(rows: Mapping[Kind, int]) -> list[str]:
    """`3 equal`, `5 nearly equal`."""
    return [messages.text(f"survey.kind.{kind}", count=f"{count:,}") for kind, count in rows.items() if count]


def group_text(group: RowGroup) -> str:
    """`a.jsonl:5 = a.jsonl:17, a.jsonl:90 and 3 more`."""
    sign = {"exact": "=", "words": "=", "near": "≈", None: "≠"}[group.kind]
    places = [str(place) for place in group.others]
    more = group.count - len(places)
    rest = (
        messages.text("survey.more", places=places, count=f"{more:,}")
        if more
        else messages.text("survey.all", places=places)
    )
    return f"{group.first} {sign} {rest}"


def odd_text(odd: OddRow) -> str:
    """`a.jsonl:5 (han, 80 tokens)`."""
    return messages.text(
        "survey.odd_row", place=odd.place, why=messages.named("survey.why", odd.why), tokens=f"{odd.tokens:,}"
    )


def skipped_text(found: Survey) -> str:
    """Why rows, or their words, were not compared; empty where they were."""
    reason = found.skipped or found.near_skipped
    return messages.text(reason, limit=f"{found.limit:,}") if reason else ""


def duplicates_text(split: str, found: Duplicates) -> str:
    """How many duplicates a split has."""
    fields = {"count": f"{found.count:,}", "kinds": kinds(found.rows), "tokens": f"{found.tokens:,}"}
    return messages.text(f"survey.duplicates.{split}", share=f"{found.share:.1%}", **fields)


def _skipped(found: Survey) -> list[str]:
    said = [skipped_text(found)] if found.skipped or found.near_skipped else []
    if found.uncompared:
        said.append(messages.text("survey.uncompared", count=f"{found.uncompared:,}"))
    return said


def _duplicates(found: Survey) -> list[str]:
    said: list[str] = []
    for split, one in (found.duplicates or {}).items():
        if one.count:
            said += [duplicates_text(split, one), *_groups(one.places)]
    return said + left_out(found)


def left_out(found: Survey) -> list[str]:
    """What `data.duplicates` did, or could do."""
    if found.policy == "drop":
        counts = {"rows": f"{found.dropped_rows:,}", "tokens": f"{found.dropped_tokens:,}"}
        return [messages.text("survey.dropped", **counts)]
    some = (found.duplicates and found.duplicates.get("train") and found.duplicates["train"].count) or (
        found.leaks and found.leaks.count
    )
    return [messages.text("survey.drop")] if some else []


def leaks_text(found: Survey) -> str:
    """How many rows of train are in eval; empty where none is."""
    if not (found.leaks and found.leaks.count):
        return ""
    counts = {"count": f"{found.leaks.count:,}", "eval_rows": f"{found.leaks.eval_rows:,}"}
    said = messages.text("survey.leaks", kinds=kinds(found.leaks.rows), **counts)
    return said if found.policy == "drop" else said + messages.text("survey.leaks_kept")


def contradictions_text(found: Survey) -> str:
    """How many prompts have several answers; empty where none has."""
    one = found.contradictions
    if not (one and one.prompts):
        return ""
    return messages.text("survey.contradictions", prompts=f"{one.prompts:,}", rows=f"{one.rows:,}")


def scripts_text(found: Survey) -> str:
    """How many rows are in a script that hardly any is in; empty where none is."""
    if not (found.scripts and found.scripts.odd):
        return ""
    main = messages.named("survey.why", found.scripts.main)
    return messages.text("survey.scripts", count=f"{found.scripts.odd:,}", main=main)


def lengths_text(found: Survey) -> str:
    """How many rows are much longer or shorter than the others; empty where none is."""
    one = found.lengths
    if one is None or not any(one.odd.values()):
        return ""
    counts = {name: f"{count:,}" for name, count in one.odd.items()}
    usual = {name: f"{getattr(one, name):,}" for name in ("median", "low", "high")}
    return messages.text("survey.lengths", **counts, **usual)


def _leaks(found: Survey) -> list[str]:
    said = leaks_text(found)
    return [said, *_groups(found.leaks.places)] if said and found.leaks else []


def _contradictions(found: Survey) -> list[str]:
    said = contradictions_text(found)
    return [said, *_groups(found.contradictions.places)] if said and found.contradictions else []


def _scripts(found: Survey) -> list[str]:
    said = scripts_text(found)
    return [said, *_odd(found.scripts.places)] if said and found.scripts else []


def _lengths(found: Survey) -> list[str]:
    said = lengths_text(found)
    return [said, *_odd(found.lengths.places)] if said and found.lengths else []


def kept_rows(found: Survey) -> list[tuple[str, str, str]]:
    """Length, rows and tokens it keeps; the run file's length is marked."""
    return [
        (f"{one.length:,}{' *' if one.asked else ''}", f"{one.rows:.1%}", f"{one.tokens:.1%}")
        for one in found.kept_by_length
    ]


def _kept(found: Survey) -> list[str]:
    """The table of lengths, where the run file's one cuts anything."""
    if not any(one.asked and one.rows < 1 for one in found.kept_by_length):
        return []
    rows = [(f"{length:>9}", f"{whole:>7}", f"{tokens:>7}") for length, whole, tokens in kept_rows(found)]
    said = [
        messages.text("survey.kept_line", length=length, rows=whole, tokens=tokens) for length, whole, tokens in rows
    ]
    return [messages.text("survey.kept"), *(_INDENT + line for line in said)]


def _groups(places: Sequence[RowGroup]) -> list[str]:
    return [_INDENT + group_text(group) for group in places[:_SHOWN]]


def _odd(places: Sequence[OddRow]) -> list[str]:
    return [_INDENT + odd_text(one) for one in places[:_SHOWN]]
