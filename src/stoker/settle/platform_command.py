"""Runs the command by which a platform stops or releases this machine."""

import subprocess
from pathlib import Path

from stoker import env

_COMMAND_SECONDS = 120.0
_MAGIC_BYTES = 4
_OUTPUT_LETTERS = 300


def own_interpreter(words: list[str]) -> list[str]:
    """`/bin/sh FILE` is for a script that names no interpreter; a program, or a script that does, runs as it is."""
    if words[0] != "/bin/sh":
        return words
    try:
        with Path(words[1]).open("rb") as file:
            head = file.read(_MAGIC_BYTES)
    except OSError:
        return words
    return words[1:] if head.startswith((b"\x7fELF", b"#!")) else words


def run_command(words: list[str], variables: dict[str, str]) -> str:
    """Run a platform's command; what went wrong, without the values of its variables."""
    try:
        done = subprocess.run(  # noqa: S603  # a command of the platform's profile, no shell string
            words,
            input=b"y\n",  # vastai asks whether we are sure
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env.child_environment(variables),
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {words[0]}"
    if not done.returncode:
        return ""
    said = done.stdout.decode("utf-8", "replace").strip()
    for value in variables.values():
        said = said.replace(value, "***")
    return env.without_secrets(f"exit {done.returncode}: {said[-_OUTPUT_LETTERS:]}")
