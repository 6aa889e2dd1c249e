"""The generated notebook, cell by cell, in an emulated Colab; never tried on Colab itself.

`google.colab` is a simulation of a few lines; unpacking, installing, training and the store on Drive are real.
"""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import notebook_case
import notebook_machine
import pytest
from notebook_machine import Mount

TOOLS = Path(os.environ.get("STOKER_TOOLS", Path.home() / ".stoker" / "tools"))
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs namespaces"),
]

_COLAB = """
class drive:
    @staticmethod
    def mount(path):
        import pathlib
        pathlib.Path(path).mkdir(parents=True)
        pathlib.Path(path, "MyDrive").symlink_to("/drive")

    @staticmethod
    def flush_and_unmount():
        print("drive flushed")


class files:
    @staticmethod
    def download(path):
        import pathlib
        assert pathlib.Path(path).is_file(), path
        print("downloaded", path)


class userdata:
    @staticmethod
    def get(name):
        return {"HF_TOKEN": "canary-from-colab"}[name]
"""

_RUN_ALL = """
import json, sys
book = json.load(open({book!r}))
names = {{"__name__": "__main__"}}
for cell in book["cells"]:
    print("=====", cell["id"], flush=True)
    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    sys.stdout.flush()
"""


def _session(folder: Path, bundled: Path, drive: Path, steps: int | None = None) -> str:
    """Upload both files into a fresh session and run all cells; what they print."""
    content = folder / "content"
    content.mkdir(parents=True)
    for name in ("tiny.zip", "tiny.ipynb"):
        (content / name).write_bytes((bundled / name).read_bytes())
    packages = notebook_machine.image(folder, steps)
    (packages / "google" / "colab").mkdir(parents=True)
    (packages / "google" / "colab" / "__init__.py").write_text(_COLAB)
    script = _RUN_ALL.format(book="/content/tiny.ipynb")
    mounts = [Mount(content, "/content"), Mount(drive, "/drive")]
    process = notebook_machine.start(folder, script, "/content", mounts, {"COLAB_RELEASE_TAG": "release-colab"})
    assert notebook_machine.wait(process, 300) == 0, (folder / "log").read_text()
    return (folder / "log").read_text()


def test_a_session_that_ends_is_gone_on_with_from_drive_and_gives_the_same_weights(tmp_path: Path) -> None:
    laptop, drive = tmp_path / "laptop", tmp_path / "drive"
    drive.mkdir()
    notebook_case.write(laptop, store="/content/drive/MyDrive/stoker")
    made = notebook_case.stoker(laptop, "bundle", "tiny.yaml", "--json")
    assert made.returncode == 0, made.stderr
    _validate(Path(json.loads(made.stdout)["notebook"]), laptop)

    first = _session(tmp_path / "one", laptop, drive, steps=25)
    assert not (tmp_path / "one" / "content" / "stoker" / "runs" / "tiny" / "artifacts" / "final").exists(), first
    assert list((drive / "stoker" / "tiny" / "checkpoints").iterdir())
    second = _session(tmp_path / "two", laptop, drive)
    run = tmp_path / "two" / "content" / "stoker" / "runs" / "tiny"
    assert notebook_case.weights_sha(run) == notebook_case.whole_sha(), second
    assert "drive flushed" in second

    # What a user takes home: the zip unpacked into the folder of runs is a run.
    home = tmp_path / "home"
    with zipfile.ZipFile(tmp_path / "two" / "content" / "stoker" / "tiny-result.zip") as archive:
        archive.extractall(home / "runs")
    listed = json.loads(notebook_case.stoker(home, "runs", "--json").stdout)
    assert [(one["name"], one["state"], one["step"]) for one in listed] == [("tiny", "done", notebook_case.STEPS)]
    assert notebook_case.weights_sha(home / "runs" / "tiny") == notebook_case.whole_sha()


def _validate(book: Path, folder: Path) -> None:
    """By nbformat's own schema; it comes with Kaggle's command line."""
    program = "import nbformat, sys; nbformat.validate(nbformat.read(sys.argv[1], as_version=4))"
    python = TOOLS / "kaggle" / "bin" / "python"
    subprocess.run([str(python), "-W", "error", "-c", program, str(folder / book)], check=True)
