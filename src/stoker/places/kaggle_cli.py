"""Kaggle's own command line: kernels, datasets, quota. It exits with 0 after many errors, so its output is checked too.

Credentials are Kaggle's own matter: its files or the environment.
"""

import csv
import io
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

from stoker import env, tools
from stoker.errors import StokerError
from stoker.rundir import files

TOOL = tools.Tool("kaggle", "kaggle", "kaggle six")
RUNNING = ("queued", "running", "new_script")
_CALL_SECONDS = 3600.0
_READY_SECONDS = 1800.0
"""For a new version of a dataset to become usable."""
_POLL_SECONDS = 10.0
_NO_KERNEL = re.compile(r"\b40[34]\b|denied|not found", re.IGNORECASE)
"""What Kaggle says about a kernel that does not exist."""


class KaggleCommand:
    """`kaggle`, as installed in an environment of its own or on the PATH."""

    def user(self) -> str:
        """Name of the account."""
        found = re.search(r"^- username: (\S+)$", self.call("config", "view"), re.MULTILINE)
        if found is None or found.group(1) == "None":
            raise StokerError("STK757")
        return found.group(1)

    def call(self, *words: str, may_fail: bool = False) -> str:
        """What `kaggle WORDS` prints."""
        try:
            done = subprocess.run(  # noqa: S603  # no shell
                [*self._program(), *words],
                capture_output=True,
                check=False,
                timeout=_CALL_SECONDS,
                env=env.child_environment({}),
            )
        except subprocess.TimeoutExpired as error:
            raise StokerError("STK750", command=" ".join(words[:2]), reason=error) from error
        said = done.stdout.decode("utf-8", "replace")
        if done.returncode and not may_fail:
            complaint = done.stderr.decode("utf-8", "replace")
            raise StokerError("STK750", command=" ".join(words[:2]), reason=shortened(complaint + said))
        return said

    # ---- kernels

    def push(self, folder: str, seconds: float, accelerator: str | None) -> str:
        """Push the kernel in a folder, to run for so long on an accelerator or a CPU; the reason of a refusal."""
        shape = ["--accelerator", accelerator] if accelerator else []
        said = self.call("kernels", "push", "-p", folder, "-t", str(round(seconds)), *shape)
        is_accepted = "successfully pushed" in said and "are not valid" not in said
        return "" if is_accepted else shortened(said)

    def state(self, kernel: str) -> str:
        """queued, running, complete, error or one of Kaggle's words for a cancelled kernel."""
        said = self.call("kernels", "status", kernel)
        found = re.search(r'has status "(?:\w+\.)?(\w+)"', said)
        if found is None:
            raise StokerError("STK750", command="kernels status", reason=shortened(said))
        return found.group(1).lower()

    def exists(self, kernel: str) -> bool:
        """Whether Kaggle knows a kernel."""
        try:
            self.state(kernel)
        except StokerError as error:
            if error.code != "STK750" or not _NO_KERNEL.search(str(error.fields["reason"])):
                raise
            return False
        return True

    def download(self, kernel: str, pattern: str, folder: str) -> None:
        """Files of a kernel's output whose names match."""
        self.call(
            "kernels", "output", kernel, "-p", folder, "-o", "-q", "--page-size", "200", "--file-pattern", pattern
        )

    def show_logs(self, kernel: str, *options: str) -> int:
        """A kernel's log, on the user's terminal; the exit code."""
        return subprocess.call([*self._program(), "kernels", "logs", kernel, *options])  # noqa: S603  # no shell

    def quota_seconds(self) -> float | None:
        """Seconds of a GPU left this week; None where Kaggle does not say."""
        said = self.call("quota", "--format", "csv", may_fail=True)
        rows = [row for row in csv.DictReader(io.StringIO(said)) if row.get("resource") == "GPU"]
        found = re.fullmatch(r"([\d.]+)h", rows[0].get("remaining") or "") if rows else None
        return 3600 * float(found.group(1)) if found else None

    # ---- datasets

    def upload(self, folder: Path, dataset: str, note: str, poll_seconds: float) -> None:
        """Create a private dataset or its next version from a folder, and wait until it is ready."""
        title = dataset.partition("/")[2]
        licence = [{"name": "other"}]
        files.write_json(folder / "dataset-metadata.json", {"id": dataset, "title": title, "licenses": licence})
        before = self._version(dataset)
        if before is None:
            said = self.call("datasets", "create", "-p", str(folder), "-q")
        else:
            said = self.call("datasets", "version", "-p", str(folder), "-q", "-m", note)
        if "being created" not in said:
            raise StokerError("STK750", command="datasets", reason=shortened(said))
        until = time.monotonic() + _READY_SECONDS
        while (self._version(dataset) or 0) <= (before or 0):
            if time.monotonic() > until:
                raise StokerError("STK750", command="datasets status", reason=dataset)
            time.sleep(min(poll_seconds, _POLL_SECONDS))

    def _version(self, dataset: str) -> int | None:
        """The newest version that is ready; None where there is no such dataset."""
        said = self.call("datasets", "status", dataset, "--format", "json", may_fail=True)
        try:
            found = json.loads(said[said.index("{") : said.rindex("}") + 1])
        except ValueError:
            return None
        return int(found.get("current_version_number") or 0) if str(found.get("status")).lower() == "ready" else 0

    # ---- the program

    def _program(self) -> list[str]:
        own = tools.find(TOOL)
        if own is not None:
            return [str(own), "-m", "kaggle"]
        found = shutil.which("kaggle")
        if found is None:
            raise StokerError("STK601", tool=TOOL.name, folder=tools.folder() / TOOL.name, packages=TOOL.packages)
        return [found]


def shortened(text: str) -> str:
    """The last lines of an output, without secrets."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return env.without_secrets(" / ".join(lines[-3:]))[:500] or "-"
