"""A box: a machine reached by ssh. Sends a run, installs Stoker there (`box_setup.py`), starts and follows it.

On the box everything is in one folder, its base: envs, wheels, inputs, runs. The same `stoker` runs there; once it was
started it does not need this machine.
"""

import contextlib
import json
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from stoker import env, messages
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.mirrors import Network
from stoker.facts.prices import Offer
from stoker.hosts import autodl, box_environment, mirror_probe, power, probe, wheel
from stoker.hosts.autodl import Woken
from stoker.hosts.box_environment import BoxEnvironment
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.hosts.shell import Shell, Ssh
from stoker.launch.plan_inputs import Elsewhere
from stoker.messages import MessageCallback
from stoker.places import box_pull, box_scripts, box_setup
from stoker.places import package as packages
from stoker.places.box_setup import BoxInstallation
from stoker.places.package import Package
from stoker.places.place import Place, Terminal
from stoker.plan.plan import Reason
from stoker.rundir import checkpoints, layout, training_words
from stoker.rundir.layout import RunDir

_SETUP_SECONDS = 3600.0
_PREPARE_SECONDS = 24 * 3600.0
START_SECONDS = 60.0
_LOCK_SECONDS = 10.0
"""Until a launch holds its lock."""
LOOK_SECONDS = 0.5


