"""Two hosts, one command: the weights of one process. A rank dies, the link goes: found, named, gone on."""

from pathlib import Path

import boxes
import pytest
import two_hosts
from two_hosts import SECOND

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(bool(boxes.available()), reason=boxes.available() or "-"),
]

STEPS = 240


def test_two_hosts_give_the_weights_of_one_process_whatever_befalls_them(tmp_path: Path) -> None:
    wanted = two_hosts.yardstick(tmp_path, STEPS)
    with two_hosts.hosts(tmp_path, STEPS) as one:
        launch = one.train()
        assert SECOND not in one.first.processes()
        one.until_step(30)
        assert len(one.ranks(one.first)) == len(one.ranks(one.second)) == 1
        listening = {address.rpartition(":")[0] for box in (one.first, one.second) for address in box.listeners()}
        private = {one.network.address(box) for box in (one.first, one.second)}
        assert listening <= {"0.0.0.0", "127.0.0.1", *private}, listening  # sshd; nothing else on other addresses
        two_hosts.kill_rank(one)
        one.until_attempt(2, 60)
        one.until_step(80)
        two_hosts.cut_link(one)
        one.until_done()
        lost = one.events("lost")
        assert [event["node"] for event in lost] == [SECOND, SECOND], lost
        assert lost[0]["rank"] == 1
        assert lost[0]["step"] >= 30
        assert one.attempts() == 3, launch.stderr
        assert one.sha() == wanted
        assert one.laptop.stoker("pull", one.name).returncode == 0
        assert two_hosts.sha(one.laptop.runs / one.name) == wanted
