import re
from pathlib import Path

import pytest

from stoker import doctor, messages
from stoker.doctor import finding

SOURCE = "".join(path.read_text(encoding="utf-8") for path in Path(doctor.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_sentence_a_check_names_is_in_the_catalogue(language: str) -> None:
    named = set(re.findall(r'"(doctor\.[\w.]+)"', SOURCE))
    assert len(named) > 40
    assert named - messages.CATALOGUES[language].keys() == set()


def test_finding_speaks_the_users_language(monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding.warn("bf16", "doctor.bf16.none", "doctor.advice.fp16", capability=7.5)
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert "不支持" in found.what
    assert "损失缩放" in found.hint
    monkeypatch.setenv("STOKER_LANG", "en")
    assert found.to_json() == {
        "name": "bf16",
        "status": "warn",
        "what": "bf16: no (compute capability 7.5 is below 8.0)",
        "hint": "the plan uses fp16 with a loss scaler; a model that overflows in fp16 needs a newer card",
    }


def test_what_is_well_needs_no_hint() -> None:
    assert finding.ok("python", "doctor.python", version="3.11.7").hint == ""
