"""Duration of a step: a roofline over its operations, launch overhead, and communication with partial overlap.

Constants are data (`facts.rates`), fitted to published measurements. CPUs and Macs get one utilisation figure.
"""

import functools
import math
import re
from dataclasses import dataclass, field
from typing import Literal

from stoker.estimate import communication, operations
from stoker.estimate.communication import Links
from stoker.estimate.operations import Pass, Work
from stoker.estimate.step import Step
from stoker.facts.cards import Card, cards
from stoker.facts.rates import Rates, rates

Link = Literal["card", "nvlink", "pcie", "slow"]

UTILISATION = {"mps": 0.30, "cpu": 0.45}
"""Share of the peak a training step reaches where there is no roofline. Coarse."""
_CPU_FLOPS_PER_CORE = 5e10
"""fp32 multiply-adds of one server core with AVX2, as seen in matrix products here; laptops differ by 2x."""
_PCIE_LANE = {"3": 0.985e9, "4": 1.97e9, "5": 3.94e9}
"""Bytes per second and lane, one way."""
_SLOW_LINK = 8 * _PCIE_LANE["3"]
"""Eight lanes of PCIe 3, as in boxes made of desktop parts."""
_SERVER_CAPABILITIES = (6.0, 7.0, 7.5, 8.0, 9.0, 10.0)
"""Chips with HBM, and Turing's for servers."""
_GEFORCE = ("RTX20", "RTX30", "RTX40", "RTX50", "vGPU")
"""Cards whose tensor cores accumulate in fp32 at half rate, and that have no peer-to-peer copies over PCIe."""
_CUT = 3.5
"""Ratio of tensor peak to fp32 below which a server chip is an export version; others have 8 and more."""
_ADAM_BYTES = 28
"""Weight, gradient and two averages read, and all but the gradient written."""
_NETWORK = {"Volta": 12.5e9, "Ampere": 25e9, "Hopper": 50e9, "Blackwell": 50e9}
"""Bytes per second and card between nodes with NVLink: an InfiniBand or RoCE adapter for each card, of its time.

Ampere's is that of the clusters behind the published rows (llm-foundry: 1,600 Gb/s RoCE a node of eight).
"""
_ETHERNET = 3.125e9
"""Between other nodes: one port of 25 Gb/s, shared by a node's cards. No published row states it."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A device's roofline figures and links, as stated by the vendor."""

    kind: str
    half_flops: float
    """Dense, in 16 bits, per second."""
    fp32_flops: float
    bandwidth: float
    """Bytes of its memory per second."""
    rate_class: str = "Ampere"
    """Which of the fitted shares of the peak holds."""
    link_bytes_per_second: float = 31.5e9
    """One way, to the other devices of a node."""
    peer: bool = True
    """Whether devices reach each other's memory."""
    host_bytes_per_second: float = 31.5e9
    """One way, to main memory."""
    network_bytes_per_second: float = _ETHERNET
    """One way and per device, between nodes."""
    own_port: bool = False
    """Whether each device has its own line to other nodes; else those of a node share one."""
    fp8_flops: float = 0.0
    """0 where the card has none."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Expected pace."""

    step_seconds: float
    tokens_per_second: float
    """Over all devices."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of a step by part; their sum is the step."""


def hardware(card: Card, link: Link = "card", per_node: int = 1) -> Hardware:
    """A card of the catalogue.

    Args:
        card: The card.
        link: How cards of a node are linked, if not as the card's own figure says.
        per_node: Cards that share a node's port, if they have none of their own.
    """
    one_way, nvlink = _link(card, link)
    port = _NETWORK.get(card.architecture) if nvlink else None
    half = card.half_tflops or _least_half_tflops(card)
    return Hardware(
        kind=card.kind,
        half_flops=half * 1e12,
        fp32_flops=(card.fp32_tflops or half / 2) * 1e12,
        bandwidth=card.memory_bandwidth_gb_per_second * 1e9,
        rate_class=_rate_class(card, half),
        link_bytes_per_second=one_way,
        peer=nvlink or (link != "slow" and not card.name.startswith(_GEFORCE)),
        host_bytes_per_second=_pcie(card),
        network_bytes_per_second=port or _ETHERNET / per_node,
        own_port=port is not None,
        fp8_flops=(card.fp8_tflops or 0.0) * 1e12,
    )


