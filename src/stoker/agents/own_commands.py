"""Runs a command of Stoker for a program: a process of its own, its JSON, its exit code.

So a tool does what the command does, and nothing that a command or its children print reaches the tool's own stdout.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from stoker import env
from stoker.agents.error_schema import ToolAnswer
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_SURPRISE, StokerError

_SAID_LINES = 20


async def answer(*words: str, agreed: str = "") -> ToolAnswer:
    """What `stoker WORDS --json` answers. A caller that gives up ends the process.

    Args:
        words: The command and its arguments.
        agreed: Digest of the only run file's text that the command may use; empty for any.
    """
    argv = [sys.executable, "-m", "stoker", *words, "--json"]
    variables = env.child_environment({env.AGREED.name: agreed})
    done = await anyio.run_process(argv, stdin=subprocess.DEVNULL, env=variables, check=False)
    said = done.stderr.decode("utf-8", errors="replace").splitlines()[-_SAID_LINES:]
    try:
        printed = json.loads(done.stdout)
    except ValueError:
        return refusal(_silent(words, done.returncode, said), said)
    if isinstance(printed, dict) and printed.get("ok") is False:
        return ToolAnswer(**printed, said=said)
    if done.returncode not in (EXIT_DONE, EXIT_STOPPED):
        return refusal(_silent(words, done.returncode, said), said).model_copy(update={"result": printed})
    return ToolAnswer(ok=True, exit_code=done.returncode, result=printed, said=said)


def refusal(error: StokerError, said: Sequence[str] = ()) -> ToolAnswer:
    """An error of ours as an answer."""
    found = {"ok": False, "exit_code": error.exit_code, "error": error.as_dict(), "said": list(said)}
    return ToolAnswer.model_validate(found)


def settings(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as the command line has them; values are JSON, which is YAML, too."""
    words = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in overrides.items())
    return [word for setting in words for word in ("--set", setting)]


def _silent(words: Sequence[str], code: int, said: Sequence[str]) -> StokerError:
    """A command that ended without an answer, such as one that was killed."""
    reason = f"stoker {words[0]}: exit code {code}" + (f": {said[-1]}" if said else "")
    error = StokerError("STK900", reason=reason)
    error.exit_code = EXIT_SURPRISE
    return error
