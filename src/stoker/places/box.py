"""A box reached by ssh: sends what is missing, sets up an environment around the image's own torch, starts, looks.

On the box everything of ours stands below one folder, its base: env, wheels, inputs, runs. What runs there is the very
same `stoker`; it needs nothing of the laptop once it was started.
"""

import contextlib
import hashlib
import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from stoker import env, messages
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.mirrors import Network
from stoker.facts.prices import Offer
from stoker.hosts import autodl, mirror_probe, power, probe
from stoker.hosts.autodl import Tell, Woken
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.hosts.shell import Line, Ssh
from stoker.launch.plan_inputs import Elsewhere
from stoker.places import package as packages
from stoker.places import wheel
from stoker.places.package import Package
from stoker.places.place import Place
from stoker.rundir import artifacts, checkpoints, files, layout, pulled
from stoker.rundir.layout import RunDir

EXTRAS = "train,data,store"
_SETUP_SECONDS = 3600.0
_PREPARE_SECONDS = 24 * 3600.0
START_SECONDS = 60.0
LOOK_SECONDS = 0.5
_NEWEST = 3
"""Checkpoints that are tried when one is brought: a running training rotates them away meanwhile."""

SETUP = """
cd {base}
# One at a time: a line that was cut leaves its installation going on. The link names who holds it.
until ln -s $$ env.lock 2>/dev/null; do
  if kill -0 "$(readlink env.lock)" 2>/dev/null; then sleep 1; else rm -f env.lock; fi
done
trap 'rm -f env.lock' EXIT
# An environment for each Stoker: what runs here goes on with its own.
new=envs/{mark}
if [ -e $new/.stoker ] && $new/bin/python -c 'import stoker' 2>/dev/null; then ln -sfn $new env; exit 0; fi
rm -rf $new
mkdir -p envs
if [ ! -e env/.stoker ] || [ "$(cat env/.python)" != {python} ] || ! cp -al env/. $new 2>/dev/null; then
  rm -rf $new
  {python} -m venv --system-site-packages --without-pip $new
  lib=$($new/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The image's Python may stand in an environment of its own, whose packages a new one does not see.
  {python} -c 'import site; print("\\n".join(site.getsitepackages()))' > "$lib/image.pth"
  $new/bin/python -m pip --version >/dev/null 2>&1 || $new/bin/python -m ensurepip >/dev/null
fi
rm -f $new/.stoker $new/.python $new/constraints.txt
echo {python} > $new/.python
# The image's own torch stays, whatever version it is.
$new/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
  > $new/constraints.txt 2>/dev/null || : > $new/constraints.txt
$new/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall {wheel}
$new/bin/python -m pip install -q --disable-pip-version-check --constraint $new/constraints.txt {wheel}{extras}
touch $new/.stoker
ln -sfn $new env
"""
"""`env` leads to the newest; a hard-linked copy of it is the start of the next."""

_START = """
mkdir -p {logs} {folder}
rm -f {logs}/launch.code {logs}/launch.pid
cd {folder}
"""
_DETACHED = """
{python} - <<'END'
import subprocess
subprocess.Popen({command!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 start_new_session=True)
END
"""
_LAUNCH = 'echo $$ > "$0/launch.pid"; "$@" > "$0/launch.log" 2>&1 < /dev/null; echo $? > "$0/launch.code"'
_UNDER_WAY = """
logs={run}/logs
if [ -e $logs/launch.pid ] && [ ! -e $logs/launch.code ]; then
  pid=$(cat $logs/launch.pid)
  said=$(tr '\\0' ' ' < /proc/$pid/cmdline 2>/dev/null || ps -o command= -p $pid 2>/dev/null || true)
  case "$said" in *launch.code*) echo "launching $pid" ;; esac
fi
if [ -e {run}/manifest.json ]; then echo known; fi
"""
_END = """
children=$(ps -o pid= --ppid {pid} 2>/dev/null || pgrep -P {pid} || true)
kill -TERM $children {pid} 2>/dev/null || true
for i in $(seq 30); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.5; done
kill -KILL $children {pid} 2>/dev/null || true
"""
_STANDING = """
date -u +'now %Y-%m-%dT%H:%M:%S+00:00'
cd {run} 2>/dev/null || exit 0
for record in checkpoints/step-*/COMMIT.json; do if [ -e "$record" ]; then echo committed; break; fi; done
if [ -e data/report.json ]; then echo "report $(sha256sum < data/report.json)"; fi
"""
_SWEEP = """
import json, os
wanted, top = set(json.loads({names!r})), {top!r}
for parent, _, names in os.walk(top):
    for name in names:
        path = os.path.join(parent, name)
        if os.path.relpath(path, top) not in wanted and ".stoker-part" not in parent:
            os.remove(path)
"""


