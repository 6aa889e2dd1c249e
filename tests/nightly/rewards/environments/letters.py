"""A taskset as its author writes it: rewards with weights, one that returns several, a metric, options of its own."""

from collections.abc import Iterator

import verifiers.v1 as vf

WORDS = ("stoker", "reward", "letters", "a")


class LettersData(vf.TaskData):
    answer: str


class LettersTaskConfig(vf.TaskConfig):
    strict: bool = False


class LettersTask(vf.Task[LettersData, vf.State, LettersTaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        said = trace.assistant_messages[0].content or ""
        return float((said if self.config.strict else said.strip().lower()) == self.data.answer)

    @vf.reward(weight=0.25)
    async def parts(self, task: LettersData, trace: vf.Trace) -> dict[str, float]:
        question = str(task.prompt)
        return {
            "asked": float(task.answer[::-1] in question),
            "system": float(trace.messages[0].role == "system" and task.system_prompt == trace.messages[0].content),
            "counted": trace.metrics["length"] or 0.0,
        }

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply) / 3


class LettersConfig(vf.TasksetConfig):
    task: LettersTaskConfig = LettersTaskConfig()
    system: str | None = None


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self) -> Iterator[LettersTask]:
        for word in WORDS:
            data = LettersData(
                prompt=f"Write {word} backward", answer=word[::-1], system_prompt=self.config.system, name=word
            )
            yield LettersTask(data, self.config.task)


__all__ = ["LettersTaskset"]
