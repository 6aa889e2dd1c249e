"""A folder for Ollama of a run that was really trained: its Modelfile, through llama.cpp's own server."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tour import run

from stoker import tools
from stoker.artifacts import ollama
from stoker.errors import StokerError
from stoker.handover import model_card
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(tools.find(tools.LLAMACPP) is None, reason="no llamacpp environment"),
]


@pytest.fixture(scope="module")
def here(toured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(toured / "runs", folder / "runs")
    return folder


@pytest.fixture(scope="module")
def made(here: Path) -> dict[str, Any]:
    done = run("stoker export sft_tiny out --ollama --json", here)
    assert done.returncode == 0, done.stderr
    assert "Not yet run in Ollama" in done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_the_folder_holds_the_file_the_modelfile_and_a_card(here: Path, made: dict[str, Any]) -> None:
    folder = here / made["path"]
    assert sorted(path.name for path in folder.iterdir()) == ["Modelfile", "README.md", made["gguf"]]
    assert made["template"] == "go"
    assert made["parity"]["conversations"] > 50
    assert made["parity"]["same_files_as"] == "gguf-q8_0"
    assert model_card.is_ours(folder)
    text = (folder / "Modelfile").read_text(encoding="utf-8")
    assert re.search(r'^PARAMETER stop "<\|im_end\|>"$', text, re.M)
    assert str(here) not in text + (folder / "README.md").read_text(encoding="utf-8")


def test_an_accepted_file_is_used_again(here: Path, made: dict[str, Any]) -> None:
    events = here / "runs" / "sft_tiny" / "events.jsonl"
    before = events.read_text(encoding="utf-8").count('"quantized"')
    done = run("stoker export sft_tiny out --ollama", here)
    assert done.returncode == 0, done.stderr
    assert events.read_text(encoding="utf-8").count('"quantized"') == before


def test_a_template_whose_start_llama_cpp_does_not_write_is_refused(here: Path, made: dict[str, Any]) -> None:
    """The planted fault: tokens of training that begin with one more."""
    run_dir = RunDir(here / "runs" / "sft_tiny")
    gguf = artifacts.folder(run_dir, "gguf-q8_0") / made["gguf"]
    source = artifacts.folder(run_dir, "merged")
    template = source / "chat_template.jinja"
    kept = template.read_text(encoding="utf-8")
    files.write_text(template, "{{ 'Once' }}" + kept)
    ollama.make(run_dir, "gguf-q8_0", source, gguf)  # the control: another beginning alone is written down
    assert "Once" in (artifacts.aside(run_dir, "ollama") / "Modelfile").read_text(encoding="utf-8")
    does = files.read_json(source / "tokenizer.json")
    vocabulary = does["model"]["vocab"]
    one, other = "a", "b"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    files.write_json(source / "tokenizer.json", does)
    with pytest.raises(StokerError) as caught:
        ollama.make(run_dir, "gguf-q8_0", source, gguf)
    assert caught.value.code == "STK531"
