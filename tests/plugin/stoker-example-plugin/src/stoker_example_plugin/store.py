"""A store: `shelf://name/path` is a folder below `STOKER_EXAMPLE_SHELF`."""

import os
from pathlib import Path

from stoker.store.address import Address
from stoker.store.directory import DirectoryStore
from stoker.store.store_protocol import Bandwidth, Fault, Patience


class ShelfStore(DirectoryStore):
    """Built as every store is: address, patience, bandwidth."""

    def __init__(self, address: Address, patience: Patience, bandwidth: Bandwidth) -> None:
        if address.host == "closed":
            raise ValueError("the shelf is closed")
        folder = Path(os.environ["STOKER_EXAMPLE_SHELF"])
        super().__init__(folder / address.host / address.root, patience, bandwidth)
        self._full = address.host == "full"

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """Copy a file, unless the shelf is full."""
        if self._full:
            raise Fault("no room")
        super().upload(source, name, sha256)
