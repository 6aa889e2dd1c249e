"""The package of an environment of `verifiers`, read as files: nothing of it is imported here."""

from pathlib import Path

from stoker import tools

_NOT_ASKED = ("pip", "setuptools", "wheel", "uv", "stoker")
"""Packages that nothing is scored by."""


def contents(environment: str) -> list[bytes]:
    """The environment's own files; of one that is not here none.

    Args:
        environment: Its id; as verifiers reads it, `owner/name@version` is the module `name`.
    """
    library = tools.package_folder(tools.VERIFIERS)
    return [one.read_bytes() for one in _files(library, environment)] if library else []


def versions() -> list[str]:
    """The packages that stand beside it, each with its version: scores may depend on them, and need not."""
    library = tools.package_folder(tools.VERIFIERS)
    names = sorted(one.name for one in library.parent.glob("*.dist-info")) if library else []
    return [name for name in names if name.partition("-")[0] not in _NOT_ASKED]


def is_elsewhere(environment: str) -> bool:
    """Whether an environment that can be loaded is not among the packages, as one that was installed as editable."""
    library = tools.package_folder(tools.VERIFIERS)
    return library is not None and not _files(library, environment)


def _files(library: Path, environment: str) -> list[Path]:
    name = _module(environment)
    found = sorted((library.parent / name).rglob("*")) or sorted(library.parent.glob(f"{name}.py"))
    return [one for one in found if one.is_file() and one.suffix != ".pyc"]


def _module(environment: str) -> str:
    return environment.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
