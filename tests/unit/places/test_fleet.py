"""Several boxes as one place: who is told what, in which order, and what is left behind where it fails."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import StokerError
from stoker.places import fleet
from stoker.places.fleet import Fleet
from stoker.places.package import Package

PACKAGE = Package("night", {}, "inputs/night", ("train", "night.yaml", "--detach"), {}, prepared=True)
INTERFACES = [{"ifname": "lan0", "addr_info": [{"family": "inet", "local": "198.18.0.{}", "prefixlen": 24}]}]


class Box:
    """What a fleet asks of a box, and a diary of it."""

    def __init__(self, number: int, diary: list[str], *, code: str = "0", state: str | None = None) -> None:
        self.name = f"box-{number}"
        self.node = ""
        self.base = "/base"
        self.host = SimpleNamespace(python="python3", platform="autodl" if number > 1 else "")
        self.shell = SimpleNamespace(run=self._run)
        self.files: dict[str, str] = {}
        self.is_serving = False
        self._number, self._diary, self._code, self._state = number, diary, code, state

    def _run(self, script: str) -> str:
        if script.startswith("PYTHON="):
            return json.dumps(INTERFACES).replace("{}", str(self._number))
        if script.startswith("cat "):
            return self.files["nodes.json"]
        return "4711\n"

    def run_folder(self, run: str) -> str:
        return f"/base/runs/{run}"

    def write(self, path: str, text: str) -> None:
        self.files[path.rpartition("/")[2]] = text

    def status(self, run: str) -> dict[str, Any] | None:
        return {"name": run, "state": self._state, "step": 3} if self._state else None

    def is_launched(self, run: str) -> bool:
        return self.is_serving

    def launch(self, package: Package, words: tuple[str, ...]) -> None:
        self._diary.append(f"{self.name} {words[0]}")

    def has_launched(self, run: str) -> bool:
        if self._code not in ("0", "-"):
            raise StokerError("STK708", "what it said", name=run, host=self.name)
        return self._code == "0"

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._diary.append(f"{self.name} {name}")


def of(*boxes: Box) -> Fleet:
    return Fleet(boxes, None)  # type: ignore[arg-type]


def test_the_others_join_before_the_first_one_starts_and_all_know_where_to_meet() -> None:
    diary: list[str] = []
    boxes = [Box(1, diary), Box(2, diary, code="-")]
    of(*boxes).start(PACKAGE)
    assert diary == ["box-2 join", "box-1 train", "box-1 leave_on", "box-2 leave_on"]
    told = [json.loads(box.files["nodes.json"]) for box in boxes]
    assert told[0] == told[1]
    assert [(node["name"], node["address"], node["interface"]) for node in told[0]["nodes"]] == [
        ("box-1", "198.18.0.1", "lan0"),
        ("box-2", "198.18.0.2", "lan0"),
    ]
    assert (told[0]["port"], told[0]["present"]) == (4711, ["box-1", "box-2"])
    assert [box.node for box in boxes] == ["box-1", "box-2"]


@pytest.mark.parametrize(("codes", "at"), [(("1", "-"), "box-1"), (("-", "1"), "box-2")])
def test_where_one_does_not_start_it_is_named_and_nothing_goes_on_or_stays_on(
    codes: tuple[str, str], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.01)
    diary: list[str] = []
    with pytest.raises(StokerError) as caught:
        of(*(Box(number, diary, code=code) for number, code in enumerate(codes, 1))).start(PACKAGE)
    assert (caught.value.code, caught.value.fields["host"]) == ("STK708", at)
    assert diary[-2:] == ["box-1 end_launch", "box-2 end_launch"]
    assert not [line for line in diary if line.endswith("leave_on")]


def test_while_it_is_under_way_only_those_that_are_away_join_again() -> None:
    diary: list[str] = []
    boxes = [Box(number, diary, state="running") for number in (1, 2, 3)]
    boxes[0].files["nodes.json"] = "the record"
    boxes[1].is_serving = True
    together = of(*boxes)
    assert (together.status("night") or {})["state"] == "short"
    together.put(PACKAGE)
    together.start(PACKAGE)
    assert diary == ["box-3 put", "box-3 join", "box-3 leave_on"]
    assert boxes[2].files["nodes.json"] == "the record"


def test_all_are_named_and_rented_ones_that_stay_on_are_told() -> None:
    together = of(Box(1, []), Box(2, []), Box(3, []))
    assert (together.name, together.label, together.machines) == ("box-1", "box-1, box-2, box-3", 3)
    assert together.left_on == ["box-2", "box-3"]


def test_the_newest_checkpoint_goes_to_the_head_which_gives_it_to_the_others(tmp_path: Path) -> None:
    names = ("inputs/night/night.yaml", "runs/night/checkpoints/step-00000012/COMMIT.json", "runs/night/events.jsonl")
    package = dataclasses.replace(PACKAGE, files=dict.fromkeys(names, tmp_path))
    boxes = [Box(number, []) for number in (1, 2)]
    got: dict[str, list[str]] = {}
    for box in boxes:
        box.put = lambda sent, name=box.name: got.update({name: list(sent.files)})  # type: ignore[attr-defined]
    together = of(*boxes)
    assert together.takes_checkpoint
    together.put(package)
    assert got == {"box-1": list(names), "box-2": ["inputs/night/night.yaml"]}
