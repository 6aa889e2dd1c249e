"""`place.json`: where a run was sent to from this machine, and what was last known of it there.

Written whenever the place was asked, read by whoever lists runs: a list connects to nobody.
"""

import contextlib
import datetime
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from stoker.rundir import files
from stoker.rundir.layout import RunDir

UNDER_WAY = ("queued", "running", "short")
"""States of a run that a place is about to train, or trains."""

Word = Annotated[str, Field(max_length=64)]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class _FromElsewhere(BaseModel):
    """What another machine wrote, or may have changed."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Settled(_FromElsewhere):
    state: Word = ""


class _HourlyPrice(_FromElsewhere):
    per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    currency: Word


class _Figures(_FromElsewhere):
    """Of a run, as `Place.status` has them."""

    state: Word = "sent"
    """As the place said, or `sent` where it was not asked since."""
    step: Count = 0
    total_steps: Count = 0
    loss: float | Word | None = None
    eval_loss: float | Word | None = None


class _Status(_Figures):
    price: _HourlyPrice | None = None
    settled: _Settled | None = None


class LastKnown(_Figures):
    """A run at another place."""

    on: str
    """The place, or the host."""
    store: str = ""
    """The store it was sent with; empty for none."""
    rented: dict[str, str] = {}
    """Names of its machines that are billed while they are on, each with its platform."""
    price: _HourlyPrice | None = None
    """Of all machines together; None where it is not known."""
    at: AwareDatetime | None = None
    """When this was so."""
    settled: Word = ""
    """How far the place was with stopping its own meter: a state of `settled.json`."""
    silent: AwareDatetime | None = None
    """When it was asked and did not respond, if that was later; when it was switched off, if `is_off`."""
    is_off: bool = False
    """Whether it was switched off from here."""

    @property
    def shown_state(self) -> str:
        """The state; `unreachable` for a run under way at a place that no longer responds."""
        return "unreachable" if self.silent and self.state in ("sent", *UNDER_WAY) else self.state


def read(run_dir: RunDir) -> LastKnown | None:
    """The record; None where there is none, or something else."""
    try:
        return LastKnown.model_validate(files.read_json(run_dir.place_file))
    except (OSError, ValueError):
        return None


def sent(
    run_dir: RunDir, on: str, rented: Mapping[str, str], price: tuple[float, str] | None, store: str | None = None
) -> None:
    """Note where a run was sent to, with which store, and what is billed there: price by the hour and currency."""
    costs = _HourlyPrice(per_hour=price[0], currency=price[1]) if price else None
    last = read(run_dir)
    so_far = last.model_dump(include={"step", "total_steps"}) if last else {}
    _write(run_dir, LastKnown(on=on, store=store or "", rented=dict(rented), price=costs, at=_now(), **so_far))


def seen(run_dir: RunDir, on: str, found: Mapping[str, Any]) -> None:
    """Note what a place says of a run now, as `Place.status` returns it; another place by now is left alone."""
    last = read(run_dir)
    try:
        said = _Status.model_validate(found)
    except ValidationError:
        return
    if last is not None and last.on == on:
        figures = said.model_dump(include=said.model_fields_set & _Figures.model_fields.keys())
        figures["step"] = said.step or last.step  # a launch has done no step yet
        settled = said.settled.state if said.settled else ""
        answered = {"price": said.price or last.price, "settled": settled, "silent": None, "is_off": False}
        _write(run_dir, last.model_copy(update={**figures, **answered, "at": _now()}))


def heard(run_dir: RunDir, on: str, found: Mapping[str, Any], at: str) -> None:
    """Note what a copy elsewhere says of a run, and when that was so."""
    last = read(run_dir)
    if last is not None and last.on == on:
        with contextlib.suppress(ValidationError):
            _write(run_dir, LastKnown.model_validate({**last.model_dump(), **found, "at": at}))


def unanswered(run_dir: RunDir, on: str, *, is_off: bool = False) -> None:
    """Note that a place did not respond, or was switched off from here."""
    last = read(run_dir)
    if last is not None and last.on == on:
        since = last.silent if last.silent and last.is_off == is_off else _now()
        _write(run_dir, last.model_copy(update={"silent": since, "is_off": is_off}))


def _write(run_dir: RunDir, last: LastKnown) -> None:
    files.write_json(run_dir.place_file, last.model_dump(mode="json"))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
