"""Runs of real ranks that save, and what the kernel counts of each: bytes sent for the copy, bytes written."""

import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiny_run
from tiny_run import replaced, said

from stoker.engine.saving import Saver
from stoker.engine.trainer import ExactTrainer
from stoker.rundir.layout import RunDir

ROWS = tiny_run.random_rows(20, seed=1, longest=48)  # at batch 4: 5 steps
_BYTES_SENT = slice(200, 208)
"""Of `struct tcp_info`, since Linux 4.19."""


def make(folder: Path, base: Path, ranks: int, strategy: str = "fsdp2", every: str = "2 steps") -> RunDir:
    """A model trained in full."""
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 48, pack: true}}
tune: {{method: full}}
train: {{learning_rate: 1e-2, warmup: 0, batch: 4, exact: true}}
save: {{every: {every}, keep: 2}}
where: {{gpus: 0, micro: 1, arrange: rows, strategy: {strategy}, processes: {ranks}}}
native: {{trainer: {{report_to: none}}}}
"""
    return tiny_run.make_run(folder, text, ROWS)


def rank() -> int:
    """Of a forked child."""
    return int(os.environ.get("RANK", "0"))


def counted(run_dir: RunDir) -> list[dict[str, int]]:
    """Train; what each rank sent and wrote for the last save."""

    def copying(plain: Any, *words: Any) -> Any:
        before = sent_bytes()
        copied = plain(*words)
        note(run_dir, sent=sent_bytes() - before, checkpoint=copied.bytes)
        return copied

    def saving(plain: Any, *words: Any) -> Any:
        before = written_bytes()
        plain(*words)
        note(run_dir, written=written_bytes() - before)

    with replaced(ExactTrainer, "copied", copying), replaced(Saver, "_save", saving):
        assert tiny_run.train(run_dir) == 0, said(run_dir)
    return [json.loads(path.read_text()) for path in sorted(run_dir.path.glob("bytes-*.json"))]


def note(run_dir: RunDir, **counts: int) -> None:
    path = run_dir.path / f"bytes-{rank()}.json"
    before = json.loads(path.read_text()) if path.exists() else {"written": 0}
    path.write_text(json.dumps({**before, **counts}))


def sent_bytes() -> int:
    """What this process sent over its connections, by the kernel."""
    return sum(map(_sent, Path("/proc/self/fd").iterdir()))


def _sent(descriptor: Path) -> int:
    with suppress(OSError):  # closed meanwhile, or no connection
        if str(descriptor.readlink()).startswith("socket:"):
            with socket.socket(fileno=os.dup(int(descriptor.name))) as one:
                return int(struct.unpack("Q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[_BYTES_SENT])[0])
    return 0


def written_bytes() -> int:
    """What this thread wrote, by the kernel."""
    lines = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(lines["wchar"])
