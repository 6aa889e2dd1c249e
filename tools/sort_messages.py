"""Sorts the message catalogues, so that two people who add a sentence rarely edit the same line.

    python tools/sort_messages.py            write both catalogues
    python tools/sort_messages.py --check    exit 1 where one is not sorted

Error codes ascend, each followed by its hint. Other keys are grouped by prefix (`plan.`, `doctor.`), within a group and
between groups in the order of the English catalogue. A comment stays above the key it is about.
"""

import re
import sys
from pathlib import Path

CATALOGUES = [Path(__file__).resolve().parent.parent / "src/stoker/messages" / f"{name}.py" for name in ("en", "zh")]
ENTRY = re.compile(r'(?:    #[^\n]*\n)*    "(?P<key>[^"]+)": [^\n]*\n')
CODE = re.compile(r"STK\d{3}")


def group(key: str) -> str:
    """What a key stands with: all error codes, or its prefix."""
    return "STK" if CODE.match(key) else key.partition(".")[0]


def in_order(keys: list[str]) -> list[str]:
    """The keys as they should stand."""
    groups = list(dict.fromkeys(map(group, keys)))
    return sorted(keys, key=lambda key: (groups.index(group(key)), key if CODE.match(key) else ""))


def arranged(text: str, order: list[str]) -> str:
    """A catalogue's text with its entries in this order."""
    found = list(ENTRY.finditer(text))
    start, end = found[0].start(), found[-1].end()
    assert "".join(one.group() for one in found) == text[start:end], "an entry takes one line"
    entries = {one["key"]: one.group() for one in found}
    return text[:start] + "".join(entries[key] for key in order) + text[end:]


def main(arguments: list[str]) -> int:
    texts = {path: path.read_text(encoding="utf-8") for path in CATALOGUES}
    order = in_order([one["key"] for one in ENTRY.finditer(texts[CATALOGUES[0]])])
    unsorted = {path: after for path, text in texts.items() if (after := arranged(text, order)) != text}
    for path, after in unsorted.items():
        if arguments == ["--check"]:
            print(f"{path.name} is not sorted; run `python tools/sort_messages.py`", file=sys.stderr)
        else:
            path.write_text(after, encoding="utf-8", newline="\n")
    return 1 if unsorted and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
