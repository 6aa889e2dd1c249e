"""Whether the model hub, pip's index and their mirrors answer from here, and which would be taken."""

from pathlib import Path
from urllib.parse import urlsplit

from stoker import env
from stoker.doctor.finding import Finding, ok, warn
from stoker.facts import answers, mirrors
from stoker.facts.answers import Answer
from stoker.facts.mirrors import MirrorRoute

_TRUE = ("1", "ON", "YES", "TRUE")


def findings() -> list[Finding]:
    """The hub in use, its mirrors, pip's index, the platform's proxy."""
    if env.read(env.HF_HUB_OFFLINE, "0").upper() in _TRUE:
        return [ok("hub", "doctor.hub.offline")]
    ways = mirrors.ways()
    hub = env.read(env.HF_ENDPOINT, _of(ways, "hub")[0].address).rstrip("/")
    index = env.read(env.PIP_INDEX_URL)
    asked = [hub, *(way.address for way in ways if not way.file), *([index] if index else [])]
    found = answers.ask(dict.fromkeys(asked))
    files = [way for way in ways if way.file and Path(way.file).is_file()]
    return [*_hubs(hub, ways, found), _pip(index, ways, found), *(_proxy(way) for way in files)]


def _of(ways: tuple[MirrorRoute, ...], serves: str) -> list[MirrorRoute]:
    return [way for way in ways if way.serves == serves and not way.file]


def _hubs(hub: str, ways: tuple[MirrorRoute, ...], found: dict[str, Answer]) -> list[Finding]:
    origin, mirror, other = (*_of(ways, "hub")[:2], _of(ways, "other_hub")[0])
    first = _hub(hub, mirror.address, other.address, found)
    rest = [way.address for way in (mirror, other) if way.address != hub]
    if first.status != "ok":
        rest = [url for url in rest if not found[url].problem]
    elif hub != origin.address and not found[origin.address].problem:
        rest.insert(0, origin.address)
    return [first, *(_mirror(url, found[url]) for url in rest)]


def _hub(hub: str, mirror: str, other: str, found: dict[str, Answer]) -> Finding:
    answer = found[hub]
    fields = {"url": hub, "milliseconds": answer.milliseconds, "problem": answer.problem, "mirror": mirror}
    if not answer.problem:
        return ok("hub", "doctor.hub", **fields)
    if not found[mirror].problem:
        return warn("hub", "doctor.hub.mirror_answers", "doctor.advice.mirror", **fields)
    if not found[other].problem:
        return warn("hub", "doctor.hub.other_answers", "doctor.advice.other_hub", other=other, **fields)
    return warn("hub", "doctor.hub.none_answers", "doctor.advice.offline", **fields)


def _mirror(url: str, answer: Answer) -> Finding:
    name = f"mirror.{urlsplit(url).netloc}"
    if answer.problem:
        return ok(name, "doctor.mirror.not_needed", url=url)
    return ok(name, "doctor.mirror", url=url, milliseconds=answer.milliseconds)


def _pip(index: str, ways: tuple[MirrorRoute, ...], found: dict[str, Answer]) -> Finding:
    """The index that is set, or pip's own; a mirror is proposed where that is shut or far slower."""
    used = index or _of(ways, "pip")[0].address
    answer = found[used]
    fields = {"url": env.without_secrets(used), "milliseconds": answer.milliseconds, "problem": answer.problem}
    reachable = {url: one.milliseconds for url, one in found.items() if not one.problem}
    chosen = next((one.name for one in mirrors.choose(reachable).choices if one.serves == "pip"), "")
    better = next((way for way in _of(ways, "pip") if way.name == chosen), None)
    if not answer.problem and (index or better is None or better.address == used):
        return ok("pip", "doctor.pip", **fields)
    if better is None:
        return warn("pip", "doctor.pip.none_answers", "doctor.advice.pip_offline", **fields)
    fields |= {"mirror": better.name, "faster": found[better.address].milliseconds}
    fields |= {"index": better.environment.get(env.PIP_INDEX_URL.name, "")}
    key = "doctor.pip.shut" if answer.problem else "doctor.pip.slow"
    return warn("pip", key, "doctor.advice.pip_mirror" if fields["index"] else "doctor.advice.pip_unset", **fields)


def _proxy(way: MirrorRoute) -> Finding:
    return ok("proxy", "doctor.proxy", file=way.file, name=way.name)
