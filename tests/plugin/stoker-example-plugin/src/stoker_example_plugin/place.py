"""A place: a desk at which somebody starts the run by hand."""

from typing import Any

from stoker.config.load import RunFile
from stoker.hosts.box_facts import BoxFacts
from stoker.places.package import Package
from stoker.places.place import Place, Terminal
from stoker.rundir.layout import RunDir


class Desk(Place):
    """Prints what to type there."""

    started_by_user = True
    known_options = frozenset({"drawer"})

    def facts(self) -> BoxFacts | None:
        """Unknown until somebody sits down."""
        return None

    def hand_over(self, run_file: RunFile, package: Package, run_dir: RunDir, terminal: Terminal) -> None:
        """The command for the person at the desk."""
        terminal.data(f"drawer {self.options.get('drawer', 1)}: stoker {' '.join(package.words)}")

    def put(self, package: Package) -> None:
        """Nothing is sent."""

    def start(self, package: Package) -> None:
        """Started by hand."""

    def status(self, run: str) -> dict[str, Any] | None:
        """Not known here."""
        return None

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:
        """Nobody to ask."""
        return 0

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:
        """Nobody to ask."""
        return 0

    def runs(self) -> int:
        """Nobody to ask."""
        return 0

    def stop(self, run: str) -> int:
        """Stopped by hand."""
        return 0

    def get(self, run: str) -> RunDir:
        """Carried over by hand."""
        raise NotImplementedError

    def stop_meter(self) -> None:
        """A desk costs nothing."""
