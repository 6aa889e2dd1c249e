"""An instance that is off: the simulated API switches a real box on without its card, then with it; then it trains.

The API is a simulation (`autodl_api.py`); the box, the line and the training are real.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest
from autodl_api import PRO, TOKEN, Simulated, simulated
from laptop import laptop
from launched import HEAVY
from typer.testing import CliRunner

from stoker.cli.main import app
from stoker.hosts import autodl, known

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    with simulated() as server:
        monkeypatch.setattr(autodl, "BASE", server.base)
        monkeypatch.setattr(autodl, "_LOOK_SECONDS", 0.1)
        monkeypatch.setenv("STOKER_AUTODL_TOKEN", TOKEN)
        yield server


def test_a_run_is_sent_without_the_card_and_trains_with_it(
    tmp_path: Path, api: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []
    with laptop(tmp_path) as mine, boxes.autodl(tmp_path, without=HEAVY) as box:
        mine.writes("tiny", steps=8)
        mine.stoker("prepare", "tiny.yaml")
        mine.knows(box, "autodl-1")
        for name in ("HOME", "STOKER_HOME", "STOKER_RUNS", "STOKER_SSH_CONFIG", "TMPDIR", "STOKER_LANG"):
            monkeypatch.setenv(name, mine.env[name])
        monkeypatch.chdir(mine.folder)
        box.power_off()

        def switched(on: bool) -> None:  # what it is called with
            modes.append(api.mode if on else "off")
            (box.power_on if on else box.power_off)()

        api.host, api.port, api.moves, api.switched = box.address, box.port, 0, switched
        known.save(known.find("autodl-1").model_copy(update={"instance": PRO}))
        done = CliRunner().invoke(app, ["train", "tiny.yaml", "--on", "autodl-1", "--yes"])
        assert done.exit_code == 0, done.output
        assert modes == ["non_gpu", "off", "gpu"]
        assert "17.34 CNY" in done.output.replace("\n", " ")
        assert TOKEN not in done.output
        run = box.root / "root/autodl-tmp/stoker/runs/tiny"
        final = run / "artifacts/final"
        until = time.monotonic() + 90
        while not final.is_dir():
            assert time.monotonic() < until, "it does not train"
            time.sleep(0.5)
        assert json.loads((run / "plan.json").read_text())["cost"]["price_per_hour"] == 1.97
        assert not [path for path in mine.home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not {"create", "release", "save"} & {word for word, _ in api.asked}
