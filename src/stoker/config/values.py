"""The small value languages of the run file: durations, shares, money, intervals.

Each is text in the file and in `Run`; these functions say what the text means.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "秒": 1, "分钟": 60, "小时": 3600, "个小时": 3600, "天": 86400}
_UNITS = "|".join(_UNIT_SECONDS)
DURATION_PATTERN = rf"^[0-9]+(\.[0-9]+)? *({_UNITS})$"
PERCENT_PATTERN = r"^[0-9]+(\.[0-9]+)? *%$"
_MONEY = r"([$￥] *[0-9]+(\.[0-9]+)?|[0-9]+(\.[0-9]+)? *([A-Z]{3}|元|块|块钱|人民币))"
MONEY_PATTERN = f"^{_MONEY}$"
PRICE_PATTERN = f"^{_MONEY} */ *(h|小时)$"
EVERY_PATTERN = rf"^(auto|epoch|[0-9]+ *steps?|[0-9]+(\.[0-9]+)? *({_UNITS}))$"
INTERVAL_PATTERN = r"^(epoch|never|[0-9]+ *steps?)$"
CURRENCIES = {**dict.fromkeys(("RMB", "元", "块", "块钱", "人民币", "￥"), "CNY"), "$": "USD"}
"""Other names of a currency. Not `¥`, the sign of yuan and yen: a budget could be twenty times what was meant."""
_AMOUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12, "万": 10**4, "亿": 10**8}
AMOUNT_PATTERN = r"^([0-9][0-9,]*(?:\.[0-9]+)?) *([kKMBGT万亿]?)$"
RATE_PATTERN = r"^[0-9]+(\.[0-9]+)? *(kB|MB|GB)/s$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? *(kB|MB|GB|TB)$"
DEVICES_PATTERN = r"^(all|[0-9]+(,[0-9]+)*)$"


@dataclass(frozen=True)
class Every:
    """An interval: a number of steps, of seconds, each epoch, or decided by the plan."""

    kind: Literal["steps", "seconds", "epoch", "auto", "never"]
    amount: float = 0


def is_devices(text: str) -> bool:
    """Whether a text names GPUs: all, a count, or numbers."""
    return re.match(DEVICES_PATTERN, text) is not None


def duration_seconds(text: str) -> float:
    """`10m` and `10分钟` as 600.0."""
    number, unit = re.fullmatch(rf"([0-9.]+) *({_UNITS})", text.strip()).groups()  # type: ignore[union-attr]  # checked by pattern
    return float(number) * _UNIT_SECONDS[unit]


def bytes_per_second(text: str) -> float:
    """`20 MB/s` as 20000000.0."""
    number, unit = re.fullmatch(r"([0-9.]+) *(kB|MB|GB)/s", text.strip()).groups()  # type: ignore[union-attr]  # checked by pattern
    return float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def size_bytes(text: str) -> int:
    """`4 GB` as 4000000000."""
    number, unit = re.fullmatch(r"([0-9.]+) *(kB|MB|GB|TB)", text.strip()).groups()  # type: ignore[union-attr]  # checked by pattern
    return round(float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit])


def amount(text: str) -> int | None:
    """`5M` as 5000000, `20k` as 20000, `500万` as 5000000; None where it is no such number."""
    found = re.fullmatch(AMOUNT_PATTERN, text.strip())
    return round(Decimal(found[1].replace(",", "")) * _AMOUNTS[found[2]]) if found else None


def share(text: str) -> float:
    """`3%` as 0.03."""
    return float(text.strip().rstrip("%")) / 100


def money(text: str) -> tuple[float, str]:
    """`50 CNY`, `50元` and `￥50` as (50.0, "CNY"), `$50` as (50.0, "USD")."""
    sign, number, name = re.fullmatch(r"([$￥]?) *([0-9.]+) *(\D*)", text.strip()).groups()  # type: ignore[union-attr]  # checked by pattern
    return float(number), CURRENCIES.get(sign or name, name)


def is_money(text: str) -> bool:
    """Whether a text is an amount of money."""
    return re.match(MONEY_PATTERN, text) is not None


def is_duration(text: str) -> bool:
    """Whether a text is a duration."""
    return re.match(DURATION_PATTERN, text) is not None


def is_price(text: str) -> bool:
    """Whether a text is a price by the hour."""
    return re.match(PRICE_PATTERN, text) is not None


def price(text: str) -> tuple[float, str]:
    """`2.5 CNY/h` as (2.5, "CNY")."""
    return money(text.partition("/")[0].rstrip())


def every(text: str) -> Every:
    """`500 steps`, `10m`, `epoch`, `never` or `auto` as an `Every`."""
    text = text.strip()
    if text in ("epoch", "auto", "never"):
        return Every(text)  # type: ignore[arg-type]  # narrowed by the line above
    if text.endswith(("step", "steps")):
        return Every("steps", int(text.split("step")[0]))
    return Every("seconds", duration_seconds(text))
