"""Who brought an attempt of several ranks to its end."""

from stoker.supervise import judge
from stoker.supervise.blame import Blame, Lost
from stoker.supervise.limits import Clock

LONELY, SILENT = Lost(0, "a", 5, "lost"), Lost(1, "b", 5, "silent")


def test_who_merely_lost_the_others_is_blamed_after_a_moment_only() -> None:
    own = [0.0]
    blame = Blame(Clock(own=lambda: own[0]), 3.0)
    assert blame.culprit() is None
    assert blame.culprit(final=True) is None
    blame.add(LONELY)
    assert blame.culprit() is None
    assert blame.culprit(final=True) == LONELY
    own[0] = 3.0
    assert blame.culprit() == LONELY


def test_the_first_that_did_not_merely_lose_the_others_caused_it() -> None:
    blame = Blame(Clock(own=lambda: 0.0), 3.0)
    for lost in (LONELY, SILENT, Lost(2, "c", 5, "dead")):
        blame.add(lost)
    assert blame.culprit() == SILENT


def test_a_report_without_a_rank_blames_the_first_of_its_node() -> None:
    blame = Blame(Clock(own=lambda: 0.0), 3.0)
    blame.add_report("a", {**judge.report(0, "", 0, []), "asked": False}, 0, 7)
    blame.add_report("b", {**judge.report(-9, "", 2, []), "asked": False}, 2, 7)
    blame.add(Lost(4, "c", 7, "node"))
    assert blame.culprit() == Lost(2, "b", 7, "SIGKILL")
    assert blame.gone_nodes() == {"a", "b", "c"}
