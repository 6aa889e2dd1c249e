"""`stoker merge`, `export`, `quantize`: artifacts of a finished run, accepted after the parity gate."""

import filecmp
import shutil
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.api.figures import size
from stoker.artifacts import exclusive, ollama, publishing, quantized
from stoker.errors import StokerError
from stoker.handover import model_card, parity_lines, writing_models
from stoker.launch import programs, training
from stoker.rundir import artifacts, events, files, layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console

_MERGED = "merged"
_EXPORT = "export"
GGUF = ("q8_0", "q4_k_m")


def merge(name: str, *, as_json: bool) -> None:
    """Merge a finished run's adapter; a model tuned in full needs no merge."""
    run_dir = writing_models.find(name, "stoker merge")
    with exclusive.making(run_dir):
        if has_adapter(run_dir):
            path = make_merged(run_dir)
        else:
            console.talk("merge.whole", name=run_dir.name)
            path = run_dir.final
    if as_json:
        console.data_json({"path": str(path), "parity": artifacts.parity(run_dir).get(_MERGED)})
    else:
        console.data(str(path))


def has_adapter(run_dir: RunDir) -> bool:
    """Whether the finished model is an adapter; raises where there is no finished model."""
    if not run_dir.final.is_dir():
        raise layout.unfinished(run_dir)
    return (run_dir.final / "adapter_config.json").is_file()


def merged(run_dir: RunDir) -> Path | None:
    """The accepted merged model of this adapter, if there is one."""
    made = [event for event in events.skim(run_dir.events_file) if event["event"] == "merged"]
    adapter = run_dir.final / "adapter_model.safetensors"
    same = bool(made) and made[-1]["adapter"] == files.sha256(adapter)
    return artifacts.folder(run_dir, _MERGED) if same and artifacts.is_accepted(run_dir, _MERGED) else None


def make_merged(run_dir: RunDir) -> Path:
    """Merge, compare, accept; the caller is `exclusive.making`."""
    training.require_idle(run_dir)
    made: dict[str, Any] = {}
    with console.status() as status:
        status.show(messages.text("merge.starting"))

        def take(event: dict[str, Any]) -> None:
            if event["event"] == "merging":
                done, total = (size(event[key]) for key in ("done_bytes", "total_bytes"))
                status.show(messages.text("merge.progress", done=done, total=total))
            elif event["event"] == "merged":
                made.update(event)

        programs.run_engine("merge", run_dir, take)
    parity_lines.compare(run_dir, _MERGED)
    path = artifacts.accept(run_dir, _MERGED)
    if made["untied"]:
        console.talk("merge.untied")
    if not made["base_verified"]:
        console.talk("merge.unverified")
    figures = {key: made[key] for key in ("adapted", "tensors", "dtype")}
    console.talk("merge.done", **figures, size=size(made["bytes"]), path=path)
    return path


def export(name: str, folder: str | None, *, as_json: bool) -> None:
    """Export a finished run; an adapter is merged first."""
    run_dir = writing_models.find(name, "stoker export")
    adapter = has_adapter(run_dir)
    target = checked_target(folder) if folder else None
    with exclusive.making(run_dir):
        training.require_idle(run_dir)
        if adapter and merged(run_dir) is None:
            make_merged(run_dir)
        path = _make_export(run_dir, adapter=adapter)
        if target:
            copy(path, target)
            path = target
    console.talk("export.done", name=run_dir.name, path=path, size=size(files.folder_bytes(path)))
    if as_json:
        console.data_json({"path": str(path), "parity": artifacts.parity(run_dir)[_EXPORT]})
    else:
        console.data(str(path))


def exported(run_dir: RunDir) -> Path:
    """The accepted export of what the last training ended with; made where there is none. As `make_merged`."""
    adapter, path = has_adapter(run_dir), artifacts.folder(run_dir, _EXPORT)
    made = False
    for event in events.skim(run_dir.events_file):
        made = event["event"] == "exported" or (made and event["event"] != "end")
    if made and artifacts.is_accepted(run_dir, _EXPORT) and model_card.is_ours(path):
        return path
    training.require_idle(run_dir)
    if adapter and merged(run_dir) is None:
        make_merged(run_dir)
    return _make_export(run_dir, adapter=adapter)


