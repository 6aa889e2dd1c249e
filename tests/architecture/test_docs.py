"""The docs say what the code does, in both languages: YAML loads, links lead somewhere, reference pages are current."""

import re
import textwrap
from pathlib import Path

import pytest
import reference

from stoker.config import load
from stoker.messages.en import ENGLISH

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ENGLISH_ONLY = ("adr", "evidence")
"""Decisions and measurements are written for people who change the code."""

BLOCK = re.compile(r"^```[^\n]*\n.*?^```$", re.DOTALL | re.MULTILINE)
YAML = re.compile(r"^ *```ya?ml(?P<about>[^\n]*)\n(?P<body>.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


def pages() -> list[Path]:
    return sorted(path for path in DOCS.rglob("*.md"))


def bilingual() -> list[Path]:
    """English pages that must have a Chinese one beside them."""
    inside = [page for page in pages() if page.relative_to(DOCS).parts[0] not in ENGLISH_ONLY]
    return [page for page in inside if not page.name.endswith(".zh.md")]


def pairs() -> list[tuple[Path, Path]]:
    readme = (ROOT / "README.md", ROOT / "README.zh-CN.md")
    return [readme, *((page, page.with_name(f"{page.stem}.zh.md")) for page in bilingual())]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_files() -> list[tuple[str, str]]:
    """Every YAML block, with the place it stands; one that is no run file is titled `part of a run file`."""
    found = []
    for page in [*pages(), *sorted(ROOT.glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in YAML.finditer(text):
            if "part of a run file" not in block["about"]:
                place = f"{named(page)}:{1 + text.count(chr(10), 0, block.start())}"
                found.append((place, textwrap.dedent(block["body"])))
    return found


@pytest.mark.parametrize(("place", "text"), run_files(), ids=[place for place, _ in run_files()])
def test_a_run_file_in_the_docs_loads(place: str, text: str) -> None:
    load.parse(text, place)


def test_there_are_run_files_in_the_docs() -> None:
    assert len(run_files()) > 4


@pytest.mark.parametrize(("english", "chinese"), pairs(), ids=[named(page) for page, _ in pairs()])
def test_a_page_has_a_chinese_twin_with_the_same_code_blocks(english: Path, chinese: Path) -> None:
    assert chinese.exists(), f"{named(chinese)} is missing"
    blocks = [BLOCK.findall(page.read_text(encoding="utf-8")) for page in (english, chinese)]
    assert list(map(_typed, blocks[0])) == list(map(_typed, blocks[1]))


def _typed(block: str) -> str:
    """A block that must be the same in both languages; what Stoker prints (```text output) is in the reader's."""
    is_output = block.startswith("```text output\n")
    return f"{block.count(chr(10))} lines of output" if is_output else block


@pytest.mark.parametrize("page", [page for page, _ in pairs()], ids=named)
def test_output_on_a_chinese_page_is_chinese(page: Path) -> None:
    chinese = dict(pairs())[page].read_text(encoding="utf-8")
    shown = [block for block in BLOCK.findall(chinese) if block.startswith("```text output\n")]
    assert [block for block in shown if not re.search(r"[\u4e00-\u9fff]", block)] == []


WRAPPED = re.compile(
    r"^(?![ #|>]|```|---)[^\n]*[\u3000-\u9fff\uff00-\uffef]\n(?=[^-*+>#|!\s])(?!\d+\.|```)", re.MULTILINE
)


@pytest.mark.parametrize("page", [ROOT / "README.zh-CN.md", *DOCS.glob("[!r]*/*.zh.md")], ids=named)
def test_a_chinese_paragraph_is_one_line(page: Path) -> None:
    """A browser would put a space where a line is broken, in the middle of a sentence."""
    found = [match.group()[-40:] for match in WRAPPED.finditer(BLOCK.sub("", page.read_text(encoding="utf-8")))]
    assert not found


def test_a_broken_chinese_line_is_found() -> None:
    assert WRAPPED.search("这一步不需要 GPU，也不需要\nPyTorch。\n")
    assert not WRAPPED.search("这一步不需要 GPU。\n\n- 也不需要\n- PyTorch\n")


def test_no_chinese_page_stands_alone() -> None:
    alone = [p for p in DOCS.rglob("*.zh.md") if not p.with_name(p.name.replace(".zh.md", ".md")).exists()]
    assert alone == []


@pytest.mark.parametrize("page", [*pages(), *sorted(ROOT.glob("*.md"))], ids=named)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = [match.group(1) for match in LINK.finditer(BLOCK.sub("", page.read_text(encoding="utf-8")))]
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_commands_named_in_the_docs_exist() -> None:
    known = {name.split()[0] for name in reference.commands()}
    named_in_docs = set()
    for page in bilingual():
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            named_in_docs |= set(re.findall(r"^stoker ([a-z]+)", block, re.MULTILINE))
    assert named_in_docs - known == set()


def test_error_codes_named_in_the_docs_exist() -> None:
    read = [*pages(), *sorted(ROOT.glob("*.md"))]
    found = {code for page in read for code in re.findall(r"STK\d{3}", page.read_text(encoding="utf-8"))}
    assert found - ENGLISH.keys() == set()


def test_reference_pages_are_what_the_code_says() -> None:
    generated, _ = reference.generate()
    assert reference.differing(generated) == [], "run `python tools/reference.py`"


def test_every_reference_sentence_has_a_translation_and_no_translation_is_stale() -> None:
    _, chinese = reference.generate()
    assert chinese.missing == []
    assert chinese.stale == []
