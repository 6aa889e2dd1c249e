// Compiles a tree of Python sources, and the standard library, for the Python that will run them: Pyodide's own.
// Called by tools/calculator.py: node compile.mjs PYODIDE TREE TARGET. A browser then compiles nothing at its start.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [pyodide, tree, target] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const python = await loadPyodide();
for (const [name, root] of Object.entries({ tree, target })) {
  python.FS.mkdirTree(`/${name}`);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, `/${name}`);
}
python.runPython(`
import py_compile, sys, zipfile
from pathlib import Path

# What no planner reaches: other protocols, interactive tools, test tools.
UNUSED = set("""
    antigravity ctypes curses dbm doctest ensurepip ftplib idlelib imaplib mailbox multiprocessing pdb pydoc pydoc_data smtplib
    sqlite3 tkinter turtle turtledemo unittest venv wsgiref xml xmlrpc
""".split())
SOURCE, COMPILED = Path("/tmp/one.py"), Path("/tmp/one.pyc")
MODE = py_compile.PycInvalidationMode.UNCHECKED_HASH


def compiled(text, name):
    SOURCE.write_bytes(text)
    py_compile.compile(str(SOURCE), str(COMPILED), dfile=name, doraise=True, optimize=2, invalidation_mode=MODE)
    return COMPILED.read_bytes()


def unused(name):
    return name.partition("/")[0].removesuffix(".py") in UNUSED


def write(target, files):
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in files:
            if name.endswith(".py"):
                name, text = name + "c", compiled(text, name)
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)


library = zipfile.ZipFile("/lib/python%d%d.zip" % sys.version_info[:2])
names = [name for name in library.namelist() if not name.endswith("/") and not unused(name)]
write("/target/python_stdlib.zip", ((name, library.read(name)) for name in sorted(names)))
tree = Path("/tree")
files = sorted(file for file in tree.rglob("*") if file.is_file())
write("/target/stoker.zip", ((str(file.relative_to(tree)), file.read_bytes()) for file in files))
`);
