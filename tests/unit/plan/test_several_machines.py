"""A plan for several machines: the same batch, shared out further; each machine starts its own ranks."""

import pytest
from plan_case import machine, plan, processor

from stoker.errors import StokerError


def test_the_batch_stays_and_is_shared_out_over_all_devices_of_all_machines() -> None:
    alone, together = (plan("train: {batch: 64}", machine("RTX4090", 2, nodes=count)) for count in (1, 2))
    assert (alone.batch.devices, together.batch.devices) == (2, 4)
    assert alone.batch.effective == together.batch.effective == 64
    assert together.batch.micro * together.batch.accumulation * 4 == 64
    assert together.argv[together.argv.index("--nproc-per-node") + 1] == "2"


def test_each_machine_of_several_knows_its_own_interface_and_cards() -> None:
    made = plan("where: {processes: 2}", processor(nodes=2))
    assert (made.strategy, made.batch.devices) == ("ddp", 4)
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & made.env.keys()
    assert made.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_threads_are_shared_by_the_processes_of_one_machine_only() -> None:
    made = [plan("where: {processes: 2}", processor(threads=8, nodes=count)) for count in (1, 2)]
    assert [one.threads for one in made] == [4, 4]


def test_zero_stays_on_one_machine() -> None:
    asked = "where: {strategy: zero2}\ntune: {method: full}"
    assert plan(asked, machine("A100-80G-SXM", 2)).strategy == "zero2"
    with pytest.raises(StokerError) as caught:
        plan(asked, machine("A100-80G-SXM", 2, nodes=2))
    assert caught.value.code == "STK216"


def test_several_machines_train_with_all_cards_they_have_and_each_names_its_own() -> None:
    two = machine("RTX4090", 2, nodes=2, examined=True, memory_bytes=1 << 40)
    assert "CUDA_VISIBLE_DEVICES" not in plan("train: {batch: 64}", two).env
    with pytest.raises(StokerError) as caught:
        plan("train: {batch: 64}\nwhere: {gpus: 1}", two)
    assert caught.value.code == "STK230"
