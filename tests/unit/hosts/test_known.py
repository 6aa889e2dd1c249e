"""Hosts: addresses as people and providers write them, records, pinned keys, and verbs that switch a machine off."""

import shlex
import subprocess
from pathlib import Path

import pytest

from stoker import env
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Verb
from stoker.hosts import keys, known, power
from stoker.hosts.box_facts import BoxFacts, Disk

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOYu9hbz3FAGPB87IyRoF92BLS+rAiF5SeU3e37OUL7c"
ANOTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG2bl0bVvdRkCrbJqDhkL1gBZcsGN0pS6J1dmSLYPyFo"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "a home"))
    monkeypatch.delenv("STOKER_SSH_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("ssh://root@connect.example.com:12345", "ssh://root@connect.example.com:12345"),
        ("ssh://lab_gpu", "ssh://lab_gpu"),
        ("ssh://me@[::1]:22", "ssh://me@[::1]:22"),
        ("ssh -p 12345 root@connect.example.com", "ssh://root@connect.example.com:12345"),
        ("ssh root@connect.example.com -p 12345", "ssh://root@connect.example.com:12345"),
        ("ssh -p12345 root@connect.example.com", "ssh://root@connect.example.com:12345"),
    ],
)
def test_an_address_is_read_as_people_and_providers_write_it(given: str, url: str) -> None:
    assert known.parse("box", given).url == url


@pytest.mark.parametrize(
    "given",
    [
        "root@host",
        "s3://bucket",
        "ssh://root:secret@host",
        "ssh://-oProxyCommand=touch@host",
        "ssh://-oProxyCommand=touch",
        "ssh://host/folder",
        "ssh -o ProxyCommand=touch host",
        "ssh 'unclosed",
        "ssh -p",
    ],
)
def test_what_is_no_address_is_refused_and_a_password_is_not_repeated(given: str) -> None:
    with pytest.raises(StokerError) as raised:
        known.parse("box", given)
    assert raised.value.code == "STK721"
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "-x", "../x", "a/b", "a b", "x" * 64, "kaggle", "sky", "localhost"])
def test_a_name_that_could_be_an_option_or_a_path_is_refused(name: str) -> None:
    with pytest.raises(StokerError) as raised:
        known.parse(name, "ssh://host")
    assert raised.value.code == "STK722"


def test_where_no_host_was_added_that_is_said_with_the_command() -> None:
    with pytest.raises(StokerError) as raised:
        known.find("box")
    assert raised.value.what.endswith("none was added yet")
    assert "stoker hosts add box" in raised.value.hint


def test_a_host_is_kept_found_listed_and_forgotten() -> None:
    host = known.parse("box", "ssh://root@host:22").model_copy(update={"facts": BoxFacts(hostname="box"), "base": "/b"})
    known.save(host)
    known.pin("box", [ED25519])
    assert known.find("box") == host
    assert known.every() == [host]
    known.remove("box")
    assert known.every() == []
    assert known.known_hosts().read_text() == ""
    with pytest.raises(StokerError) as raised:
        known.find("box")
    assert raised.value.code == "STK720"


def test_a_record_with_words_of_a_newer_stoker_is_read() -> None:
    known.save(known.parse("box", "ssh://host"))
    path = env.home() / "hosts" / "box.json"
    path.write_text(path.read_text().replace('"name"', '"later": 1, "name"'))
    assert known.find("box").host == "host"


def test_another_hosts_pinned_key_stays() -> None:
    known.pin("one", [ED25519])
    known.pin("one-more", [ANOTHER])
    known.pin("one", [ANOTHER])
    known.forget_key("one")
    assert known.known_hosts().read_text() == f"stoker-one-more {ANOTHER}\n"


def test_only_the_owner_reads_the_folder() -> None:
    known.save(known.parse("box", "ssh://host"))
    assert (env.home() / "hosts").stat().st_mode & 0o077 == 0


