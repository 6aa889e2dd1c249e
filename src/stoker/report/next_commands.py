"""Commands that go on with a run: resume it, or use its model."""

import shlex
from pathlib import Path

from stoker.errors import StokerError
from stoker.rundir.layout import RunDir


def resume(run_dir: RunDir, folder: Path) -> str:
    """`stoker train run.yaml --set a=b`: what the run was started with, as it is typed in a folder."""
    manifest = run_dir.manifest()
    file = Path(manifest.folder) / manifest.run_file
    shown = file.relative_to(folder) if file.is_relative_to(folder) else file
    asked = [str(shown) if file.exists() else shown.stem]
    if origin := manifest.forked_from:
        asked = [
            str(origin.get("run", "")),
            "--fork",
            run_dir.name,
            *(["--weights"] if origin.get("weights_only") else []),
        ]
    overrides = manifest.overrides
    if manifest.name != run_dir.name:  # its folder was renamed
        overrides = [*(one for one in overrides if not one.startswith("name=")), f"name={run_dir.name}"]
    words = [word for override in overrides for word in ("--set", override)]
    return shlex.join(["stoker", "train", *asked, *words])


def scores(run_dir: RunDir) -> bool:
    """Whether the model of a run scores answers and writes none; of a run file that cannot be read: no."""
    try:
        return run_dir.run().train.scores
    except (StokerError, OSError):
        return False


def after_training(name: str, *, scores: bool) -> list[tuple[str, str]]:
    """What one does with a finished model: a key of the catalogue and the command; `scores`: it writes no words."""
    run = shlex.quote(name)
    if scores:
        return [("report.do_measure", f"stoker eval {run}")]
    return [
        ("report.do_chat", f"stoker chat {run}"),
        ("report.do_eval", f"stoker eval {run} --samples 3"),
        ("report.do_export", f"stoker export {run}"),
        ("report.do_gguf", f"stoker quantize {run} --gguf q8_0"),
        ("report.do_serve", f"stoker serve {run}"),
    ]
