"""The export through the user's door: what the folder holds, what its card says, what is never overwritten."""

import json
from pathlib import Path
from typing import Any

import adapted_run
import forked_programs
import pytest
import tiny_run
import yaml
from simulated_hubs import SimulatedHuggingFace
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from stoker.api import figures
from stoker.artifacts import model_hubs
from stoker.cli.main import app
from stoker.engine import export
from stoker.errors import StokerError
from stoker.rundir import artifacts, events, files, prepared

pytestmark = pytest.mark.filterwarnings("default")


def stoker(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.stdout


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    forked_programs.use(monkeypatch)  # the tour starts them as users do


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = adapted_run.make_base(tmp_path / "acme-1b", tied=True)
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: acme-community\n---\n# Acme\n")
    return folder


def trained(tmp_path: Path, base: Path) -> tiny_run.RunDir:
    text = f"""
name: taught
model: {base}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4, targets: [q_proj, lm_head]}}
train: {{batch: 8, steps: 12, epochs: 4, learning_rate: 3e-2, eval_every: 6 steps}}
"""
    rows = tiny_run.random_rows(30, seed=5, longest=64)
    run_dir = tiny_run.make_run(tmp_path / "here", text, rows, rows[:4])
    assert tiny_run.train(run_dir) == 0
    return run_dir


def test_an_adapter_is_merged_compared_and_described(tmp_path: Path, base: Path) -> None:
    run_dir = trained(tmp_path, base)
    said = json.loads(stoker("export", "taught", str(tmp_path / "out"), "--json"))
    folder = Path(said["path"])
    assert said["parity"]["accepted"]
    assert said["parity"]["agree"] == said["parity"]["tokens"] > 100
    assert adapted_run.distance(run_dir, folder) < 1e-5
    assert set(artifacts.parity(run_dir)) == {"merged", "export"}
    own = AutoTokenizer.from_pretrained(run_dir.final)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == own.get_vocab()
    assert 1 in GenerationConfig.from_pretrained(folder).eos_token_id
    _check_card(run_dir, folder / "README.md", tmp_path)
    # Again: nothing is merged twice, an earlier export gives way, and what the user put beside it stays.
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_text("of an earlier one")
    again = CliRunner().invoke(app, ["export", "taught", str(tmp_path / "out")], catch_exceptions=False)
    assert f"{said['parity']['agree']:,} of {said['parity']['tokens']:,} tokens agree" in again.stderr
    assert "`merged`" in again.stderr
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "out").glob("model-*-of-*"))
    assert len([e for e in events.read(run_dir.events_file) if e["event"] == "merged"]) == 1
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_export_and_adapter_are_published_with_their_cards(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, hub = trained(tmp_path, base), SimulatedHuggingFace()
    monkeypatch.setattr(model_hubs, "_client", lambda *_: hub)
    shown = json.loads(stoker("publish", "taught", "--to", "hf:me/adapter", "--artifact", "adapter", "--yes", "--json"))
    card = hub.files["README.md"].decode()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["library_name"], front["license_name"]) == ("peft", "acme-community")
    assert "base_model" not in front, "a folder of this machine is none of the hub's models"
    assert "PeftModel.from_pretrained" in card
    assert json.loads(hub.files["adapter_config.json"])["base_model_name_or_path"] is None
    assert not artifacts.folder(run_dir, "merged").exists(), "an adapter needs no merge"
    assert str(tmp_path).encode() not in b"".join(hub.files.values())
    (file,) = [name for name in shown["files"] if name.endswith(".safetensors")]
    assert hub.files[file] == (run_dir.final / file).read_bytes()
    hub.__init__()  # type: ignore[misc]  # another repository
    shown = json.loads(stoker("publish", "taught", "--to", "hf:me/whole", "--yes", "--json"))
    folder = artifacts.folder(run_dir, "export")
    assert {path.name for path in folder.iterdir()} == set(shown["files"]) == set(hub.files)
    assert hub.files["README.md"] == (folder / "README.md").read_bytes()
    assert str(tmp_path).encode() not in b"".join(hub.files.values())
    made = len([e for e in events.read(run_dir.events_file) if e["event"] == "exported"])
    stoker("publish", "taught", "--to", "hf:me/whole", "--yes")
    assert len([e for e in events.read(run_dir.events_file) if e["event"] == "exported"]) == made == 1


