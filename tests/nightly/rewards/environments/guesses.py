"""A game of several turns: the model guesses, the environment answers."""

import verifiers.v1 as vf


class GuessesTask(vf.Task):
    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return 1.0 / trace.num_turns

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 5


class GuessesTaskset(vf.Taskset[GuessesTask]):
    def load(self) -> list[GuessesTask]:
        return []


class GuessesConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessesEnv(vf.Env[GuessesConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.player.interact(task) as talk:
            await talk.turn("higher")


__all__ = ["GuessesEnv", "GuessesTaskset"]
