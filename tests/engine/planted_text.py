"""Real text with planted near-duplicates, exact duplicates, decoys and leaks of an eval set, and what is known of each.

Documents are windows of files below /usr/share/doc. Of those that share shingles with an earlier one only the earlier
is taken, so that every near-duplicate there is was planted.
"""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TEXTS = Path("/usr/share/doc")
WINDOW = 300
"""Words of a document."""
EDITED = 0.01
"""Share of the words that a near-duplicate changes: 5-grams then have a similarity of about 0.9."""
DECOY_EDITED = 0.12
"""Of a decoy, which is no duplicate: about 0.36."""
ONLY_BY_LENGTH: dict[str, None] = dict.fromkeys(
    (
        *("max_doc_words", "min_avg_word_length", "max_avg_word_length", "max_symbol_word_ratio", "min_stop_words"),
        *("max_bullet_lines_ratio", "max_ellipsis_lines_ratio", "max_non_alpha_words_ratio"),
    )
)
"""Options of `GopherQualityFilter`: what it thinks of changelogs is not measured here."""
_SHORT = 20
_WINDOWS = 20
"""Of one file, at most."""
_SHINGLE = 5
_MOST_SHARED = 0.1
_QUESTION_WORDS = 24


@dataclass
class Planted:
    """Rows, and which of them should go."""

    rows: list[dict[str, str]] = field(default_factory=list)
    eval_rows: list[dict[str, str]] = field(default_factory=list)
    pairs: dict[str, str] = field(default_factory=dict)
    """A planted near-duplicate or exact duplicate, and what it is one of: one of the two should go."""
    leaks: set[str] = field(default_factory=set)
    """Rows with an eval row in them."""
    short: set[str] = field(default_factory=set)
    """Rows that a filter should drop."""


def plant(documents: int, seed: int) -> Planted:
    """`documents` that are unlike each other.

    A fifth has a near-duplicate; a twentieth each has an exact one, or a decoy, or is in the eval set; as many more
    have 20 words.
    """
    rng = random.Random(seed)
    planted = Planted()
    texts = _unlike(documents, rng)
    names = [f"own-{number}" for number in range(documents)]
    planted.rows = [{"id": name, "text": text} for name, text in zip(names, texts, strict=True)]
    near, few = documents // 5, max(1, documents // 20)
    for number in range(near):
        _add(planted, f"near-{number}", _edited(texts[number], EDITED, rng), of=names[number])
    for number in range(near, near + few):
        _add(planted, f"exact-{number}", texts[number], of=names[number])
    for number in range(near + few, near + 2 * few):
        _add(planted, f"decoy-{number}", _edited(texts[number], DECOY_EDITED, rng))
    for number in range(near + 2 * few, near + 3 * few):
        words = texts[number].split()
        start = rng.randrange(len(words) - 2 * _QUESTION_WORDS)
        question, answer = words[start:][:_QUESTION_WORDS], words[start + _QUESTION_WORDS :][:_QUESTION_WORDS]
        planted.eval_rows.append({"question": " ".join(question), "answer": " ".join(answer)})
        planted.leaks.add(names[number])
    for number in range(few):
        name = f"short-{number}"
        _add(planted, name, f"{number} " + " ".join(texts[-1 - number].split()[:_SHORT]))
        planted.short.add(name)
    rng.shuffle(planted.rows)
    return planted


def write(planted: Planted, folder: Path, files: int, *, parquet: bool) -> None:
    """The rows as files `raw/*.jsonl`, every second one parquet if asked, and the eval set as `eval.jsonl`."""
    (folder / "raw").mkdir(parents=True)
    for number in range(files):
        rows = planted.rows[number::files]
        if parquet and number % 2:
            import pyarrow
            from pyarrow import parquet as tables

            tables.write_table(pyarrow.Table.from_pylist(rows), folder / "raw" / f"part-{number}.parquet")
        else:
            _jsonl(folder / "raw" / f"part-{number}.jsonl", rows)
    _jsonl(folder / "eval.jsonl", planted.eval_rows)


def score(planted: Planted, kept: set[str], dropped: dict[str, set[str]]) -> dict[str, float | int]:
    """Of duplicates: precision, recall and F1, where a pair counts once; of leaks and short rows: how many are left.

    Args:
        planted: What was planted.
        kept: Names of the rows that are left.
        dropped: Names of the rows that each step dropped. What decontamination drops and was not planted shares n-grams
            with the eval set by itself (pages of one program do): it is counted, and is no mistake of a deduplication.
    """
    gone = set().union(*(names for step, names in dropped.items() if step.endswith("Dedup")))
    found = sum(1 for one, other in planted.pairs.items() if len({one, other} & gone) == 1)
    wrong = len(gone) - found
    missed = len(planted.pairs) - found
    contaminated = set().union(*(names for step, names in dropped.items() if step.endswith("NGramsDecont")))
    return {
        "pairs": len(planted.pairs),
        "found": found,
        "missed": missed,
        "wrong": wrong,
        "f1": round(2 * found / max(1, 2 * found + wrong + missed), 4),
        "leaks": len(planted.leaks),
        "leaks_left": len(planted.leaks & kept),
        "contaminated_besides": len(contaminated - planted.leaks),
        "short": len(planted.short),
        "short_left": len(planted.short & kept),
    }


def names(folder: Path) -> set[str]:
    """Names of the rows in the files of a folder."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    return {json.loads(line)["id"] for line in lines}


def scored(planted: Planted, place: Path) -> dict[str, float | int]:
    """The score of a pipeline, by its folder."""
    return score(planted, names(place / "output"), {one.name: names(one) for one in place.glob("dropped/*")})


def _add(planted: Planted, name: str, text: str, of: str = "") -> None:
    planted.rows.append({"id": name, "text": text})
    if of:
        planted.pairs[name] = of


def _edited(text: str, share: float, rng: random.Random) -> str:
    words = text.split()
    for at in rng.sample(range(len(words)), max(1, round(share * len(words)))):
        words[at] = f"w{rng.randrange(10**6)}"
    return " ".join(words)


def _unlike(wanted: int, rng: random.Random) -> list[str]:
    seen: set[int] = set()
    found: list[str] = []
    for words in _windows(rng):
        plain = [word.lower().strip(".,;:()'\"") for word in words]
        shingles = {hash(tuple(plain[at : at + _SHINGLE])) for at in range(len(plain) - _SHINGLE + 1)}
        if len(shingles) > WINDOW // 2 and len(shingles & seen) <= _MOST_SHARED * len(shingles):
            seen |= shingles
            found.append(" ".join(words))
            if len(found) == wanted:
                return found
    raise AssertionError(f"{TEXTS} has only {len(found)} documents that are unlike each other")


def _windows(rng: random.Random) -> Iterator[list[str]]:
    files = sorted(path for path in TEXTS.rglob("*") if path.is_file() and not path.is_symlink())
    rng.shuffle(files)
    for path in files:
        try:
            text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
        except (OSError, ValueError, EOFError):
            continue
        words = text.split()
        for start in range(0, min(len(words), _WINDOWS * WINDOW) - WINDOW, WINDOW):
            yield words[start : start + WINDOW]


def _jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
