"""From an address to an open store. Each kind imports the packages it needs when it is opened.

An entry point of `stoker.stores` names a class with the constructor of `S3Store` and the methods of `Store`; its name
is the URL's scheme.
"""

from pathlib import Path

from stoker import messages, plugins
from stoker.config import values
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.plugins import Plugin
from stoker.rundir.layout import RunDir
from stoker.store import address
from stoker.store.address import Address
from stoker.store.directory import DirectoryStore, disk_of
from stoker.store.hub import HubStore
from stoker.store.s3 import S3Store
from stoker.store.ssh import SshStore
from stoker.store.store_protocol import Bandwidth, Fault, Patience, Patient, Store


def open_store(text: str, folder: Path, bandwidth: str | None = None, patience: Patience | None = None) -> Patient:
    """The store at an address; a relative directory starts at `folder`."""
    where = address.parse(text, folder)
    patience = patience or Patience()
    rate = Bandwidth(values.bytes_per_second(bandwidth) if bandwidth else 0)
    if where.kind in address.BUILT_IN:
        return Patient(_open(where, patience, rate), patience)
    plugin = plugins.offered(plugins.STORES)[where.kind]
    return Patient(_open_plugin(plugin, where, patience, rate), patience, plugin.source)


def of_run(run: Run, folder: Path, patience: Patience | None = None) -> Patient:
    """The store that a run's file names."""
    assert run.save.store is not None
    return open_store(run.save.store, folder, run.save.bandwidth, patience)


def same_disk(run: Run, run_dir: RunDir) -> bool:
    """Whether the copies would be lost with the run: a directory on the disk the run directory is on."""
    where = address.parse(str(run.save.store), run_dir.folder())
    return where.kind == address.DIRECTORY and disk_of(Path(where.root)) == run_dir.path.stat().st_dev


def unmounted(run: Run, run_dir: RunDir) -> Path | None:
    """The folder where a store's disk is probably not mounted; None where nothing suggests that.

    That is an empty folder on this machine's own disk in which the store would be created. A relative path is in a
    folder of the user's own, and a folder that exists is meant, even where it is empty.
    """
    where, folder = address.parse(str(run.save.store), run_dir.folder()), Path(str(run.save.store)).expanduser()
    root = Path(where.root)
    if where.kind != address.DIRECTORY or not folder.is_absolute() or root.exists() or any(root.parent.iterdir()):
        return None
    own = {run_dir.path.stat().st_dev, Path(root.anchor).stat().st_dev}
    return root.parent if disk_of(root) in own and not root.parent.is_mount() else None


def _open(where: Address, patience: Patience, rate: Bandwidth) -> Store:
    if where.kind == address.DIRECTORY:
        return DirectoryStore(Path(where.root), patience, rate)
    if where.kind == "s3":
        return S3Store(where, patience, rate)
    if where.kind == "ssh":
        return SshStore(where, patience, rate)
    if rate.bytes_per_second:
        raise StokerError("STK655", store=where.text)
    return HubStore(where, patience)


def _open_plugin(plugin: Plugin, where: Address, patience: Patience, rate: Bandwidth) -> Store:
    store_class = plugin.load()
    missing = [f"`{name}`" for name in _members() if not hasattr(store_class, name)]
    if missing:
        raise plugin.broken(messages.text("plugin.lacks", missing=missing))
    try:
        opened: Store = store_class(where, patience, rate)
    except StokerError:
        raise
    except Fault as fault:
        raise Fault(f"{plugin.source}: {fault}") from fault
    except Exception as error:  # someone else's code may raise anything
        raise plugin.broken(f"{type(error).__name__}: {error}") from error
    return opened


def _members() -> list[str]:
    """What every class of stores has, by the protocol."""
    return sorted(name for name in {*Store.__annotations__, *vars(Store)} if not name.startswith("_"))
