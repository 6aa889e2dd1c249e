"""A box reached by ssh: sends what is missing, sets up an environment around the image's own torch, starts, looks.

On the box everything of ours stands below one folder, its base: env, wheels, inputs, runs. What runs there is the very
same `stoker`; it needs nothing of the laptop once it was started.
"""

import contextlib
import datetime
import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker import env, messages
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.mirrors import Network
from stoker.facts.prices import Offer
from stoker.launch import autodl, hosts, mirrors, power, probe, wheel
from stoker.launch import package as packages
from stoker.launch.autodl import Tell
from stoker.launch.found import BoxFacts
from stoker.launch.hosts import Host
from stoker.launch.line import Line, Ssh, words_of
from stoker.launch.package import Package
from stoker.rundir import artifacts, checkpoints, files, layout, pulled
from stoker.rundir.layout import RunDir

EXTRAS = "train,data,store"
_SETUP_SECONDS = 3600.0
_PREPARE_SECONDS = 24 * 3600.0
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_NEWEST = 3
"""Checkpoints that are tried when one is brought: a running training rotates them away meanwhile."""

SETUP = """
cd {base}
if [ "$(cat env/.stoker 2>/dev/null)" = {mark} ]; then exit 0; fi
if [ ! -e env/.made ]; then
  rm -rf env
  {python} -m venv --system-site-packages --without-pip env
  lib=$(env/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The image's Python may stand in an environment of its own, whose packages a new one does not see.
  {python} -c 'import site; print("\\n".join(site.getsitepackages()))' > "$lib/image.pth"
  env/bin/python -m pip --version >/dev/null 2>&1 || env/bin/python -m ensurepip >/dev/null
  touch env/.made
fi
# The image's own torch stays, whatever version it is.
env/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
  > env/constraints.txt 2>/dev/null || : > env/constraints.txt
env/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall {wheel}
env/bin/python -m pip install -q --disable-pip-version-check --constraint env/constraints.txt {wheel}{extras}
echo {mark} > env/.stoker
"""

_START = """
mkdir -p {logs}
rm -f {logs}/launch.code
cd {folder}
{exports}
{python} - <<'END'
import subprocess
subprocess.Popen({command!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 start_new_session=True)
END
"""
_SETTLE = """
if grep -Eqs '"state": *"(stopping|stayed)"' {run}/settled.json; then exit 0; fi
{python} - <<'END'
import subprocess
subprocess.Popen({command!r}, stdin=subprocess.DEVNULL, stdout=open({log!r}, "ab"), stderr=subprocess.STDOUT,
                 start_new_session=True)
END
"""
_LAUNCH = '"$@" > "$0/launch.log" 2>&1 < /dev/null; echo $? > "$0/launch.code"'


