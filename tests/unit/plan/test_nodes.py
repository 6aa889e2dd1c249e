"""Plans for several machines: what is sent between them, what it costs, what is assumed; one machine is as it was."""

import dataclasses

import pytest
from plan_case import SEVEN, inputs, machine, plan, reason

from stoker.errors import StokerError
from stoker.estimate import communication, operations, ranges, speed
from stoker.estimate.communication import Links
from stoker.estimate.step import Step
from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.facts.prices import Offer
from stoker.plan import make, money, search
from stoker.rent import compare

FULL = "tune: {method: full}\ntrain: {batch: 512}"
LORA = "tune: {method: lora}\ntrain: {batch: 512}"
LINKS = Links(inside=300e9, between=30e9, host=20e9)


def step(text: str, nodes: int, per_node: int = 8, card: str = "H100-SXM", **changes: object) -> Step:
    found = make.find(inputs(text, machine(card, per_node, nodes=nodes), model=SEVEN))
    return dataclasses.replace(found.way.step, **changes)


def sent(of: Step) -> communication.Traffic:
    return communication.traffic(of, operations.work(of), LINKS)


def test_devices_are_those_of_all_nodes_and_torchrun_starts_those_of_one() -> None:
    made = plan(FULL, machine("H100-SXM", 8, nodes=4), model=SEVEN)
    assert made.batch.devices == 32
    assert made.batch.micro * made.batch.accumulation * 32 == made.batch.effective == 512
    assert made.argv[made.argv.index("--nproc-per-node") + 1] == "8"


def test_a_gather_takes_as_long_as_the_slower_of_node_and_network() -> None:
    one = step(FULL, 1, strategy="ddp", devices=8, devices_per_node=8, canonical=False)
    size = operations.work(one).trained_bytes
    assert sent(one).last == pytest.approx(2 * size * 7 / 8 / LINKS.inside)
    # Eight lines of 30e9 together are slower than one NVLink of 300e9 only in what they must carry.
    two = dataclasses.replace(one, devices=16)
    between = size * 1 / 2 / (8 * LINKS.between)
    assert sent(two).last == pytest.approx(2 * max(size * 7 / 8 / LINKS.inside, between))
    thin = Links(inside=300e9, between=1e9, host=20e9)
    assert communication.traffic(two, operations.work(two), thin).last == pytest.approx(2 * size / 2 / 8e9)


def test_exact_sums_send_every_slice_out_over_the_devices_own_line() -> None:
    plain = step(LORA, 2, strategy="ddp", devices=16, devices_per_node=8, accumulation=4, canonical=False)
    exact = dataclasses.replace(plain, canonical=True)
    size = operations.work(plain).trained_bytes
    gather = sent(plain).last / 2
    assert sent(exact).last == 0
    assert sent(exact).end == pytest.approx(size * 8 / 16 / LINKS.between + gather)
    # Six micro batches on a rank do not form one node of the tree: its first and last sums are other ranks' too.
    assert sent(dataclasses.replace(exact, accumulation=6)).end > sent(exact).end
    sharded = dataclasses.replace(plain, strategy="fsdp2", shard_devices=16)
    assert sent(dataclasses.replace(sharded, canonical=True)).backward > sent(sharded).backward


@pytest.mark.parametrize(("leaves", "ranks", "most"), [(1, 64, 1), (8, 64, 1), (6, 16, 2), (7, 3, 3), (3, 5, 2)])
def test_sums_that_one_rank_holds(leaves: int, ranks: int, most: int) -> None:
    assert communication.most_sums(leaves, ranks) == most


@pytest.mark.parametrize("text", [FULL, LORA, f"{LORA}\nwhere: {{strategy: fsdp2}}"])
@pytest.mark.parametrize("card", ["H100-SXM", "A100-80-PCIe", "RTX4090"])
def test_a_step_takes_no_less_time_on_more_nodes_and_more_over_a_thin_line(text: str, card: str) -> None:
    """Of the same micro batches on each device."""
    paces = []
    for nodes in (1, 2, 4, 8):
        one = step(text, 1, card=card, micro=1, accumulation=4)
        many = dataclasses.replace(one, devices=8 * nodes, shard_devices=8 * nodes)
        paces.append(speed.estimate(many, speed.hardware(cards.find(card), per_node=8)).step_seconds)
    if one.strategy == "ddp":  # what is shared out leaves each device less to update
        assert paces == sorted(paces)
    thin = speed.estimate(many, dataclasses.replace(speed.hardware(cards.find(card)), network_bytes_per_second=1e8))
    assert thin.step_seconds > paces[-1]


