"""`stoker doctor` on machines made up for the purpose, and once on this one."""

import json
import os
import subprocess
import sys

import pytest
from made_runs import CommandLine

from stoker.cli import doctor_command
from stoker.doctor import finding
from stoker.doctor.finding import Finding

FOUND = [
    finding.ok("python", "doctor.python", version="3.11.7"),
    finding.warn("bf16", "doctor.bf16.none", "doctor.advice.fp16", capability=7.5),
    finding.fail("peft", "doctor.packages.missing", "doctor.advice.line", packages="peft", line="pip install peft==1"),
]

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}


def report(monkeypatch: pytest.MonkeyPatch, found: list[Finding]) -> None:
    monkeypatch.setattr(doctor_command, "examine", lambda runs: found)


def test_findings_are_lines_with_symbol_word_and_hint(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, FOUND)
    outcome = stoker("doctor")
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        "✓ ok       Python 3.11.7",
        "! warning  bf16: no (compute capability 7.5 is below 8.0)",
        "           hint: the plan uses fp16 with a loss scaler; a model that overflows in fp16 needs a newer card",
        "✗ failed   not installed, so this machine can plan but not train: peft",
        "           hint: pip install peft==1",
    ]
    assert outcome.err == "ok: 1 · warnings: 1 · failed: 1\n"


def test_findings_are_said_in_chinese(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, FOUND)
    outcome = stoker("doctor", language="zh")
    assert outcome.out.splitlines() == [
        "✓ 正常  Python 3.11.7",
        "! 警告  bf16：不支持（计算能力 7.5 低于 8.0）",
        "        提示：计划会使用 fp16 加损失缩放；在 fp16 下溢出的模型需要更新的显卡",
        "✗ 失败  未安装以下软件包，这台机器只能做计划，不能训练：peft",
        "        提示：pip install peft==1",
    ]
    assert outcome.err == "正常：1 · 警告：1 · 失败：1\n"


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 0), (3, 1)])
def test_only_a_failure_is_an_exit_code(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, count: int, code: int
) -> None:
    report(monkeypatch, FOUND[:count])
    assert stoker("doctor").code == code


def test_json_has_name_status_what_and_hint(stoker: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, FOUND)
    outcome = stoker("doctor", "--json")
    assert outcome.code == 1
    assert outcome.err == ""
    found = json.loads(outcome.out)
    assert [one["status"] for one in found] == ["ok", "warn", "fail"]
    assert all(one.keys() == {"name", "status", "what", "hint"} for one in found)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_this_machine_can_be_examined(stoker: CommandLine, language: str) -> None:
    found = json.loads(stoker("doctor", "--json", language=language).out)
    names = [one["name"] for one in found]
    assert {"python", "cpu", "memory", "bf16", "disk", "persistence", "hub"} <= set(names)
    assert len(names) == len(set(names))
    assert all(one["what"] for one in found)
    assert all(bool(one["hint"]) == (one["status"] != "ok") for one in found)


def test_examining_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom stoker.doctor.examine import examine\nexamine(Path('runs'))\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'peft') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=OFFLINE)
    assert done.stdout.strip() == "[]"