class Box(Place):
    """A machine of one's own or a rented one, with sshd and a Python."""

    takes_checkpoint = True

    def __init__(self, shell: Shell, host: Host, run: Run | None) -> None:
        super().__init__(run)
        self.shell = shell
        self.host = host
        self.name = host.name
        self._probed: BoxFacts | None = None
        self.is_cheap = False
        """Whether it is on without its card: time is cheap then, so data is prepared there first."""
        self._woken: Woken | None = None
        self._kept_data = False
        self._mark = self._launched = ""
        self.node = ""
        """Its name among several machines that train together."""

    # ---- folders and facts

    @property
    def base(self) -> str:
        """Stoker's folder on that machine."""
        return self.host.base

    def run_folder(self, run: str) -> str:
        """A run's directory there."""
        return f"{self.base}/runs/{run}"

    def probed(self) -> BoxFacts:
        """Facts of the machine as it is now; probed once."""
        if self._probed is None:
            self._probed = probe.look(self.shell)
        return self._probed

    def facts(self) -> BoxFacts | None:
        """Facts of the machine when it trains: if it is on without its card now, with the card of an earlier probe."""
        now, before = self.probed(), self.host.facts
        if self.is_cheap and before is not None and not now.devices:
            return now.model_copy(update={"devices": before.devices, "driver": before.driver})
        return now

    def surroundings(self) -> Elsewhere:
        """Its network and its platform."""
        decided = self.setup()
        reason = Reason(about="setup", key=decided.key, fields=decided.fields)
        return Elsewhere(self.network(), platforms.find(self.probed().platform), (reason,))

    @contextlib.contextmanager
    def powered_on(self, tell: MessageCallback) -> Iterator[None]:
        """Switch it on by its provider's API, without its card where possible; off again if nothing was started."""
        with contextlib.ExitStack() as stack:
            if power.has_api(self.host):
                self._woken = stack.enter_context(autodl.Woken(self.host, tell))
                self._connect(self._woken.host)
            runs_without = self._woken is not None and not self._woken.has_card
            self.is_cheap = runs_without or self._lacks_card()
            try:
                yield
            finally:
                self.is_cheap, self._woken = False, None

    def _with_card(self) -> None:
        """Restart it with its card by its provider's API; without such an API the user has to."""
        if not self.is_cheap:
            return
        if self._woken is None or self._woken.has_card:
            raise StokerError("STK711", host=self.name)
        self._connect(self._woken.with_card())
        self.is_cheap = False

    def _lacks_card(self) -> bool:
        """Whether it had a card when it was added and has none now."""
        return self.host.facts is not None and bool(self.host.facts.devices) and not self.probed().devices

    def _connect(self, host: Host) -> None:
        """Connect to the address it has now: it may change with each start."""
        if host != self.host:
            self.host, self.shell = host, Ssh(host)

    @property
    def rented(self) -> Sequence[Host]:
        """Itself, where it belongs to a platform."""
        return (self.host,) if platforms.find(self.host.platform) else ()

    def price(self) -> Offer | None:
        """What its provider bills, where there is an API."""
        return autodl.price(self.host) if power.has_api(self.host) else None

    def balance(self) -> float | None:
        """What is left in the account it is billed to, where there is an API."""
        return autodl.balance() if power.has_api(self.host) else None

    def network(self) -> Network:
        """The routes from there to hubs and package indexes, and why they were chosen."""
        return mirror_probe.of(self.probed(), self._run)

    # ---- before it runs

    def check(self, run_file: RunFile) -> None:  # noqa: ARG002  # of any run
        """Refuse a machine that cannot train, before it is switched on: by its last probe, or as it is now."""
        facts = self.host.facts if power.has_api(self.host) else self.probed()
        if facts is not None:
            box_environment.decide(facts, self.host.python).require(self.name)

    def setup(self) -> BoxEnvironment:
        """How Stoker is installed there; refused where it cannot be."""
        decided = box_environment.decide(self.facts() or self.probed(), self.host.python)
        decided.require(self.name)
        return decided

    def put(self, package: Package) -> None:
        """Send missing files of the run and of Stoker, install it, and prepare the data where time is cheap."""
        decided, sent = self.setup(), self._missing(package)
        with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
            made = wheel.build(Path(folder))
            install = BoxInstallation.of(decided, made, self.run)
            box_setup.require_room(self.shell, self.base, package, sent, install)
            _send(self.shell, self.base, {**sent, install.wheel: made})
        self._set_up(install)
        _sweep(self.shell, self.base, package)
        if self.is_cheap and not package.prepared:
            self._prepare(package)

    def _set_up(self, install: BoxInstallation) -> None:
        self._mark = install.mark
        parts = self.network().exports(), install.routes(self.probed().reachable), install.script(self.base)
        self.shell.run("\n".join(parts), secrets=self.environment(), seconds=_SETUP_SECONDS)

    def _missing(self, package: Package) -> dict[str, Path]:
        """Files to send, see `_left_out`; a running run and its data are not touched."""
        if (pid := self._launching(package.name)) is not None or _is_training(
            self.shell, self.base, self.run_folder(package.name)
        ):
            raise StokerError("STK411", pid=pid or "-", name=package.name)
        said = self.shell.run(box_scripts.INSPECT.format(run=quote(self.run_folder(package.name))))
        words = [line.split() for line in said.splitlines()]
        self._launched = next(line[1] for line in words if line[0] == "now")
        if package.training and any(line[0] in ("committed", "steps") for line in words):
            _require_same_training(self, package)
        left_out, self._kept_data = _left_out(words, package)
        return {name: path for name, path in package.files.items() if not name.startswith(tuple(left_out))}

    @property
    def kept_data(self) -> bool:
        """Whether the run's checkpoints there belong to other data, which it goes on with."""
        return self._kept_data

    def environment(self) -> dict[str, str]:
        """Environment of every Stoker command there."""
        return {
            env.RUNS.name: f"{self.base}/runs",
            env.LANG.name: messages.language(),
            **({env.NODE.name: self.node} if self.node else {}),
        }

    def start(self, package: Package) -> None:
        """Start `stoker train` there in a session of its own, and wait a little for early errors."""
        self.launch(package, package.words)
        _await_start(self, package.name)
        self.leave_on()

    def launch(self, package: Package, words: Sequence[str]) -> None:
        """Start `stoker WORDS` there in a session of its own."""
        self._with_card()
        logs = f"{self.run_folder(package.name)}/logs"
        python = [f"{self.base}/envs/{self._mark}/bin/python", "-X", "utf8"]  # its own, whatever is installed later
        command = ["sh", "-c", box_scripts.LAUNCH, logs, *python, "-m", "stoker", *words]
        lines = [
            box_scripts.START.format(logs=quote(logs), folder=quote(f"{self.base}/{package.folder}")),
            self.network().exports(),
            f"export {env.LAUNCHED.name}={self._launched}",
            _tensorboard_link(self.host, self.run_folder(package.name)),
            self._detached(command),
        ]
        self.shell.run("\n".join(lines), secrets={**self.environment(), **self._secrets()})

    def leave_on(self) -> None:
        """Leave it on: the run has started."""
        if self._woken is not None:
            self._woken.leave_on()

    def is_launched(self, run: str) -> bool:
        """Whether the last launch there still runs."""
        return self._launching(run) is not None

    def end_launch(self, run: str) -> None:
        """End a launch that still waits there."""
        if (pid := self._launching(run)) is not None:
            self.shell.run(box_scripts.END.format(pid=pid))

    def write(self, path: str, text: str) -> None:
        """Write a file there that only its owner can read."""
        folder = path.rpartition("/")[0]
        self.shell.run(f"umask 077; mkdir -p {quote(folder)}; cat > {quote(path)} <<'END'\n{text}END")

    def has_launched(self, run: str) -> bool:
        """Whether the launch has ended; if it failed, raises with its output."""
        logs = quote(f"{self.run_folder(run)}/logs")
        said = self.shell.run(
            f"cat {logs}/launch.code 2>/dev/null || echo -; cat {logs}/launch.log 2>/dev/null || true"
        )
        code, _, words = said.partition("\n")
        if code.strip() not in ("0", "-"):
            raise StokerError("STK708", words.strip(), name=run, host=self.name)
        return code.strip() == "0"

    # ---- while it runs

    def status(self, run: str) -> dict[str, Any] | None:
        """State of the run there."""
        there = self._launch_state(run)
        if "launching" in there:
            return {"name": run, "state": "running", "step": 0}
        return dict(json.loads(self.say("watch", run, "--once", "--json"))) if "known" in there else None

    def words(self, run: str) -> dict[str, Any] | None:
        """The words of the training of this name, by its manifest there."""
        return box_pull.words_of(self.shell, self.run_folder(run))

    def _launch_state(self, run: str) -> list[str]:
        return self.shell.run(box_scripts.LAUNCH_STATE.format(run=quote(self.run_folder(run)))).split()

    def _launching(self, run: str) -> int | None:
        """Pid of the process that prepares or starts the run there."""
        there = self._launch_state(run)
        return int(there[there.index("launching") + 1]) if "launching" in there else None

    def say(self, *words: str, seconds: float = 60) -> str:
        """What `stoker WORDS` prints there."""
        return self.shell.run(
            shlex.join(self._python("-m", "stoker", *words)), secrets=self.environment(), seconds=seconds
        )

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:  # noqa: ARG002  # it is asked there
        """`stoker watch` there, with the user's terminal."""
        return self._forward("watch", run, *(["--once"] if once else []), *(["--json"] if as_json else []))

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:
        """`stoker logs` there, with the user's terminal."""
        count = [] if lines is None else ["--lines", str(lines)]
        return self._forward("logs", run, *(["--follow"] if follow else []), *count)

    def runs(self, *, as_json: bool = False) -> int:
        """`stoker runs` there, with the user's terminal."""
        return self._forward("runs", *(["--json"] if as_json else []))

    def stop(self, run: str) -> int:
        """`stoker stop` there, with the user's terminal; a launch is asked, too, before it holds its lock."""
        _stop_launch(self, run)
        return self._forward("stop", run)

    def _forward(self, *words: str) -> int:
        exports = " ".join(f"{name}={quote(value)}" for name, value in self.environment().items())
        return self.shell.talk(f"{exports} exec {shlex.join(self._python('-m', 'stoker', *words))}")

    def _prepare(self, package: Package) -> None:
        """Prepare the data there, before the card is paid for."""
        words = [word for word in package.words[1:] if word != "--detach"]
        command = shlex.join(self._python("-m", "stoker", "prepare", *words))
        script = f"{self.network().exports()}\ncd {quote(f'{self.base}/{package.folder}')}\n{command}"
        self.shell.run(script, secrets={**self.environment(), **self._secrets()}, seconds=_PREPARE_SECONDS)

    def stop_meter(self) -> None:
        """Switch it off by the provider's API, or by the platform's own command that can be undone."""
        power.off(self.host)

    def settle(self, run: str) -> None:
        """Finish the last copy and stop the meter of a finished run, where a reboot ended the process that does so."""
        if platforms.find(self.host.platform) is None:
            return
        script = self._detached(self._python("-m", "stoker", "settle", self.run_folder(run)))
        network = mirror_probe.of(self.host.facts or self.probed(), self._run)  # a new probe would take seconds
        self.shell.run(f"{network.exports()}\n{script}", secrets={**self.environment(), **self._secrets()})

    def _secrets(self) -> dict[str, str]:
        """Secrets of the user that this run needs there."""
        return packages.secrets(self._run, self.host.platform)

    # ---- results

    def get(self, run: str) -> RunDir:
        """Copy newest and best checkpoint, finished model and records here, all verified; the box is told so."""
        run_dir = layout.named(run)
        box_pull.pull(self.shell, self.run_folder(run), run_dir)
        with contextlib.suppress(StokerError):  # it may be shutting down already
            self.settle(run)
        return run_dir

    # ---- commands

    def _detached(self, command: list[str]) -> str:
        """Script that starts a command in a session of its own: not every machine has `setsid`."""
        return box_scripts.DETACHED.format(python=quote(f"{self.base}/env/bin/python"), command=command)

    def _python(self, *words: str) -> list[str]:
        return [f"{self.base}/env/bin/python", "-X", "utf8", *words]


