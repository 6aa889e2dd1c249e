"""Test boxes: machines of their own on this one, each with its own network, processes, host name, disks and sshd.

A keeper process holds a network and a mount namespace; the box's first process runs inside, with a root made of layers
over this system's folders. Both end when their standard input does, and all mounts and links with them: also after a
crash of the test. What is on a box's disks outlives a reboot and not a replacement, as on a rented machine.
"""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

USER, PASSWORD = "root", "over-the-hills-9"
_PASSWORD_HASH = "$6$stokertests$/ivubi2ffjyLwES.aRceEWnejzwzH7sct0TXRuxoprQAMYQHUNM4OPp/7IVhRBgElqQNqG6kPm4o4Z7CoXUOB1"
SHUTDOWN = """echo "$(date +%s.%N) shutdown $*" >> /var/lib/meter/calls
kill -TERM 1
"""
"""No first line that names a shell: only a shell runs it."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM = ("usr", "etc", "var", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of this system that a box has as well; it writes to a layer of its own."""
_OWN = ("root", "home", "tmp", "run", "proc", "sys", "dev", "mnt", "media", "srv")
_QUEUE = ("sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol", "sacct", "salloc")
_SCREENS = ("tmux", "screen", "systemctl", "docker", "sudo")
_BOOT = """
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd
hostname "$HOST"
unset HOST
exec 3<&0 </dev/null
trap 'exit 0' TERM
cat <&3 >/dev/null & kept=$!
exec 3<&-
"""
_STAY = """
wait $kept
"""


@dataclass(frozen=True)
class Kind:
    """What a box is like."""

    hostname: str
    disks: dict[str, str] = field(default_factory=dict)
    """Mounted disks and their sizes; they go with the box."""
    shared: dict[str, str] = field(default_factory=dict)
    """Disks of the place: they outlive a replacement."""
    inputs: dict[str, Path] = field(default_factory=dict)
    """Folders of this machine that it can read."""
    system_size: str = "2g"
    python: str = "/usr/local"
    """Prefix of the image's Python: with the packages of this one, torch among them, without Stoker. Empty: none."""
    without: tuple[str, ...] = ()
    """Packages it cannot import."""
    hidden: tuple[str, ...] = ()
    """Programs that are not there."""
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    """Of every process that `run` starts."""
    sshd: dict[str, str] | None = field(default_factory=dict)
    """Settings of its sshd; None: it has none."""
    keys: bool = True
    """Whether the client's key is known there."""
    cpus: float = 2.0
    memory: str = "8589934592"
    boot: str = ""
    """Shell words of the first process, before it waits."""


_LOGIN = 'export AutoDLContainerUUID=a1b2c3-d4e5f6 AutoDLRegion=west-X AutoDLDataCenter=westX\necho "+-- AutoDL --+"\n'
_TURBO = "export http_proxy=http://198.51.100.23:12798 https_proxy=http://198.51.100.23:12798\n"
_QUIET = "export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 STOKER_METADATA=off\n"
"""A box has few cores and no way out; there is no cloud to ask."""
_FILES = {
    "/etc/pip.conf": "[global]\nno-index = true\ndisable-pip-version-check = true\n",
    "/etc/resolv.conf": "",
    "/etc/profile.d/quiet.sh": _QUIET,
}

PLAIN = Kind("plain", hidden=_QUEUE, files=_FILES)
AUTODL = Kind(
    "autodl-container-a1b2c3-d4e5f6",
    disks={"/root/autodl-tmp": "4g"},
    shared={"/root/autodl-fs": "1g"},
    python="/root/miniconda3",
    hidden=(*_QUEUE, *_SCREENS),
    files={
        **_FILES,
        "/etc/profile.d/autodl.sh": _LOGIN,
        "/etc/network_turbo": _TURBO,
        "/init/others/help": "AutoDL\n",
        "/root/autodl-pub/README": "public\n",
        "/root/tf-logs/.keep": "",
        "/usr/bin/shutdown": SHUTDOWN,
    },
)
PASSWORD_ONLY = replace(PLAIN, hostname="password", keys=False, sshd={"PasswordAuthentication": "yes"})
SMALL = replace(PLAIN, hostname="small", system_size="1g")
KAGGLE = Kind(
    "kaggle",
    disks={"/kaggle/working": "200m", "/kaggle/temp": "1g"},
    python="/usr/local",
    hidden=_QUEUE,
    files=_FILES,
    env={
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "KAGGLE_URL_BASE": "https://www.kaggle.com",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "STOKER_METADATA": "off",
    },
    sshd=None,
)
COLAB = replace(
    KAGGLE,
    hostname="colab",
    disks={"/content": "2g"},
    shared={"/content/drive": "1g"},
    env={
        "COLAB_RELEASE_TAG": "release-colab-20260801",
        "COLAB_GPU": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "STOKER_METADATA": "off",
    },
)
LOGIN_NODE = replace(PLAIN, hostname="login", hidden=())


