"""A short C6: network cuts over real servers; the full one is `just campaign c6 --n 200`."""

import campaign
import pytest
import store_servers

pytestmark = [
    pytest.mark.engine,
    pytest.mark.allow_hosts(["127.0.0.1"]),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not (store_servers.has_rclone() and store_servers.has_sshd()), reason="no rclone or no sshd"),
]


def test_network_cuts_lose_nothing_and_the_controls_are_caught() -> None:
    done = campaign.run("c6", 4, seed=7)
    assert done.failures == []
    assert done.done >= 4
    assert {name for name, one in done.controls.items() if one["caught"] == 0} == set()
    assert len(done.controls) == 4
