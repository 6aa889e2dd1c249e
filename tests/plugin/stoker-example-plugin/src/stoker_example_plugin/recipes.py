"""A recipe: the path of a run file."""

from pathlib import Path

HAIKU_TINY = Path(__file__).with_name("haiku_tiny.yaml")
