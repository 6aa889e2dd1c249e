"""Whether our Q4_K_M is llama.cpp's, byte for byte: metadata and every tensor, against libllama's own quantiser.

    TOOL_PYTHON benchmarks/q4_k_m.py LIBRARIES MODEL_FOLDER...

Runs in the `llamacpp` environment. LIBRARIES is a folder with a whole llama.cpp build (`libllama*.so`, `libggml*.so`;
npm's `@node-llama-cpp/linux-x64` has one); set LD_LIBRARY_PATH to it. Prints a line per model; ends with 1 if one
differs.
"""

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src" / "stoker" / "engine" / "foreign"))

import gguf
import numpy as np
import stoker_gguf

Q4_K_M = 15


class Params(ctypes.Structure):
    """`llama_model_quantize_params` of include/llama.h."""

    _fields_ = (
        [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int), ("output", ctypes.c_int), ("embedding", ctypes.c_int)]
        + [(f"flag{i}", ctypes.c_bool) for i in range(6)]
        + [(f"pointer{i}", ctypes.c_void_p) for i in range(4)]
    )


def library(folder: Path) -> Any:
    for name in ("libggml-base*", "libggml.*"):
        ggml = ctypes.CDLL(str(next(folder.glob(name))), mode=ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    llama = ctypes.CDLL(str(next(folder.glob("libllama.*"))))
    llama.llama_model_quantize_default_params.restype = Params
    llama.llama_backend_init()
    return llama


def contents(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, bytes]]]:
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return keys, {one.name: (one.tensor_type.name, np.asarray(one.data).tobytes()) for one in reader.tensors}


def same(llama: Any, model: Path, work: Path) -> bool:
    whole, ours, theirs = work / "whole.gguf", work / "ours.gguf", work / "theirs.gguf"
    stoker_gguf._convert(model, whole, "auto", model.name)
    stoker_gguf.quantise_q4_k_m(whole, ours)
    params = llama.llama_model_quantize_default_params()
    params.ftype = Q4_K_M
    failed = llama.llama_model_quantize(str(whole).encode(), str(theirs).encode(), ctypes.byref(params))
    assert not failed
    equal = contents(ours) == contents(theirs)
    kinds = sorted({kind for kind, _ in contents(ours)[1].values()})
    print(f"{model.name}: {'the same' if equal else 'DIFFERENT'}, {ours.stat().st_size:,} bytes, {', '.join(kinds)}")
    return equal


def main() -> int:
    llama = library(Path(sys.argv[1]))
    models = [Path(word) for word in sys.argv[2:]]
    stoker_gguf._register(None)
    with tempfile.TemporaryDirectory() as work:
        return int(not all([same(llama, model, Path(work)) for model in models]))  # noqa: C419  # a line for each


if __name__ == "__main__":
    sys.exit(main())
