"""An agent's environment: tools, a program of its own, files in a container that are looked at."""

from typing import Any

import verifiers.v1 as vf


class DigsToolset(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def dig(self, place: str) -> str:
        """Dig there."""
        return place


class DigsTask(vf.Task):
    NEEDS_CONTAINER = True

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.run(["mkdir", "ground"], {})

    @vf.reward
    async def treasure(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float((await runtime.run(["ls", "ground"], {})).exit_code == 0)

    @vf.intercept
    async def no_bombs(self, request: vf.Request) -> None:
        return None

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [DigsToolset(vf.ToolsetConfig())]


class DigsTaskset(vf.Taskset[DigsTask]):
    def load(self) -> list[DigsTask]:
        return []


class DigsHarness(vf.Harness[vf.HarnessConfig]):
    async def launch(self, *_: Any, **__: Any) -> vf.ProgramResult:
        raise NotImplementedError


__all__ = ["DigsHarness", "DigsTaskset"]
