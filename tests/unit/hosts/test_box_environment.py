"""How Stoker is installed on a box: every image of the market that was thought of, with made-up facts."""

import itertools
import re

import pytest
from rich.cells import cell_len

from stoker import messages
from stoker.errors import StokerError
from stoker.facts import mirrors, tested
from stoker.hosts import box_environment
from stoker.hosts.box_environment import BoxEnvironment, decide, requirements
from stoker.hosts.box_facts import BoxFacts, FoundCard, Interpreter

INDEX = {"pip": 80}
GITHUB = {mirrors.nearest("python", {way.address: 1 for way in mirrors.ways()}).address: 90}  # type: ignore[union-attr]
NEW = {**dict.fromkeys(requirements(), "99.0"), "torch": "2.10.0+cu128"}
"""All that Stoker requires is there."""


def image(version: str | None = "3.12.3", torch: str = "", **changed: object) -> tuple[Interpreter, ...]:
    """An image's Pythons; None for none."""
    if version is None:
        return ()
    cuda = re.sub(r".*\+cu(\d+)(\d)", r"\1.\2", torch) if "+cu" in torch else ""
    given = {"packages": {"torch": torch} if torch else {}, "cuda": cuda, "usable": True if cuda else None}
    return (Interpreter(path="/opt/conda/bin/python", version=version, **{**given, **changed}),)  # type: ignore[arg-type]


def card(capability: float = 8.9, name: str = "NVIDIA GeForce RTX 4090") -> FoundCard:
    return FoundCard(index=0, name=name, memory_bytes=24 << 30, compute_capability=capability)


def box(pythons: tuple[Interpreter, ...] = (), **changed: object) -> BoxFacts:
    """A rented box with a card, a line and the usual programs."""
    given = {
        "system": "Linux",
        "architecture": "x86_64",
        "libc": "2.35",
        "devices": (card(),),
        "driver": "550.90.07",
        "tools": ("bash", "curl", "tar"),
        "reachable": {**INDEX, **GITHUB},
    }
    return BoxFacts(pythons=pythons, **{**given, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "torch", "kind"),
    [
        ("3.8.10", "2.1.0+cu118", "own"),
        ("3.10.8", "2.1.0+cu118", "own"),
        ("3.10.8", "2.5.1+cu124", "own"),
        ("3.12.3", "2.8.0+cu128", "own"),
        ("3.12.3", "2.10.0+cu128", "image"),
        ("3.8.10", "2.10.0+cu128", "own"),
        ("3.12.3", "2.9.1+cu128", "own"),
        ("3.10.8", "", "own"),
        ("3.8.10", "", "own"),
        (None, "", "own"),
    ],
)
def test_the_images_torch_is_kept_only_where_it_is_new_enough(version: str | None, torch: str, kind: str) -> None:
    found = decide(box(image(version, torch)))
    assert found.kind == kind
    if kind == "own":
        assert (found.torch, found.fields["cuda"]) == ("2.10.0", "12.8")
        fits = version is not None and version.startswith(("3.10", "3.12"))
        assert (found.python != "") is fits, "a Python that is too old is not built on"


@pytest.mark.parametrize(
    ("driver", "capability", "torch"),
    [
        ("580.65.06", 8.9, "2.13.0"),
        ("590.10", 12.0, "2.13.0"),
        ("570.124", 12.0, "2.10.0"),
        ("575.51", 9.0, "2.10.0"),
        ("525.60.13", 8.0, "2.10.0"),
        ("580.65.06", 7.0, "2.10.0"),
    ],
)
def test_torch_and_cuda_fit_driver_and_card(driver: str, capability: float, torch: str) -> None:
    found = decide(box(image("3.10.8", "2.1.0+cu118"), driver=driver, devices=(card(capability),)))
    assert found.torch == torch
    assert tested.table().oldest_driver(str(found.fields["cuda"])) <= int(driver.split(".")[0])


def test_a_torch_that_does_not_compute_there_is_not_kept() -> None:
    broken = image("3.12.3", "2.13.0+cu130", usable=False)
    assert decide(box(broken, driver="550.54")).torch == "2.10.0"
    untried = image("3.12.3", "2.13.0+cu130", usable=None)
    assert decide(box(untried, driver="550.54")).kind == "own", "its CUDA is newer than the driver"
    assert decide(box(untried, driver="580.82.07")).kind == "image"
    assert decide(box(image("3.12.3", "2.13.0+cpu"))).kind == "own", "it has no CUDA, the machine has a card"


