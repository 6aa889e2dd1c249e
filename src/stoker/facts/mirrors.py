"""Ways to the model hub and to pip's index where the straight one is slow or shut, and which is taken.

The ways are data (`data/mirrors.json`); whoever needs one asks them from the machine in question and decides here.
Nothing is taken that did not answer, and a token goes to nobody but the hub it belongs to.
"""

import functools
import json
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from stoker import env
from stoker.facts.fact import Fact

Serves = Literal["hub", "other_hub", "pip", "python"]

_NEAR_MILLISECONDS = 1000
_TIMES_SLOWER = 3
"""The straight way is taken while it is not that much slower than the fastest."""
_GIVEN = {"hub": env.HF_ENDPOINT.name, "pip": env.PIP_INDEX_URL.name}
"""Variables by which a way is given already: that is kept, unless it would see a token."""
OVER_GIVEN = "why.mirror.over_given"
"""What is set there is passed over: it would see a token."""
_WITHHELD = "why.mirror.withheld"


class MirrorRoute(Fact):
    """One way to reach a hub or an index."""

    name: str
    """Its common name."""
    serves: Serves
    address: str
    """The address that is probed, and the key of its result."""
    asks: str = ""
    """The address that is probed, where it differs: through `file`."""
    origin: bool = False
    """Without a mirror."""
    foreign: bool = False
    """Run by a third party, who sees what is downloaded."""
    file: str = ""
    """A file of the platform that sets a proxy, read by the shell."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that select it."""
    confidence: Literal["P", "S", "G"]


class MirrorChoice(Fact):
    """The route that was chosen, or none, and why."""

    serves: Serves
    name: str
    key: Annotated[str, Field(pattern=r"^why\.mirror\.[a-z_]+$")]
    """The sentence that says why."""
    fields: dict[str, Any]


