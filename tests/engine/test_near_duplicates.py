"""Rows that say nearly the same, and rows that only look like it."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from stoker.engine import near_duplicates, row_facts
from stoker.engine.row_facts import SCRIPTS, Surveyor
from stoker.engine.tokenise import Rows
from stoker.rows.formats import Layout

TEMPLATE = (
    "You are a careful assistant. Read the customer's review below, decide whether it praises or blames the product, "
    "and answer with one word only, without any explanation. The review: {} End of the review."
)


def made_up(seed: int, length: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 8))) for _ in range(length)]


def found(texts: list[str]) -> set[tuple[int, int]]:
    facts = Surveyor(has_template=False)(
        Rows(list(enumerate([{"text": text} for text in texts])), Layout("text", "detect.keys"), is_text=False)
    )
    pairs, _ = near_duplicates.find(facts.counts.astype(np.int64), facts.pairs)
    return {(one, other) for one, other in pairs.tolist()}


def one_in_twenty(words: list[str], draw: random.Random) -> list[str]:
    changed = set(draw.sample(range(len(words)), max(1, len(words) // 20)))
    return ["changed" + word if at in changed else word for at, word in enumerate(words)]


CHANGES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "a word in twenty": one_in_twenty,
    "a sentence more": lambda words, _: [*words, "and", "this", "is", "all"],
    "a sentence less": lambda words, _: words[: -len(words) // 6],
    "a word less": lambda words, _: [*words[:9], *words[10:]],
}


@pytest.mark.parametrize("length", [24, 60, 900])
@pytest.mark.parametrize("change", CHANGES)
def test_small_changes_are_seen_through(change: str, length: int) -> None:
    draw = random.Random(length)
    texts = [made_up(seed, length) for seed in range(200)]
    copies = [CHANGES[change](words, draw) for words in texts[:50]]
    wanted = {(at, 200 + at) for at in range(50)}
    assert found([" ".join(words) for words in [*texts, *copies]]) == wanted


def test_a_crowd_of_copies_finds_the_row_that_stays() -> None:
    first = made_up(1, 60)
    crowd = [[*first[: 10 + at % 40], f"other{at}", *first[11 + at % 40 :]] for at in range(40)]
    others = [made_up(seed, 60) for seed in range(2, 2002)]
    near = found([" ".join(words) for words in [first, *crowd, *others]])
    staying: set[int] = set()
    for row in range(41):
        if not any((earlier, row) in near for earlier in staying):
            staying.add(row)
    assert staying == {0}
    assert all(other <= 40 for _, other in near)


def test_half_of_the_words_is_not_nearly_all() -> None:
    texts = [made_up(seed, 60) for seed in range(100)]
    halves = [[*words[:30], *made_up(1000 + at, 30)] for at, words in enumerate(texts)]
    assert found([" ".join(words) for words in [*texts, *halves]]) == set()


def test_one_template_with_other_content_is_no_duplicate() -> None:
    texts = [TEMPLATE.format(" ".join(made_up(seed, 7))) for seed in range(300)]
    assert found(texts) == set()


def test_a_duplicate_within_one_template_is_found() -> None:
    contents = [made_up(seed, 24) for seed in range(300)]
    copies = [one_in_twenty(words, random.Random(1)) for words in contents[:20]]
    texts = [TEMPLATE.format(" ".join(words)) for words in [*contents, *copies]]
    assert found(texts) == {(at, 300 + at) for at in range(20)}


def test_chinese_is_compared_by_characters() -> None:
    draw = random.Random(4)
    texts = ["".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(40)) for _ in range(100)]
    copies = [text[:20] + "改" + text[21:] for text in texts[:10]]
    assert found([*texts, *copies]) == {(at, 100 + at) for at in range(10)}


def test_words_are_without_case_and_sentence_marks_but_with_the_signs_of_mathematics() -> None:
    assert row_facts.words("Hello, World!") == row_facts.words("hello world")
    assert row_facts.words("你好，世界。") == row_facts.words("你好世界")
    assert row_facts.words("Été!") == row_facts.words("été")
    assert row_facts.words("2 + 3") != row_facts.words("2 - 3")


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Good morning", "latin"),
        ("Où est la gare ?", "latin"),
        ("今天用 Python 写一个函数", "han"),
        ("I read 《红楼梦》 in the summer of last year", "latin"),
        ("ひらがなと漢字", "kana"),
        ("안녕하세요", "hangul"),
        ("Доброе утро", "cyrillic"),
        ("12 + 7 = 19", "-"),
        ("👋 …", "-"),
    ],
)
def test_a_row_is_of_the_script_of_most_of_its_letters(text: str, script: str) -> None:
    assert SCRIPTS[row_facts.script(text)] == script