def available() -> str:
    """Why there can be no test boxes here; empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "test boxes need Linux and root"
    wanted = ("ip", "tc", "nft", "unshare", "nsenter", "ssh", "ssh-keygen", "sshd", "ss", "rsync")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in wanted if shutil.which(name, path=path) is None]
    if missing:
        return f"test boxes need {', '.join(missing)}"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="utf-8"):
        return "test boxes need overlayfs"
    tried = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


class Box:
    """One box; `address`, `port` and `key` lead to its sshd, `root` to its files."""

    port = 22

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="box-", dir=folder))
        self.key = self.folder / "client_key"
        self.address = self._link = ""
        self._routes: set[str] = set()
        self._keeper = self._first = None
        self._disk, self._shared = self.folder / "disk", self.folder / "shared"
        self._meter = self._shared / ".meter"
        for path in (self._disk, self._shared):
            path.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(self.key)], check=True)

    # ---- what a test does with it

    @property
    def root(self) -> Path:
        """Its root folder as seen from here, on or off. Not to be resolved: it leads through another namespace."""
        return self._seen(self._disk) / "root"

    @property
    def alive(self) -> bool:
        return self._first is not None and self._first.poll() is None

    @property
    def calls(self) -> list[tuple[float, str]]:
        """What was asked of the meter from inside: when, and the words."""
        path = self._seen(self._meter) / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1].strip()) for line in lines]

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes sent to the box and received from it so far, all headers with them."""
        counts = Path(f"/sys/class/net/{self._link}/statistics")
        return int((counts / "tx_bytes").read_text()), int((counts / "rx_bytes").read_text())

    def run(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str = "/root",
        timeout: float | None = None,
        check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """A command on the box, with output and errors as text."""
        started = self.start(argv, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = started.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()
            raise
        done = subprocess.CompletedProcess(list(argv), started.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def start(
        self, argv: Sequence[str], *, env: dict[str, str] | None = None, cwd: str = "/root", **options: object
    ) -> "subprocess.Popen[str]":
        """A command on the box that goes on by itself; killing it kills what it started there as first process."""
        assert self.alive, "the box is off"
        enter = ["nsenter", "--target", str(self._pid), "--all", "--root", "--wd"]
        settings = {"PATH": self._path, "HOME": "/root", "LANG": "C.UTF-8", **self.kind.env, **(env or {})}
        words = ["env", "-i", f"--chdir={cwd}", *(f"{name}={value}" for name, value in settings.items()), *argv]
        return subprocess.Popen([*enter, *words], stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload,no-any-return]

    def listeners(self) -> list[str]:
        """Local addresses that anything listens on, TCP and UDP."""
        lines = self._inside("ss", "--no-header", "--listening", "--tcp", "--udp", "--numeric").splitlines()
        return [line.split()[4] for line in lines]

    def processes(self) -> list[str]:
        """Command lines of all that runs on it."""
        if not self.alive:
            return []
        shown = self.run(["ps", "-e", "-ww", "-o", "args"], timeout=30)
        return shown.stdout.splitlines()[1:]

    def cut(self) -> None:
        """The line goes dead: nothing arrives, and nobody is told."""
        self._inside("ip", "link", "set", "eth0", "down")

    def mend(self) -> None:
        self._inside("ip", "link", "set", "eth0", "up")
        for address in self._routes:  # the kernel forgets them with the line
            self.route(address)

    def route(self, address: str) -> None:
        """An address beyond the box's own network is reached through its gateway."""
        self._inside("ip", "route", "replace", f"{address}/32", "via", self.gateway)
        self._routes.add(address)

    def throttle(self, rate: str) -> None:
        """Both ways at this rate of tc, such as `40mbit`; empty: as fast as it goes."""
        words = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"] if rate else ["root"]
        verb = "replace" if rate else "del"
        _do("tc", "qdisc", verb, "dev", self._link, *words)
        self._inside("tc", "qdisc", verb, "dev", "eth0", *words)

    def fill(self, path: str, leave_bytes: int = 0) -> None:
        """Take the room on the disk of this folder."""
        folder = self.root / path.lstrip("/")
        with (folder / ".filling").open("wb") as file:
            for _ in range(20):  # who writes there meanwhile is faster now and then
                room = os.statvfs(folder)
                size = max(1, room.f_bavail * room.f_frsize - leave_bytes)
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, size)
                    return
        raise OSError(errno.ENOSPC, "the disk cannot be filled", path)

    def unfill(self, path: str) -> None:
        (self.root / path.lstrip("/") / ".filling").unlink(missing_ok=True)

    def power_off(self) -> None:
        """All its processes end at once, as when somebody pulls the plug."""
        if self._first is not None:
            _gone(self._first)
            _until(lambda: not Path(f"/proc/{self._pid}/ns/pid").exists(), "the box does not end")
            self._first = None

    def power_on(self) -> None:
        """Start its first process, and sshd; what is on its disks is there."""
        assert not self.alive
        self.power_off()  # it may have switched itself off
        with (self.folder / "console.log").open("ab") as console:
            self._first = subprocess.Popen(
                [
                    *("nsenter", "--target", str(self._keeper.pid), "--mount", "--net"),
                    *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc"),
                    *("--propagation=private", f"--root={self._disk / 'root'}"),
                    *("/bin/bash", "-c", _BOOT + self._services() + _STAY),
                ],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={"PATH": _PATH, "HOME": "/root", "HOST": self.kind.hostname},
            )
        self._pid = _until(self._first_pid, "the box does not start")
        if self.kind.sshd is not None:
            _until(lambda: f"0.0.0.0:{self.port}" in self.listeners(), f"no sshd: {self.console()}")
        else:
            _until(lambda: "tmpfs /run " in self._mounts(), "the box does not start")

    def reboot(self) -> None:
        self.power_off()
        self.power_on()

    def replace(self) -> None:
        """Another box at the same address: fresh disks, another host key; disks of the place stay."""
        self.power_off()
        self._inside("umount", "--recursive", "--lazy", str(self._disk))
        self._furnish()
        self.power_on()

    def console(self) -> str:
        return (self.folder / "console.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    # ---- how it is made

    @contextlib.contextmanager
    def powered(self) -> Iterator["Box"]:
        """The box, switched on; all of it is gone afterwards."""
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation=private", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        try:
            here = Path("/proc/self/ns/net").readlink()
            _until(lambda: Path(f"/proc/{self._keeper.pid}/ns/net").readlink() != here, "no namespaces")
            self._wire()
            self._inside("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(self._shared))
            self._seen(self._meter).mkdir()
            self._furnish()
            self.power_on()
            yield self
        finally:
            self._end()

    def _end(self) -> None:
        self.power_off()
        _gone(self._keeper)
        if self._link:
            subprocess.run(["ip", "link", "delete", self._link], capture_output=True, check=False)

    def _wire(self) -> None:
        """A cable to this machine, with a network of its own and no way further."""
        taken = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
        for number in range(os.getpid() % 200, os.getpid() % 200 + 50):
            link, network = f"stoker{number}", f"10.77.{number}"
            if f" {network}." in taken:
                continue
            words = ["type", "veth", "peer", "name", "eth0", "netns", str(self._keeper.pid)]
            made = subprocess.run(["ip", "link", "add", link, *words], capture_output=True, text=True, check=False)
            if made.returncode == 0:
                break
        else:
            raise RuntimeError(made.stderr)
        self._link, self.address, self.gateway = link, f"{network}.2", f"{network}.1"
        _do("ip", "addr", "add", f"{self.gateway}/24", "dev", link)
        _do("ip", "link", "set", link, "up")
        self._inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            self._inside("ip", "link", "set", name, "up")

    def _furnish(self) -> None:
        """Fresh disks with a system on them."""
        self._inside("mount", "-t", "tmpfs", "-o", f"size={self.kind.system_size},mode=755", "tmpfs", str(self._disk))
        root = self.root
        root.mkdir()
        for name in _OWN:
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "root").chmod(0o700)
        for name in _SYSTEM:
            self._layer_of(name)
        for folder in ("tmp", "log", "cache"):
            (root / "var" / folder).mkdir(exist_ok=True)
        self._devices()
        self._mount_disks()
        if self.kind.python:
            self._python()
        self._write_files()

    def _write_files(self) -> None:
        root = self.root
        for path, text in {**self._files(), **self.kind.files}.items():
            self._folder(str(Path(path).parent))
            (root / path.lstrip("/")).unlink(missing_ok=True)
            (root / path.lstrip("/")).write_text(text, encoding="utf-8")
        for path in ("usr/bin/shutdown", "root/.ssh/authorized_keys", "etc/shadow"):
            if (root / path).exists():
                (root / path).chmod(0o755 if "bin" in path else 0o600)
        (root / "root/.ssh").chmod(0o700)
        if self.kind.sshd is not None:
            key = self._seen(self._disk) / "root/etc/ssh/ssh_host_ed25519_key"
            for path in (key, key.with_suffix(".pub")):
                path.unlink(missing_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)

    def _mount_disks(self) -> None:
        self._folder("/var/lib/meter")
        self._inside("mount", "--bind", str(self._meter), self._at("/var/lib/meter"))
        for path, size in self.kind.disks.items():
            self._folder(path)
            self._inside("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self._at(path))
        for path in self.kind.shared:
            self._folder(path)
            (self._seen(self._shared) / Path(path).name).mkdir(exist_ok=True)
            self._inside("mount", "--bind", str(self._shared / Path(path).name), self._at(path))
        for path, source in self.kind.inputs.items():
            self._folder(path)
            self._inside("mount", "--bind", "-o", "ro", str(source), self._at(path))

    def _layer_of(self, name: str) -> None:
        """A folder of this system with a layer above it that takes what the box writes, and lacks what it lacks."""
        here, there = Path("/") / name, self.root / name
        if here.is_symlink():
            there.symlink_to(here.readlink())
        elif here.is_dir():
            there.mkdir()
            above = self._overlay(str(here), self._at(name))
            hidden = {
                "usr": [
                    *(f"{folder}/{program}" for folder in ("bin", "sbin", "local/bin") for program in self._missing()),
                    "src",
                ],
                "etc": ["ssh/ssh_config.d", "machine-id"],
                "var": ["tmp", "log", "cache"],
            }
            self._hide(here, above, hidden.get(name, []))
            self._mount_overlay(str(here), self._at(name))

    def _missing(self) -> list[str]:
        pythons = [
            path.name
            for folder in ("/usr/bin", "/usr/local/bin")
            for path in Path(folder).glob("*")
            if path.name.startswith(("python", "pip", "pydoc", "2to3", "stoker"))
        ]
        return [*pythons, *self.kind.hidden, "shutdown", "poweroff", "reboot", "halt"]

    @staticmethod
    def _hide(here: Path, above: Path, names: list[str]) -> None:
        for name in names:
            if os.path.lexists(here / name):
                (above / name).parent.mkdir(parents=True, exist_ok=True)
                if not os.path.lexists(above / name):
                    os.mknod(above / name, stat.S_IFCHR, os.makedev(0, 0))

    def _overlay(self, lower: str, target: str) -> Path:
        """The layer above, as seen from here, still empty."""
        layer = self._disk / "layers" / target.strip("/").replace("/", "-")
        for name in ("upper", "work"):
            (self._seen(layer) / name).mkdir(parents=True)
        shutil.copystat(lower, self._seen(layer) / "upper")
        return self._seen(layer) / "upper"

    def _mount_overlay(self, lower: str, target: str) -> None:
        layer = self._disk / "layers" / target.strip("/").replace("/", "-")
        options = f"lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work"
        self._inside("mount", "-t", "overlay", "-o", options, "overlay", target)

    def _devices(self) -> None:
        """The usual devices, and the limits of a container."""
        dev = self._at("dev")
        self._inside("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", dev)
        seen = self.root / "dev"
        for name, minor in {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}.items():
            os.mknod(seen / name, stat.S_IFCHR, os.makedev(1, minor))
            (seen / name).chmod(0o666)
        os.mknod(seen / "tty", stat.S_IFCHR, os.makedev(5, 0))
        (seen / "tty").chmod(0o666)
        for name in ("pts", "shm"):
            (seen / name).mkdir()
        self._inside("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", f"{dev}/pts")
        self._inside("mount", "-t", "tmpfs", "tmpfs", f"{dev}/shm")
        links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
        for name, target in links.items():
            (seen / name).symlink_to(target.replace("fd/", "/proc/self/fd/") if target[:3] == "fd/" else target)
        self._inside("mount", "-t", "sysfs", "-o", "ro", "sysfs", self._at("sys"))
        limits = self.root / "sys/fs/cgroup"
        self._inside("mount", "-t", "tmpfs", "tmpfs", self._at("sys/fs/cgroup"))
        (limits / "cpu.max").write_text(f"{int(self.kind.cpus * 100000)} 100000\n")
        (limits / "memory.max").write_text(f"{self.kind.memory}\n")
        (limits / "cgroup.controllers").write_text("cpu memory\n")

    def _python(self) -> None:
        """The image's Python: the interpreter of these tests with their packages, at another place, without Stoker."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        binary = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
        prefix = self.root / self.kind.python.lstrip("/")
        for folder in ("bin", f"lib/{version}"):
            (prefix / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(binary, prefix / "bin" / version)
        for name in ("python", "python3"):
            (prefix / "bin" / name).unlink(missing_ok=True)
            (prefix / "bin" / name).symlink_to(version)
        library = Path(sys.base_prefix) / "lib" / str(sysconfig.get_config_var("INSTSONAME"))
        if library.suffix != ".a" and library.exists() and Path("/usr") not in library.parents:
            self._folder(str(library.parent))
            (self.root / str(library).lstrip("/")).touch()
            self._inside("mount", "--bind", str(library), self._at(str(library)))
        standard, packages = sysconfig.get_path("stdlib"), Path(sysconfig.get_path("purelib"))
        target = self._at(f"{self.kind.python}/lib/{version}")
        self._overlay(standard, target)
        self._mount_overlay(standard, target)
        site = "dist-packages" if "deb_system" in sysconfig.get_scheme_names() else "site-packages"
        (prefix / "lib" / version / site).mkdir(exist_ok=True)
        ours = [path.name for path in packages.iterdir() if "stoker" in path.name.lower()]
        self._hide(packages, self._overlay(str(packages), f"{target}/{site}"), [*ours, *self.kind.without])
        self._mount_overlay(str(packages), f"{target}/{site}")

    def _files(self) -> dict[str, str]:
        shadow = Path("/etc/shadow").read_text(encoding="utf-8").splitlines()
        shadow = [
            f"{USER}:{_PASSWORD_HASH}:19000:0:99999:7:::" if line.startswith("root:") else line for line in shadow
        ]
        settings = {
            "Port": str(self.port),
            "ListenAddress": "0.0.0.0",
            "HostKey": "/etc/ssh/ssh_host_ed25519_key",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PubkeyAuthentication": "yes",
            "AllowAgentForwarding": "yes",
            "MaxStartups": "100",
            "MaxSessions": "100",
            "UsePAM": "no",
            "UseDNS": "no",
            "PrintMotd": "no",
            "Subsystem": "sftp internal-sftp",
            **(self.kind.sshd or {}),
        }
        public = self.key.with_suffix(".pub").read_text(encoding="utf-8") if self.kind.keys else ""
        return {
            "/etc/hostname": f"{self.kind.hostname}\n",
            "/etc/hosts": f"127.0.0.1 localhost\n{self.address} {self.kind.hostname}\n",
            "/etc/shadow": "\n".join([*shadow, ""]),
            "/etc/ssh/sshd_config": "".join(f"{name} {value}\n" for name, value in settings.items()),
            "/root/.ssh/authorized_keys": public,
        }

    def _services(self) -> str:
        sshd = "" if self.kind.sshd is None else "/usr/sbin/sshd -D -e &\n"
        return sshd + self.kind.boot

    # ---- small things

    @property
    def _path(self) -> str:
        return _PATH if self.kind.python[:5] in ("", "/root") else f"{self.kind.python}/bin:{_PATH}"

    def _at(self, path: str) -> str:
        """A path of the box in the keeper's namespace."""
        return str(self._disk / "root" / path.lstrip("/"))

    def _seen(self, path: Path) -> Path:
        """A path of the keeper's namespace as seen from here."""
        return Path(f"/proc/{self._keeper.pid}/root{path}")

    def _folder(self, path: str) -> None:
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _inside(self, *words: str) -> str:
        return _do("nsenter", "--target", str(self._keeper.pid), "--mount", "--net", *words)

    def _mounts(self) -> str:
        return Path(f"/proc/{self._pid}/mounts").read_text(encoding="utf-8")

    def _first_pid(self) -> int:
        assert self._first is not None
        if self._first.poll() is not None:
            raise RuntimeError(f"the box does not start: {self.console()}")
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return int(children[0]) if children else 0


class Lan:
    """A private network of boxes: each has an interface `lan0` in it, also after a reboot or a replacement."""

    interface = "lan0"

    def __init__(self, keeper: "subprocess.Popen[bytes]") -> None:
        self._keeper = keeper
        self._members: list[Box] = []
        self._inside("ip", "link", "add", "lan", "type", "bridge")
        self._inside("ip", "link", "set", "lan", "up")

    def join(self, box: Box) -> None:
        """Lay a cable to a box."""
        self._members.append(box)
        cable = ["type", "veth", "peer", "name", self.interface, "netns", str(box._keeper.pid)]
        self._inside("ip", "link", "add", self._port(box), *cable)
        self._inside("ip", "link", "set", self._port(box), "master", "lan", "up")
        box._inside("ip", "addr", "add", f"{self.address(box)}/24", "dev", self.interface)
        box._inside("ip", "link", "set", self.interface, "up")

    def address(self, box: Box) -> str:
        """Of a box in this network; the range is meant for tests of networks."""
        return f"198.18.0.{self._members.index(box) + 1}"

    def cut(self, box: Box) -> None:
        """Nothing passes to and from this box, and nobody is told."""
        self._inside("ip", "link", "set", self._port(box), "nomaster")

    def mend(self, box: Box) -> None:
        self._inside("ip", "link", "set", self._port(box), "master", "lan")

    def throttle(self, box: Box, rate: str, way: str = "both") -> None:
        """A rate of tc, such as `10mbit`, on the way `from` the box, `to` it, or both; empty: as fast as it goes."""
        words = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"] if rate else ["root"]
        verb = "replace" if rate else "del"
        if way != "from":
            self._inside("tc", "qdisc", verb, "dev", self._port(box), *words)
        if way != "to":
            box._inside("tc", "qdisc", verb, "dev", self.interface, *words)

    def close(self, box: Box, sender: Box | None = None, ports: str = "1-65535", answer: str = "drop") -> None:
        """The box lets in no new connection (of this sender) to these ports; those it opens itself still work.

        With the answer `reject with tcp reset` the sender is told so.
        """
        source = ["ip", "saddr", self.address(sender)] if sender else []
        box._inside("nft", "add", "table", "inet", "closed")
        box._inside("nft", "add", "chain", "inet", "closed", "in", "{ type filter hook input priority 0; }")
        opening = ["tcp", "flags", "&", "(syn|ack)", "==", "syn", "tcp", "dport", ports]
        words = ["iifname", self.interface, *source, *opening, *answer.split()]
        box._inside("nft", "add", "rule", "inet", "closed", "in", *words)

    def open(self, box: Box) -> None:
        """What was closed is open again."""
        box._inside("nft", "delete", "table", "inet", "closed")

    def _port(self, box: Box) -> str:
        return f"port{self._members.index(box)}"

    def _inside(self, *words: str) -> str:
        return _do("nsenter", "--target", str(self._keeper.pid), "--net", *words)


@contextlib.contextmanager
def joined(*members: Box) -> Iterator[Lan]:
    """These boxes in one private network. Leave it before the boxes: their cables end with it."""
    keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        _until(lambda: _namespace(keeper.pid) != _namespace(os.getpid()), "no namespace")
        lan = Lan(keeper)
        for member in members:
            lan.join(member)
        yield lan
    finally:
        _gone(keeper)


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _gone(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _until(true: "object", what: str, seconds: float = 30.0) -> int:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := true():  # type: ignore[operator]
            return int(found)
        time.sleep(0.01)
    raise RuntimeError(what)


@contextlib.contextmanager
def box(folder: Path, kind: Kind, **changes: object) -> Iterator[Box]:
    """A box of some kind, with what is to be different about it."""
    with Box(folder, replace(kind, **changes)).powered() as one:  # type: ignore[arg-type]
        yield one


def autodl(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """A container of AutoDL: no systemd, no tmux, no Python on the PATH, settings in login shells only."""
    return box(folder, AUTODL, **changes)


def plain(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """A machine with sshd and Python."""
    return box(folder, PLAIN, **changes)


def password_only(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """Takes `PASSWORD` of `USER` and no key yet."""
    return box(folder, PASSWORD_ONLY, **changes)


def small(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """One gigabyte of disk."""
    return box(folder, SMALL, **changes)


def kaggle(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """Kaggle's tree: `/kaggle/working` is small, `inputs` below `/kaggle/input` can be read; no sshd."""
    return box(folder, KAGGLE, **changes)


def colab(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """Colab's tree: `/content`, and a drive that outlives the machine; no sshd."""
    return box(folder, COLAB, **changes)


def login_node(folder: Path, **changes: object) -> contextlib.AbstractContextManager[Box]:
    """Has the programs of Slurm; `boot` starts its daemons."""
    return box(folder, LOGIN_NODE, **changes)
