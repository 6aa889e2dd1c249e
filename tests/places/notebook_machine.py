"""A machine as notebook platforms lend it, for one session: mount and process namespaces of its own.

Folders are mounted where the platform has them, /tmp and the Python are fresh, and after the time limit everything in
it is killed. Its Python has torch and its companions, as an image has, and no Stoker.
"""

import os
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGES = site.getsitepackages()[0]
_LEFT_OUT = ("stoker", "torchao", "deepspeed", "trl", "datasets", "pyarrow", "pandas", "matplotlib", "_editable")
"""Ours, and what a run does not need and would take seconds to import."""

_TREE = """
set -e
root=$1; session=$2; packages=$3; work=$4; shift 4
mount -t tmpfs none "$root"
for entry in /*; do
  name=${entry#/}
  case $name in kaggle|content|drive|session|tmp|proc) continue;; esac
  if [ -L "$entry" ]; then cp -P "$entry" "$root/$name"
  elif [ -d "$entry" ]; then mkdir "$root/$name"; mount --rbind "$entry" "$root/$name"
  fi
done
mkdir -p "$root/tmp" "$root/proc" "$root/session/python" "$root/session/packages"
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind "$session/python" "$root/session/python"
mount --bind "$packages" "$root/session/packages"
mount -o remount,bind,ro "$root/session/packages"
cp "$session/script.py" "$root/session/script.py"
while [ $# -gt 0 ]; do
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
  shift 3
done
exec chroot "$root" /bin/sh -c 'cd "$0" && exec /session/python/bin/python -u /session/script.py' "$work"
"""

_CLOCK = """
import json, sys, time
from datetime import datetime
from pathlib import Path

if "stoker.supervise.supervisor" in sys.orig_argv:
    run, real, jump = Path(sys.orig_argv[-1]), time.time, []

    def steps():
        events = run / "events.jsonl"
        return events.read_text().count('"event": "step"') if events.exists() else 0

    def now():
        if not jump and steps() - before >= {steps}:
            end = json.loads((run / "plan.json").read_text())["limits"]["deadline"]
            jump.append(datetime.fromisoformat(end).timestamp() - 100 - real())
        return real() + sum(jump)

    before, time.time = steps(), now
"""


@dataclass(frozen=True)
class Mount:
    """A folder of the test, and where the machine has it."""

    source: Path
    target: str
    writable: bool = True


def image(folder: Path, steps_a_session: int | None = None) -> Path:
    """Make the machine's Python in a folder of the session.

    Args:
        folder: Of the session.
        steps_a_session: After so many steps the supervisor's clock jumps to 100 seconds before the session's end.

    Returns:
        The folder of its own packages.
    """
    python = folder / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python)], check=True)
    (packages,) = python.glob("lib/python3*/site-packages")
    shared = python / "shared"
    shared.mkdir()
    for path in Path(PACKAGES).iterdir():
        if not path.name.startswith(_LEFT_OUT) and path.suffix != ".pth":
            (shared / path.name).symlink_to(f"/session/packages/{path.name}")
    (packages / "image.pth").write_text("/session/python/shared\n")
    if steps_a_session is not None:
        (packages / "sitecustomize.py").write_text(_CLOCK.format(steps=steps_a_session))
    return packages


def start(folder: Path, script: str, work: str, mounts: list[Mount], signs: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a script on the machine; what it says goes to `log`.

    Args:
        folder: Of the session.
        script: Python.
        work: Where it starts.
        mounts: The platform's folders.
        signs: Variables by which the platform is known.
    """
    (folder / "root").mkdir()
    (folder / "script.py").write_text(script)
    kept = ("PATH", "LANG", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", "STOKER_METADATA": "off", **signs}
    listed = [word for one in mounts for word in (str(one.source), one.target, "rw" if one.writable else "ro")]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _TREE, "tree"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(folder / "root"), str(folder), PACKAGES, work, *listed],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its exit code; -9 where the time limit ended it."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -9
