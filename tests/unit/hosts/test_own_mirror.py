"""A mirror is chosen on this machine as on a box: only where it is needed, and never where it would see a token."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker import env
from stoker.config import load
from stoker.facts import answers, mirrors
from stoker.facts.answers import Answer
from stoker.hosts import mirror_probe

ORIGIN, MIRROR = (way for way in mirrors.ways() if way.serves == "hub" and not way.file)
TEXT = "model: acme/model-1b\ndata: {{train: {train}, length: 64}}\ntune: {{method: lora, rank: 8}}\n"


class Network:
    """Answers as told, and counts who was asked."""

    def __init__(self) -> None:
        self.answering: set[str] = set()
        self.asked: list[str] = []

    def ask(self, urls: Iterable[str]) -> dict[str, Answer]:
        found = list(urls)
        self.asked += found
        return {url: Answer(20) if url in self.answering else Answer(problem="timed out") for url in found}


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(answers, "ask", made.ask)
    tokens = (env.HF_TOKEN, env.HUGGING_FACE_HUB_TOKEN, env.HF_TOKEN_PATH, env.HF_OIDC_RESOURCE)
    for variable in (env.HF_ENDPOINT, env.NETWORK, env.HF_HUB_OFFLINE, env.HF_HUB_DISABLE_XET, *tokens):
        monkeypatch.setenv(variable.name, "")  # so that what is put is taken back
        monkeypatch.delenv(variable.name)
    monkeypatch.setenv(env.HF_HOME.name, str(tmp_path / "hf"))
    return made


def chosen(folder: Path, train: str = "rows.jsonl") -> mirrors.MirrorChoice | None:
    run = load.parse(TEXT.format(train=train), "run.yaml", [])
    return mirror_probe.for_this_machine(run, folder)


def test_a_mirror_is_taken_where_only_it_responds(network: Network, tmp_path: Path) -> None:
    network.answering = {MIRROR.address}
    found = chosen(tmp_path)
    assert found is not None
    assert found.fields["name"] == MIRROR.name
    assert env.read(env.HF_ENDPOINT) == MIRROR.address
    assert env.read(env.HF_HUB_DISABLE_XET) == "1"
    asked = len(network.asked)
    assert chosen(tmp_path) is None  # it is set now
    assert len(network.asked) == asked


@pytest.mark.parametrize("answering", [{ORIGIN.address, MIRROR.address}, {ORIGIN.address}, set()])
def test_none_is_taken_where_the_hub_responds_or_nobody_does(
    network: Network, tmp_path: Path, answering: set[str]
) -> None:
    network.answering = answering
    assert chosen(tmp_path) is None
    assert network.asked
    assert not env.read(env.HF_ENDPOINT)


PLACES = {
    "HF_TOKEN": ({"HF_TOKEN": "hf_token"}, ""),
    "the older name": ({"HUGGING_FACE_HUB_TOKEN": "hf_token"}, ""),
    "a file that is named": ({"HF_TOKEN_PATH": "$HOME/kept"}, "kept"),
    "a folder that is named": ({"HF_HOME": "~/hf"}, "hf/token"),
    "the folder of caches": ({"XDG_CACHE_HOME": "$HOME/caches"}, "caches/huggingface/token"),
    "the default folder": ({}, ".cache/huggingface/token"),
}
"""Variables and a file below the home, by which a token is there."""
ASK_CLIENT = """
import importlib, json, os, sys
from huggingface_hub import constants, get_token
for variables in json.load(sys.stdin):
    os.environ.update(variables)
    importlib.reload(constants)
    print(get_token())
    for name in variables:
        del os.environ[name]
"""


@pytest.mark.parametrize(("variables", "login"), PLACES.values(), ids=PLACES)
def test_none_is_taken_that_would_see_a_token(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], login: str
) -> None:
    network.answering = {MIRROR.address}
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (env.HF_HOME.name, env.XDG_CACHE_HOME.name):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as there:
        for name, value in variables.items():
            there.setenv(name, value)
        if login:
            (tmp_path / login).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / login).write_text("hf_token")
        assert chosen(tmp_path) is None
        assert network.asked
        if login:
            (tmp_path / login).unlink()
    assert chosen(tmp_path) is not None


def test_none_is_taken_where_the_client_asks_for_a_token_itself(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.answering = {MIRROR.address}
    monkeypatch.setenv(env.HF_OIDC_RESOURCE.name, "acme/model-1b")
    assert chosen(tmp_path) is None


def test_these_are_the_places_where_the_client_looks(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    settings = []
    for number, (variables, login) in enumerate(PLACES.values()):
        home = tmp_path / str(number)
        if login:
            (home / login).parent.mkdir(parents=True)
            (home / login).write_text("hf_token")
        settings.append({"HOME": str(home), **variables})
    settings.append({"HOME": str(tmp_path / "empty")})
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "XDG_"))}
    argv = [sys.executable, "-c", ASK_CLIENT]
    done = subprocess.run(argv, input=json.dumps(settings), env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hf_token"] * len(PLACES) + ["None"]


@pytest.mark.parametrize("variable", [env.HF_ENDPOINT, env.NETWORK, env.HF_HUB_OFFLINE])
def test_nobody_is_asked_where_it_is_settled(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: env.Variable
) -> None:
    monkeypatch.setenv(variable.name, "1")
    assert chosen(tmp_path) is None
    assert network.asked == []


def test_nobody_is_asked_where_everything_is_here(network: Network, tmp_path: Path) -> None:
    network.answering = {MIRROR.address}
    (tmp_path / "acme" / "model-1b").mkdir(parents=True)
    assert chosen(tmp_path) is None
    assert network.asked == []
    assert chosen(tmp_path, '"hub:acme/rows"') is not None  # the control: a dataset of the hub