def test_ssh_understands_the_options_also_below_a_folder_with_a_space(tmp_path: Path) -> None:
    known.pin("box", [ED25519])
    host = known.parse("box", "ssh://root@203.0.113.7:2200").model_copy(update={"key": str(tmp_path / "a key%")})
    words = [part for name, value in known.options(host).items() for part in ("-o", f"{name}={value}")]
    command = ["ssh", "-G", *words, *known.destination(host)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    settings = dict(line.split(" ", 1) for line in said)
    assert settings["hostname"] == "203.0.113.7"
    assert settings["user"] == "root"
    assert settings["port"] == "2200"
    assert settings["stricthostkeychecking"] == "true"
    assert settings["hostkeyalias"] == "stoker-box"
    assert settings["userknownhostsfile"].replace("%%", "%") == str(known.known_hosts())
    assert settings["identityfile"].replace("%%", "%") == str(tmp_path / "a key%")
    assert settings["identitiesonly"] == "yes"


def test_a_fingerprint_is_the_one_ssh_shows(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(ED25519)
    said = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True
    ).stdout
    assert keys.fingerprint(ED25519) == said.split()[1]


def test_nothing_of_the_users_goes_to_a_machine_whose_key_nobody_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the real ssh makes of our words, with a configuration that forwards all there is."""
    config = tmp_path / "config"
    config.write_text(
        "ForwardAgent yes\nForwardX11 yes\nRemoteForward 9000 localhost:22\nPermitLocalCommand yes\n"
        "RemoteCommand tmux\nControlMaster auto\nControlPath ~/.ssh/%C\nBatchMode no\nVerifyHostKeyDNS yes\n"
    )
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(config))
    said: list[list[str]] = []
    real = subprocess.run

    def run(words: list[str], **more: object) -> "subprocess.CompletedProcess[str]":
        said.append(words)
        return subprocess.CompletedProcess(words, 255, "", "refused")

    monkeypatch.setattr(keys.subprocess, "run", run)
    with pytest.raises(StokerError):
        keys.offered(known.parse("box", "ssh://root@203.0.113.7"))
    shown = real(["ssh", "-G", *said[0][1:]], capture_output=True, text=True, check=True).stdout
    settings = dict(line.split(" ", 1) for line in shown.splitlines())
    assert settings["preferredauthentications"] == "none"
    assert settings["batchmode"] == "yes"
    for name in ("forwardagent", "forwardx11", "permitlocalcommand", "verifyhostkeydns", "pubkeyauthentication"):
        assert settings[name] in ("no", "false"), name
    assert settings["controlmaster"] == "false"
    assert settings["clearallforwardings"] == "yes"
    assert settings.keys().isdisjoint({"remoteforward", "remotecommand", "controlpath"})


def test_an_address_that_takes_no_files_is_refused() -> None:
    with pytest.raises(StokerError) as raised:
        keys.require_files(known.parse("pod", "ssh://x@ssh.runpod.io"))
    assert raised.value.code == "STK724"


# ---- verbs of platforms


def test_no_platforms_reversible_verb_deletes_anything() -> None:
    fatal = {"delete", "destroy", "release", "cancel", "terminate", "remove"}
    for platform in platforms.platforms():
        if platform.meter.reversible:
            assert not fatal & set(platform.meter.reversible.words), platform.name


def test_no_secret_is_a_word_of_a_verb() -> None:
    for platform in platforms.platforms():
        for verb in (platform.meter.reversible, platform.meter.irreversible):
            words = verb.words if verb else ()
            assert not [word for word in words if "KEY" in word or "TOKEN" in word], platform.name


def test_a_verb_is_expanded_by_the_machines_variables() -> None:
    vast = platforms.find("vast")
    assert vast is not None
    assert vast.meter.reversible is not None
    assert vast.meter.reversible.expanded({"CONTAINER_ID": "7", "CONTAINER_API_KEY": "k"}) == (
        ["vastai", "stop", "instance", "7"],
        {"VAST_API_KEY": "k"},
    )
    assert vast.meter.reversible.expanded({"CONTAINER_ID": "7"}) is None


def test_a_verb_runs_in_a_shell_with_its_variables_and_no_secret_in_a_command_line(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "stop it"
    program.write_text(f'#!/bin/sh\necho "$@ $GIVEN_KEY" > {shlex.quote(str(told))}\n')
    program.chmod(0o700)
    verb = Verb(words=(str(program), "instance", "$BOX_ID"), environment={"GIVEN_KEY": "$BOX_KEY"})
    script = power.script(verb).replace("sleep 1", "true")
    assert "canary" not in script
    run = {"input": f"set -e\n{script}\nwait\n", "text": True, "capture_output": True}
    subprocess.run(["sh"], env={"BOX_ID": "7", "BOX_KEY": "canary", "PATH": "/usr/bin:/bin"}, check=True, **run)  # type: ignore[call-overload]
    assert told.read_text() == "instance 7 canary\n"
    missing = subprocess.run(["sh"], env={"BOX_ID": "7", "PATH": "/usr/bin:/bin"}, check=False, **run)  # type: ignore[call-overload]
    assert missing.returncode
    assert "BOX_KEY" in missing.stderr


@pytest.mark.parametrize(
    ("head", "by"), [("#!/bin/sh\n", "itself"), ("\x7fELF", "itself"), ("", "a shell"), ("echo", "a shell")]
)
def test_a_command_with_an_interpreter_of_its_own_is_not_given_to_a_shell(tmp_path: Path, head: str, by: str) -> None:
    program = tmp_path / "shut down"
    program.write_text(head)
    line = power.script(Verb(words=("/bin/sh", str(program)))).replace("sleep 1", "true")
    line = line.replace("/bin/sh ", "printf 'a shell %s' ").replace(
        f") '{program}';;", f") printf 'itself %s' '{program}';;"
    )
    done = subprocess.run(
        ["sh", "-c", line.replace(">/dev/null 2>&1 &", "")], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{by} {program}"


class Line:
    """A machine that answers as told; the clock goes with what it takes."""

    name = "box"

    def __init__(self, answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.closed, self.clock = list(answers), 0, 0.0
        monkeypatch.setattr(power.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(power.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def close(self) -> None:
        self.closed += 1

    def run(self, script: str, *, seconds: float) -> str:
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if said == "k":
            raise StokerError("STK705", host="box", reason="Permission denied")
        if said == "-":
            self.clock += 1
            raise StokerError("STK701", host="box", reason="Connection refused")
        return ""


@pytest.mark.parametrize("answers", ["y-y--y---yy", "y--k--k--k", "y"])
def test_a_line_that_breaks_for_a_moment_is_not_called_off(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(answers * 5, monkeypatch)
    with pytest.raises(StokerError) as raised:
        power.await_gone(line)  # type: ignore[arg-type]
    assert raised.value.code == "STK727"


def test_a_machine_that_is_silent_for_a_while_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line("yy-", monkeypatch)
    power.await_gone(line)  # type: ignore[arg-type]
    assert line.clock >= 8 + 12
    assert line.closed >= 5, "each look is a connection of its own"


def _rented(base: str) -> known.Host:
    fates = {"/": "nothing", "/hy-net": "stop", "/hy-tmp": "hours", "/mnt/x": "unknown"}
    disks = tuple(Disk(path=path, free_bytes=1, total_bytes=1, survives=kept) for path, kept in fates.items())  # type: ignore[arg-type]
    found = {"base": base, "platform": "runpod", "facts": BoxFacts(disks=disks)}
    return known.parse("pod", "ssh://root@203.0.113.7").model_copy(update=found)


@pytest.mark.parametrize(
    ("base", "kept"),
    [
        ("/root/stoker", "nothing"),
        ("/hy-nets/stoker", "nothing"),
        ("/hy-tmp/stoker", "hours"),
        ("/hy-net/stoker", None),
        ("/mnt/x/stoker", None),
    ],
)
def test_what_is_lost_when_a_machine_is_switched_off_is_known_by_its_disk(base: str, kept: str | None) -> None:
    assert power.lost(_rented(base)) == kept


def test_runs_on_a_disk_that_does_not_outlive_it_are_not_switched_off_by_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from typer.testing import CliRunner

    from stoker.cli.main import app

    scripts: list[str] = []

    def run(line: object, script: str, **_: object) -> str:
        scripts.append(script)
        return '[{"name": "night", "state": "running"}, {"name": "old", "state": "done"}]'

    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(power.Ssh, "run", run)
    monkeypatch.setattr(power.Ssh, "close", lambda line: None)
    monkeypatch.setattr(power, "await_gone", lambda line: None)
    known.save(_rented("/root/stoker"))
    refused = CliRunner().invoke(app, ["hosts", "off", "pod"], input="y\n")
    assert refused.exit_code == 1
    assert not [script for script in scripts if "runpodctl" in script]
    assert "STK771" in str(refused.exception) + refused.output
    for words in (["hosts", "off", "pod", "--yes"], ["hosts", "off", "pod"]):
        done = CliRunner().invoke(app, words, input="y\n")
        assert done.exit_code == 0, done.output
        assert "runpodctl" in scripts[-1]
        assert "in progress there: night;" in done.output, "also a `--yes` is told"
        assert ("/root/stoker" in done.output) == ("--yes" in words)
        known.save(_rented("/hy-net/stoker"))


def test_a_machine_that_cannot_be_asked_is_not_said_to_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(line: object, script: str, **_: object) -> str:
        raise StokerError("STK701", host="pod", reason="Connection refused")

    monkeypatch.setattr(power.Ssh, "run", run)
    monkeypatch.setattr(power.Ssh, "close", lambda line: None)
    assert power.running(_rented("/")) is None


def test_a_machine_of_ones_own_is_not_switched_off() -> None:
    with pytest.raises(StokerError) as raised:
        power.off(known.parse("box", "ssh://host"))
    assert raised.value.code == "STK726"


def test_a_machine_without_an_api_is_not_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_AUTODL_TOKEN", raising=False)
    with pytest.raises(StokerError) as raised:
        power.on(known.parse("box", "ssh://host"))
    assert raised.value.code == "STK728"
