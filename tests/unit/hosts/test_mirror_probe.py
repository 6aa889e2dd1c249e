"""Which way a machine takes to the hub and to pip's index. Hub, mirrors and proxy are servers on this machine."""

import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from http_page import server

from stoker.config import load
from stoker.config.run import Run
from stoker.facts import mirrors
from stoker.facts.mirrors import MirrorRoute, Network
from stoker.hosts import mirror_probe as launch
from stoker.hosts.box_facts import BoxFacts
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan

HUB, MIRROR, TURBO, OTHER, PYPI, ALIYUN, TUNA, USTC, *_ = mirrors.addresses()
BOTH = {HUB: 100, PYPI: 100}


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


def run(**save: str) -> Run:
    return load.parse(json.dumps({"model": "m", "data": {"train": "a"}, "save": save}), "run.yaml")


def taken(network: Network) -> list[tuple[str, str]]:
    return [(one.name, one.key) for one in network.choices]


def test_where_the_straight_ways_answer_nothing_is_changed() -> None:
    network = mirrors.choose({HUB: 300, PYPI: 900, MIRROR: 20, ALIYUN: 5})
    assert taken(network) == [("huggingface.co", "why.mirror.origin"), ("PyPI", "why.mirror.origin")]
    assert (network.environment, network.files) == ({}, ())


def test_a_mirror_is_taken_where_the_hub_is_shut() -> None:
    network = mirrors.choose({PYPI: 100, MIRROR: 200, TURBO: 50})
    assert taken(network)[0] == ("hf-mirror.com", "why.mirror.instead")
    assert network.environment == {"HF_ENDPOINT": "https://hf-mirror.com", "HF_HUB_DISABLE_XET": "1"}
    assert network.files == ()


def test_a_token_is_sent_to_no_mirror() -> None:
    """The platform's proxy carries an encrypted line; a mirror would read the token."""
    shut = mirrors.choose({PYPI: 100, MIRROR: 200}, token=True)
    assert taken(shut)[0] == ("", "why.mirror.token")
    assert "HF_ENDPOINT" not in shut.environment
    through = mirrors.choose({PYPI: 100, MIRROR: 200, TURBO: 900}, token=True, store="oss.example.com")
    assert taken(through)[0] == ("AutoDL turbo", "why.mirror.proxy")
    assert through.files == ("/etc/network_turbo",)
    assert "oss.example.com" in through.environment["no_proxy"].split(",")
    assert through.environment["no_proxy"] == through.environment["NO_PROXY"]
    assert taken(mirrors.choose({**BOTH, MIRROR: 1}, token=True))[0] == ("huggingface.co", "why.mirror.origin")


@pytest.mark.parametrize(
    ("pypi", "name", "key"),
    [
        (900, "PyPI", "why.mirror.origin"),
        (1900, "mirrors.ustc.edu.cn", "why.mirror.faster"),
        (None, "mirrors.ustc.edu.cn", "why.mirror.instead"),
    ],
)
def test_the_fastest_index_is_taken_where_pip_s_own_is_slow(pypi: int | None, name: str, key: str) -> None:
    answered = {HUB: 1, ALIYUN: 60, TUNA: 80, USTC: 40} | ({PYPI: pypi} if pypi else {})
    network = mirrors.choose(answered)
    assert taken(network)[1] == (name, key)
    assert ("PIP_INDEX_URL" in network.environment) == (name != "PyPI")
    assert ("UV_DEFAULT_INDEX" in network.environment) == (name != "PyPI")


def test_what_a_box_is_set_to_is_kept() -> None:
    given = {"HF_ENDPOINT": "https://hub.example", "PIP_INDEX_URL": "https://pip.example/simple"}
    network = mirrors.choose({MIRROR: 1, TUNA: 1}, given=given)
    assert [one.key for one in network.choices] == ["why.mirror.given"] * 2
    assert network.environment == {}


FOREIGN = {"HF_ENDPOINT": "https://hf-mirror.com"}


