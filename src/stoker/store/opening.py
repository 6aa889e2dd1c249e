"""From an address to a store that can be used. Packages of a kind of store are imported only for that kind."""

from pathlib import Path

from stoker.config import values
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir.layout import RunDir
from stoker.store import address
from stoker.store.address import Address
from stoker.store.directory import DirectoryStore, disk_of
from stoker.store.shelf import Bandwidth, Patience, Patient, Store


def open_store(text: str, folder: Path, bandwidth: str | None = None, patience: Patience | None = None) -> Patient:
    """The store at an address; a relative directory starts at `folder`."""
    where = address.parse(text, folder)
    patience = patience or Patience()
    rate = Bandwidth(values.bytes_per_second(bandwidth) if bandwidth else 0)
    return Patient(_open(where, patience, rate), patience)


def of_run(run: Run, folder: Path, patience: Patience | None = None) -> Patient:
    """The store that a run's file names."""
    assert run.save.store is not None
    return open_store(run.save.store, folder, run.save.bandwidth, patience)


def same_disk(run: Run, run_dir: RunDir) -> bool:
    """Whether the copies would be lost with the run: a directory on the disk the run directory is on."""
    where = address.parse(str(run.save.store), run_dir.folder())
    return where.kind == "directory" and disk_of(Path(where.root)) == run_dir.path.stat().st_dev


def _open(where: Address, patience: Patience, rate: Bandwidth) -> Store:
    if where.kind == "directory":
        return DirectoryStore(Path(where.root), patience, rate)
    if where.kind == "s3":
        from stoker.store.s3 import S3Store

        return S3Store(where, patience, rate)
    if where.kind == "ssh":
        from stoker.store.ssh import SshStore

        return SshStore(where, patience, rate)
    from stoker.store.hub import HubStore

    if rate.bytes_per_second:
        raise StokerError("STK655", store=where.text)
    return HubStore(where, patience)