class Box(Place):
    """A machine of one's own or a rented one, with sshd and a Python."""

    def __init__(self, line: Line, host: Host, run: Run) -> None:
        self.line = line
        self.host = host
        self.name = host.name
        self._run = run
        self._seen: BoxFacts | None = None
        self.is_cheap = False
        """Whether it is on without its card: time there is cheap, and waited for."""
        self._woken: Woken | None = None
        self._mark = ""
        self._launched = ""
        self.node = ""
        """Its name among several machines that train together."""

    # ---- what is where

    @property
    def base(self) -> str:
        """The folder there below which everything of ours stands."""
        return self.host.base

    def run_folder(self, run: str) -> str:
        """A run's directory there."""
        return f"{self.base}/runs/{run}"

    def seen(self) -> BoxFacts:
        """What the machine is now; asked once."""
        if self._seen is None:
            self._seen = probe.look(self.line)
        return self._seen

    def facts(self) -> BoxFacts | None:
        """What the machine is when it trains: of one that is on without its card, with the one it was seen with."""
        seen, before = self.seen(), self.host.facts
        if self.is_cheap and before is not None and not seen.devices:
            return seen.model_copy(update={"devices": before.devices, "driver": before.driver})
        return seen

    def surroundings(self) -> Elsewhere:
        """Its network and its platform."""
        return Elsewhere(self.network(), platforms.find(self.seen().platform))

    @contextlib.contextmanager
    def awake(self, tell: Tell) -> Iterator[None]:
        """Reachable for what comes before training: where it is off, switched on by its provider's API, cheaply.

        What was switched on here is switched off again where nothing was started on it.
        """
        with contextlib.ExitStack() as stack:
            if power.has_api(self.host):
                self._woken = stack.enter_context(autodl.Woken(self.host, tell))
                self._reach(self._woken.host)
            runs_without = self._woken is not None and not self._woken.has_card
            self.is_cheap = runs_without or self._lacks_card()
            try:
                yield
            finally:
                self.is_cheap, self._woken = False, None

    def _with_card(self) -> None:
        """Switched on with its card by its provider's API; where that does not serve it, its owner has to."""
        if not self.is_cheap:
            return
        if self._woken is None or self._woken.has_card:
            raise StokerError("STK711", host=self.name)
        self._reach(self._woken.with_card())
        self.is_cheap = False

    def _lacks_card(self) -> bool:
        """Whether it has had a card and has none now."""
        return self.host.facts is not None and bool(self.host.facts.devices) and not self.seen().devices

    def _reach(self, host: Host) -> None:
        """It may have another address after each start."""
        if host != self.host:
            self.host, self.line = host, Ssh(host)

    def price(self) -> Offer | None:
        """What its provider bills for it, where that can be asked."""
        return autodl.price(self.host) if power.has_api(self.host) else None

    def balance(self) -> float | None:
        """What is left in the account it is billed to, where its provider says so."""
        return autodl.balance() if power.has_api(self.host) else None

    def network(self) -> Network:
        """The ways from there to hubs and packages that were chosen, and why."""
        return mirror_probe.of(self.seen(), self._run)

    # ---- before it runs

    def put(self, package: Package) -> None:
        """Send the run and Stoker, and make it ready there; what is there already is passed over."""
        sent = self._missing(package)
        self._require_room(package)
        with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
            made = wheel.build(Path(folder))
            digest = files.sha256(made)
            name = f"wheels/{digest[:16]}/{made.name}"
            self.line.send({**sent, name: made}, self.base)
        self._sweep(package)
        self._set_up(name, digest)
        if self.is_cheap and not package.prepared:
            self._prepare(package)

    def _missing(self, package: Package) -> dict[str, Path]:
        """What is to be sent: all but prepared data that stands there; a run under way and its data are not touched."""
        if (pid := self._launching(package.name)) is not None or self._is_training(package.name):
            raise StokerError("STK411", pid=pid or "-", name=package.name)
        said = self.line.run(_STANDING.format(run=quote(self.run_folder(package.name))))
        words = [line.split() for line in said.splitlines()]
        self._launched = next(line[1] for line in words if line[0] == "now")
        there = next((line[1] for line in words if line[0] == "report"), None)
        data = f"runs/{package.name}/data/"
        if there is None or f"{data}report.json" not in package.files:
            return package.files
        if there == package.digest(f"{data}report.json"):
            return {name: path for name, path in package.files.items() if not name.startswith(data)}
        if ["committed"] in words:
            raise StokerError("STK415", name=package.name)
        return package.files

    def _sweep(self, package: Package) -> None:
        """What an earlier launch sent and this one has not is no part of the run: a folder is read as it stands."""
        top = f"inputs/{package.name}"
        names = [name.removeprefix(f"{top}/") for name in package.files if name.startswith(f"{top}/")]
        program = _SWEEP.format(names=json.dumps(names), top=top)
        self.line.run(f"cd {quote(self.base)}\n{quote(self.host.python)} - <<'END'\n{program}\nEND")

    def _require_room(self, package: Package) -> None:
        """What is to be sent has room beside what was sent before."""
        sent = f"inputs/{quote(package.name)} runs/{quote(package.name)}/data"
        said = self.line.run(
            f"mkdir -p {quote(self.base)}; cd {quote(self.base)}\n"
            f"df -Pk . | tail -n 1; du -sk {sent} 2>/dev/null || true"
        )
        disk, *folders = said.splitlines()
        free = int(disk.split()[3]) * 1024
        there = sum(int(line.split()[0]) for line in folders) * 1024
        if package.total_bytes - there > free:
            fields = {"needed": f"{package.total_bytes / 1e6:,.0f} MB", "free": f"{free / 1e6:,.0f} MB"}
            raise StokerError("STK709", host=self.name, folder=self.base, **fields)

    def _set_up(self, wheel_name: str, digest: str) -> None:
        if not self.host.python:
            raise StokerError("STK706", host=self.name)
        self._mark = hashlib.sha256(f"{digest} {self.host.python} {EXTRAS}".encode()).hexdigest()[:16]
        self.line.run(
            self.network().exports()
            + SETUP.format(
                base=quote(self.base),
                mark=self._mark,
                python=quote(self.host.python),
                wheel=quote(wheel_name),
                extras=f"'[{EXTRAS}]'",
            ),
            secrets=self.environment(),
            seconds=_SETUP_SECONDS,
        )

    def environment(self) -> dict[str, str]:
        """What every command of ours has in its environment there."""
        return {
            env.RUNS.name: f"{self.base}/runs",
            env.LANG.name: messages.language(),
            **({env.NODE.name: self.node} if self.node else {}),
        }

    def start(self, package: Package) -> None:
        """Start `stoker train` there in a session of its own, and wait a little for what it says."""
        self.launch(package, package.words)
        self._await_start(package.name)
        self.keep()

    def launch(self, package: Package, words: Sequence[str]) -> None:
        """Start `stoker WORDS` there in a session of its own."""
        self._with_card()
        logs = f"{self.run_folder(package.name)}/logs"
        python = [f"{self.base}/envs/{self._mark}/bin/python", "-X", "utf8"]  # its own, whatever is installed later
        command = ["sh", "-c", _LAUNCH, logs, *python, "-m", "stoker", *words]
        lines = [
            _START.format(logs=quote(logs), folder=quote(f"{self.base}/{package.folder}")),
            self.network().exports(),
            f"export {env.LAUNCHED.name}={self._launched}",
            self._shown(package.name),
            self._detached(command),
        ]
        self.line.run("\n".join(lines), secrets={**self.environment(), **self._secrets()})

    def keep(self) -> None:
        """It was started: where it was switched on for that, it stays on."""
        if self._woken is not None:
            self._woken.keep()

    def is_launched(self, run: str) -> bool:
        """Whether what was launched there last still runs."""
        return self._launching(run) is not None

    def end_launch(self, run: str) -> None:
        """End what an earlier launch left waiting there."""
        if (pid := self._launching(run)) is not None:
            self.line.run(_END.format(pid=pid))

    def write(self, path: str, text: str) -> None:
        """A file there that nobody else may read."""
        folder = path.rpartition("/")[0]
        self.line.run(f"umask 077; mkdir -p {quote(folder)}; cat > {quote(path)} <<'END'\n{text}END")

    def _shown(self, run: str) -> str:
        """Lines that let the platform's own TensorBoard show the run, where it has one."""
        platform = platforms.find(self.host.platform)
        if platform is None or platform.tensorboard is None:
            return ""
        folder = platform.tensorboard.folder
        source = f"{self.run_folder(run)}/logs/tensorboard"
        return f"mkdir -p {quote(source)} {quote(folder)} && ln -sfn {quote(source)} {quote(f'{folder}/{run}')} || true"

    def _await_start(self, run: str) -> None:
        """Mistakes show in the first seconds; what takes longer, such as preparing data, goes on without us."""
        until = time.monotonic() + START_SECONDS
        while not self.has_launched(run) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def has_launched(self, run: str) -> bool:
        """Whether what was launched there is over; an error with its words where it failed."""
        logs = quote(f"{self.run_folder(run)}/logs")
        said = self.line.run(f"cat {logs}/launch.code 2>/dev/null || echo -; cat {logs}/launch.log 2>/dev/null || true")
        code, _, words = said.partition("\n")
        if code.strip() not in ("0", "-"):
            raise StokerError("STK708", words.strip(), name=run, host=self.name)
        return code.strip() == "0"

    # ---- while it runs

    def status(self, run: str) -> dict[str, Any] | None:
        """How the run stands there."""
        there = self._under_way(run)
        if "launching" in there:
            return {"name": run, "state": "running", "step": 0}
        return dict(json.loads(self.say("watch", run, "--once", "--json"))) if "known" in there else None

    def _under_way(self, run: str) -> list[str]:
        return self.line.run(_UNDER_WAY.format(run=quote(self.run_folder(run)))).split()

    def _launching(self, run: str) -> int | None:
        """The process that prepares or starts the run there."""
        there = self._under_way(run)
        return int(there[there.index("launching") + 1]) if "launching" in there else None

    def _is_training(self, run: str) -> bool:
        """Whether a supervisor or a trainer holds its lock there."""
        folder = quote(self.run_folder(run))
        ask = (
            "import fcntl, sys\n"
            "for name in sys.argv[1:]:\n"
            "    try:\n"
            "        fcntl.lockf(open(name, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "    except FileNotFoundError:\n"
            "        continue\n"
            "    except OSError:\n"
            "        print('held')\n"
        )
        words = f"{quote(self.host.python)} -c {quote(ask)} {folder}/supervisor.lock {folder}/train.lock"
        return "held" in self.line.run(words)

    def say(self, *words: str, seconds: float = 60) -> str:
        """What `stoker WORDS` prints there."""
        return self.line.run(
            shlex.join(self._python("-m", "stoker", *words)), secrets=self.environment(), seconds=seconds
        )

    def follow(self, words: Sequence[str]) -> int:
        """`stoker WORDS` there, with the user's terminal."""
        exports = " ".join(f"{name}={quote(value)}" for name, value in self.environment().items())
        return self.line.talk(f"{exports} exec {shlex.join(self._python('-m', 'stoker', *words))}")

    def stop(self, run: str) -> None:
        """Ask the run to commit and end."""
        self.follow(["stop", run])

    def _prepare(self, package: Package) -> None:
        """Prepare the data there, before its card is paid for."""
        words = [word for word in package.words[1:] if word != "--detach"]
        command = shlex.join(self._python("-m", "stoker", "prepare", *words))
        script = f"{self.network().exports()}\ncd {quote(f'{self.base}/{package.folder}')}\n{command}"
        self.line.run(script, secrets={**self.environment(), **self._secrets()}, seconds=_PREPARE_SECONDS)

    def stop_meter(self) -> None:
        """The provider's API, or the platform's own verb that can be undone."""
        power.off(self.host)

    def settle(self, run: str) -> None:
        """Have a finished run's last copy and the meter seen to, where whoever did so went with a reboot."""
        if platforms.find(self.host.platform) is None:
            return
        script = self._detached(self._python("-m", "stoker", "settle", self.run_folder(run)))
        network = mirror_probe.of(self.host.facts or self.seen(), self._run)  # as it was seen last: quick
        self.line.run(f"{network.exports()}\n{script}", secrets={**self.environment(), **self._secrets()})

    def _secrets(self) -> dict[str, str]:
        """What this run needs there of the user's secrets."""
        return packages.secrets(self._run, self.host.platform)

    # ---- what it made

    def get(self, run: str) -> RunDir:
        """Bring newest checkpoint, finished model and records; every file is read back and told to the box."""
        run_dir = RunDir(layout.runs_folder() / run)
        run_dir.path.mkdir(parents=True, exist_ok=True)
        there = self._there(run)
        for name in there["records"]:
            self._bring_file(run, name, run_dir.path / name)
        self._bring_checkpoint(run, run_dir, there["steps"])
        if there["final"]:
            self._bring_final(run, run_dir)
        record = pulled.standing(run_dir)
        target = f"{self.run_folder(run)}/{pulled.NAME}"
        self.line.run(
            f"cat > {quote(target)}.part <<'END'\n{pulled.text(record)}\nEND\nmv {quote(target)}.part {quote(target)}"
        )
        with contextlib.suppress(StokerError):  # it may be on its way off already
            self.settle(run)
        return run_dir

    def _there(self, run: str) -> dict[str, Any]:
        folder = self.run_folder(run)
        said = self.line.run(
            f"cd {quote(folder)}; ls -d checkpoints/step-*/COMMIT.json artifacts/final "
            "events.jsonl plan.json supervisor.json manifest.json run.yaml 2>/dev/null || true"
        ).split()
        steps = sorted(int(name.split("/")[1][5:]) for name in said if name.startswith("checkpoints/"))
        records = [name for name in said if "/" not in name]
        return {"steps": steps, "final": "artifacts/final" in said, "records": records}

    def _bring_file(self, run: str, name: str, target: Path) -> None:
        if name in ("manifest.json", "run.yaml") and target.exists():
            return  # where its relative paths start is this machine's own matter
        files.write_text(target, self.line.run(f"cat {quote(self.run_folder(run))}/{name}", seconds=600))

    def _bring_checkpoint(self, run: str, run_dir: RunDir, steps: list[int]) -> None:
        """The newest; one that a running training has rotated away by then gives way to its elder."""
        for step in reversed(steps[-_NEWEST:]):
            if any(
                one.step == step and not checkpoints.verify(one) for one in checkpoints.committed(run_dir.checkpoints)
            ):
                return
            name = checkpoints.folder_name(step)
            run_dir.checkpoints.mkdir(exist_ok=True)
            aside = run_dir.checkpoints / f".{name}.pull.tmp"
            source = f"{self.run_folder(run)}/checkpoints/{name}"
            try:
                self.line.fetch(source, aside)
                checkpoints.adopt(run_dir.checkpoints, aside)
            except (StokerError, OSError) as error:
                if "there" in self.line.run(f"if [ -e {quote(source)}/COMMIT.json ]; then echo there; fi"):
                    raise StokerError("STK707", host=self.name, reason=error) from error
                shutil.rmtree(aside, ignore_errors=True)
                continue
            return
        if steps:
            raise StokerError("STK707", host=self.name, reason=checkpoints.folder_name(steps[-1]))

    def _bring_final(self, run: str, run_dir: RunDir) -> None:
        source = f"{self.run_folder(run)}/artifacts/final"
        said = self.line.run(f"cd {quote(source)}; find . -type f -exec sha256sum {{}} +", seconds=600)
        wanted = {line[66:].removeprefix("./"): line[:64] for line in said.splitlines() if line}
        if run_dir.final.is_dir() and _digests(run_dir.final) == wanted:
            return
        aside = artifacts.aside(run_dir, "final")
        self.line.fetch(source, aside)
        if _digests(aside) != wanted:
            shutil.rmtree(aside, ignore_errors=True)
            raise StokerError("STK707", host=self.name, reason="artifacts/final")
        artifacts.accept(run_dir, "final")

    # ---- small things

    def _detached(self, command: list[str]) -> str:
        """Lines that start a command in a session of its own: `setsid` is not everywhere."""
        return _DETACHED.format(python=quote(f"{self.base}/env/bin/python"), command=command)

    def _python(self, *words: str) -> list[str]:
        return [f"{self.base}/env/bin/python", "-X", "utf8", *words]


def _digests(folder: Path) -> Mapping[str, str]:
    return {name: entry.sha256 for name, entry in artifacts.entries_of(folder).items()}
