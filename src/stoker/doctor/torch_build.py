"""Which PyTorch is installed and for which CUDA, read as text: importing torch takes seconds and may fail."""

import ast
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TorchBuild:
    """An installed PyTorch."""

    version: str
    cuda: str | None
    """None for a build without CUDA."""
    rocm: bool = False


def installed() -> TorchBuild | None:
    """The installed build; None without PyTorch."""
    try:
        distribution = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    file = Path(str(distribution.locate_file("torch/version.py")))
    return parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def parse(text: str) -> TorchBuild:
    """`torch/version.py` as a build."""
    values: dict[str, object] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            values[ast.unparse(target)] = node.value.value
    cuda = values.get("cuda")
    return TorchBuild(str(values["__version__"]), str(cuda) if cuda else None, rocm=bool(values.get("hip")))
