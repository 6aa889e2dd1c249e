"""SkyPilot's own catalogue of prices, where it is installed: read as offers, nothing is fetched."""

import csv
import datetime
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import StokerError
from stoker.facts.prices import Offer
from stoker.places import sky

FILE = "vms.csv"


def folder() -> Path:
    """Where SkyPilot keeps its catalogues, a folder for each version of their layout."""
    return Path.home() / ".sky" / "catalogs"


def offers() -> list[Offer]:
    """The cheapest price of each cloud, card and count, of the newest layout there is."""
    layouts = sorted(folder().glob("v*"), key=lambda path: (len(path.name), path.name))
    files = sorted(layouts[-1].glob(f"*/{FILE}")) if layouts else []
    if not files:
        raise StokerError("STK796", path=folder())
    best: dict[tuple[str, str, int], Offer] = {}
    for file in files:
        for offer in _offers(file):
            place = (offer.cloud, offer.cards[0], offer.gpu_count)
            if place not in best or offer.price_per_hour < best[place].price_per_hour:
                best[place] = offer
    return list(best.values())


def _offers(file: Path) -> Iterator[Offer]:
    names = {theirs: ours for ours, theirs in sky.accelerators().items()}
    date = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.timezone.utc).date()
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            card, count = names.get(row["AcceleratorName"]), float(row["AcceleratorCount"] or 0)
            if card is None or not row["Price"] or count < 1:
                continue
            yield Offer(
                cards=(card,),
                cloud=file.parent.name,
                gpu_count=int(count),
                price_per_hour=float(row["Price"]) / count,
                currency="USD",
                spot_price_per_hour=float(row["SpotPrice"]) / count if row["SpotPrice"] else None,
                instance=row["InstanceType"],
                date=date,
                source="SkyPilot's catalogue",
                note="",
            )
