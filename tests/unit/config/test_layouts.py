"""Row formats: the table of keys, the table of readers and the documentation agree; packages are read last."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from installed_package import install

from stoker import plugins
from stoker.config import layouts
from stoker.errors import StokerError
from stoker.rows import formats
from stoker.rows.formats import Pair
from stoker.rows.row_values import BadRow

DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to"
EXAMPLE = re.compile(r"^\*\*`(\w+)`\*\*[^\n]*\n\n```json\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
CODE = """
from stoker.rows.formats import Pair

class Quiz:
    keys = (("riddle", "solution"),)
    needs_template = False

    def document(self, row, *, has_template):
        if row["riddle"] == "?":
            raise ValueError("no riddle")
        return Pair(row["riddle"], row["solution"])

QUIZ, NOTHING = Quiz(), None
"""


def examples(page: str) -> dict[str, Any]:
    """The row that the documentation shows for each format."""
    found = EXAMPLE.findall((DOCS / page).read_text(encoding="utf-8"))
    return {name: json.loads(row) for name, row in found}


def test_every_built_in_format_has_an_example_in_the_documentation() -> None:
    assert examples("data-formats.md").keys() == layouts.BUILT_IN.keys()
    assert examples("data-formats.zh.md") == examples("data-formats.md")


@pytest.mark.parametrize("name", layouts.BUILT_IN)
def test_the_example_of_a_format_is_recognised_and_read(name: str) -> None:
    row = examples("data-formats.md")[name]
    found = formats.detect([row])
    assert found is not None
    assert (found.format, found.package) == (name, None)
    assert formats.parse(row, name, has_template=True)


@pytest.fixture
def quiz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two formats of an installed package, one of them broken."""
    points = {plugins.FORMATS: {"quiz": "QUIZ", "void": "NOTHING"}}
    install(tmp_path, "acme-rows", points, CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_rows", raising=False)
    for cached in (formats._plugin, formats._loaded):
        cached.cache_clear()


@pytest.mark.usefixtures("quiz")
def test_a_format_of_a_package_is_recognised_after_the_built_in_ones() -> None:
    row = {"riddle": "what walks?", "solution": "man"}
    found = formats.detect([row])
    assert found == formats.Layout("quiz", "detect.keys", ["riddle", "solution"], "acme-rows 1.0")
    assert formats.parse(row, "quiz", has_template=False) == Pair("what walks?", "man")
    assert "acme_rows" in sys.modules
    plain = formats.detect([{**row, "text": "x"}])
    assert plain is not None
    assert plain.format == "text"


@pytest.mark.usefixtures("quiz")
@pytest.mark.parametrize(("row", "reason"), [({"riddle": "?"}, "no riddle"), ({}, "KeyError: 'riddle'")])
def test_whatever_a_format_of_a_package_raises_makes_a_bad_row(row: dict[str, str], reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        formats.parse(row, "quiz", has_template=False)
    assert caught.value.fields == {"problem": reason, "package": "acme-rows 1.0"}


@pytest.mark.usefixtures("quiz")
def test_an_empty_completion_is_refused_in_a_package_s_document_too() -> None:
    with pytest.raises(BadRow) as caught:
        formats.parse({"riddle": "a", "solution": " "}, "quiz", has_template=False)
    assert caught.value.reason == "row.empty"


@pytest.mark.usefixtures("quiz")
def test_an_entry_point_that_is_no_format_is_named() -> None:
    with pytest.raises(StokerError, match="acme-rows") as caught:
        _ = formats.forced("void").needs_template
    assert caught.value.code == "STK124"
