"""The generated list of the engines' option names is up to date."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.config import native

_ROOT = Path(__file__).parents[2]
_TOOL = _ROOT / "tools" / "known_options.py"
_FILE = _ROOT / "src" / "stoker" / "config" / "known_options.json"


def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


def _needs_recorded_versions() -> None:
    for name, version in _content()["versions"].items():
        if importlib.util.find_spec(name) is None or importlib.metadata.version(name) != version:
            pytest.skip(f"the list is of {name} {version}, which is not installed here")


def test_every_block_of_native_has_its_options() -> None:
    assert set(_content()["options"]) == set(native.OWNED)
    assert all(native.known_options().values())


def test_options_that_a_word_of_ours_sets_exist_upstream() -> None:
    shorthands = {"load_in_4bit", "load_in_8bit", "output_router_logits"}  # the last is of configurations
    for block, owned in native.OWNED.items():
        assert set(owned) - set(native.known_options()[block]) <= shorthands, block


@pytest.mark.parametrize(
    ("block", "option"),
    [
        ("trainer", "neftune_noise_alpha"),
        ("lora", "use_rslora"),
        ("lora", "revision"),
        ("quantization", "bnb_4bit_quant_storage"),
        ("model", "revision"),
        ("model", "offload_folder"),
        ("model", "experts_implementation"),
    ],
)
def test_options_people_use_are_listed(block: str, option: str) -> None:
    assert option in native.known_options()[block]


def test_the_list_is_what_the_tool_writes_and_the_tool_imports_no_engine() -> None:
    _needs_recorded_versions()
    probe = (
        f"import runpy, sys; sys.argv = ['x', '--check']\ntry: runpy.run_path({str(_TOOL)!r}, run_name='__main__')\n"
    )
    probe += "except SystemExit as end: print(end.code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False False"


def test_a_difference_is_an_error(tmp_path: Path) -> None:
    _needs_recorded_versions()
    copy = tmp_path / "tools" / "known_options.py"
    copy.parent.mkdir()
    copy.write_bytes(_TOOL.read_bytes())
    target = tmp_path / "src" / "stoker" / "config" / "known_options.json"
    target.parent.mkdir(parents=True)
    target.write_text(_FILE.read_text(encoding="utf-8").replace('"use_dora",', ""), encoding="utf-8")
    assert subprocess.run([sys.executable, str(copy), "--check"], capture_output=True, check=False).returncode == 1
    assert subprocess.run([sys.executable, str(copy)], capture_output=True, check=False).returncode == 0
    assert target.read_bytes() == _FILE.read_bytes()