def _require_same_training(box: Box, package: Package) -> None:
    """Refuse what `stoker train` there would refuse, before anything is put into that run."""
    there = box.words(package.name)
    if there is not None and (changes := training_words.differing(there, package.training)):
        folder = f"{box.name}:{box.run_folder(package.name)}"
        raise StokerError("STK401", name=package.name, folder=folder, changes=changes)


def _left_out(words: list[list[str]], package: Package) -> tuple[list[str], bool]:
    """What is not sent, by the answer to `INSPECT`; and whether other data there is kept.

    Not sent: prepared data that is there or that checkpoints there belong to, and checkpoints, see `_saved_there`.
    """
    there = next((line[1:] for line in words if line[0] == "report"), None)
    committed = {line[1]: line[2] for line in words if line[0] == "committed"}
    data, saved = (f"runs/{package.name}/{folder}/" for folder in ("data", "checkpoints"))
    equal = same = kept = False
    if there is not None and package.report in package.files:
        equal = there[0] == package.digest(package.report)
        # Another version, or another name of a source, makes another report of the same set.
        same = equal or there[1:] == [package.set_digest]
        kept = not same and bool(committed)
    left_out = [data] if equal or kept else []
    left_out += [f"{data}{split}/" for split in ("train", "eval")] if same else []
    left_out += [saved] if kept else [f"{saved}{name}/" for name in _saved_there(committed, package.saved)]
    left_out += [f"runs/{package.name}/{name}" for name in packages.PAST] if ["events"] in words else []
    return left_out, kept


