"""Read by every Python that has this folder on its PYTHONPATH: programs of ours that compute believe in their cards.

torchrun itself does not: it only starts them. The light programs learn of NVIDIA's cards from `nvidia-smi` beside this
file; of an Apple chip, from the system's name.
"""

import os
import platform
import sys
from pathlib import Path

_COMPUTE = {f"stoker.engine.{name}" for name in ("train", "merge", "evaluate", "parity", "chat", "export")}

_module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
if os.environ.get("PRETENDED_KIND") and _module in _COMPUTE:
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    import pretend_cuda

    pretend_cuda.install(pretend_cuda.Pretended.of(os.environ))
elif os.environ.get("PRETENDED_KIND") == "mps" and _module == "stoker":
    platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
