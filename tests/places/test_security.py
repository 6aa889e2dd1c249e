"""What a rented box gets to see, and who is let in: a swapped host key, an agent, open ports, secrets."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest
from laptop import Laptop, laptop

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[boxes.Box, Laptop]]:
    """A box, and a laptop that knows it."""
    folder = tmp_path_factory.mktemp("known")
    with laptop(folder) as mine, boxes.autodl(folder) as box:
        mine.knows(box)
        yield box, mine


def test_no_agent_is_forwarded_whatever_the_users_config_says(known: tuple[boxes.Box, Laptop], tmp_path: Path) -> None:
    box, mine = known
    config = Path(mine.env["STOKER_SSH_CONFIG"])
    config.write_text(config.read_text() + "  ForwardAgent yes\n  ForwardX11 yes\n")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        boxes._until((tmp_path / "agent").exists, "no agent")
        environment = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
        plain = ["ssh", "-F", str(config), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        asked = [*plain, f"root@{box.address}", "echo ${SSH_AUTH_SOCK:-none}"]
        bare = subprocess.run(asked, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        assert bare.stdout.strip() != "none", "the agent works, and this configuration forwards it"
        (box.root / "etc/profile.d/seen.sh").write_text("echo agent=${SSH_AUTH_SOCK:-none} >> /tmp/seen\n")
        mine.stoker("hosts", "check", "box", env=environment)
        mine.stoker("runs", "--on", "box", env=environment, check=False)
        seen = (box.root / "tmp/seen").read_text().split()
        assert len(seen) >= 2
        assert set(seen) == {"agent=none"}
    finally:
        agent.kill()
        agent.wait()


def test_a_swapped_host_key_is_refused(known: tuple[boxes.Box, Laptop]) -> None:
    """Whoever answers at the address now is told nothing, and is not added under the old name."""
    box, mine = known
    pinned = Path(mine.env["STOKER_HOME"]) / "known_hosts"
    before = pinned.read_text()
    box.replace()
    (box.root / "etc/profile.d/seen.sh").write_text("touch /tmp/seen\n")
    mine.writes()
    for words in (
        ("hosts", "check", "box"),
        ("runs", "--on", "box"),
        ("train", "tiny.yaml", "--on", "box", "--yes"),
    ):
        said = mine.stoker(*words, check=False)
        assert said.returncode == 1, said.stderr
        assert "STK703" in said.stderr, said.stderr
    again = mine.stoker("hosts", "add", "box", f"ssh://root@{box.address}:{box.port}", "--yes", check=False)
    assert again.returncode == 1
    assert "STK729" in again.stderr
    assert pinned.read_text() == before
    assert not (box.root / "tmp/seen").exists()