class Network(Fact):
    """How a machine reaches hubs and indexes."""

    choices: tuple[MirrorChoice, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Files of the platform the shell reads first."""
    withheld: tuple[str, ...] = ()
    """Secrets that have no business where it leads."""

    def exports(self) -> str:
        """Lines for a POSIX shell that apply it to whatever starts there afterwards."""
        lines = [f"[ ! -r {file} ] || . {file} >/dev/null 2>&1 || true" for file in map(shlex.quote, self.files)]
        variables = dict(self.environment)
        if self.choices:
            variables[env.NETWORK.name] = self.to_text()
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        return "\n".join([*lines, *(f"unset {name}" for name in self.withheld)])

    def to_text(self) -> str:
        """For `STOKER_NETWORK`, by which the plan that is made there says the same."""
        return json.dumps({"choices": [one.model_dump() for one in self.choices]}, ensure_ascii=True)


def from_text(text: str) -> Network:
    """What `to_text` wrote; nothing where that cannot be read."""
    try:
        choices = tuple(MirrorChoice.model_validate(one) for one in json.loads(text)["choices"])
    except (ValueError, LookupError, TypeError):
        return Network()
    return Network(choices=choices)


@functools.cache
def _content() -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath("data/mirrors.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@functools.cache
def ways() -> tuple[MirrorRoute, ...]:
    """All ways, the straight ones first."""
    return tuple(MirrorRoute.model_validate(one) for one in _content()["ways"])


def addresses() -> tuple[str, ...]:
    """What is asked."""
    return tuple(way.address for way in ways())


def nearest(serves: Serves, reachable: Mapping[str, int]) -> MirrorRoute | None:
    """The first way to something that responded."""
    return next((way for way in ways() if way.serves == serves and way.address in reachable), None)


def choose(
    reachable: Mapping[str, int], *, token: bool = False, given: Mapping[str, str] | None = None, store: str = ""
) -> Network:
    """Take a way for each thing that is loaded.

    Args:
        reachable: The addresses that answered from the machine, with milliseconds; empty where nobody asked.
        token: Whether a token for the hub goes along.
        given: Variables that lead somewhere already.
        store: Host of the store, which no proxy is put before.
    """
    given = given or {}
    if not reachable and not given:
        return Network()
    taken = [_choice(serves, reachable, token=token, given=given) for serves in ("hub", "pip")]
    environment: dict[str, str] = {}
    files = []
    for _, way in taken:
        if way is not None:
            environment |= way.environment
            files += [way.file] if way.file else []
    hub = taken[0][0]
    if hub.key == OVER_GIVEN:
        environment[env.HF_ENDPOINT.name] = _origin("hub").address
    if files:
        direct = ",".join([*_content()["direct"], *([store] if store else [])])
        environment |= {env.NO_PROXY.name: direct, env.NO_PROXY.name.upper(): direct}
    withheld = (env.HF_TOKEN.name, env.HUGGING_FACE_HUB_TOKEN.name) if hub.key == _WITHHELD else ()
    if withheld:
        environment[env.HF_HUB_DISABLE_IMPLICIT_TOKEN.name] = "1"  # of the client's own login
    choices = tuple(choice for choice, _ in taken)
    return Network(choices=choices, environment=environment, files=tuple(files), withheld=withheld)


def _choice(
    serves: Literal["hub", "pip"], reachable: Mapping[str, int], *, token: bool, given: Mapping[str, str]
) -> tuple[MirrorChoice, MirrorRoute | None]:
    variable, way = _GIVEN[serves], _way(serves, reachable, token=token)
    fields: dict[str, Any] = {"variable": variable, "address": given.get(variable)}
    sees_token = serves == "hub" and token and not _is_origin(given.get(variable, ""))
    if given.get(variable) and not (sees_token and way):
        key = _WITHHELD if sees_token else "why.mirror.given"
        return MirrorChoice(serves=serves, name=variable, key=key, fields=fields), None
    if way is None:
        return _none(serves, reachable, token=token), None
    origin = _origin(serves)
    if given.get(variable):
        fields |= {"name": way.name, "milliseconds": reachable[way.address]}
        return MirrorChoice(serves=serves, name=way.name, key=OVER_GIVEN, fields=fields), way
    told = {"name": way.name, "milliseconds": reachable[way.address], "origin": origin.name}
    return MirrorChoice(serves=serves, name=way.name, key=_key(way, origin, reachable), fields=told), way


def _origin(serves: Serves) -> MirrorRoute:
    return next(one for one in ways() if one.serves == serves and one.origin)


def _is_origin(address: str) -> bool:
    """Whether a hub that was given is the one tokens belong to, over an encrypted line."""
    return urlsplit(address)[:2] == urlsplit(_origin("hub").address)[:2]


def _way(serves: str, reachable: Mapping[str, int], *, token: bool) -> MirrorRoute | None:
    """The straight way while it is no worse; else the first to the hub, the fastest to the index."""
    secret = token and serves == "hub"
    answered = [w for w in ways() if w.serves == serves and w.address in reachable and not (w.foreign and secret)]
    if not answered or serves == "hub":
        return answered[0] if answered else None
    first, fastest = answered[0], min(answered, key=lambda way: reachable[way.address])
    near = max(_NEAR_MILLISECONDS, _TIMES_SLOWER * reachable[fastest.address])
    return first if first.origin and reachable[first.address] <= near else fastest


def _key(way: MirrorRoute, origin: MirrorRoute, reachable: Mapping[str, int]) -> str:
    if way.origin:
        return "why.mirror.origin"
    if way.file:
        return "why.mirror.proxy"
    return "why.mirror.faster" if origin.address in reachable else "why.mirror.instead"


def _none(serves: Serves, reachable: Mapping[str, int], *, token: bool) -> MirrorChoice:
    """No way: what else there is to do."""
    foreign = [w.name for w in ways() if w.serves == serves and w.foreign and w.address in reachable]
    if token and foreign:
        return MirrorChoice(serves=serves, name="", key="why.mirror.token", fields={"name": foreign[0]})
    other = next((way.name for way in ways() if way.serves == "other_hub" and way.address in reachable), None)
    if serves == "hub" and other:
        return MirrorChoice(serves=serves, name="", key="why.mirror.other_hub", fields={"name": other})
    return MirrorChoice(serves=serves, name="", key="why.mirror.none", fields={"origin": _origin(serves).name})