def test_a_token_is_not_sent_to_a_mirror_that_a_box_is_set_to() -> None:
    """The box's own setting is passed over where another way is open, else the token stays out of the run."""
    over = mirrors.choose({**BOTH, MIRROR: 5}, token=True, given=FOREIGN)
    assert taken(over)[0] == ("huggingface.co", "why.mirror.over_given")
    assert (over.environment, over.withheld) == ({"HF_ENDPOINT": "https://huggingface.co"}, ())
    through = mirrors.choose({PYPI: 1, MIRROR: 5, TURBO: 9}, token=True, given=FOREIGN)
    assert taken(through)[0] == ("AutoDL turbo", "why.mirror.over_given")
    assert (through.environment["HF_ENDPOINT"], through.files) == ("https://huggingface.co", ("/etc/network_turbo",))
    for reachable in ({PYPI: 1, MIRROR: 5}, {}):
        shut = mirrors.choose(reachable, token=True, given=FOREIGN)
        assert taken(shut)[0] == ("HF_ENDPOINT", "why.mirror.withheld")
        assert shut.environment == {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        assert shut.withheld == ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("https://huggingface.co", "why.mirror.given"),
        ("https://huggingface.co/", "why.mirror.given"),
        ("http://huggingface.co", "why.mirror.withheld"),
        ("https://huggingface.co.example", "why.mirror.withheld"),
        ("https://***@hub.example", "why.mirror.withheld"),
    ],
)
def test_only_the_hub_itself_gets_a_token(address: str, key: str) -> None:
    network = mirrors.choose({PYPI: 1}, token=True, given={"HF_ENDPOINT": address})
    assert taken(network)[0] == ("HF_ENDPOINT", key)
    assert taken(mirrors.choose({PYPI: 1}, given={"HF_ENDPOINT": address}))[0] == ("HF_ENDPOINT", "why.mirror.given")


def test_a_token_that_is_withheld_is_not_in_the_environment_of_what_starts_there() -> None:
    network = mirrors.choose({PYPI: 1, MIRROR: 5}, token=True, given=FOREIGN)
    script = f"export HF_TOKEN=canary\n{network.exports()}\nenv"
    done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, check=True)
    assert "canary" not in done.stdout


def test_where_only_another_hub_answers_it_is_named() -> None:
    network = mirrors.choose({OTHER: 30, TUNA: 20})
    assert taken(network)[0] == ("", "why.mirror.other_hub")
    assert taken(mirrors.choose({TUNA: 20}))[0] == ("", "why.mirror.none")


def test_where_nobody_asked_nothing_is_claimed() -> None:
    assert mirrors.choose({}) == Network()
    assert Network().exports() == ""


def test_exports_apply_in_a_shell_and_come_back_as_the_plan_s_reasons(tmp_path: Path) -> None:
    turbo = tmp_path / "network turbo"
    turbo.write_text("export https_proxy=http://proxy.example:1080\necho a banner\n")
    network = mirrors.choose({PYPI: 1, TURBO: 5}, token=True).model_copy(update={"files": (str(turbo), "/nowhere")})
    shown = f'{network.exports()}\nprintf \'%s\\n\' "$https_proxy" "$no_proxy" "$STOKER_NETWORK"'
    done = subprocess.run(["sh", "-e", "-c", shown], capture_output=True, text=True, check=True)
    proxy, direct, text = done.stdout.splitlines()
    assert (proxy, direct) == ("http://proxy.example:1080", network.environment["no_proxy"])
    assert mirrors.from_text(text).choices == network.choices


@pytest.mark.parametrize("text", ["", "{", "[]", '{"choices": 1}', '{"choices": [{}]}'])
def test_what_cannot_be_read_of_the_choice_is_no_choice(text: str) -> None:
    assert mirrors.from_text(text) == Network()


