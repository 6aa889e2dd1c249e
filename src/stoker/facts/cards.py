"""The catalogue of cards: what each GPU model has, from where that is known, and how people and drivers call it.

Knows neither prices (`prices.py`) nor which cards this machine holds (`machine.py`).
"""

import difflib
import functools
import re

from pydantic import BaseModel, ConfigDict

from stoker.errors import ClosestNames, StokerError
from stoker.facts import fact

_MEMORY_SLACK = 0.08
"""Drivers keep some of the memory to themselves, ECC takes 6 % of it."""
_SM_SLACK = 0.1
_BRANDS = re.compile(r"\b(nvidia|geforce|tesla|apple)\b")


class Card(BaseModel):
    """One GPU model. Tensor figures are dense, with fp32 accumulation."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its name in Stoker."""
    aliases: tuple[str, ...]
    """Other names people use."""
    device_names: tuple[str, ...]
    """How the driver names it. Several cards may share one and differ in memory."""
    architecture: str
    compute_capability: float | None
    """NVIDIA's figure; None for Apple."""
    sm_count: int | None
    memory_gb: float
    """Nominal memory. Apple chips come in sizes from this on."""
    memory_gb_max: float | None
    """Largest memory the chip is sold with, where there are several."""
    memory_mib: int | None
    """What the driver reports, where known; a few per cent below the nominal figure on cards with ECC."""
    memory_bandwidth_gb_per_second: float
    fp32_tflops: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    bf16_native: bool
    """False where bf16 is only emulated."""
    interconnect: str
    unverified: tuple[str, ...]
    """Fields from general knowledge, found in no stored source."""
    source: str
    """Repositories and files the figures were read from, collected in November 2026."""

    @property
    def memory_bytes(self) -> int:
        """Memory a plan may count on: what the driver reports, else the smallest size sold."""
        return self.memory_mib << 20 if self.memory_mib else int(self.memory_gb * 2**30)

    @property
    def half_tflops(self) -> float | None:
        """Speed in 16 bits: bf16 where the card has it, else fp16."""
        return self.bf16_tflops or self.fp16_tflops

    def slice(self, share: float) -> "Card":
        """A part of the card that computes on its own: its speed and bandwidth, in proportion."""
        speeds = ("memory_bandwidth_gb_per_second", "fp32_tflops", "bf16_tflops", "fp16_tflops", "fp8_tflops")
        whole = {name: value for name, value in self.model_dump(include=set(speeds)).items() if value is not None}
        return self.model_copy(update={name: value * share for name, value in whole.items()})

    @property
    def kind(self) -> str:
        """`cuda` or `mps`."""
        return "mps" if self.compute_capability is None else "cuda"


@functools.cache
def cards() -> tuple[Card, ...]:
    """All cards, in the order of the catalogue."""
    return tuple(Card.model_validate(_fields(row)) for row in fact.rows("cards.csv"))


def find(name: str, where: str = "") -> Card:
    """The card a person means; spelling, brand, spaces and hyphens do not matter.

    Args:
        name: As given.
        where: By which flag or argument, for the error.
    """
    wanted = normal(name)
    spellings = _spellings()
    if wanted in spellings:
        return spellings[wanted]
    near = difflib.get_close_matches(wanted, spellings, n=3)
    nearest = list(dict.fromkeys(spellings[spelling].name for spelling in near))
    raise StokerError("STK203", where, card=name, nearest=ClosestNames(nearest, mark=""))


def namesakes(name: str) -> list[Card]:
    """Other cards that a short name may mean too: `V100` is one of four. None where it is a card's own name."""
    taken = find(name)
    if normal(name) == normal(taken.name):
        return []
    return [card for card in cards() if card is not taken and _may_mean(name, card)]


def _may_mean(name: str, card: Card) -> bool:
    """Whether each part of a name begins a part of the card's."""
    return all(any(part.startswith(given) for part in _parts(card.name)) for given in _parts(name))


def _parts(name: str) -> list[str]:
    """`V100-32GB` as `v100` and `32`."""
    found = re.findall(r"[a-z0-9]+", _BRANDS.sub("", name.lower()))
    return [re.sub(r"^(\d+)gb?$", r"\1", part) for part in found]


def identify(device_name: str, memory_bytes: int) -> Card | None:
    """The card behind a driver's name; of those that share it, the one whose memory is nearest."""
    wanted = normal(device_name)
    named = [card for card in cards() if wanted in {normal(name) for name in card.device_names}]
    return min(named, key=lambda card: abs(card.memory_bytes - memory_bytes), default=None)


def recognise(device_name: str, memory_bytes: int, capability: float, sm_count: int | None) -> Card | None:
    """The card that has these figures; its name only chooses between cards that share them.

    A rented card's name may be the provider's own (`vGPU-48GB`), and a slice of a card carries the name of the whole.
    """
    fitting = [card for card in cards() if _fits(card, memory_bytes, capability)]
    named = [card for card in fitting if normal(device_name) in {normal(name) for name in card.device_names}]
    if sm_count is None:
        return named[0] if named else None
    exact = [card for card in fitting if card.sm_count == sm_count]
    for card in (*(one for one in named if one in exact), *exact):
        return card
    # A count that no source confirms may differ a little: the name then decides.
    near = (card for card in named if card.sm_count and abs(card.sm_count - sm_count) <= _SM_SLACK * card.sm_count)
    return next((card for card in near if "sm_count" in card.unverified), None)


def _fits(card: Card, memory_bytes: int, capability: float) -> bool:
    far = abs(card.memory_bytes - memory_bytes) > _MEMORY_SLACK * card.memory_bytes
    return card.compute_capability == capability and not far


def normal(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `4090` as one spelling."""
    bare = re.sub(r"[^a-z0-9]", "", _BRANDS.sub("", name.lower()))
    return re.sub(r"(\d)gb", r"\1g", bare).removeprefix("rtx")


@functools.cache
def _spellings() -> dict[str, Card]:
    """Every normal spelling of every card; a card's own name goes before another's alias."""
    found: dict[str, Card] = {}
    for names in (lambda card: (card.name,), lambda card: card.aliases, lambda card: card.device_names):
        for card in cards():
            for name in names(card):
                found.setdefault(normal(name), card)
    return found


def _fields(row: dict[str, str]) -> dict[str, object]:
    several = {key: tuple(filter(None, row[key].split(";"))) for key in ("aliases", "device_names", "unverified")}
    return {**{key: value or None for key, value in row.items()}, **several}
