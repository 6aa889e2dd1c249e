"""AutoDL's developer API: power with and without a card, price, balance, stock. Nothing here creates or releases.

It answers for "container instance Pro" only; ordinary instances are unknown to it and switched in AutoDL's console.
The token goes to AutoDL in a header and nowhere else: no redirect is followed, passwords in answers are not even read.
"""

import datetime
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import __version__, env
from stoker.errors import StokerError
from stoker.facts.prices import Offer
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.hosts.shell import Ssh

BASE = "https://api.autodl.com"
PLATFORM = "autodl"
CURRENCY = "CNY"
CLOUD = "AutoDL API"
"""Whose price an offer of this file is."""

_PRO = "/api/v1/dev/instance/pro"
_PER_YUAN = 1000
"""Money is told in thousandths of a yuan."""
_ANSWER_SECONDS = 20
_TRIES = 3
_LARGEST_BYTES = 1 << 20
_LOOK_SECONDS = 5.0
_POWER_SECONDS = 600.0
_LATE_SECONDS = 60.0
"""How long a start whose answer was lost is looked out for."""
_SSHD_SECONDS = 180.0
"""How long an instance that runs may take until its sshd answers."""
_IDLE_LOOK_SECONDS = 20.0
_IDLE_SECONDS = 1800.0
"""How long we go on asking for a card of the instance's machine that nobody uses."""

_ON = ("running",)
_OFF = ("shutdown", "stopped")
_LOST = ("releasing", "released", "removing", "removed", "failed")
_NO_CARD_MODE = "non_gpu"

# The documentation lists no codes, so sentences are looked at, too.
_UNKNOWN_INSTANCE = ("RecordNotFound", "不存在")
_BAD_TOKEN = ("token", "auth", "unauthor", "登录", "鉴权")
_NONE_IDLE = ("库存", "空闲", "资源不足", "GPU不足", "无可用", "售罄", "no idle", "no stock", "no available")
_NO_SUCH_MODE = ("启动模式", "无卡")
_PRO_NAME = re.compile(r"pro-[0-9a-z]{6,}")

NOT_SERVED = ("STK760", "STK761", "STK762", "STK765")
"""Errors that say nothing of the machine: no token, a bad one, another kind of instance, no answer."""

Tell = Callable[..., None]
"""Says a sentence of the catalogue: `tell(key, **fields)`."""


class _Answer(BaseModel):
    """What is read of an answer; its password and token are not."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Instance(_Answer):
    """One of the account's Pro instances."""

    uuid: str
    name: str | None = None
    status: str
    start_mode: str | None = None
    """`gpu`, or `non_gpu` without a card."""
    region_sign: str | None = None
    req_gpu_amount: int | None = None


class Snapshot(_Answer):
    """Where an instance is reached, and what it costs."""

    proxy_host: str | None = None
    ssh_port: int | None = None
    payg_price: int | None = None
    snapshot_gpu_alias_name: str | None = None
    region_sign: str | None = None

    @property
    def yuan_per_hour(self) -> float | None:
        """Price of an hour."""
        return self.payg_price / _PER_YUAN if self.payg_price else None


class Stock(_Answer):
    """Cards of a kind in a region."""

    idle_gpu_num: int
    total_gpu_num: int


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token would go along to wherever we are sent."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


