"""One model of each kind, dense, mixture, hybrid and with a tower: stopped or killed it goes on to the same bits, and
two processes train what one does. A mixture also with its experts in 4 bits.
"""

from pathlib import Path

import pytest
import tiny_families
import tiny_run
import weighed_here
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")
KINDS = {"dense": "qwen3", "mixture": "qwen3_moe", "hybrid": "qwen3_5", "conditional": "gemma3"}
CASES = [
    *((kind, "lora") for kind in KINDS),
    ("mixture", "qlora"),
    ("conditional", "full"),
    ("mixture", "full"),
]
STEPS = 6
ROWS = tiny_run.random_rows(21, seed=5, longest=48, segments=2)  # at batch 8: 3 steps an epoch, the last of 5 sequences


def make_base(folder: Path, kind: str) -> Path:
    if kind != "dense":
        return weighed_here.keep(tiny_families.save(folder, KINDS[kind]))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model("qwen3", vocab_size=tiny_run.VOCAB, num_key_value_heads=2, head_dim=16, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_run(folder: Path, base: Path, method: str, processes: int = 1) -> RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 48, pack: true}}
tune: {{method: {method}{"" if method == "full" else ", rank: 4"}}}
train: {{batch: 8, steps: {STEPS}, learning_rate: 1e-2, warmup: 0, exact: true}}
save: {{every: 2 steps, keep: 2}}
where: {{gpus: 0, micro: 2, processes: {processes}}}
"""
    return tiny_run.make_run(folder, text, ROWS)


def log(run_dir: RunDir) -> str:
    return (run_dir.path / "child.log").read_text()[-3000:]


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_killed_stopped_or_on_two_processes_it_is_one_training(tmp_path: Path, kind: str, method: str) -> None:
    base = make_base(tmp_path / "base", kind)
    whole = make_run(tmp_path / "whole", base, method)
    assert tiny_run.train(whole) == 0, log(whole)
    expected, sha = tiny_run.losses(whole), tiny_run.weights_sha(whole.final)
    assert len(expected) == STEPS
    killed = make_run(tmp_path / "killed", base, method)
    assert tiny_run.train(killed, kill_after=3) == -9
    assert tiny_run.train(killed, stop_after=5) == 75
    assert tiny_run.train(killed) == 0, log(killed)
    both = make_run(tmp_path / "both", base, method, processes=2)
    assert tiny_run.train(both) == 0, log(both)
    for other in (killed, both):
        assert tiny_run.losses(other) == expected
        assert tiny_run.weights_sha(other.final) == sha
    attempts = [event for event in events.read(killed.events_file) if event["event"] == "attempt"]
    assert {event["tier"] for event in attempts} == {"EXACT"}
    (attempt,) = [event for event in events.read(both.events_file) if event["event"] == "attempt"]
    assert attempt["world"] == 2
