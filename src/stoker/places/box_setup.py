"""Installs Stoker on a box as `hosts/box_environment.py` decided, and requires the room for it.

Environments are below the base folder: `envs/<mark>` for each version of Stoker, and `env`, a link to the newest.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import mirrors
from stoker.hosts import mirror_probe
from stoker.hosts.box_environment import EXTRAS, OWN_PYTHON, BoxEnvironment
from stoker.hosts.shell import Shell
from stoker.places.package import Package
from stoker.plan import checks
from stoker.rundir import files

_BEGIN = """
cd {base}
# One at a time: an interrupted connection leaves its installation running. The link names the process.
until ln -s $$ env.lock 2>/dev/null; do
  if kill -0 "$(readlink env.lock)" 2>/dev/null; then sleep 1; else rm -f env.lock; fi
done
trap 'rm -f env.lock' EXIT
# One environment per version of Stoker: a running training keeps its own.
new=envs/{mark}
if [ -e $new/.stoker ] && $new/bin/python -c 'import stoker' 2>/dev/null; then ln -sfn $new env; exit 0; fi
rm -rf $new
mkdir -p envs
"""
_END = """
touch $new/.stoker
ln -sfn $new env
"""
_IMAGE = """
if [ ! -e env/.stoker ] || [ "$(cat env/.python)" != {python} ] || ! cp -al env/. $new 2>/dev/null; then
  rm -rf $new
  {python} -m venv --system-site-packages --without-pip $new
  lib=$($new/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The image's Python may itself be in an environment, whose packages a new one does not see.
  {python} -c 'import site; print("\\n".join(site.getsitepackages()))' > "$lib/image.pth"
  $new/bin/python -m pip --version >/dev/null 2>&1 || $new/bin/python -m ensurepip >/dev/null
fi
rm -f $new/.stoker $new/.python $new/constraints.txt
echo {python} > $new/.python
# The image's own torch is kept.
$new/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
  > $new/constraints.txt 2>/dev/null || : > $new/constraints.txt
$new/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall {wheel}
$new/bin/python -m pip install -q --disable-pip-version-check --constraint $new/constraints.txt {wheel}{extras} {more}
"""
"""The next environment starts as a hard-linked copy of the newest."""
AROUND_IMAGE = _BEGIN + _IMAGE + _END
_OWN = """
mkdir -p tools
# uv does not read pip's configuration.
{stoker_index}
index=${{UV_DEFAULT_INDEX:-${{PIP_INDEX_URL:-}}}}
[ -n "$index" ] || index=$(stoker_index {pip} || true)
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
[ -z "${{PIP_FIND_LINKS:-}}" ] || export UV_FIND_LINKS="$PIP_FIND_LINKS"
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  uv=$PWD/tools/uv/bin/uv
  if [ ! -x "$uv" ]; then
    {fetch}
  fi
fi
# All of it on this disk: environments are hard links into the cache.
export UV_CACHE_DIR="$PWD/tools/uv-cache" UV_PYTHON_INSTALL_DIR="$PWD/tools/python" UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=300
"$uv" venv -q --python {python} $new
"$uv" pip install -q --python $new/bin/python torch=={torch} "stoker{extras} @ file://$PWD/{wheel}" {more}
echo {torch} > $new/.torch
"""
_BY_PIP = """pip={pip}
    $pip -m pip --version >/dev/null 2>&1 || {{ $pip -m venv tools/pip; pip=tools/pip/bin/python; }}
    PIP_ROOT_USER_ACTION=ignore $pip -m pip install -q --disable-pip-version-check --upgrade --target tools/uv uv"""
_BY_DOWNLOAD = """mkdir -p tools/uv/bin
    url=https://github.com/astral-sh/uv/releases/latest/download/uv-x86_64-unknown-linux-gnu.tar.gz
    if command -v curl >/dev/null; then curl -fsSL "$url"; else wget -qO- "$url"; fi |
      tar -xzf - -C tools/uv/bin --strip-components=1"""
_ROOM = """
mkdir -p {base}
cd {base}
df -Pk . | tail -n 1
if [ -e envs/{mark}/.stoker ]; then echo environment; fi
if grep -qsx {torch} envs/*/.torch; then echo torch; fi
{size}
"""


@dataclass(frozen=True)
class BoxInstallation:
    """One version of Stoker on one box, with what the run needs besides."""

    decided: BoxEnvironment
    wheel: str
    """Stoker's wheel, below the base folder."""
    mark: str
    """Name of the environment: another one for everything that is decided here."""
    extras: tuple[str, ...]
    more: tuple[str, ...]

    @classmethod
    def of(cls, decided: BoxEnvironment, wheel: Path, run: Run) -> "BoxInstallation":
        """The installation of a wheel for a run."""
        digest = files.sha256(wheel)
        extras, more = extras_for(run), checks.extra_packages(run)
        words = " ".join([digest, decided.python, decided.torch, ",".join(extras), *more])
        mark = hashlib.sha256(words.encode()).hexdigest()[:16]
        return cls(decided, f"wheels/{digest[:16]}/{wheel.name}", mark, extras, more)

    def script(self, base: str) -> str:
        """For a POSIX shell there; does nothing where it is installed."""
        fetch = (_BY_PIP if self.decided.pip else _BY_DOWNLOAD).format(pip=quote(self.decided.pip))
        return (AROUND_IMAGE if self.decided.kind == "image" else _BEGIN + _OWN + _END).format(
            base=quote(base),
            mark=self.mark,
            python=quote(self.decided.python or OWN_PYTHON),
            pip=quote(self.decided.pip or "false"),
            stoker_index=mirror_probe.INDEX,
            torch=quote(self.decided.torch),
            fetch=fetch,
            wheel=quote(self.wheel),
            extras=f"'[{','.join(self.extras)}]'" if self.decided.kind == "image" else f"[{','.join(self.extras)}]",
            more=" ".join(map(quote, self.more)),
        )

    def routes(self, reachable: Mapping[str, int]) -> str:
        """Variables that lead uv to a Python, where it installs one."""
        way = mirrors.nearest("python", reachable)
        return "".join(f"export {name}={quote(value)}\n" for name, value in (way.environment if way else {}).items())


def extras_for(run: Run) -> tuple[str, ...]:
    """Extras of Stoker that a run needs on another machine."""
    return (*EXTRAS, *(["deepspeed"] if checks.needs_deepspeed(run) else []))


def require_room(shell: Shell, base: str, package: Package, sent: Mapping[str, Path], install: BoxInstallation) -> None:
    """Refuse what does not fit on the disk: files, environment, a checkpoint; less what is there already."""
    tops = [top for top in (f"inputs/{package.name}", f"runs/{package.name}/data") if _any_below(top, sent)]
    size = f"du -sk {' '.join(map(quote, tops))} 2>/dev/null || true" if tops else ""
    torch = quote(install.decided.torch or "-")
    said = shell.run(_ROOM.format(base=quote(base), mark=install.mark, torch=torch, size=size))
    disk, *lines = said.splitlines()
    free = int(disk.split()[3]) * 1024
    there = sum(int(line.split()[0]) for line in lines if line[0].isdecimal()) * 1024
    files_bytes = max(0, sum(path.stat().st_size for path in sent.values()) - there)
    environment = 0 if {"environment", "torch"}.intersection(lines) else install.decided.disk_bytes
    needed = files_bytes + environment + package.checkpoint_bytes
    if needed > free:
        parts = {"sent": files_bytes, "environment": environment, "checkpoint": package.checkpoint_bytes}
        figures = {"needed": needed, "free": free, **parts}
        raise StokerError(
            "STK709", host=shell.name, folder=base, **{k: f"{v / 1e6:,.0f} MB" for k, v in figures.items()}
        )


def _any_below(top: str, sent: Mapping[str, Path]) -> bool:
    return any(name.startswith(f"{top}/") for name in sent)
