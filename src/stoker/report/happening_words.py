"""What happened to a run, event by event, as sentences: for the page and for `stoker train` while it watches."""

from typing import Any

from stoker import messages
from stoker.api import replanning, run_progress
from stoker.api.sentences import listed
from stoker.rundir import files
from stoker.settle.reasons import reason

_CAUSES = {"compute": "straggler.compute", "data": "straggler.data"}
_ENDS = {"done": "report.end_done", "stopped": "report.end_stopped"}


def sentence(event: dict[str, Any]) -> str:
    """The sentence of an event; empty for one that says nothing new, or that is not ours."""
    tell = _TOLD.get(event["event"])
    try:
        return tell(event) if tell else ""
    except files.FOREIGN:
        return ""


def _attempt(event: dict[str, Any]) -> str:
    if not event["resumed_step"]:
        return messages.text("report.started", total=event["total_steps"])
    said = [messages.text("train.tier", tier=event["tier"], step=event["resumed_step"])]
    if event.get("changed"):
        said.append(messages.text("train.tier_changed", changed=list(event["changed"])))
    return " ".join(said)


def _restart(event: dict[str, Any]) -> str:
    said = {"step": event["step"], "reason": reason(event["reason"])}
    if wait := round(event["wait_seconds"]):
        return messages.text("train.restarted", **said, wait=wait)
    return messages.text("train.restarted_now", **said)


def _replan(event: dict[str, Any]) -> str:
    key, changed = replanning.said(event["before"], event["after"])
    return messages.text(key, changes=changed)


def _passed_over(event: dict[str, Any]) -> str:
    return messages.text("train.passed_over", step=event["step"])


def _lost(event: dict[str, Any]) -> str:
    return messages.text("train.lost", **{**_who(event), "reason": reason(event["reason"])})


def _straggler(event: dict[str, Any]) -> str:
    cause = messages.text(_CAUSES[event["cause"]])
    return messages.text("train.straggler", **_who(event), times=f"{event['times']:.1f}", cause=cause)


def _alike(event: dict[str, Any]) -> str:
    return messages.text("train.alike", step=event["step"], steps=event["steps"], reward=f"{event['reward']:g}")


def _warning(event: dict[str, Any]) -> str:
    share = round(100 * event["spent_seconds"] / event["limit_seconds"])
    return messages.text("train.warning", word=f"budget.{event['reason']}", share=share)


def _limit(event: dict[str, Any]) -> str:
    return messages.text("train.limit", limit=reason(event["reason"]))


def _rejected(event: dict[str, Any]) -> str:
    return messages.text("train.rejected", path=event["path"], reason=event["reason"])


def _not_best(event: dict[str, Any]) -> str:
    return messages.text("train.not_best", best=event["best"], step=event["step"], reason=event["reason"])


def _save_failed(event: dict[str, Any]) -> str:
    failed = event["error"]["fields"]
    return messages.text("progress.save_failed", step=failed["step"], reason=failed["reason"])


def _sources(event: dict[str, Any]) -> str:
    changed = [str(name) for name in event["changed"]]
    return messages.text("prepare.sources_changed", files=listed(changed)) if changed else ""


def _error(event: dict[str, Any]) -> str:
    error = run_progress.problem(event["error"])
    return f"{error.what}  [{error.code}]"


def _end(event: dict[str, Any]) -> str:
    return messages.text(_ENDS[event["status"]], step=event["step"])


_TOLD = {
    "attempt": _attempt,
    "restart": _restart,
    "replan": _replan,
    "passed_over": _passed_over,
    "lost": _lost,
    "straggler": _straggler,
    "alike": _alike,
    "warning": _warning,
    "limit": _limit,
    "rejected": _rejected,
    "not_best": _not_best,
    "save_failed": _save_failed,
    "sources": _sources,
    "error": _error,
    "end": _end,
}


def _who(event: dict[str, Any]) -> dict[str, Any]:
    """Rank and step, and the node if there are several."""
    rank = messages.text("train.rank", rank=event["rank"]) if event["rank"] is not None else ""
    return {"who": " · ".join(filter(None, (event["node"], rank))), "step": event["step"]}
