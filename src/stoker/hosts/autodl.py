"""AutoDL's developer API: power with and without a card, price, balance, stock. Creates and releases nothing.

It serves "container instance Pro" only; ordinary instances are switched in AutoDL's console. The token is sent to
AutoDL in a header and nowhere else: no redirect is followed. Passwords in answers are not read.
"""

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
from stoker.facts import prices
from stoker.facts.prices import Offer
from stoker.hosts import known, no_redirect
from stoker.hosts.known import Host
from stoker.hosts.shell import SILENT, Ssh
from stoker.messages import MessageCallback

BASE = "https://api.autodl.com"
CURRENCY = "CNY"
CLOUD = "AutoDL API"
"""Source of an offer."""

_PRO = "/api/v1/dev/instance/pro"
_PER_YUAN = 1000
"""Amounts are in thousandths of a yuan."""
_ANSWER_SECONDS = 20
_TRIES = 3
_LARGEST_BYTES = 1 << 20
_LOOK_SECONDS = 5.0
_POWER_SECONDS = 600.0
_LATE_SECONDS = 60.0
"""How long to watch for a start whose answer was lost."""
_SSHD_SECONDS = 180.0
"""How long sshd of a running instance may take to answer."""
_IDLE_LOOK_SECONDS = 20.0
_IDLE_SECONDS = 1800.0
"""How long to retry while no card of the instance's machine is free."""

_ON = ("running",)
_OFF = ("shutdown", "stopped")
_LOST = ("releasing", "released", "removing", "removed", "failed")
_NO_CARD_MODE = "non_gpu"

# The documentation lists no codes, so the messages are searched too.
_UNKNOWN_INSTANCE = ("RecordNotFound", "不存在")
_BAD_TOKEN = ("token", "auth", "unauthor", "登录", "鉴权")
_NONE_IDLE = ("库存", "空闲", "资源不足", "GPU不足", "无可用", "售罄", "no idle", "no stock", "no available")
_NO_SUCH_MODE = ("启动模式", "无卡")
_PRO_NAME = re.compile(r"pro-[0-9a-z]{6,}")

NOT_SERVED = ("STK760", "STK761", "STK762", "STK765")
"""Errors that do not concern the machine: no token, a bad one, another kind of instance, no answer."""


class _ApiRecord(BaseModel):
    """Fields that are read of an answer; its password and token are not."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Instance(_ApiRecord):
    """One of the account's Pro instances."""

    uuid: str
    name: str | None = None
    status: str
    start_mode: str | None = None
    """`gpu`, or `non_gpu` without a card."""
    region_sign: str | None = None
    req_gpu_amount: int | None = None


class Snapshot(_ApiRecord):
    """Address and price of an instance."""

    proxy_host: str | None = None
    ssh_port: int | None = None
    payg_price: int | None = None
    snapshot_gpu_alias_name: str | None = None
    region_sign: str | None = None

    @property
    def yuan_per_hour(self) -> float | None:
        """Price of an hour."""
        return self.payg_price / _PER_YUAN if self.payg_price else None


class Stock(_ApiRecord):
    """Cards of a kind in a region."""

    idle_gpu_num: int
    total_gpu_num: int


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
        self._open = no_redirect.opener().open
        self.pause = pause or time.sleep

    def balance(self) -> float:
        """Yuan that can be spent, vouchers included."""
        said = self._read("POST", "/api/v1/dev/wallet/balance", {})
        return (int(said.get("assets") or 0) + int(said.get("voucher_balance") or 0)) / _PER_YUAN

    def snapshot(self, uuid: str) -> Snapshot:
        """Address and price of an instance."""
        return Snapshot.model_validate(self._read("GET", f"{_PRO}/snapshot", {"instance_uuid": uuid}))

    def status(self, uuid: str) -> str:
        """`running`, `shutdown` and states between them."""
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
        """Idle and total cards of a region by AutoDL's name. Needs an account with enterprise verification."""
        said = self._read("POST", "/api/v1/dev/machine/region/gpu_stock", {"region_sign": region})
        return {name: Stock.model_validate(counts) for one in said or [] for name, counts in one.items()}

    def power_on(self, uuid: str, *, card: bool) -> None:
        """Request to switch an instance on; never repeated, because it starts the meter."""
        payload = "gpu" if card else _NO_CARD_MODE
        try:
            self._call("POST", f"{_PRO}/power_on", {"instance_uuid": uuid, "payload": payload})
        except StokerError as error:
            if error.code != "STK765" or self.status(uuid) in _OFF:
                raise

    def power_off(self, uuid: str) -> None:
        """Request to switch an instance off; its disks are kept."""
        self._read("POST", f"{_PRO}/power_off", {"instance_uuid": uuid})

    # ---- requests

    def _read(self, method: str, path: str, fields: dict[str, Any]) -> Any:
        """A request that is repeated where no answer came."""
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
            url += f"?{urllib.parse.urlencode(fields)}"  # a GET's body is dropped on the way
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