REFUSED = {
    "box_env.network": box(image("3.10.8", "2.1.0+cu118"), reachable={}),
    "box_env.driver": box(image("3.10.8", "2.1.0+cu118"), driver="470.82.01"),
    "box_env.card": box(image("3.10.8", "2.1.0+cu118"), devices=(card(6.1, "Tesla P40"),)),
    "box_env.libc": box(image("3.8.10", "1.13.1+cu117"), libc="2.27"),
    "box_env.architecture": box(image("3.10.8", "2.1.0+cu118"), architecture="aarch64"),
    "box_env.uv": box((), tools=("bash", "tar")),
    "box_env.python": box(image("3.8.10", "2.1.0+cu118"), reachable=INDEX),
    "box_env.no_card": box(image("3.8.10", "2.1.0+cu118"), devices=(), driver="", platform="autodl"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_is_refused_with_its_reason(key: str) -> None:
    found = decide(REFUSED[key])
    assert (found.kind, found.key) == ("refused", key)
    with pytest.raises(StokerError, match="STK712") as caught:
        found.require("night")
    assert caught.value.code == "STK712"


def test_without_a_line_an_image_that_has_everything_trains_and_another_does_not() -> None:
    assert decide(box(image(torch="2.10.0+cu128", packages=NEW), reachable={})).kind == "image"
    assert decide(box(image(torch="2.10.0+cu128"), reachable={})).key == "box_env.network"
    old = {**NEW, "transformers": "4.57.1"}
    assert decide(box(image(torch="2.10.0+cu128", packages=old), reachable={})).key == "box_env.network"


def test_without_pip_uv_does_it_and_without_either_nothing() -> None:
    without = image(torch="2.10.0+cu128", has_pip=False)
    assert decide(box(without)).kind == "own"
    assert decide(box(without)).pip == ""
    assert decide(box(without, tools=("wget", "tar"))).kind == "own"
    assert decide(box(without, tools=())).key == "box_env.uv"
    assert decide(box(without, tools=("uv",))).kind == "own"
    assert decide(box(image(torch="2.10.0+cu128", packages=NEW, has_pip=False), reachable={})).kind == "refused"


def test_the_chosen_python_is_preferred_where_it_will_do() -> None:
    first = Interpreter(path="/a", version="3.12.3", packages=NEW, cuda="12.8", usable=True)
    second = first.model_copy(update={"path": "/b"})
    old = first.model_copy(update={"path": "/old", "packages": {"torch": "2.1.0"}})
    assert decide(box((first, second, old)), "/b").python == "/b"
    assert decide(box((first, second, old)), "/old").python == "/a"


def test_on_a_login_node_the_driver_of_the_others_is_not_known() -> None:
    node = box(image("3.10.8"), devices=(), driver="", tools=("sbatch", "curl", "tar"))
    assert decide(node).torch == tested.table().wheels[-1].torch
    assert decide(box(image("3.10.8"), devices=(), driver="")).torch == tested.table().wheels[0].torch


def test_every_image_of_the_table_has_an_answer_in_words() -> None:
    """Torch 2.1 to 2.10 and none, Python 3.8 to 3.12 and none, with and without pip, programs, and a line."""
    torches = ["", "2.1.0+cu118", "2.5.1+cu124", "2.8.0+cu128", "2.10.0+cu128"]
    versions = ["3.8.10", "3.10.8", "3.12.3", None]
    lines = [{}, INDEX, {**INDEX, **GITHUB}]
    tools = [(), ("curl", "tar"), ("wget", "tar")]
    kinds = set()
    for version, torch, has_pip, line, programs in itertools.product(versions, torches, (True, False), lines, tools):
        found = decide(box(image(version, torch, has_pip=has_pip), reachable=line, tools=programs))
        kinds.add((found.kind, found.key))
        assert _is_possible(found, version, torch, line)
        for language in ("en", "zh"):
            text = messages.CATALOGUES[language][found.key].format(**found.fields)
            assert "{" not in text
            assert cell_len(text) < 80 * 4
    assert {kind for kind, _ in kinds} == {"image", "own", "refused"}


def _is_possible(found: BoxEnvironment, version: str | None, torch: str, line: dict[str, int]) -> bool:
    if found.kind == "image":
        return version in ("3.10.8", "3.12.3") and torch == "2.10.0+cu128" and bool(line)
    if found.kind == "own":
        return bool(line) and found.disk_bytes > found.download_bytes > 2e9
    return not line or found.key in ("box_env.uv", "box_env.python")


def test_wheels_are_of_builds_that_are_known_and_new_enough() -> None:
    table = tested.table()
    for wheel in table.wheels:
        assert table.build(wheel.cuda, wheel.torch)
        assert tested.version_key(wheel.torch) >= tested.version_key(table.floors["torch"])
        assert wheel.disk_bytes > wheel.download_bytes
    assert table.wheels[0].torch == table.combinations[-1].packages["torch"]
    assert box_environment.requirements()["torch"] == table.floors["torch"]
