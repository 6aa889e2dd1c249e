"""`stoker schema`: the run file's JSON Schema."""

from stoker.cli import console
from stoker.config.run import Run


def schema() -> None:
    """Print the JSON Schema of a run file."""
    console.data_json(Run.model_json_schema())
