import re
from pathlib import Path

import pytest

from stoker import doctor, messages
from stoker.doctor import finding

SOURCES = [path.read_text(encoding="utf-8") for path in Path(doctor.__file__).parent.glob("*.py")]


def keys_of(kind: str) -> set[str]:
    """The sentence keys that the doctor's modules give to a kind of finding."""
    return {key for text in SOURCES for key in re.findall(rf'\b{kind}\(\s*[\w."{{}}]+?,\s*"([\w.]+)"', text)}


@pytest.mark.parametrize("kind", ["warn", "fail"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_whatever_is_not_well_has_a_hint(kind: str, language: str) -> None:
    keys = keys_of(kind)
    assert len(keys) >= 5
    assert {f"{key}.hint" for key in keys} <= messages.CATALOGUES[language].keys()


def test_finding_speaks_the_users_language(monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding.warn("bf16", "doctor.bf16.none", capability=7.5)
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert "不支持" in found.what
    monkeypatch.setenv("STOKER_LANG", "en")
    assert found.to_json() == {
        "name": "bf16",
        "status": "warn",
        "what": "bf16: no (compute capability 7.5 is below 8.0)",
        "hint": found.hint,
    }
    assert found.hint
