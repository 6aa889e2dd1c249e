"""Which prepared set is the run's own."""

from stoker.config.run import Run
from stoker.rundir import prepared


def test_sets_of_earlier_versions_stay_current() -> None:
    """A key added to the run file must leave this digest alone at its default: runs begun before have it on disk."""
    run = Run.model_validate({"model": "a/b", "data": {"train": "rows.jsonl"}})
    assert prepared.words(run) == "af36759d266da16897aa42a3cfde2b6fa3b2055e1419233ef988c3a5540874c0"