class Api:
    """The account behind a developer token.

    Args:
        token: As the console shows it; sent without `Bearer`.
        base: Another address, for tests.
        pause: How seconds are waited.
    """

    def __init__(self, token: str, base: str | None = None, pause: Callable[[float], None] | None = None) -> None:
        self._token = token
        self._base = (base or BASE).rstrip("/")
        self._open = urllib.request.build_opener(NoRedirect).open
        self.pause = pause or time.sleep

    def balance(self) -> float:
        """Yuan that can be spent, vouchers included."""
        said = self._read("POST", "/api/v1/dev/wallet/balance", {})
        return (int(said.get("assets") or 0) + int(said.get("voucher_balance") or 0)) / _PER_YUAN

    def snapshot(self, uuid: str) -> Snapshot:
        """Address and price of an instance."""
        return Snapshot.model_validate(self._read("GET", f"{_PRO}/snapshot", {"instance_uuid": uuid}))

    def status(self, uuid: str) -> str:
        """`running`, `shutdown` and what lies between."""
        return str(self._read("GET", f"{_PRO}/status", {"instance_uuid": uuid}))

    def instances(self) -> list[Instance]:
        """All Pro instances of the account."""
        found: list[Instance] = []
        pages = page = 1
        while page <= pages:
            said = self._read("POST", f"{_PRO}/list", {"page_index": page, "page_size": 100})
            found += [Instance.model_validate(one) for one in said.get("list") or []]
            pages, page = int(said.get("max_page") or 1), page + 1
        return found

    def gpu_stock(self, region: str) -> dict[str, Stock]:
        """Cards of a region by AutoDL's name: idle and all. Needs an account with enterprise verification."""
        said = self._read("POST", "/api/v1/dev/machine/region/gpu_stock", {"region_sign": region})
        return {name: Stock.model_validate(counts) for one in said or [] for name, counts in one.items()}

    def power_on(self, uuid: str, *, card: bool) -> None:
        """Ask for an instance to be switched on; asked once, because it starts the meter."""
        payload = "gpu" if card else _NO_CARD_MODE
        try:
            self._call("POST", f"{_PRO}/power_on", {"instance_uuid": uuid, "payload": payload})
        except StokerError as error:
            if error.code != "STK765" or self.status(uuid) in _OFF:
                raise

    def power_off(self, uuid: str) -> None:
        """Ask for an instance to be switched off; its disks stay."""
        self._read("POST", f"{_PRO}/power_off", {"instance_uuid": uuid})

    # ---- one question

    def _read(self, method: str, path: str, fields: dict[str, Any]) -> Any:
        """A question that may be asked again where nobody answered."""
        for attempt in range(1, _TRIES):
            try:
                return self._call(method, path, fields)
            except StokerError as error:  # noqa: PERF203  # the loop waits anyway
                if error.code != "STK765":
                    raise
                self.pause(float(attempt))
        return self._call(method, path, fields)

    def _call(self, method: str, path: str, fields: dict[str, Any]) -> Any:
        url, body = f"{self._base}{path}", None
        if method == "GET":
            url += f"?{urllib.parse.urlencode(fields)}"  # what stands in a GET's body is lost on the way
        else:
            body = json.dumps(fields).encode()
        headers = {
            "Authorization": self._token,
            "Content-Type": "application/json",
            "User-Agent": f"stoker/{__version__}",
        }
        request = urllib.request.Request(url, data=body, method=method, headers=headers)  # noqa: S310  # AutoDL's address
        try:
            with self._open(request, timeout=_ANSWER_SECONDS) as answer:
                said = json.loads(answer.read(_LARGEST_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise StokerError("STK761", variable=env.AUTODL_TOKEN.name) from None
            raise StokerError("STK765", reason=f"HTTP {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise StokerError("STK765", reason=reason) from None
        if not isinstance(said, dict) or "code" not in said:
            raise StokerError("STK765", reason="?")
        if said["code"] != "Success":
            raise _refusal(str(said["code"]), str(said.get("msg") or ""), fields)
        return said.get("data")


def _refusal(code: str, words: str, fields: dict[str, Any]) -> StokerError:
    text = f"{code} {words}"
    if any(one in text for one in _UNKNOWN_INSTANCE):
        return StokerError("STK762", name=fields.get("instance_uuid", "-"))
    if any(one.lower() in text.lower() for one in _NONE_IDLE):
        return StokerError("STK763", name=fields.get("instance_uuid", "-"), reason=words or code)
    if any(one in text for one in _NO_SUCH_MODE):
        return StokerError("STK767")
    if any(one in text.lower() for one in _BAD_TOKEN):
        return StokerError("STK761", variable=env.AUTODL_TOKEN.name)
    return StokerError("STK764", reason=text.strip())


# ---- what commands do with it


def account() -> Api:
    """The account of the token in the environment."""
    token = env.read(env.AUTODL_TOKEN)
    if not token:
        raise StokerError("STK760", variable=env.AUTODL_TOKEN.name)
    return Api(token)


def power_on(host: Host, *, card: bool = True, tell: Tell | None = None, api: Api | None = None) -> Host:
    """Switch a host on and wait for it; where it is reached then, for the port is another one each time.

    Args:
        host: An AutoDL host.
        card: With its card, or without one for a fraction of the price.
        tell: Says that no card is idle and we go on asking.
        api: The account; default: the one of the environment.
    """
    api = api or account()
    host = _known(host, api)
    if api.status(host.instance) in _ON:
        with_card = _has_card(host.instance, api)
        if with_card == card:
            return _reached(host, api)
        if with_card:
            raise StokerError("STK766", name=host.name, status="running", wanted=_NO_CARD_MODE)
        power_off(host, api=api)
    _switch_on(host, api, card=card, tell=tell)
    _await(host, api, _ON)
    return _reached(host, api)


def power_off(host: Host, *, api: Api | None = None) -> None:
    """Switch a host off, and see that it is off: only then has the meter stopped."""
    api = api or account()
    host = _known(host, api)
    if api.status(host.instance) not in _OFF:
        _switch_off(host, api)
        _await(host, api, _OFF)


def price(host: Host, *, api: Api | None = None) -> Offer | None:
    """What a card of the host costs by the hour; None where the API cannot say.

    The API's figure is taken for one card: should it be for all cards of the instance, a budget ends early, never late.
    """
    try:
        api = api or account()
        yuan = api.snapshot(_known(host, api).instance).yuan_per_hour
    except StokerError:
        return None
    if yuan is None:
        return None
    return Offer(
        cards=(),
        cloud=CLOUD,
        gpu_count=1,
        price_per_hour=yuan,
        currency=CURRENCY,
        spot_price_per_hour=None,
        instance=host.instance,
        date=datetime.datetime.now(datetime.timezone.utc).date(),
        source=BASE,
        note="",
    )


def balance(*, api: Api | None = None) -> float | None:
    """Yuan left in the account; None where the API cannot say."""
    try:
        return (api or account()).balance()
    except StokerError:
        return None


def has_card(host: Host, *, api: Api | None = None) -> bool:
    """Whether a host is on with its card."""
    api = api or account()
    uuid = _known(host, api).instance
    return api.status(uuid) in _ON and _has_card(uuid, api)


class Woken:
    """Switched on, cheaply, to install, load and prepare; off again at the end, unless it was on before or is kept.

    An instance that runs with its card is left alone: a card that is switched off may be somebody else's when we want
    it back. Where the API has no such mode, it is switched on with the card and the user is told what to click. Where
    the API does not serve it, the host is taken as it is.
    """

    def __init__(self, host: Host, tell: Tell, *, api: Api | None = None) -> None:
        self.host = host
        """Where it is reached now."""
        self.has_card = True
        """False while it is known to run without."""
        self._api = api
        self._tell = tell
        self._is_ours = False

    def __enter__(self) -> "Woken":
        try:
            self._api = self._api or account()
            self.host = _known(self.host, self._api)
            self._api.status(self.host.instance)
        except StokerError as error:
            if error.code not in NOT_SERVED:
                raise
            self._tell("autodl.by_hand", name=self.host.name, reason=error.what)
            self._api = None
            return self
        try:
            self._rouse(self._api)
        except BaseException as error:
            self._lie_down(error)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._lie_down(error)

    def with_card(self) -> Host:
        """Switch its card on, where it runs without; the host where it is reached then."""
        if self._api is not None and not self.has_card:
            self._is_ours = True  # whatever was under way there ends with the restart
            self._tell("autodl.with_card", name=self.host.name)
            self.host = power_on(self.host, tell=self._tell, api=self._api)
            self.has_card = True
        return self.host

    def keep(self) -> None:
        """Something runs on it that sees to its meter: it stays on."""
        self._is_ours = False

    def _rouse(self, api: Api) -> None:
        _await(self.host, api, (*_ON, *_OFF))
        self._is_ours = api.status(self.host.instance) in _OFF
        if not self._is_ours and _has_card(self.host.instance, api):
            self.host = _reached(self.host, api)
            return
        try:
            self.host = power_on(self.host, card=False, tell=self._tell, api=api)
        except StokerError as error:
            if error.code != "STK767":
                raise
            self._tell("autodl.no_such_mode", name=self.host.name)
            self.host = power_on(self.host, tell=self._tell, api=api)
            return
        self.has_card = False
        self._tell("autodl.without_card", name=self.host.name)

    def _lie_down(self, cause: BaseException | None) -> None:
        """Off again, where we switched it on and nothing keeps it; where that fails, the user hears of it."""
        if self._api is None or not self._is_ours:
            return
        try:
            if cause is not None and (not isinstance(cause, StokerError) or cause.code == "STK765"):
                _await_late(self.host, self._api)
            if self._api.status(self.host.instance) not in _OFF:
                self._tell("remote.off_again", host=self.host.name)
                power_off(self.host, api=self._api)
        except BaseException as error:
            self._tell("autodl.left_on", name=self.host.name)
            if cause is None or not isinstance(error, StokerError):
                raise


def _known(host: Host, api: Api) -> Host:
    """The host with its instance's name: as recorded, as its own host name says, or by its address."""
    if _PRO_NAME.fullmatch(host.instance):
        return host
    found = _PRO_NAME.search(host.facts.hostname) if host.facts else None
    uuid = found.group() if found else _by_address(host, api)
    host = host.model_copy(update={"instance": uuid})
    known.save(host)
    return host


def _by_address(host: Host, api: Api) -> str:
    for one in api.instances():
        if one.status in _LOST:
            continue
        at = api.snapshot(one.uuid)
        if (at.proxy_host, at.ssh_port) == (host.host, host.port) or one.name == host.name:
            return one.uuid
    raise StokerError("STK762", name=host.name)


def _has_card(uuid: str, api: Api) -> bool:
    return all(one.start_mode != _NO_CARD_MODE for one in api.instances() if one.uuid == uuid)


def _switch_on(host: Host, api: Api, *, card: bool, tell: Tell | None) -> None:
    """Ask until a card of its machine is idle, for a while."""
    waited = 0.0
    while True:
        try:
            api.power_on(host.instance, card=card)
        except StokerError as error:
            if error.code != "STK763":
                raise
            if waited >= _IDLE_SECONDS:
                raise StokerError("STK763", name=host.name, reason=error.fields["reason"]) from None
            if tell and not waited:
                tell("autodl.none_idle", name=host.name, minutes=f"{_IDLE_SECONDS / 60:.0f}")
        else:
            return
        api.pause(_IDLE_LOOK_SECONDS)
        waited += _IDLE_LOOK_SECONDS


def _switch_off(host: Host, api: Api) -> None:
    """Ask until it is taken: an instance that is just starting may not be switched off."""
    waited = 0.0
    while True:
        try:
            api.power_off(host.instance)
        except StokerError as error:
            if error.code != "STK764" or waited >= _POWER_SECONDS or api.status(host.instance) in (*_ON, *_LOST):
                raise
        else:
            return
        api.pause(_LOOK_SECONDS)
        waited += _LOOK_SECONDS


def _await_late(host: Host, api: Api) -> None:
    """Until it is on its way up after all; a start we did not hear the end of may still happen."""
    waited = 0.0
    while api.status(host.instance) in _OFF and waited < _LATE_SECONDS:
        api.pause(_LOOK_SECONDS)
        waited += _LOOK_SECONDS


def _await(host: Host, api: Api, wanted: tuple[str, ...]) -> None:
    waited, status = 0.0, api.status(host.instance)
    while status not in wanted:
        if status in _LOST or waited >= _POWER_SECONDS:
            raise StokerError("STK766", name=host.name, status=status, wanted=wanted[0])
        api.pause(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        status = api.status(host.instance)


def _reached(host: Host, api: Api) -> Host:
    """The host where it is now, once it can be spoken to: an instance runs before its sshd answers."""
    at = api.snapshot(host.instance)
    if at.proxy_host and at.ssh_port:
        host = host.model_copy(update={"host": at.proxy_host, "port": at.ssh_port, "user": host.user or "root"})
        known.save(host)
    waited, begun = 0.0, time.monotonic()
    while not _answers(host, last=waited >= _SSHD_SECONDS):
        api.pause(_LOOK_SECONDS)
        waited = max(waited + _LOOK_SECONDS, time.monotonic() - begun)
    return host


def _answers(host: Host, *, last: bool) -> bool:
    """Whether it is there; the last time what is wrong is said."""
    line = Ssh(host)
    try:
        line.run("true", seconds=30)
    except StokerError as error:
        if last or error.code != "STK701":
            raise
        return False
    finally:
        line.close()
    return True
