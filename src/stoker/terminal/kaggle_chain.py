"""A run on Kaggle as it is told to people: its segments as they are pushed and as they end."""

from collections.abc import Sequence

from stoker import messages
from stoker.errors import EXIT_STOPPED
from stoker.places.kernels import Kernel, Link
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console
from stoker.terminal.progress import STATES

_ENDED = {"stopped": "kaggle.stopped", "done": "kaggle.done", "failed": "kaggle.failed", "lost": "kaggle.lost"}


def follow(kernel: Kernel, name: str) -> int:
    """Go on with the chain until the run is done and brought home; Ctrl-C leaves, the segment goes on."""
    try:
        with console.status() as status:
            status.show(messages.text("remote.looking", host=kernel.name))
            code = kernel.finish(name, _tell)
    except KeyboardInterrupt:
        console.talk("kaggle.left", name=name)
        return EXIT_STOPPED
    run_dir = RunDir(layout.runs_folder() / name)
    if code == EXIT_STOPPED:
        console.talk("kaggle.waiting")
    else:
        console.talk("remote.pulled", name=name, path=run_dir.final)
    return code


def watch(kernel: Kernel, name: str, words: Sequence[str]) -> int:
    """`stoker watch`: the chain, or with `--once` how it stands now."""
    if "--once" not in words and "--json" not in words:
        return follow(kernel, name)
    found = kernel.status(name)
    if "--json" in words:
        console.data_json(found)
    elif found is not None:
        fields = {"name": name, "state": messages.text(STATES[found["state"]]), "step": found["step"]}
        console.data(messages.text("kaggle.once", **fields, total=found["total_steps"], kernel=found["kernel"]))
    return 0


def _tell(link: Link) -> None:
    for one in link.rejected:
        console.talk("kaggle.rejected", number=link.number, path=one["path"], reason=one["reason"])
    fields = {"number": link.number, "kernel": link.kernel, "step": link.step, "total": link.total_steps}
    console.talk(_ENDED.get(link.state, "kaggle.pushed"), **fields)
