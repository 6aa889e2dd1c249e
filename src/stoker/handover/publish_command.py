"""`stoker publish`: the finished model with its card in a repository of the Hugging Face hub or ModelScope."""

import json
from contextlib import closing
from typing import Any

from stoker import messages
from stoker.api.figures import size
from stoker.artifacts import exclusive, model_hubs, publishing
from stoker.artifacts.model_hubs import ModelHub, Repository
from stoker.artifacts.publishing import Staged
from stoker.errors import StokerError
from stoker.handover import artifact_commands, model_card, writing_models
from stoker.handover.model_card import CardKind
from stoker.launch import programs
from stoker.rundir import artifacts, events, files
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.terminal import console

WHAT = ("export", "adapter")
_ADAPTER_CARD = CardKind("peft", "card.use_adapter")
_YES = ("y", "yes", "是")


def publish(name: str, to: str, what: str | None, *, public: bool, yes: bool, as_json: bool) -> None:
    """Check the address, the token and the name there; then make, show, ask, send and compare."""
    run_dir = writing_models.find(name, "stoker publish")
    adapter = artifact_commands.has_adapter(run_dir)
    if what not in (None, *WHAT) or (what == "adapter" and not adapter):
        problem = messages.text("usage.bad", name="--artifact", value=what)
        raise StokerError("STK506", problem=problem, command="stoker publish")
    hub = model_hubs.open_hub(to, run_dir.store_folder / "modelscope-upload")
    hub.check_token()
    there = hub.look()
    if there is not None and not there.private and not public:
        raise StokerError("STK534", address=hub.address)
    with exclusive.publishing(run_dir):
        try:
            with exclusive.making(run_dir):
                staged = _staged(run_dir, what or "export")
            private = _send(hub, there, staged, run_dir, public=public, yes=yes).private
        finally:
            publishing.discard(run_dir)
    with closing(EventLog(run_dir.events_file)) as log:
        log.write("published", to=hub.address, what=what or "export", private=private, bytes=staged.total_bytes)
    shown = {"address": hub.address, "url": hub.page, "private": private, "what": what or "export"}
    if as_json:
        console.data_json({**shown, "files": staged.names, "bytes": staged.total_bytes, "left_out": staged.left_out})
        return
    console.talk("publish.done", name=run_dir.name, address=hub.address)
    console.data(hub.page)


def _staged(run_dir: RunDir, what: str) -> Staged:
    """The files that are sent, searched, with a card made now."""
    base = model_card.hub_id(run_dir)
    if what == "adapter":
        staged = publishing.stage(run_dir, run_dir.final, base)
        files.write_text(staged.folder / publishing.CARD, _adapter_card(run_dir))
    else:
        source = artifact_commands.exported(run_dir)
        staged = publishing.stage(run_dir, source, base)
        files.write_text(staged.folder / publishing.CARD, _export_card(run_dir))
    names = sorted(path.name for path in staged.folder.iterdir())
    staged = Staged(staged.folder, names, files.folder_bytes(staged.folder), staged.left_out)
    publishing.search(run_dir, staged)
    return staged


def _export_card(run_dir: RunDir) -> str:
    return model_card.text(run_dir, _exported(run_dir)[-1], artifacts.parity(run_dir)["export"])


def _adapter_card(run_dir: RunDir) -> str:
    weights = run_dir.final / "adapter_model.safetensors"
    said = _exported(run_dir)
    licence = said[-1]["licence"] if said else _licence(run_dir)
    exported = {"dtype": "adapter", "bytes": weights.stat().st_size, "licence": licence}
    merged = artifacts.parity(run_dir)["merged"] if artifact_commands.merged(run_dir) else None
    return model_card.text(run_dir, exported, merged, _ADAPTER_CARD)


def _exported(run_dir: RunDir) -> list[dict[str, Any]]:
    return [event for event in events.skim(run_dir.events_file) if event["event"] == "exported"]


def _licence(run_dir: RunDir) -> dict[str, Any]:
    """The base model's licence, asked of the engine, which finds the base."""
    said: dict[str, Any] = json.loads(programs.ask_engine("licence", run_dir))
    return said


def _send(
    hub: ModelHub, there: Repository | None, staged: Staged, run_dir: RunDir, *, public: bool, yes: bool
) -> Repository:
    """Show, ask, send; what the hub says is there afterwards."""
    if there is not None and (foreign := there.foreign(staged.names)):
        raise StokerError("STK533", address=hub.address, files=foreign[:3])
    missing = model_hubs.missing(there, staged.folder, staged.names)
    _show(hub, there, staged, missing, run_dir, public=public)
    if not yes and not _agreed():
        console.talk("publish.not_sent")
        console.declined()
    if there is None:
        hub.create(private=not public)
    with console.status() as status:

        def on_file(name: str) -> None:
            status.show(messages.text("publish.sending", file=name))

        if missing:
            hub.send(staged.folder, missing, on_file)
        status.show(messages.text("publish.checking"))
        return model_hubs.verify(hub, staged.folder, staged.names)


def _show(
    hub: ModelHub, there: Repository | None, staged: Staged, missing: list[str], run_dir: RunDir, *, public: bool
) -> None:
    """What goes where, for whom to see, and under which licence."""
    what = "publish.adapter" if "adapter_config.json" in staged.names else "publish.whole"
    fields = {"what": messages.text(what), "size": size(staged.total_bytes), "address": hub.address}
    private = there.private if there else not public
    console.talk("publish.private" if private else "publish.public", name=run_dir.name, **fields)
    if private and public:
        console.talk("publish.stays_private", page=hub.page)
    console.talk("publish.files", files=staged.names)
    if staged.left_out:
        console.talk("publish.left_out", files=staged.left_out)
    card = (staged.folder / publishing.CARD).read_text(encoding="utf-8")
    console.talk("publish.licence", licence=_stated_licence(card))
    if there is not None and (same := [name for name in staged.names if name in there.files and name in missing]):
        console.talk("publish.replaced", files=same)
    if there is not None and (kept := len(staged.names) - len(missing)):
        console.talk("publish.resumed", kept=kept)


def _stated_licence(card: str) -> str:
    line = next((line for line in card.splitlines() if line.startswith("license: ")), "license: unknown")
    stated = line.partition(": ")[2]
    return messages.text("publish.licence_unknown") if stated == "unknown" else stated


def _agreed() -> bool:
    console.talk("publish.ask")
    return console.ask().strip().lower() in _YES
