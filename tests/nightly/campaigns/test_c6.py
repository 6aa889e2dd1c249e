"""A medium C6: network cuts over real servers; the full one is `just campaign c6 --n 200`."""

from pathlib import Path

import campaign
import pytest
import ranks
import store_servers

pytestmark = [
    pytest.mark.allow_hosts(["127.0.0.1"]),
    pytest.mark.filterwarnings("default"),
]
SERVERS = pytest.mark.skipif(not (store_servers.has_rclone() and store_servers.has_sshd()), reason="no rclone, no sshd")


@SERVERS
def test_network_cuts_lose_nothing_and_the_controls_are_caught() -> None:
    done = campaign.run("c6", 12, seed=115)
    assert done.failures == []
    assert done.done >= 12
    assert {"s3", "ssh"} <= {name.split()[0] for name in done.counts}, "both servers' lines were cut"
    assert {name for name, one in done.controls.items() if one["caught"] == 0} == set()
    assert len(done.controls) == (5 if ranks.possible() else 4)


@pytest.mark.skipif(not ranks.possible(), reason="needs Linux and a C compiler")
def test_ranks_that_lose_each_other_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    done = campaign.Campaign("c6", 2, 7, tmp_path, None)
    ranks.cut(done, 2)
    assert done.failures == []
    assert done.done == 2
    assert done.controls["ranks that start over"]["caught"] == 1
