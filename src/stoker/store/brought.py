"""What an artifact held when it was brought from elsewhere: one that was made here is not replaced."""

from pathlib import Path

from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir


def note(run_dir: RunDir, name: str) -> None:
    """Write down what an artifact holds that was brought."""
    note_file(run_dir, name).parent.mkdir(exist_ok=True)
    files.write_text(note_file(run_dir, name), _held(run_dir, name).decode("utf-8"))


def is_unchanged(run_dir: RunDir, name: str) -> bool:
    """Whether an artifact was brought and is as it was then."""
    written = note_file(run_dir, name)
    return written.exists() and _held(run_dir, name) == written.read_bytes()


def note_file(run_dir: RunDir, name: str) -> Path:
    """Where it is written down."""
    return run_dir.store_folder / f"brought-{name}.json"


def _held(run_dir: RunDir, name: str) -> bytes:
    return artifacts.files_record(artifacts.entries_of(artifacts.folder(run_dir, name)))