def processor(cores: int) -> Hardware:
    """A CPU by its cores."""
    flops = cores * _CPU_FLOPS_PER_CORE
    return Hardware(kind="cpu", half_flops=flops, fp32_flops=flops, bandwidth=2e10)


@functools.lru_cache(maxsize=65536)
def estimate(step: Step, on: Hardware, tokens: float | None = None) -> Pace:
    """Seconds of an optimizer step and tokens per second.

    Args:
        step: What one device does.
        on: The device.
        tokens: Tokens of the step over all devices, if not all its sequences are `mean_length` long.
    """
    described = tokens_of(step)
    parts = seconds_by_part(step, on, rates()) if on.kind == "cuda" else _without_roofline(step, on)
    scale = tokens / described if tokens else 1.0
    parts = {name: seconds * scale for name, seconds in parts.items()}
    total = math.fsum(parts.values())
    return Pace(step_seconds=total, tokens_per_second=described * scale / total, parts=parts)


def tokens_of(step: Step) -> float:
    """Tokens of a step over all devices, padding counted."""
    foreign = step.foreign
    replicas = step.devices / (foreign.tensor_parallel * foreign.pipeline_parallel * foreign.context_parallel)
    return step.micro * (step.mean_length or step.length) * step.accumulation * replicas


def seconds_by_part(step: Step, on: Hardware, constants: Rates) -> dict[str, float]:
    """Seconds of a step on a GPU, by part."""
    work = operations.work(step)
    clock = PassClock(on, constants, step)
    links = links_of(on, constants)
    sent = communication.traffic(step, work, links)
    ahead, back, again = clock.gpu(work.forward), clock.gpu(work.backward), clock.gpu(work.again)
    hooks = sent.hooks * constants.module
    launches = (
        _excess(clock.host(work.forward) + hooks, ahead.total),
        _excess(clock.host(work.backward) + clock.host(work.again) + hooks, back.total + again.total),
    )
    forward = ahead.total + launches[0]
    backward = back.total + again.total + launches[1]
    hidden = constants.hidden if on.peer else 0.0
    exposed = _exposed(forward, sent.forward, hidden) + _exposed(backward, sent.backward, hidden)
    micros = step.accumulation
    bubble = (step.foreign.pipeline_parallel - 1) / step.foreign.pipeline_chunks
    times = micros + bubble
    update = clock.gpu(work.update)
    return {
        "forward": times * ahead.products,
        "backward": times * back.products,
        "recompute": times * again.total,
        "bandwidth": times * (ahead.streamed + back.streamed),
        "dequantise": times * (ahead.unpacked + back.unpacked),
        "launches": times * math.fsum(launches),
        "optimizer": max(update.total, clock.host(work.update)) + _offloaded(step, work, links, constants),
        "communication": times * (exposed + sent.blocking) + _exposed(backward, sent.last, hidden) + sent.end,
        # Away and back, on the stream that computes.
        **({"offload": times * 2 * work.kept_bytes / links.host} if step.kept_away else {}),
    }


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of one pass on the GPU."""

    products: float
    streamed: float
    unpacked: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.products + self.streamed + self.unpacked


class PassClock:
    """Times passes on one device."""

    def __init__(self, on: Hardware, constants: Rates, step: Step) -> None:
        self.constants = constants
        share = constants.peak[on.rate_class]
        half = share * on.half_flops
        if on.rate_class.endswith("workstation"):
            half = min(on.half_flops, share * 4 * on.fp32_flops)
        single = min(share * on.fp32_flops, half)
        usual = single if step.compute == "fp32" else half
        faster = on.fp8_flops / on.half_flops * {16: 0, 8: 1, 4: 2}[step.foreign.product_bits] or 1.0
        narrow = half * faster if step.foreign.product_bits < 16 else usual
        self.flops = {"single": single, "half": usual, "narrow": narrow, "experts": constants.experts * narrow}
        self.bandwidth = constants.bandwidth * on.bandwidth
        newer = on.rate_class.startswith(("Hopper", "Blackwell"))
        older = constants.efficient * (constants.older if newer else 1.0)
        fast = step.attention == "flash" or (step.attention == "flash_2" and not newer)
        self.attention = usual * (constants.flash if fast else older)

    def gpu(self, one: Pass) -> PassSeconds:
        """On the device."""
        flops, bandwidth, kernel = self.flops, self.bandwidth, self.constants.kernel
        products = math.fsum(max(load[0] / flops[load[2]], load[1] / bandwidth) for load in one.products)
        waiting = (one.launches - one.kernels) * kernel
        return PassSeconds(
            products + waiting + one.attention_flops / self.attention,
            one.streamed / bandwidth + one.kernels * kernel,
            one.unpacked / bandwidth,
        )

    def host(self, one: Pass) -> float:
        """To launch it."""
        return one.launches * self.constants.launch


def _excess(longer: float, shorter: float) -> float:
    return max(0.0, longer - shorter)


def _exposed(computing: float, sending: float, hidden: float) -> float:
    """Exposed seconds of communication: what exceeds computation, and a part of the overlap."""
    return sending - hidden * min(computing, sending)


def links_of(on: Hardware, constants: Rates) -> Links:
    """What reaches a device."""
    share = constants.link if on.peer else constants.bounce
    return Links(
        inside=share * on.link_bytes_per_second,
        between=constants.link * on.network_bytes_per_second,
        host=constants.link * on.host_bytes_per_second,
    )


def _offloaded(step: Step, work: Work, links: Links, constants: Rates) -> float:
    """Gradients to main memory, Adam there, new weights back."""
    if step.offload == "none":
        return 0.0
    mine = work.trained / step.state_parts
    return mine * (4 / links.host + _ADAM_BYTES / constants.processor)


def _without_roofline(step: Step, on: Hardware) -> dict[str, float]:
    """One utilisation figure: 3 forward passes in full, 2 without weight gradients, 1 more to recompute.

    A GPU waits for the host to launch kernels here, too.
    """
    passes = (2 if step.adapter else 3) + (1 if step.recompute == "full" else 0)
    tokens = step.micro * (step.mean_length or step.length) * step.accumulation
    seconds = passes * 2 * step.shape.active_parameters() * tokens / (UTILISATION[on.kind] * on.half_flops)
    if on.kind == "cpu":
        return {"products": seconds}
    work = operations.work(step)
    kernels = step.accumulation * (work.forward.launches + work.backward.launches + work.again.launches)
    return {"products": seconds, "launches": _excess((kernels + work.update.launches) * rates().launch, seconds)}


def _rate_class(card: Card, half: float) -> str:
    """By generation; workstation cards, and cards whose tensor peak is cut down, apart."""
    server = card.compute_capability in _SERVER_CAPABILITIES
    if card.name.startswith(_GEFORCE) or (server and half < _CUT * (card.fp32_tflops or half)):
        return "cut"
    if server:
        return "Hopper PCIe" if card.name == "H100-PCIe" else card.architecture
    return f"{card.architecture} workstation"


def _link(card: Card, link: Link) -> tuple[float, bool]:
    """Bytes per second one way to the next card, and whether over NVLink that every card of a node has."""
    if link == "slow":
        return _SLOW_LINK, False
    own = re.match(r"NVLink\d (\d+)GB/s", card.interconnect)
    bridge = re.search(r"NVLink bridge (\d+)GB/s", card.interconnect)
    if own and link != "pcie":
        return float(own[1]) / 2 * 1e9, True
    if bridge and link == "nvlink":
        return float(bridge[1]) / 2 * 1e9, True
    return _pcie(card), False


def _pcie(card: Card) -> float:
    stated = re.search(r"PCIe(\d) x(\d+)", card.interconnect)
    if stated:
        return _PCIE_LANE[stated[1]] * int(stated[2])
    return 16 * _PCIE_LANE["5" if card.architecture in ("Hopper", "Blackwell") else "4"]


@functools.cache
def _least_half_tflops(card: Card) -> float:
    """For a card without a figure, the slowest of its generation."""
    kin = [other.half_tflops for other in cards() if other.architecture == card.architecture and other.half_tflops]
    return card.fp32_tflops or min(kin)