def _check_card(run_dir: tiny_run.RunDir, path: Path, machine: Path) -> None:
    text = path.read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert "base_model" not in front
    assert (front["license"], front["license_name"]) == ("other", "acme-community")
    assert front["tags"] == ["stoker", "lora"]
    measured = [e["eval_loss"] for e in events.read(run_dir.events_file) if e["event"] == "eval"][-1]
    steps = events.steps(run_dir.events_file)
    mean = sum(steps[step]["loss"] for step in range(3, 13)) / 10
    digest = files.read_json(run_dir.data / "report.json")["digest"]
    for value in (
        f"| {measured:.4f} |",
        f"{mean:.4f} (mean of the last 10 steps)",
        digest,
        "12 steps in 3 epochs",
        "r 4",
        "0.03",
    ):
        assert value in text, value
    report = prepared.read_report(run_dir.data)
    assert report is not None
    assert f"{report.rows_read} rows read; trained on {report.train.segments} of them" in text
    weights = sum(one.stat().st_size for one in path.parent.glob("*.safetensors"))
    assert f"| {figures.size(weights)} |" in text.replace("float32, ", "| ")
    assert "用 Stoker 在 acme-1b 上微调。" in text
    assert str(machine) not in text


def test_a_whole_model_is_exported_as_it_is(tmp_path: Path) -> None:
    text = """
name: scratch
model: {shape: llama, layers: 2, width: 64, heads: 1, tied: true}
tokenizer: words
data: {train: rows.jsonl, length: 64}
train: {objective: pretrain, batch: 8, steps: 3}
"""
    tiny_run.make_tokenizer(tmp_path / "words")
    run_dir = tiny_run.make_run(tmp_path, text, tiny_run.random_rows(30, seed=5, longest=64))
    assert tiny_run.train(run_dir) == 0
    assert stoker("merge", "scratch").strip() == str(run_dir.final)
    assert not artifacts.folder(run_dir, "merged").exists()
    folder = Path(stoker("export", "scratch").strip())
    assert folder == artifacts.folder(run_dir, "export")
    assert (folder / "model.safetensors").samefile(run_dir.final / "model.safetensors")
    config = files.read_json(folder / "config.json")
    assert config["use_cache"] is True
    assert files.read_json(run_dir.final / "config.json")["use_cache"] is False, "the finished model was touched"
    assert 1 in GenerationConfig.from_pretrained(folder).eos_token_id
    card_text = (folder / "README.md").read_text(encoding="utf-8")
    assert "base_model" not in card_text
    assert yaml.safe_load(card_text.split("---\n")[1])["license"] == "unknown"
    AutoModelForCausalLM.from_pretrained(folder)


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path, base: Path) -> None:
    text = f"model: {base}\ndata: {{train: rows.jsonl, length: 64}}\ntrain: {{batch: 4, steps: 2}}\nname: early\n"
    tiny_run.make_run(tmp_path / "here", text, tiny_run.random_rows(8, seed=1, longest=40))
    for command in ("merge", "export"):
        with pytest.raises(StokerError) as caught:
            stoker(command, "early")
        assert caught.value.code == "STK502", "it was never begun"


def test_a_folder_of_somebody_else_is_refused_before_anything_is_made(tmp_path: Path, base: Path) -> None:
    run_dir = adapted_run.make_run(tmp_path / "here", base)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "README.md").write_text("---\nlicense: mit\n---\nstoker:\n")
    for target in (theirs, theirs / "README.md"):
        with pytest.raises(StokerError) as caught:
            stoker("export", run_dir.name, str(target))
        assert caught.value.code == "STK616"
    assert sorted(path.name for path in theirs.iterdir()) == ["README.md"]
    assert not artifacts.folder(run_dir, "merged").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\nlicense: apache-2.0\n---\nwords", {"license": "apache-2.0"}),
        ("---\nlicense: [mit, apache-2.0]\n---\n", {"license": ["mit", "apache-2.0"]}),
        ("---\nlicense: other\nlicense_name: qwen\n---\n", {"license": "other", "license_name": "qwen"}),
        ("---\nlanguage: zh\n---\n", export.UNKNOWN),
        ("---\n: [\n---\n", export.UNKNOWN),
        ("no front matter\n---\nlicense: mit\n---\n", export.UNKNOWN),
        ("", export.UNKNOWN),
    ],
)
def test_the_licence_is_what_the_bases_card_says(tmp_path: Path, text: str, said: dict[str, Any]) -> None:
    (tmp_path / "README.md").write_text(text)
    assert export.said_licence(tmp_path / "README.md") == said
    assert export.said_licence(tmp_path / "none.md") == {"license": "unknown"}