class Box:
    """A machine of one's own or a rented one, with sshd and a Python."""

    def __init__(self, line: Line, host: Host, run: Run) -> None:
        self.line = line
        self.host = host
        self.name = host.name
        self._run = run
        self._facts: BoxFacts | None = None
        self.is_cheap = False
        """Whether it was switched on for what needs no card: time there is cheap, and waited for."""

    # ---- what is where

    @property
    def base(self) -> str:
        """The folder there below which everything of ours stands."""
        return self.host.base

    def run_folder(self, run: str) -> str:
        """A run's directory there."""
        return f"{self.base}/runs/{run}"

    def facts(self) -> BoxFacts:
        """What the machine is now; asked once."""
        if self._facts is None:
            self._facts = probe.look(self.line)
        return self._facts

    def with_card(self) -> BoxFacts:
        """What the machine is when it trains: of one that is on without its card, with the one it was seen with."""
        facts, before = self.facts(), self.host.facts
        if self.is_cheap and before is not None and not facts.devices:
            return facts.model_copy(update={"devices": before.devices, "driver": before.driver})
        return facts

    @contextlib.contextmanager
    def awake(self, tell: Tell) -> Iterator[None]:
        """Reachable for what comes before training: where it is off, switched on by its provider's API, cheaply.

        One that is on without its card, as its owner started it, is prepared and then switched on with it; where no API
        does that, the owner is told to.
        """
        self.is_cheap = False
        if not power.has_api(self.host) or self._answers():
            self.is_cheap = self._lacks_card()
            yield
            if self.is_cheap:
                if not power.has_api(self.host):
                    raise StokerError("STK711", host=self.name)
                self._reach(autodl.power_on(self.host, tell=tell))
        else:
            with autodl.without_card(self.host, tell) as host:
                self._reach(host)
                self.is_cheap = not autodl.has_card(host)
                yield
            self._reach(hosts.find(self.name))
        self.is_cheap = False

    def _answers(self) -> bool:
        try:
            self.line.run("true", seconds=30)
        except StokerError as error:
            if error.code != "STK701":
                raise
            return False
        return True

    def _lacks_card(self) -> bool:
        """Whether it has had a card and has none now."""
        return self.host.facts is not None and bool(self.host.facts.devices) and not self.facts().devices

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
        return mirrors.of(self.facts(), self._run)

    # ---- before it runs

    def put(self, package: Package) -> None:
        """Send the run and Stoker, and make it ready there; what is there already is passed over."""
        self._require_room(package)
        with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
            made = wheel.build(Path(folder))
            digest = files.sha256(made)
            name = f"wheels/{digest[:16]}/{made.name}"
            self.line.send({**package.files, name: made}, self.base)
        self._set_up(name, digest)

    def _require_room(self, package: Package) -> None:
        """What is to be sent has room beside what was sent before."""
        sent = f"inputs/{_q(package.name)} runs/{_q(package.name)}/data"
        said = self.line.run(
            f"mkdir -p {_q(self.base)}; cd {_q(self.base)}; df -Pk . | tail -n 1; du -sk {sent} 2>/dev/null || true"
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
        self.line.run(
            self.network().exports()
            + SETUP.format(
                base=_q(self.base),
                mark=digest[:16],
                python=_q(self.host.python),
                wheel=_q(wheel_name),
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
        }

    def start(self, package: Package) -> None:
        """Start `stoker train` there in a session of its own, and wait until the training runs or it said why not."""
        logs = f"{self.run_folder(package.name)}/logs"
        command = ["sh", "-c", _LAUNCH, logs, *self._python("-m", "stoker", *package.words)]
        launched = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        script = _START.format(
            logs=_q(logs),
            folder=_q(f"{self.base}/{package.folder}"),
            python=_q(f"{self.base}/env/bin/python"),
            command=command,
            exports=f"{self.network().exports()}\nexport {env.LAUNCHED.name}={launched}\n{self._shown(package.name)}",
        )
        self.line.run(f"mkdir -p {_q(f'{self.base}/{package.folder}')}", seconds=60)
        self.line.run(script, secrets={**self.environment(), **packages.secrets()})
        self._await_start(package.name, logs)

    def _shown(self, run: str) -> str:
        """Lines that let the platform's own TensorBoard show the run, where it has one."""
        platform = platforms.find(self.host.platform)
        if platform is None or platform.tensorboard is None:
            return ""
        folder = platform.tensorboard.folder
        source = f"{self.run_folder(run)}/logs/tensorboard"
        return f"mkdir -p {_q(source)} {_q(folder)} && ln -sfn {_q(source)} {_q(f'{folder}/{run}')} || true"

    def _await_start(self, run: str, logs: str) -> None:
        """Mistakes show in the first seconds; what takes longer, such as preparing data, goes on without us."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            code, _, said = self.line.run(
                f"cat {_q(logs)}/launch.code 2>/dev/null || echo -; cat {_q(logs)}/launch.log"
            ).partition("\n")
            if code.strip() == "0":
                return
            if code.strip() != "-":
                raise StokerError("STK708", said.strip(), name=run, host=self.name)
            time.sleep(_LOOK_SECONDS)

    # ---- while it runs

    def status(self, run: str) -> dict[str, Any] | None:
        """How the run stands there."""
        there = self.line.run(f"test -e {_q(self.run_folder(run))}/manifest.json && echo yes || true")
        if "yes" not in there:
            return None
        return dict(json.loads(self.say("watch", run, "--once", "--json")))

    def say(self, *words: str, seconds: float = 60) -> str:
        """What `stoker WORDS` prints there."""
        return self.line.run(
            words_of(self._python("-m", "stoker", *words)), secrets=self.environment(), seconds=seconds
        )

    def follow(self, words: Sequence[str]) -> int:
        """`stoker WORDS` there, with the user's terminal."""
        exports = " ".join(f"{name}={_q(value)}" for name, value in self.environment().items())
        return self.line.talk(f"{exports} exec {words_of(self._python('-m', 'stoker', *words))}")

    def stop(self, run: str) -> None:
        """Ask the run to commit and end."""
        self.follow(["stop", run])

    def prepare(self, package: Package) -> None:
        """Prepare the data there."""
        words = [word for word in package.words[1:] if word != "--detach"]
        command = words_of(self._python("-m", "stoker", "prepare", *words))
        script = f"{self.network().exports()}\ncd {_q(f'{self.base}/{package.folder}')}\n{command}"
        self.line.run(script, secrets={**self.environment(), **packages.secrets()}, seconds=_PREPARE_SECONDS)

    def stop_meter(self) -> None:
        """The provider's API, or the platform's own verb that can be undone."""
        power.off(self.host)

    def settle(self, run: str) -> None:
        """Have a finished run's last copy and the meter seen to, where whoever did so went with a reboot."""
        if platforms.find(self.host.platform) is None:
            return
        folder = self.run_folder(run)
        script = _SETTLE.format(
            run=_q(folder),
            python=_q(f"{self.base}/env/bin/python"),
            command=self._python("-m", "stoker", "settle", folder),
            log=f"{folder}/logs/settle.log",
        )
        self.line.run(script, secrets={**self.environment(), **packages.secrets()})

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
        self.line.run(f"cat > {_q(target)}.part <<'END'\n{pulled.text(record)}\nEND\nmv {_q(target)}.part {_q(target)}")
        if there["final"]:
            self.settle(run)
        return run_dir

    def _there(self, run: str) -> dict[str, Any]:
        folder = self.run_folder(run)
        said = self.line.run(
            f"cd {_q(folder)}; ls -d checkpoints/step-*/COMMIT.json artifacts/final "
            "events.jsonl plan.json supervisor.json manifest.json run.yaml 2>/dev/null || true"
        ).split()
        steps = sorted(int(name.split("/")[1][5:]) for name in said if name.startswith("checkpoints/"))
        records = [name for name in said if "/" not in name]
        return {"steps": steps, "final": "artifacts/final" in said, "records": records}

    def _bring_file(self, run: str, name: str, target: Path) -> None:
        if name in ("manifest.json", "run.yaml") and target.exists():
            return  # where its relative paths start is this machine's own matter
        files.write_text(target, self.line.run(f"cat {_q(self.run_folder(run))}/{name}", seconds=600))

    def _bring_checkpoint(self, run: str, run_dir: RunDir, steps: list[int]) -> None:
        """The newest that is still there when it has arrived, and verifies."""
        for step in reversed(steps[-_NEWEST:]):
            if any(
                one.step == step and not checkpoints.verify(one) for one in checkpoints.committed(run_dir.checkpoints)
            ):
                return
            name = checkpoints.folder_name(step)
            run_dir.checkpoints.mkdir(exist_ok=True)
            aside = run_dir.checkpoints / f".{name}.pull.tmp"
            try:
                self.line.fetch(f"{self.run_folder(run)}/checkpoints/{name}", aside)
                checkpoints.adopt(run_dir.checkpoints, aside)
            except (StokerError, OSError) as error:
                reason = error
                continue
            return
        if steps:
            raise StokerError("STK707", host=self.name, reason=reason) from reason

    def _bring_final(self, run: str, run_dir: RunDir) -> None:
        source = f"{self.run_folder(run)}/artifacts/final"
        said = self.line.run(f"cd {_q(source)}; find . -type f -exec sha256sum {{}} +", seconds=600)
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

    def _python(self, *words: str) -> list[str]:
        return [f"{self.base}/env/bin/python", "-X", "utf8", *words]


def _digests(folder: Path) -> Mapping[str, str]:
    return {name: entry.sha256 for name, entry in artifacts.entries_of(folder).items()}


def _q(text: str) -> str:
    return shlex.quote(text)