def _saved_there(there: dict[str, str], own: dict[str, str]) -> list[str]:
    """Checkpoints that are not sent: those that are there; all, where the run is further there, or as far otherwise.

    Args:
        there: Folders of committed checkpoints there, with the SHA-256 of their records.
        own: The same of those that are ready to send.
    """
    newest, same = max(own, default=""), [name for name in own if there.get(name) == own[name]]
    apart = max(there, default="") > newest or (newest in there and newest not in same)
    return list(own) if apart else same


def _send(shell: Shell, base: str, sent: dict[str, Path]) -> None:
    """Send files; a record goes last: a broken line then leaves no checkpoint and no set instead of half of one."""
    reports = [name for name in sent if name.endswith("/data/report.json")]
    records = {name: path for name, path in sent.items() if name.endswith(f"/{checkpoints.COMMIT_NAME}")}
    records |= {name: sent[name] for name in reports}
    if records:
        shell.run(f"cd {quote(base)} 2>/dev/null || exit 0\nrm -f -- {shlex.join(records)}")
    shell.send({name: path for name, path in sent.items() if name not in records}, base)
    if records:
        shell.send(records, base)


def _await_start(box: Box, run: str) -> None:
    """Wait for errors of the first seconds; what takes longer, such as preparing data, goes on by itself."""
    until = time.monotonic() + START_SECONDS
    while not box.has_launched(run) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _stop_launch(box: Box, run: str) -> None:
    """Leave a request for a launch that still runs, and wait until it must hold its lock."""
    if box.is_launched(run):
        box.shell.run(f"touch {quote(box.run_folder(run))}/stop")
    until = time.monotonic() + _LOCK_SECONDS
    while box.is_launched(run) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _tensorboard_link(host: Host, run_folder: str) -> str:
    """Script that links the run into the folder of the platform's own TensorBoard, where it has one."""
    platform = platforms.find(host.platform)
    if platform is None or platform.tensorboard is None:
        return ""
    folder, source = platform.tensorboard.folder, f"{run_folder}/logs/tensorboard"
    link = f"{folder}/{run_folder.rpartition('/')[2]}"
    return f"mkdir -p {quote(source)} {quote(folder)} && ln -sfn {quote(source)} {quote(link)} || true"


def _sweep(shell: Shell, base: str, package: Package) -> None:
    """Delete inputs of an earlier launch that are not part of this run: folders are read whole."""
    top = f"inputs/{package.name}"
    names = [name.removeprefix(f"{top}/") for name in package.files if name.startswith(f"{top}/")]
    program = box_scripts.SWEEP.format(names=json.dumps(names), top=top)
    shell.run(f"cd {quote(base)}\nenv/bin/python - <<'END'\n{program}\nEND")


def _is_training(shell: Shell, base: str, folder: str) -> bool:
    """Whether a supervisor or a trainer holds a lock there; none can before Stoker is installed."""
    ask = (
        "import errno, fcntl, glob, os, sys, time\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        fcntl.lockf(open(name, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except FileNotFoundError:\n"
        "        continue\n"
        "    except OSError as error:\n"
        "        renewed = [one for one in glob.glob(name + '.lease-*') if time.time() - os.stat(one).st_mtime < 60]\n"
        "        leased = any('released' not in open(one).read() for one in renewed)\n"
        "        if leased or error.errno in (errno.EAGAIN, errno.EACCES):\n"
        "            print('held')\n"
    )
    words = f"{quote(base)}/env/bin/python -c {quote(ask)} {quote(folder)}/supervisor.lock {quote(folder)}/train.lock"
    return "held" in shell.run(f"if [ -x {quote(base)}/env/bin/python ]; then {words}; fi")
