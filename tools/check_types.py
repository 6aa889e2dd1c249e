"""Runs mypy over everything that can be checked here: where torch is not installed, over all rooms but the engine."""

import importlib.util
import subprocess
import sys

if __name__ == "__main__":
    without_engine = [] if importlib.util.find_spec("torch") else ["--exclude", "src/stoker/engine/"]
    sys.exit(subprocess.run([sys.executable, "-m", "mypy", *without_engine], check=False).returncode)
