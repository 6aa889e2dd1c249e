"""Which processor this is, and the levels of instructions at which its libraries can be made to compute.

oneDNN (`ONEDNN_MAX_CPU_ISA`), ATen and MKL choose kernels by what the processor has, and each kernel rounds in its own
way. The variables only lower: what a processor lacks cannot be tried on it.
"""

import os
import platform
from pathlib import Path

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
_AMX = ("amx_tile", "amx_int8", "amx_bf16")
LEVELS: dict[str, tuple[str, ...]] = {
    "SSE41": ("sse4_1",),
    "AVX": ("avx",),
    "AVX2": ("avx2",),
    "AVX2_VNNI": ("avx2", "avx_vnni"),
    "AVX2_VNNI_2": ("avx2", "avx_vnni", "avx_vnni_int8", "avx_ne_convert"),
    "AVX512_CORE": _AVX512,
    "AVX512_CORE_VNNI": (*_AVX512, "avx512_vnni"),
    "AVX512_CORE_BF16": (*_AVX512, "avx512_vnni", "avx512_bf16"),
    "AVX512_CORE_FP16": (*_AVX512, "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    "AVX512_CORE_AMX": (*_AVX512, "avx512_vnni", "avx512_bf16", *_AMX),
    "AVX512_CORE_AMX_FP16": (*_AVX512, "avx512_vnni", "avx512_bf16", "avx512_fp16", *_AMX, "amx_fp16"),
}
"""oneDNN's names, lowest first, and the flags of the processor that each needs."""
_INSTRUCTIONS = ("sse4", "avx", "amx", "fma", "f16c")


def levels() -> list[str]:
    """Those this processor has, lowest first; none where the system does not tell."""
    flags = set(_told("flags").split())
    return [level for level, needed in LEVELS.items() if flags.issuperset(needed)]


def environment(level: str) -> dict[str, str]:
    """Variables under which a new process computes at a level, in ATen and MKL too."""
    narrow = {"SSE41": ("default", "SSE4_2"), "AVX": ("default", "AVX")}
    aten, mkl = narrow.get(level, ("avx2", "AVX2") if level.startswith("AVX2") else ("avx512", "AVX512"))
    return {"ONEDNN_MAX_CPU_ISA": level, "ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": mkl}


def facts() -> dict[str, str]:
    """Model, instructions and the level of this process, for a report that compares bits."""
    flags = sorted(flag for flag in _told("flags").split() if flag.startswith(_INSTRUCTIONS))
    highest = (levels() or [""])[-1]
    return {
        "processor": _told("model name") or platform.machine(),
        "instructions": " ".join(flags),
        "level": os.environ.get("ONEDNN_MAX_CPU_ISA") or highest,
    }


def _told(key: str) -> str:
    """Of the first core, as Linux tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