def test_every_way_says_how_it_is_known_and_each_thing_has_one_straight_way() -> None:
    for serves in ("hub", "pip"):
        ways = [way for way in mirrors.ways() if way.serves == serves]
        assert [way.origin for way in ways] == [True] + [False] * (len(ways) - 1)
        assert all(way.environment or way.file for way in ways[1:])
    assert len(set(mirrors.addresses())) == len(mirrors.ways())


# ---- asking, from a shell


def way(address: str, **more: str) -> MirrorRoute:
    return MirrorRoute.model_validate({"name": address, "serves": "hub", "address": address, "confidence": "G", **more})


@pytest.fixture(params=["curl", "wget", "python3"])
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder for PATH with only one program that can ask."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (request.param, "date", "sed", "tail", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def test_a_shell_asks_all_ways_and_the_platform_s_proxy(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turbo, missing = tmp_path / "turbo", tmp_path / "missing"
    with server() as hub, server(404) as index, server(503) as broken, server() as proxy:
        turbo.write_text(f"export http_proxy={proxy}\n")
        asked = (
            way(hub),
            way(index),
            way(broken),
            way("http://127.0.0.1:9"),
            way(str(turbo), file=str(turbo), asks="http://hub.invalid/"),
            way(str(missing), file=str(missing), asks=hub),
        )
        monkeypatch.setattr(mirrors, "ways", lambda: asked)
        done = subprocess.run(
            ["sh", "-e"],
            input=launch.script(),
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": str(tool), "HF_ENDPOINT": "https://user:secret@hub.example"},
        )
    reachable, given = launch.read(f"a banner\n{done.stdout}\nreachable x y\n")
    assert set(reachable) == {hub, index, str(turbo)}
    assert all(0 <= milliseconds < 5000 for milliseconds in reachable.values())
    assert given["HF_ENDPOINT"] == "https://***@hub.example"


def test_the_script_is_plain_posix() -> None:
    shell = shutil.which("dash") or shutil.which("sh") or "sh"
    subprocess.run([shell, "-n"], input=launch.script(), text=True, check=True)


def test_a_box_without_pip_says_so_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "ways", tuple)
    script = f"PATH={shlex.quote(str(tmp_path))}\n{launch.script()}"
    done = subprocess.run(["/bin/sh", "-e"], input=script, capture_output=True, text=True, check=True, env={})
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("pip", "file", "index"),
    [
        ("echo \"global.index-url='https://a.example/simple'\"", "", "https://a.example/simple"),
        ("printf '%s\\n' \"global.index-url='https://a'\" \"install.index-url='https://b'\"", "", "https://b"),
        ("echo \"global.timeout='60'\"", "index-url = https://ignored", ""),
        ("exit 1", "[global]\nindex-url = https://c.example/simple\n", "https://c.example/simple"),
        ("exit 1", "", ""),
    ],
    ids=["pip", "a section of install", "nothing set", "pip before 10", "no pip"],
)
def test_the_index_is_the_one_pip_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: str, file: str, index: str
) -> None:
    """`config list` merges all files; a pip without it leaves the files themselves."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\n[ "$*" = "-m pip config list" ] || exit 1\n{pip}\n')
    (folder / "python3").chmod(0o755)
    for name in ("date", "sed", "tail", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "pip.conf").write_text(file)
    monkeypatch.setattr(mirrors, "ways", tuple)
    environment = {"PATH": str(folder), "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    script = launch.script().replace("/etc/", "/nowhere/")
    done = subprocess.run(["sh", "-e"], input=script, capture_output=True, text=True, check=True, env=environment)
    assert launch.read(done.stdout)[1] == ({"PIP_INDEX_URL": index} if index else {})


@pytest.mark.parametrize(
    ("variables", "file", "found"),
    [
        ({}, "", False),
        ({}, ".cache/huggingface/token", True),
        ({"HF_HOME": "$HOME/disk"}, "disk/token", True),
        ({"HF_HOME": "$HOME/disk"}, ".cache/huggingface/token", False),
        ({"XDG_CACHE_HOME": "$HOME/other"}, "other/huggingface/token", True),
        ({"HF_TOKEN_PATH": "$HOME/kept"}, "kept", True),
        ({"HF_TOKEN": "hf_canary"}, "", True),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_canary"}, "", True),
    ],
)
def test_a_token_on_the_box_is_seen_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str, found: bool
) -> None:
    if file:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("hf_canary")
    monkeypatch.setattr(mirrors, "ways", tuple)
    environment = {name: value.replace("$HOME", str(tmp_path)) for name, value in variables.items()}
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    said = subprocess.run(
        ["sh", "-e"], input=launch.script(), capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert launch.has_token(said) == found
    assert "canary" not in said


def test_a_login_on_the_box_keeps_mirrors_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    facts = {"reachable": {MIRROR: 5, PYPI: 5}}
    assert taken(launch.of(BoxFacts(**facts), None))[0] == ("hf-mirror.com", "why.mirror.instead")
    assert taken(launch.of(BoxFacts(**facts, has_token=True), None))[0] == ("", "why.mirror.token")


OF_THE_SYSTEM = Path("/etc/pip.conf")


@pytest.mark.skipif(
    OF_THE_SYSTEM.exists() and "index-url" in OF_THE_SYSTEM.read_text(),
    reason="this machine sets an index for everybody",
)
def test_the_index_of_this_pip_is_read_from_every_file_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip config get`, asked before, reads one file only."""
    (tmp_path / "xdg" / "pip").mkdir(parents=True)
    (tmp_path / "xdg" / "pip" / "pip.conf").write_text("[global]\nindex-url = https://whole.example/simple\n")
    monkeypatch.setattr(mirrors, "ways", tuple)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["XDG_CONFIG_DIRS"] = str(tmp_path / "xdg")
    done = subprocess.run(
        ["sh", "-e"], input=launch.script(), capture_output=True, text=True, check=True, env=environment
    )
    assert launch.read(done.stdout)[1] == {"PIP_INDEX_URL": "https://whole.example/simple"}


