"""A package with entry points as an installer leaves it: one module and its metadata, in a folder of `sys.path`."""

from pathlib import Path


def install(folder: Path, package: str, points: dict[str, dict[str, str]], code: str, version: str = "1.0") -> None:
    """Write the package.

    Args:
        folder: Of `sys.path`.
        package: Its name; the module is named alike.
        points: Group to names to names in the module.
        code: The module's text.
        version: Its version.
    """
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for group, names in points.items():
        lines += [f"[{group}]", *(f"{name} = {module}:{value}" for name, value in names.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