def checked_target(folder: str) -> Path:
    """The whole path of a folder that is new, empty or an earlier export: other files are never overwritten."""
    target = Path(folder).resolve()
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or model_card.is_ours(target))):
        raise StokerError("STK616", folder=folder)
    return target


def _make_export(run_dir: RunDir, *, adapter: bool) -> Path:
    """Collect the files, compare, write the model card, accept."""
    made: dict[str, Any] = {}

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "exported":
            made.update(event)

    programs.run_engine("export", run_dir, take)
    aside = artifacts.aside(run_dir, _EXPORT)
    if adapter and _same_files(artifacts.folder(run_dir, _MERGED), aside):
        # The same bytes were compared already.
        figures = artifacts.parity(run_dir)[_MERGED]
        artifacts.record_parity(run_dir, _EXPORT, figures | {"same_files_as": _MERGED})
        parity_lines.say_same_files(figures, _MERGED)
    else:
        parity_lines.compare(run_dir, _EXPORT)
    files.write_text(aside / model_card.FILE_NAME, model_card.text(run_dir, made, artifacts.parity(run_dir)[_EXPORT]))
    return artifacts.accept(run_dir, _EXPORT)


def _same_files(one: Path, other: Path) -> bool:
    names = [path.relative_to(one) for path in files.below(one)]
    return names == [path.relative_to(other) for path in files.below(other)] and all(
        (one / name).samefile(other / name) or filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def copy(source: Path, target: Path) -> None:
    """Copy to a folder beside the target, then move the files into it. Of what was there, files of the user stay.

    Args:
        source: An accepted artifact.
        target: Of `checked_target`: `.` and `..` have no name to write another folder beside.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    files.require_room(target.parent, files.folder_bytes(source))
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside)
    for path in files.below(aside):
        files.sync_file(path)
    target.mkdir(exist_ok=True)
    for earlier in _exported_files(target):
        earlier.unlink()
    for path in files.below(aside):
        place = target / path.relative_to(aside)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
    shutil.rmtree(aside)
    files.sync_folder(target)


def _exported_files(folder: Path) -> list[Path]:
    """What an earlier export, of any run, wrote into a folder; beside another model a template of it would be read."""
    for_ollama = ollama.written_files(folder)
    found = [path for path in folder.iterdir() if path.name in for_ollama or publishing.is_of_a_model(path.name)]
    return [path for path in found if not path.is_dir()]


def quantize(name: str, gguf: str | None, *, int8: bool, gptq: bool, fp8: bool, as_json: bool) -> None:
    """Make one quantised model; an adapter is merged first."""
    asked = {"int8": int8, "gptq": gptq, "fp8": fp8, f"gguf-{gguf}": gguf is not None}
    kinds = [kind for kind, wanted in asked.items() if wanted]
    if len(kinds) != 1 or gguf not in (None, *GGUF):
        raise StokerError("STK630")
    run_dir = writing_models.find(name, "stoker quantize")
    quantized.require(kinds[0], run_dir)
    with exclusive.making(run_dir):
        made = make_quantized(run_dir, kinds[0], whole_model(run_dir))
    if as_json:
        console.data_json(made)
    else:
        console.data(messages.text("quantize.done", **quantized_figures(made)))


def whole_model(run_dir: RunDir) -> Path:
    """The folder of the finished model; an adapter is merged first. As `make_merged`."""
    return (merged(run_dir) or make_merged(run_dir)) if has_adapter(run_dir) else run_dir.final


def make_quantized(run_dir: RunDir, kind: str, source: Path) -> dict[str, Any]:
    """Quantise, compare, accept. As `make_merged`."""
    with console.status() as status:
        status.show(messages.text("quantize.working", kind=kind))

        def take(event: dict[str, Any]) -> None:
            if event["event"] == "parity":
                status.show(messages.text("parity.progress", done=event["done"], of=event["of"]))

        return quantized.make(run_dir, kind, source, take)


def quantized_figures(made: dict[str, Any]) -> dict[str, str]:
    """The fields of `quantize.done`."""
    change = made["perplexity_change"]
    return {
        "path": made["path"],
        "size": _size(made["bytes"]),
        "source": _size(made["source_bytes"]),
        "agreement": f"{made['agreement']:.1%}",
        "change": messages.text("parity.unmeasured") if change is None else f"{change:+.2%}",
    }


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.2f} MB"
