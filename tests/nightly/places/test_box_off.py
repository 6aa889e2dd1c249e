"""The happy end: a run is done, its copy in the store, its box off. The laptop says so, and brings it home."""

import json
from pathlib import Path

import boxes
import pytest
import store_servers
from laptop import laptop
from launched import HEAVY, wait

from stoker.rundir import checkpoints

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(bool(boxes.available()), reason=boxes.available() or "-"),
    pytest.mark.skipif(not store_servers.has_rclone(), reason="no rclone"),
]

RUN = "tiny"


def test_a_finished_run_whose_box_is_off_is_said_to_be_and_comes_from_the_store(tmp_path: Path) -> None:
    with (
        laptop(tmp_path) as mine,
        boxes.autodl(tmp_path, without=HEAVY) as box,
        store_servers.rclone(tmp_path / "s3", address=box.gateway) as store,
    ):
        mine.env |= store.settings
        mine.writes(RUN, steps=40, every="20 steps", store=f"s3://{store_servers.BUCKET}/runs")
        with (mine.folder / f"{RUN}.yaml").open("a", encoding="utf-8") as file:
            file.write("budget: {time: 1h}\n")
        mine.knows(box, "autodl-1")
        mine.stoker("train", f"{RUN}.yaml", "--on", "autodl-1", "--set", "where.price=2.5 CNY/h", "--yes")
        (listed,) = json.loads(mine.stoker("runs", "--json").stdout)
        assert (listed["state"], listed["elsewhere"]["on"]) == ("running", "autodl-1")
        assert (listed["elsewhere"]["billed"], listed["elsewhere"]["price"]["per_hour"]) == ("yes", 2.5)

        wait(lambda: not box.alive, "the box stays on")
        watched = mine.stoker("watch", RUN, "--once")
        assert f"{RUN} · done" in watched.stdout
        assert "autodl-1 does not respond: probably switched off" in watched.stdout
        assert "lost" not in watched.stderr
        (listed,) = json.loads(mine.stoker("runs", "--json").stdout)
        assert (listed["state"], listed["step"], listed["elsewhere"]["billed"]) == ("done", 40, "probably_off")

        pulled = mine.stoker("pull", RUN)
        assert "does not respond" in pulled.stderr
        assert checkpoints.newest_verified(mine.runs / RUN / "checkpoints")[0].step == 40
        assert (mine.runs / RUN / "artifacts/final").is_dir()
        (listed,) = json.loads(mine.stoker("runs", "--json").stdout)
        assert (listed["state"], listed["elsewhere"]) == ("done", None)
