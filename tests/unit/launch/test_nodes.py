"""`nodes.json`: who takes part, and a key that only its owner reads."""

from pathlib import Path

from stoker.launch import nodes
from stoker.launch.nodes import Node

MACHINES = [Node(name=name, address=f"198.18.0.{i}", interface="lan0") for i, name in enumerate("abc", 1)]


def test_a_record_is_read_as_it_was_written_and_by_its_owner_only(tmp_path: Path) -> None:
    path, record = tmp_path / "run" / "nodes.json", nodes.of(MACHINES, 4711, "12.0")
    nodes.write(path, record)
    assert nodes.read(path) == record
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["nodes.json"]


def test_there_is_none_where_a_run_has_one_machine(tmp_path: Path) -> None:
    assert nodes.read(tmp_path / "nodes.json") is None


def test_every_meeting_has_a_key_of_its_own() -> None:
    assert nodes.of(MACHINES, 1).key != nodes.of(MACHINES, 1).key
    assert len(bytes.fromhex(nodes.of(MACHINES, 1).key)) == 32


def test_those_that_remain_keep_their_order() -> None:
    record = nodes.of(MACHINES, 1)
    assert record.present == ("a", "b", "c")
    assert record.only({"c", "a", "stranger"}).present == ("a", "c")
    assert record.head.name == "a"
