"""Rows without a reward."""

import verifiers.v1 as vf


class ShowsTask(vf.Task):
    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class ShowsTaskset(vf.Taskset[ShowsTask]):
    def load(self) -> list[ShowsTask]:
        return []


__all__ = ["ShowsTaskset"]
