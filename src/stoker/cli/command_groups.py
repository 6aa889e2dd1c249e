"""The commands by what people do, for `stoker --help`. A test fails for a command that is in no group."""

from collections.abc import Mapping
from typing import ClassVar

from stoker.terminal.help_page import HelpGroup


class GroupedCommands(HelpGroup):
    """All commands of `stoker`."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "help.group.start": ("init", "recipes", "models", "schema", "doctor", "prove"),
        "help.group.run": ("plan", "prepare", "train", "stop"),
        "help.group.look": ("runs", "watch", "logs", "report", "verify"),
        "help.group.use": ("chat", "eval", "merge", "quantize", "export", "publish", "serve", "bench"),
        "help.group.rent": ("gpus", "hosts", "bundle", "push", "pull"),
        "help.group.agents": ("guide", "mcp"),
    }
