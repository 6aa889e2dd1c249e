"""`stoker report`: a run as a page to keep, `report.html` in its run directory."""

from stoker import messages
from stoker.errors import StokerError
from stoker.report import run_page
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console


def report(name: str, *, as_json: bool) -> None:
    """Write the page of a run, whatever its state, and print where it is."""
    run_dir = layout.find(name)
    with console.status() as status:
        status.show(messages.text("report.writing"))
        path = run_page.write(run_dir)
    if as_json:
        console.data_json({"path": str(path), **run_page.figures_of(run_dir)})
    else:
        console.data(str(path))


def keep(run_dir: RunDir) -> None:
    """Write the page at the end of a run that was watched; a page that cannot be written changes nothing else."""
    try:
        path = run_page.write(run_dir)
    except (OSError, StokerError) as error:
        console.talk("report.not_written", reason=error)
        return
    console.talk("report.kept", path=path)
