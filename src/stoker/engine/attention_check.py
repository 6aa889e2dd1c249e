"""Whether flash_attn runs here: `python -m stoker.engine.attention_check FOLDER` writes the answer into FOLDER.

A wheel may be built for another torch, CUDA or card: its metadata looks well, and the first import or launch fails.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from stoker.errors import EXIT_DONE
from stoker.rundir import files


def main(folder: Path) -> int:
    """Try each; an empty reason means that it ran."""
    files.write_json(folder / "attention_check.json", {"flash_attn": _reason(_flash_attention)})
    return EXIT_DONE


def _reason(kernel: Callable[[], None]) -> str:
    try:
        kernel()
    except Exception as error:  # noqa: BLE001  # another package's kernel may fail in any way
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return ""


def _flash_attention() -> None:
    """Forward and backward of one head, in the type that training uses."""
    from flash_attn import flash_attn_func

    query, key, value = (
        torch.randn(1, 128, 1, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    flash_attn_func(query, key, value, causal=True).sum().backward()
    torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
