"""`stoker schema`: the run file's JSON Schema."""

from stoker.config.run import Run
from stoker.terminal import console


def schema() -> None:
    """Print the JSON Schema of a run file."""
    console.data_json(Run.model_json_schema())
