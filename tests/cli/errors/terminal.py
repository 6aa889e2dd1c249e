"""The command line in this process, and what every error it shows must have."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from errors.expected import Expected

from stoker.cli import main
from stoker.terminal import console

CHINESE = re.compile(r"[\u4e00-\u9fff]")
PYTHONISH = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|<class|\{'|\['|Error\b|_type\b")
PROBLEM = re.compile(r"^(?:error: |错误：)(?P<what>.+?)  \[(?P<code>STK\d{3})\]\n(?:  (?P<where>.+)\n)?", re.MULTILINE)
BLOCK = re.compile(
    r"(?P<problems>(?:^(?:error: |错误：).+?  \[STK\d{3}\]\n(?:  .+\n)?)+)\n(?:hint: |提示：)(?P<hint>.+)$",
    re.MULTILINE,
)
"""Problems that share a hint, and the hint after them."""


@dataclasses.dataclass(frozen=True)
class Said:
    """One error as it was shown."""

    code: str
    where: str
    what: str
    hint: str


def in_words(text: str) -> list[Said]:
    return [
        Said(one["code"], one["where"] or "", one["what"], block["hint"])
        for block in BLOCK.finditer(text)
        for one in PROBLEM.finditer(block["problems"])
    ]


class Terminal:
    """Runs `stoker` in this process and checks what every error must have."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(folder)
        monkeypatch.setenv("STOKER_RUNS", str(folder / "runs"))
        monkeypatch.setenv("HF_HOME", str(folder / "hub"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def write(self, text: str, name: str = "run.yaml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def run(self, language: str, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setenv("STOKER_LANG", language)
        self._monkeypatch.setattr(sys, "argv", ["stoker", *arguments])
        try:
            code = console.guarded(main._run)
        except SystemExit as end:
            code = int(end.code or 0)
        out, talk = self._capsys.readouterr()
        return code, out, talk

    def refuses(self, expected: list[Expected], *arguments: str) -> list[Said]:
        """The command ends with 1 and says exactly this, in English and in Chinese."""
        english = self._refuses("en", expected, arguments)
        chinese = self._refuses("zh", expected, arguments)
        for said in english:
            assert not CHINESE.search(said.what + said.hint), said
        for said in chinese:
            assert CHINESE.search(said.what), said
            assert CHINESE.search(said.hint), said
        for said, wanted in zip(english, expected, strict=True):
            for words in wanted.says:
                assert words in f"{said.what}; {said.hint}"
        return english

    def _refuses(self, language: str, expected: list[Expected], arguments: tuple[str, ...]) -> list[Said]:
        code, out, talk = self.run(language, *arguments)
        assert "Traceback" not in talk, talk
        assert code == 1, talk
        assert out == ""
        said = in_words(talk)
        assert [(one.code, one.where) for one in said] == [(one.code, one.where) for one in expected], talk
        assert len(said) == len(re.findall(r"\[STK\d{3}\]", talk)), talk
        for one in said:
            assert not PYTHONISH.search(one.what + one.hint), one
        return said


def stoker(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    environment = {**os.environ, "STOKER_LANG": "en", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", **settings}
    program = "from stoker.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
