"""The interval beside a figure: which published measurements a step is comparable to, or which proofs of its card."""

import functools
from typing import Literal

import stoker
from stoker.estimate import speed
from stoker.estimate.step import Step
from stoker.facts import cards, intervals, proven, rates
from stoker.facts.cards import Card
from stoker.facts.intervals import Interval


def of(figure: Literal["memory", "speed"], step: Step, card: Card | None) -> Interval:
    """Ratios measured / predicted of comparable measurements."""
    # The general block stands for the activations of a weighed model; no trace of its family has checked that.
    if card is None or card.kind != "cuda" or step.shape.parts:
        return intervals.assumed(figure)
    if figure == "speed" and (_is_guessed(card.name) or _is_far(step, card.name)):
        return intervals.assumed(figure)
    kind = method(step), sharing(step)
    wider = intervals.interval(figure, *kind, intervals.card_class(card))
    # `stoker prove` measures the memory of such trainings; its small models time launches, not a card's pace.
    if figure == "speed" or kind != ("full", "single"):
        return wider
    return intervals.narrowed(wider, proven.memory_ratios(card.name, stoker.__version__), f"full single {card.name}")


def method(step: Step) -> str:
    """`full`, `lora` or `qlora`."""
    if step.adapter is None:
        return "full"
    return "lora" if step.weights in ("fp32", "bf16", "fp16") else "qlora"


def sharing(step: Step) -> str:
    """`single`, `replicated` or `sharded`, apart where weights or states are in main memory."""
    kind = "single" if step.devices == 1 else "sharded" if step.state_parts > 1 else "replicated"
    return kind if step.offload == "none" else f"{kind}-offload"


def _is_far(step: Step, card: str) -> bool:
    """Whether no measurement covers these nodes: over a shared port, or with the whole model on each device."""
    together = step.devices > step.devices_per_node
    return together and (step.state_parts == 1 or not speed.hardware(cards.find(card)).own_port)


@functools.cache
def _is_guessed(card: str) -> bool:
    """Whether no measurement covers such cards."""
    return speed.hardware(cards.find(card)).rate_class in rates.guessed()
