"""The page of a run in a real browser without a network: no request, no complaint, nothing wider than its screen."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import reported_run

sys.path.insert(0, str(Path(__file__).parents[1] / "calculator"))
import chromium
from chromium import Chromium

from stoker.report import run_page

WIDER = """[...document.querySelectorAll('body *')].filter((one) => {
  const box = one.getBoundingClientRect();
  return !one.closest('svg') && (box.right > WIDTH + 0.5 || box.left < -0.5); }).map((one) => one.outerHTML)"""
"""Not by `innerWidth`: a phone's grows with what is too wide. Lines of a drawing end between its corners."""
OVERLAPPING = """[...document.querySelectorAll('.rows, .columns')].flatMap((labels) => {
  const boxes = [...labels.children].map((one) => one.getBoundingClientRect());
  return boxes.slice(1).filter((box, index) => { const before = boxes[index];
    return box.left < before.right && before.left < box.right && box.top < before.bottom && before.top < box.bottom; });
}).length"""

pytestmark = [
    pytest.mark.skipif(not chromium.found(), reason="needs chromium (apt-get install chromium fonts-noto-cjk)"),
    pytest.mark.enable_socket,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    one = Chromium(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


def opened(browser: Chromium, page: Path, width: int, scheme: str = "light") -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.open(page.as_uri(), width=width, phone=width < 600)
    browser.wait("document.readyState == 'complete' && document.querySelector('h1')", 60)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
@pytest.mark.parametrize("end", ["done", "failed", "stopped"])
def test_the_page_fits_its_screen_and_asks_nobody(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, width: int, scheme: str, end: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    run_dir = reported_run.make(tmp_path, "qlora-qwen2.5-7b-medical-questions-and-answers-v12", end=end)
    reported_run.save(run_dir, 80)
    opened(browser, run_page.write(run_dir), width, scheme)
    assert browser.evaluate(WIDER.replace("WIDTH", str(width))) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERLAPPING) == 0
    assert [one for one in browser.requests if not one.startswith(("file:", "about:"))] == []
    assert browser.complaints == []
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    browser.picture(Path(os.environ.get("STOKER_PICTURES", tmp_path)) / f"report-{end}-{width}-{language}.png")


def test_what_is_wider_and_labels_that_overlap_are_found(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    labels = '<div class="rows"><span>1,000</span><span style="margin-left:-20px">2,000</span></div>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    page.write_text(f'<!doctype html>{view}<h1>x</h1><p style="width:900px">wide</p>{labels}', encoding="utf-8")
    opened(browser, page, 390)
    assert len(browser.evaluate(WIDER.replace("WIDTH", "390"))) == 1
    assert browser.evaluate(OVERLAPPING) == 1
