"""The catalogue of cards: complete, with provenance, and found by any usual spelling."""

import pytest

from stoker.errors import StokerError
from stoker.facts import cards
from stoker.facts.cards import Card

_KNOWN_FIELDS = set(Card.model_fields)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("RTX4090", "RTX4090"),
        ("RTX 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("rtx-4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("RTX4090-48GB", "RTX4090-48G"),
        ("4090D", "RTX4090D"),
        ("A100", "A100-40-SXM4"),
        ("A100-80G", "A100-80-SXM4"),
        ("a100 80gb", "A100-80-SXM4"),
        ("A100-80GB-PCIe", "A100-80-PCIe"),
        ("H100", "H100-SXM"),
        ("V100-32GB", "V100-32-SXM2"),
        ("Tesla T4", "T4"),
        ("A10", "A10"),
        ("A10G", "A10G"),
        ("A6000", "RTXA6000"),
        ("6000 Ada", "RTX6000-Ada"),
        ("m1 max", "Apple M1 Max"),
        ("vGPU-48GB", "vGPU-48GB"),
    ],
)
def test_a_card_is_found_by_any_usual_spelling(spelling: str, name: str) -> None:
    assert cards.find(spelling).name == name


def test_an_unknown_card_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(StokerError) as caught:
        cards.find("RTX5095")
    assert caught.value.code == "STK203"
    assert "RTX5090" in caught.value.fields["nearest"]


def test_a_name_that_is_like_none_has_no_nearest_ones() -> None:
    with pytest.raises(StokerError) as caught:
        cards.find("xyz")
    assert caught.value.hint == "`stoker gpus` lists all"


def test_no_two_cards_share_a_name_or_an_alias() -> None:
    spellings = [
        spelling for card in cards.cards() for spelling in {cards.normal(n) for n in (card.name, *card.aliases)}
    ]
    assert len(spellings) == len(set(spellings))


def test_every_card_says_where_its_figures_are_from() -> None:
    for card in cards.cards():
        assert card.source, card.name
        assert set(card.unverified) <= _KNOWN_FIELDS, card.name


def test_figures_are_plausible() -> None:
    for card in cards.cards():
        assert 8 <= card.memory_gb <= 200, card.name
        assert 50 <= card.memory_bandwidth_gb_per_second <= 10_000, card.name
        if card.memory_mib:
            assert 0.9 <= card.memory_mib / 1024 / card.memory_gb <= 1.03, card.name


def test_apple_chips_have_no_compute_capability_and_keep_their_memory_range() -> None:
    chip = cards.find("M2 Max")
    assert chip.compute_capability is None
    assert chip.kind == "mps"
    assert (chip.memory_gb, chip.memory_gb_max) == (32, 96)
    assert chip.memory_bytes == 32 << 30


def test_only_cards_without_bf16_lack_its_figure() -> None:
    for card in cards.cards():
        if card.kind == "cuda":
            assert (card.bf16_tflops is not None) == card.bf16_native == (card.compute_capability >= 8), card.name


def test_t4_counts_on_what_the_driver_reports_not_on_the_nominal_16_gb() -> None:
    assert cards.find("T4").memory_bytes == 15360 << 20


@pytest.mark.parametrize(
    ("device", "mebibytes", "name"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
        ("NVIDIA GeForce RTX 4090", 49140, "RTX4090-48G"),
        ("NVIDIA vGPU-32GB", 32760, "vGPU-32GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80-SXM4"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-SXM"),
        ("Tesla T4", 15360, "T4"),
    ],
)
def test_a_driver_name_and_its_memory_identify_the_card(device: str, mebibytes: int, name: str) -> None:
    found = cards.identify(device, mebibytes << 20)
    assert found is not None
    assert found.name == name


def test_a_device_outside_the_catalogue_is_not_taken_for_another() -> None:
    assert cards.identify("NVIDIA GeForce RTX 3080 Ti", 12288 << 20) is None