# ---- for commands


def account() -> Api:
    """The account of the token in the environment."""
    token = env.read(env.AUTODL_TOKEN)
    if not token:
        raise StokerError("STK760", variable=env.AUTODL_TOKEN.name)
    return Api(token)


def power_on(host: Host, *, card: bool = True, tell: MessageCallback | None = None, api: Api | None = None) -> Host:
    """Switch a host on and wait for it; its new address, as the port changes each time.

    Args:
        host: An AutoDL host.
        card: With its card, or without one for a fraction of the price.
        tell: Called when no card is free and we retry.
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
    """Switch a host off and wait until it is: only then has the meter stopped."""
    api = api or account()
    host = _known(host, api)
    if api.status(host.instance) not in _OFF:
        _switch_off(host, api)
        _await(host, api, _OFF)


def price(host: Host, *, api: Api | None = None) -> Offer | None:
    """Price of a card of the host per hour; None where the API cannot say.

    The API's figure is taken as that of one card: if it is for all cards of the instance, a budget ends too early.
    """
    try:
        api = api or account()
        yuan = api.snapshot(_known(host, api).instance).yuan_per_hour
    except StokerError:
        return None
    if yuan is None:
        return None
    return prices.stated(CLOUD, yuan, CURRENCY).model_copy(update={"instance": host.instance, "source": BASE})


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
    """Switched on without its card to install, download and prepare; off again at the end, unless it was on or is kept.

    An instance that runs with its card is left on: its card could be taken by somebody else. Where the API has no mode
    without a card, it is switched on with it and the user is told what to click. Where the API does not serve it, the
    host is used as it is.
    """

    def __init__(self, host: Host, tell: MessageCallback, *, api: Api | None = None) -> None:
        self.host = host
        """The host with its address of now."""
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
            self._switch_on(self._api)
        except BaseException as error:
            self._switch_off(error)
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._switch_off(error)

    def with_card(self) -> Host:
        """Restart it with its card, if it runs without; the host with its new address."""
        if self._api is not None and not self.has_card:
            self._is_ours = True  # whatever ran there ends with the restart
            self._tell("autodl.with_card", name=self.host.name)
            self.host = power_on(self.host, tell=self._tell, api=self._api)
            self.has_card = True
        return self.host

    def leave_on(self) -> None:
        """Leave it on: the run on it stops the meter itself."""
        self._is_ours = False

    def _switch_on(self, api: Api) -> None:
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

    def _switch_off(self, cause: BaseException | None) -> None:
        """Switch it off, if it was switched on here and is not kept; if that fails, tell the user."""
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
    """The host with its instance's id: from the record, its hostname, or its address."""
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


def _switch_on(host: Host, api: Api, *, card: bool, tell: MessageCallback | None) -> None:
    """Retry for a while until a card of its machine is free."""
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
    """Retry until it is accepted: an instance that is just starting cannot be switched off."""
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
    """Wait for a start whose answer was lost: it may still happen."""
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
    """The host with its address of now, once sshd answers: an instance is `running` before that."""
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
    """Whether sshd answers; the last time the error is raised."""
    shell = Ssh(host)
    try:
        shell.run("true", seconds=30)
    except StokerError as error:
        if last or error.code not in SILENT:
            raise
        return False
    finally:
        shell.close()
    return True
