"""`stoker init --from`: what it writes and says, in both languages."""

import re
import shlex
from pathlib import Path

import pytest
from made_runs import CommandLine

from stoker.config import load

PAGE = Path(__file__).parents[2] / "docs/how-to/coming-from.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
EXAMPLES = Path(__file__).parents[1] / "unit/migrate/examples"
THEIRS = str(EXAMPLES / "lf_unknown_keys.yaml")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("language", "says"), [("en", "Not carried over"), ("zh", "没有带过来")])
def test_a_file_of_another_trainer_becomes_a_run_file_that_loads(stoker: CommandLine, language: str, says: str) -> None:
    outcome = stoker("init", "--from", THEIRS, "mine.yaml", "--gpus", "2", language=language)
    assert outcome.code == 0, outcome.err
    assert says in outcome.err
    assert "`lora_rnak`" in outcome.err
    assert says in Path("mine.yaml").read_text(encoding="utf-8")
    assert load.load("mine.yaml").run.train.batch == 16


def test_a_run_file_that_exists_is_never_touched(stoker: CommandLine) -> None:
    Path("run.yaml").write_text("mine", encoding="utf-8")
    outcome = stoker("init", "--from", THEIRS)
    assert (outcome.code, Path("run.yaml").read_text()) == (1, "mine")
    assert "STK504" in outcome.err


def test_the_number_of_gpus_is_asked_for_only_with_a_file(stoker: CommandLine) -> None:
    outcome = stoker("init", "--gpus", "2", "--yes")
    assert outcome.code == 1
    assert "STK506" in outcome.err
    assert not Path("run.yaml").exists()


def test_nothing_is_written_of_a_stage_that_stoker_does_not_have(stoker: CommandLine) -> None:
    outcome = stoker("init", "--from", str(EXAMPLES / "lf_ppo.yaml"))
    assert outcome.code == 1
    assert "`stage: ppo`" in outcome.err
    assert not Path("run.yaml").exists()


def test_the_page_shows_what_its_commands_write(stoker: CommandLine) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for _, title, body in blocks:
        if title:
            Path(title).write_text(body, encoding="utf-8")
    commands = [line for kind, _, body in blocks if kind == "console" for line in body.splitlines()]
    assert len(commands) == 4
    for command in commands:
        outcome = stoker(*shlex.split(command)[1:])
        assert outcome.code == 0, outcome.err
    (shown,) = (body for kind, title, body in blocks if kind == "yaml" and not title)
    assert shown in Path("night.yaml").read_text(encoding="utf-8")


def test_the_next_command_follows_from_whether_the_data_is_there(stoker: CommandLine) -> None:
    Path("theirs.yaml").write_text(
        "base_model: m\ndatasets: [{path: rows.jsonl, type: chat_template}]\nlearning_rate: 1e-4\n", encoding="utf-8"
    )
    assert "Add the data" in stoker("init", "--from", "theirs.yaml", "a.yaml").err
    Path("rows.jsonl").write_text('{"messages": []}\n', encoding="utf-8")
    assert "Add the data" not in stoker("init", "--from", "theirs.yaml", "b.yaml").err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_as_many_keys_are_listed_as_not_carried_over_as_are_counted(stoker: CommandLine, language: str) -> None:
    Path("theirs.yaml").write_text(
        "base_model: m\nadapter: lora\ndatasets: [{path: rows.jsonl, type: alpaca}]\nlearning_rate: 1e-4\n",
        encoding="utf-8",
    )
    said = stoker("init", "--from", "theirs.yaml", "a.yaml", "--gpus", "1", language=language).err
    summary, listed, beside = re.split(
        {"en": "differ by it:|Worth knowing", "zh": "因此不同的：|另请注意"}[language], said
    )
    (counted,) = re.findall({"en": r"not carried\s+over: (\d+)", "zh": r"没有带过来：(\d+)"}[language], summary)
    line = {"en": "  line ", "zh": "  第 "}[language]
    absent = {"en": "(not in the file)", "zh": "（文件里没有）"}[language]
    assert int(counted) == listed.count(line) == 1
    assert (listed.count(absent), beside.count(absent)) == (0, 3)