# ---- a run and a box


def test_the_store_of_a_run_is_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 30)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://oss.example.com:9000/")
    facts = BoxFacts(reachable={TURBO: 10, PYPI: 10})
    assert launch.of(facts, run(store="s3://bucket/x")).environment["no_proxy"].endswith(",oss.example.com")
    assert launch.of(facts, run(store="ssh://me@home.example/x")).environment["no_proxy"].endswith(",home.example")
    assert launch.of(facts, run()).environment["no_proxy"].endswith(",127.0.0.1")


def test_the_one_who_started_us_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.inherited() == Network()
    monkeypatch.setenv("STOKER_NETWORK", mirrors.choose({MIRROR: 20, TUNA: 9}).to_text())
    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com")
    network = launch.inherited()
    assert [one.key for one in network.choices] == ["why.mirror.instead", "why.mirror.instead"]
    assert network.environment == {"HF_ENDPOINT": "https://hf-mirror.com"}
    over = mirrors.choose({HUB: 20, PYPI: 9}, token=True, given=FOREIGN)
    monkeypatch.setenv("STOKER_NETWORK", over.to_text())
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    assert launch.inherited().environment == over.environment


def test_a_plan_writes_down_which_way_is_taken_and_why() -> None:
    run_file = load.load("scratch_tiny", ["data.tokens=100000"])
    network = mirrors.choose({MIRROR: 83, TUNA: 9})
    there = plan_inputs.inputs(
        run_file, None, plan_inputs.machine("RTX4090", run_file.run), plan_inputs.Elsewhere(network, None)
    )
    plan = make_plan(there)
    said = {reason.about: reason.text for reason in plan.reasons if reason.key.startswith("why.mirror.")}
    assert said["env.hub"] == "huggingface.co does not respond from there, hf-mirror.com does in 83 ms"
    assert set(said) == {"env.hub", "env.pip"}
    assert plan.env["HF_ENDPOINT"] == "https://hf-mirror.com"
    assert make_plan(dataclasses.replace(there, network=Network())).env.keys() == plan.env.keys() - network.environment
