"""The task's own `score`, called by hand: one task of `load` and one completion for each line of the input.

Arguments: the environment, its options as JSON. Prints the rewards as JSON.
"""

import asyncio
import json
import sys

import verifiers.v1 as vf


def rewarded(task: vf.Task, completion: str) -> float:
    said = [vf.UserMessage(content=task.data.prompt), vf.AssistantMessage(content=completion)]
    if task.data.system_prompt is not None:
        said.insert(0, vf.SystemMessage(content=task.data.system_prompt))
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data), agent=vf.AgentInfo(config=vf.AgentConfig())
    )
    for place, message in enumerate(said):
        parent = place - 1 if place else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message is said[-1]))
    asyncio.run(task.score(trace))
    return trace.reward


environment, options = sys.argv[1], json.loads(sys.argv[2])
tasks = vf.load_taskset(vf.taskset_config_type(environment)(id=environment, **options))
print(json.dumps([rewarded(task, json.loads(line)) for task, line in zip(tasks, sys.stdin, strict=False)]))
