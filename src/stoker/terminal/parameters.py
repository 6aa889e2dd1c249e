"""Arguments and flags that several commands have. A `help=` is the key of a sentence in `messages`."""

from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="help.any.run")]
Existing = Annotated[str, typer.Argument(metavar="NAME", help="help.any.name")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="help.any.set")]
Gpus = Annotated[str | None, typer.Option(metavar="N", help="help.any.gpus")]
On = Annotated[str | None, typer.Option("--on", metavar="HOST", help="help.any.on")]
Json = Annotated[bool, typer.Option("--json", help="help.any.json")]
From = Annotated[str | None, typer.Option("--from", metavar="ADDRESS", help="help.any.from")]
Artifact = Annotated[str | None, typer.Option(metavar="NAME", help="help.any.artifact")]


def with_gpus(overrides: list[str] | None, gpus: str | None) -> list[str]:
    """`--gpus` is short for a key of the run file."""
    if gpus is None:
        return overrides or []
    from stoker.config import values

    if not values.is_devices(gpus):
        raise typer.BadParameter(gpus, param_hint="--gpus")
    return [*(overrides or []), f"where.gpus={gpus}"]
