"""`stoker plan` for several nodes, without one of them at hand."""

import json

import pytest
from made_runs import LANGUAGES, CommandLine

WORDS = ("plan", "qlora_qwen2.5_7b", "--gpus", "8", "--set", "train.batch=64", "--set", "where.strategy=ddp")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_counts_all_nodes_and_says_what_it_assumes(stoker: CommandLine, language: str) -> None:
    done = stoker(*WORDS, "--card", "H100-SXM", "--set", "where.nodes=2", language=language)
    assert done.code == 0, done.err
    assert "16 x H100-SXM" in done.out
    assert "400 Gbit/s" in done.out


def test_time_and_money_of_two_nodes_against_one(stoker: CommandLine) -> None:
    one, two = (
        json.loads(stoker(*WORDS, "--card", "H100-SXM", "--json", "--set", f"where.nodes={nodes}").out)
        for nodes in (1, 2)
    )
    assert (one["batch"]["devices"], two["batch"]["devices"]) == (8, 16)
    assert two["cost"]["billed_devices"] == 2 * one["cost"]["billed_devices"]
    assert 0.5 <= two["time_seconds"] / one["time_seconds"] < 1
    assert not [reason for reason in one["reasons"] if reason["about"] == "nodes"]


def test_the_arithmetic_names_both_lines(stoker: CommandLine) -> None:
    said = stoker(*WORDS, "--explain", "H100-SXM", "--set", "where.nodes=2").out
    assert "450 GB/s to the next device, 50 GB/s to other machines" in " ".join(said.split())