def test_one_node_is_as_it_was() -> None:
    """Shards are reduced alike in any order; only the norm of whole gradients sends them again."""
    for text in (FULL, f"{LORA}\nwhere: {{strategy: fsdp2}}"):
        now = step(text, 1)
        before = dataclasses.replace(now, canonical=False, devices_per_node=8)
        norm = sent(now).end if now.canonical and now.strategy == "fsdp2" else 0.0
        assert sent(now) == dataclasses.replace(sent(before), end=norm)
        assert norm < 0.01 * sent(now).backward or norm == 0.0


def test_the_canonical_sum_of_whole_gradients_overlaps_nothing() -> None:
    now = step(LORA, 1)
    assert (now.strategy, now.canonical) == ("ddp", True)
    assert sent(now).last == 0.0 < sent(now).end
    assert sent(dataclasses.replace(now, canonical=False)).end == 0.0


def test_money_is_for_whole_machines_of_every_node() -> None:
    of_eight = Offer.model_validate(
        {"cards": ("T4",), "cloud": "c", "gpu_count": 8, "price_per_hour": 2.0, "currency": "USD", "date": "2026-11-01",
         "spot_price_per_hour": None, "instance": "", "source": "", "note": ""}
    )  # fmt: skip
    assert of_eight.billed(8) == of_eight.billed(8, 1) == 8
    assert of_eight.billed(8, nodes=2) == 16
    hour = (3600.0, 3600.0, 3600.0)
    cost = money.cost(hour, 16, of_eight, nodes=2)
    assert cost is not None
    assert (cost.amount, cost.billed_devices) == (32.0, 16)


def test_what_is_taken_for_the_network_is_said() -> None:
    own = plan(FULL, machine("H100-SXM", 8, nodes=2), model=SEVEN)
    assert reason(own, "nodes") == "why.network.own"
    assert [one.fields["gigabits"] for one in own.reasons if one.about == "nodes"] == ["400"]
    shared = plan(LORA, machine("RTX4090", 4, nodes=2), model=SEVEN)
    assert [(one.key, one.fields["gigabits"]) for one in shared.reasons if one.about == "nodes"] == [
        ("why.network.shared", "25")
    ]
    assert not [one for one in plan(LORA, machine("RTX4090", 4), model=SEVEN).reasons if one.about == "nodes"]


def test_cards_without_a_line_of_their_own_share_the_nodes_port() -> None:
    assert search.hardware(machine("RTX4090", 4)).network_bytes_per_second == pytest.approx(25e9 / 8 / 4)
    assert search.hardware(machine("H100-SXM", 8)).network_bytes_per_second == 50e9


def test_intervals_say_where_nothing_was_measured() -> None:
    """Published runs on several nodes share the model out over InfiniBand; nothing else has a measured interval."""
    sharded, ddp, thin = step(FULL, 2), step(LORA, 2), step(LORA, 2, card="RTX4090", per_node=4)
    assert ddp.strategy == "ddp"
    assert ranges.of("speed", sharded, cards.find("H100-SXM")).n > 100
    assert ranges.of("speed", ddp, cards.find("H100-SXM")).n == 0
    assert ranges.of("speed", thin, cards.find("RTX4090")).n == 0
    assert ranges.of("speed", dataclasses.replace(ddp, devices=8), cards.find("H100-SXM")).n > 0


def test_states_in_main_memory_have_an_interval_of_their_own() -> None:
    sharded = dataclasses.replace(step(FULL, 1), devices=8)
    assert ranges.of("memory", sharded, cards.find("H100-SXM")).group == "full sharded datacenter"
    away = dataclasses.replace(sharded, offload="optimizer")
    assert ranges.of("memory", away, cards.find("H100-SXM")).group == "full sharded-offload datacenter"


def test_the_table_of_cards_counts_the_cards_of_all_nodes() -> None:
    asked = inputs("tune: {method: lora}\ntrain: {batch: 64}\nwhere: {place: slurm, nodes: 2}", model=SEVEN)
    rows = compare.compare(asked, [cards.find("H100-SXM"), cards.find("T4")], counts=(1, 4))
    assert [(row.card, row.devices) for row in rows] == [("H100-SXM", 2), ("H100-SXM", 8), ("T4", 2), ("T4", 8)]
    assert all(row.found and row.found.inputs.machine.nodes == 2 for row in rows)
    assert not [stay for row in rows for stay in row.stays if stay.free], "notebooks lend one machine"


def test_a_batch_that_all_nodes_cannot_share_is_refused() -> None:
    with pytest.raises(StokerError, match="STK201"):
        plan("train: {batch: 12}", machine("RTX4090", 4, nodes=2))


def test_a_made_up_machine_has_nodes() -> None:
    assert Machine.of_card(cards.find("T4"), 2, nodes=3).nodes == 3
    assert Machine.of_card(cards.find("T4"), 2).nodes == 1
