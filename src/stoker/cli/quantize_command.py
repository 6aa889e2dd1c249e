"""`stoker quantize`: a smaller model for serving, compared with the trained one before it is called done."""

from typing import Any

from stoker import messages
from stoker.artifacts import quantized
from stoker.cli import merge_command
from stoker.errors import StokerError
from stoker.rundir import layout
from stoker.terminal import console

_GGUF = ("q8_0", "q4_k_m")


def quantize(name: str, gguf: str | None, *, int8: bool, gptq: bool, fp8: bool, as_json: bool) -> None:
    """Make the one kind that was asked for; of an adapter, from the merged model."""
    asked = {"int8": int8, "gptq": gptq, "fp8": fp8, f"gguf-{gguf}": gguf is not None}
    kinds = [kind for kind, wanted in asked.items() if wanted]
    if len(kinds) != 1 or gguf not in (None, *_GGUF):
        raise StokerError("STK630")
    run_dir = layout.find(name)
    quantized.require(kinds[0])
    source = run_dir.final
    if merge_command.has_adapter(run_dir):
        source = merge_command.current(run_dir) or merge_command.make(run_dir)
    with console.status() as status:
        status.show(messages.text("quantize.working", kind=kinds[0]))

        def take(event: dict[str, Any]) -> None:
            if event["event"] == "parity":
                status.show(messages.text("parity.progress", **{key: event[key] for key in ("part", "done", "of")}))

        made = quantized.make(run_dir, kinds[0], source, take)
    if as_json:
        console.data_json(made)
    else:
        console.data(_line(made))


def _line(made: dict[str, Any]) -> str:
    change = made["perplexity_change"]
    return messages.text(
        "quantize.done",
        path=made["path"],
        size=_size(made["bytes"]),
        source=_size(made["source_bytes"]),
        agreement=f"{made['agreement']:.1%}",
        change=messages.text("parity.unmeasured") if change is None else f"{change:+.2%}",
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.2f} MB"
