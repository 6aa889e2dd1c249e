"""Entry points of other packages: read without running their code, loaded one at a time, named with their package."""

import sys
from pathlib import Path

import pytest
from installed_package import install

from stoker import plugins
from stoker.errors import StokerError

ACME = {plugins.PLACES: {"acme": "Acme"}}


@pytest.fixture(autouse=True)
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_clouds", raising=False)


def test_a_plugin_is_listed_with_its_package_and_its_code_is_not_run(tmp_path: Path) -> None:
    install(tmp_path, "acme-clouds", ACME, "raise SystemExit", version="0.3")
    found = plugins.offered(plugins.PLACES)["acme"]
    assert (found.package, found.version, found.title) == ("acme-clouds", "0.3", "acme (acme-clouds 0.3)")
    assert "acme" not in plugins.offered(plugins.STORES)


def test_loading_a_plugin_gives_what_its_entry_point_names(tmp_path: Path) -> None:
    install(tmp_path, "acme-clouds", ACME, "class Acme: ...")
    assert plugins.offered(plugins.PLACES)["acme"].load().__name__ == "Acme"


@pytest.mark.parametrize(
    ("code", "reason"),
    [("import no_such_module", "No module named 'no_such_module'"), ("1 / 0", "division by zero"), ("", "Acme")],
)
def test_a_plugin_that_cannot_be_imported_is_named_with_its_package(tmp_path: Path, code: str, reason: str) -> None:
    install(tmp_path, "acme-clouds", ACME, code)
    with pytest.raises(StokerError, match=r"acme-clouds 1\.0") as caught:
        plugins.offered(plugins.PLACES)["acme"].load()
    assert caught.value.code == "STK124"
    assert reason in caught.value.fields["reason"]


def test_a_name_that_two_packages_provide_is_refused_only_when_it_is_used(tmp_path: Path) -> None:
    install(tmp_path, "zeta-clouds", ACME, "class Acme: ...")
    install(tmp_path, "acme-clouds", {plugins.PLACES: {"acme": "Acme", "other": "Acme"}}, "class Acme: ...")
    found = plugins.offered(plugins.PLACES)
    assert found["other"].load().__name__ == "Acme"
    with pytest.raises(StokerError, match="acme-clouds, zeta-clouds") as caught:
        found["acme"].load()
    assert caught.value.code == "STK123"
