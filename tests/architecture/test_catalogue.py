"""The message catalogue: both languages say the same, every code is explained, nothing lies unused."""

import re
import string
from pathlib import Path

import pytest
import sort_messages

from stoker.messages import CATALOGUES
from stoker.messages.en import ENGLISH
from stoker.messages.zh import CHINESE

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"
CODE = re.compile(r"STK\d{3}")
DYNAMIC_PREFIXES = (
    *("type.", "origin.", "card.", "eval.sample.", "prove.check."),
    *("plan.fits.", "disk.", "part.", "moment.", "explain.section.", "explain.fits."),
    *("compare.fits.", "compare.goal.", "change.", "why.sessions.", "rehearsal."),
    *("group.", "trap.", "fingerprint.", "figure.", "hosts.kept.", "hosts.python."),
    *("why.after.", "settle.state.", "settle.stays.", "settle.copy.", "settle.budget.", "reason.", "billed."),
    *("turn.", "init.option.", "survey.kind.", "survey.duplicates.", "survey.why.", "survey.page.kept_"),
    *("reward.needs.", "reward.problem.", "sandbox.open.", "why.reference."),
)
"""Keys whose last part is filled in at run time (`messages.text(f"origin.{...}")`)."""
RESERVED: set[str] = set()
"""Codes that have sentences and no caller yet."""


def source_text() -> str:
    files = [path for path in SOURCE.rglob("*.py") if path.parent.name != "messages"]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def codes() -> set[str]:
    return {key for key in ENGLISH if CODE.fullmatch(key)}


def test_both_languages_have_the_same_keys() -> None:
    assert ENGLISH.keys() - CHINESE.keys() == set()
    assert CHINESE.keys() - ENGLISH.keys() == set()


def test_both_languages_fill_in_the_same_placeholders() -> None:
    different = [key for key in ENGLISH if placeholders(ENGLISH[key]) != placeholders(CHINESE[key])]
    assert different == []


def test_what_a_person_could_type_is_the_same_in_both_languages() -> None:
    """Two sentences of `stoker models` quote its cells, which are words of the language."""
    typed = {key: [set(re.findall(r"`[^`]*`", one[key])) for one in (ENGLISH, CHINESE)] for key in ENGLISH}
    assert {key for key, (english, chinese) in typed.items() if english != chinese} == {"models.tested", "models.more"}


def test_no_sentence_is_left_untranslated() -> None:
    same = {key for key in ENGLISH if ENGLISH[key] == CHINESE[key] and re.search(r"[a-z]{4,} [a-z]{2,}", ENGLISH[key])}
    pip_lines = {key for key in same if ENGLISH[key].startswith("pip install")}
    assert same - pip_lines == set()


def test_every_code_has_a_hint() -> None:
    assert {code for code in codes() if f"{code}.hint" not in ENGLISH} == set()
    assert {key for key in ENGLISH if key.endswith(".hint") and key.removesuffix(".hint") not in ENGLISH} == set()


def test_every_code_raised_in_the_source_has_sentences() -> None:
    assert set(CODE.findall(source_text())) - codes() == set()


def test_every_code_is_raised_somewhere_or_reserved() -> None:
    unused = codes() - set(CODE.findall(source_text()))
    assert unused == RESERVED, "unused codes: take them out of the catalogue, or list them in RESERVED"


def test_every_other_sentence_is_said_somewhere() -> None:
    text = source_text()
    plain = [key for key in ENGLISH if not CODE.match(key) and not key.startswith(DYNAMIC_PREFIXES)]
    assert [key for key in plain if f'"{key}"' not in text] == []


@pytest.mark.parametrize("language", sorted(CATALOGUES))
def test_errors_and_hints_end_without_a_period(language: str) -> None:
    sentences = {key: text for key, text in CATALOGUES[language].items() if CODE.match(key)}
    assert [key for key, text in sentences.items() if text.endswith((".", "。"))] == []


def test_the_catalogues_are_sorted() -> None:
    assert sort_messages.main(["--check"]) == 0, "run `python tools/sort_messages.py`"
    assert sort_messages.in_order(["b.x", "STK202", "b.y", "STK101.hint", "a.z", "STK101", "b.w"]) == [
        *("b.x", "b.y", "b.w"),
        *("STK101", "STK101.hint", "STK202"),
        "a.z",
    ]


def test_chinese_sentences_have_full_width_marks_and_spaces_around_latin_words() -> None:
    """Marks at the start of a column may be followed by spaces that align it; a table's head may be narrow."""
    bare = {key: re.sub(r"`[^`]*`", "`x`", text) for key, text in CHINESE.items() if key != "gpus.memory"}
    wrong = re.compile(
        r"[\u4e00-\u9fff][,;:!?()]|[,;:!?()][\u4e00-\u9fff]"
        r"|[，。；：、（）] (?! )[^ ]|\S [，。；：、（）]|[\u4e00-\u9fff] [\u4e00-\u9fff]"
        r"|[\u4e00-\u9fff][A-Za-z0-9`]|[A-Za-z0-9`][\u4e00-\u9fff]"
    )
    assert {key: text for key, text in bare.items() if wrong.search(text)} == {}
