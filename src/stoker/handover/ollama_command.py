"""`stoker export --ollama`: a folder that `ollama create` takes, made of a GGUF file that passed the parity gate."""

from pathlib import Path

from stoker import messages
from stoker.api.figures import size
from stoker.artifacts import exclusive, ollama, quantized
from stoker.artifacts.ollama import OllamaFolder
from stoker.errors import StokerError
from stoker.handover import artifact_commands, model_card, writing_models
from stoker.handover.model_card import CardKind
from stoker.launch import training
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir
from stoker.terminal import console

_TEMPLATES = {"go": "ollama.template_go", "gguf": "ollama.template_gguf", "text": "ollama.template_text"}


def export(name: str, folder: str | None, gguf: str, *, as_json: bool) -> None:
    """Make the folder; the GGUF file is made first where there is none."""
    if gguf not in artifact_commands.GGUF:
        problem = messages.text("usage.bad", name="--gguf", value=gguf)
        raise StokerError("STK506", problem=problem, command="stoker export")
    run_dir = writing_models.find(name, "stoker export")
    target = artifact_commands.checked_target(folder) if folder else None
    kind = f"gguf-{gguf}"
    quantized.require(kind, run_dir)
    with exclusive.making(run_dir):
        training.require_idle(run_dir)
        made = _make(run_dir, kind)
        figures = artifacts.parity(run_dir)[ollama.NAME]
        path = artifacts.accept(run_dir, ollama.NAME)
        if target:
            artifact_commands.copy(path, target)
            path = target
    _say(run_dir, made, path)
    if as_json:
        shown = {"path": str(path), "gguf": made.gguf, "template": made.template, "system": made.system}
        console.data_json({**shown, "parity": figures})
    else:
        console.data(str(path))


def _make(run_dir: RunDir, kind: str) -> OllamaFolder:
    """The folder with its card, to be accepted."""
    source = artifact_commands.whole_model(run_dir)
    file = ollama.ready_gguf(run_dir, kind) or _make_gguf(run_dir, kind, source)
    with console.status() as status:
        status.show(messages.text("ollama.working"))
        made = ollama.make(run_dir, kind, source, file)
    dtype = kind.removeprefix("gguf-").upper()
    exported = {"dtype": dtype, "bytes": file.stat().st_size, "licence": made.licence}
    figures = artifacts.parity(run_dir)[ollama.NAME]
    card = model_card.text(run_dir, exported, figures, CardKind("gguf", "card.use_ollama"))
    files.write_text(made.path / model_card.FILE_NAME, card)
    return made


def _make_gguf(run_dir: RunDir, kind: str, source: Path) -> Path:
    made = artifact_commands.make_quantized(run_dir, kind, source)
    console.talk("quantize.done", **artifact_commands.quantized_figures(made))
    return next(Path(made["path"]).glob("*.gguf"))


def _say(run_dir: RunDir, made: OllamaFolder, path: Path) -> None:
    console.talk(_TEMPLATES[made.template], conversations=made.conversations)
    if made.system:
        console.talk("ollama.system", system=made.system)
    for note in made.notes:
        console.talk(note)
    console.talk("ollama.done", name=run_dir.name, path=path, size=size(files.folder_bytes(path)))
    console.talk("ollama.untried")
