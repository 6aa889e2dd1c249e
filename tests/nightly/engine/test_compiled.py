"""`where.compile: on`: the Trainer compiles the model, it trains, and a resume says that it is SAMPLE-EXACT."""

from pathlib import Path

import pytest
import tiny_run

from stoker.plan.plan import Plan
from stoker.rundir import events, files

pytestmark = pytest.mark.filterwarnings("default")

# Without Inductor, whose kernels take minutes: what is under test is that the model is compiled at all.
WORDS = """
model: {base}
data: {{train: rows.jsonl, length: 32}}
train: {{batch: 4, steps: 4, epochs: 4, learning_rate: 1e-3}}
save: {{every: 2 steps}}
where: {{micro: 4, compile: {compile}}}
native: {{trainer: {{{native}}}}}
"""


def make(folder: Path, base: Path, *, compiled: bool) -> tiny_run.RunDir:
    native = "torch_compile_backend: aot_eager" if compiled else ""
    words = WORDS.format(base=base, compile="on" if compiled else "off", native=native)
    return tiny_run.make_run(folder, words, tiny_run.random_rows(16, seed=5, longest=32))


def test_a_compiled_run_trains_as_the_plain_one_and_resumes_sample_exactly(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    plain, compiled = make(tmp_path / "plain", base, compiled=False), make(tmp_path / "compiled", base, compiled=True)
    assert files.read_record(compiled.plan_file, Plan).native.trainer["torch_compile"]
    assert tiny_run.train(plain) == 0, (plain.path / "child.log").read_text()[-2000:]
    assert tiny_run.train(compiled, kill_after=3) == -9
    assert tiny_run.train(compiled) == 0, (compiled.path / "child.log").read_text()[-2000:]
    found, expected = ([float.fromhex(one) for one in tiny_run.losses(run).values()] for run in (compiled, plain))
    assert found == pytest.approx(expected, rel=1e-4)
    attempts = [one for one in events.read(compiled.events_file) if one["event"] == "attempt"]
    assert [(one["tier"], one["changed"]) for one in attempts] == [("SAMPLE-EXACT", [])] * 2
