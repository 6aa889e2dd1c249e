"""Which prepared set is the run's own."""

import pytest

from stoker.config import load
from stoker.config.run import Run
from stoker.rundir import prepared


def test_sets_of_earlier_versions_stay_current() -> None:
    """A key added to the run file must leave this digest alone at its default: runs begun before have it on disk."""
    run = Run.model_validate({"model": "a/b", "data": {"train": "rows.jsonl"}})
    assert prepared.words(run) == "af36759d266da16897aa42a3cfde2b6fa3b2055e1419233ef988c3a5540874c0"


# ---- mixtures

PLAIN = {
    "file": "model: org/name\ndata: {train: rows.jsonl, eval: 2%}\n",
    "mapping": "model: org/name\ndata: {train: {path: rows.jsonl, weight: 2}}\n",
    "list": "model: org/name\ndata: {train: [{path: a.jsonl, weight: 2}, {path: 'hub:o/b', config: en}], length: 512, "
    "pack: false}\ntrain: {objective: pretrain, seed: 7}\n",
}


@pytest.mark.parametrize(
    ("kind", "words", "key"),
    [
        ("file", "d47da90b0dadda1a22c188897ebcff4d", "f894550412f332136e9a64deb47433e0"),
        ("mapping", "4096fc5e829d687bff1fc780455cf54c", "b95d796f9eb1f24bfcb1c6ea3a09e86c"),
        ("list", "29d7eb83ebce9ca0629d6739364791f6", "da8b47f26a1583098f8ec684a70d2d3d"),
    ],
)
def test_sets_without_a_mixture_keep_the_keys_they_had_before_there_were_any(
    kind: str, words: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "ROWS", 4)  # that rows are read by other rules makes another key, as it should
    run = load.parse(PLAIN[kind], "run.yaml")
    assert prepared.words(run).startswith(words)
    assert prepared.key_of(run, [["a", 1, "x"]]).startswith(key)


def test_a_set_is_prepared_once_for_every_mixture_of_its_sources() -> None:
    def words(sources: str, more: str = "") -> str:
        return prepared.words(load.parse(f"model: org/name\ndata: {{train: [{sources}]{more}}}\n", "run.yaml"))

    shares = words("{path: a.txt, share: 50%}, {path: b.txt, share: 50%}")
    stages = words("{path: a.txt}, {path: b.txt}", ", stages: [{mix: {a: 10%, b: 90%}}]")
    epochs = words("{path: a.txt, epochs: 2}, {path: b.txt, epochs: 1}")
    assert shares == stages == epochs
    assert words("{path: a.txt}, {path: b.txt}") != shares, "its sources share their shards"
    assert words("{path: a.txt, name: c, epochs: 2}, {path: b.txt, epochs: 1}") != shares
