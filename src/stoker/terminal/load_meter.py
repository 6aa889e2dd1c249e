"""Load of a run's devices and memory of its process, measured now and then."""

import time

from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.doctor import activity
from stoker.doctor.activity import GpuLoad
from stoker.facts import machine
from stoker.launch import training

_LOAD_EVERY_SECONDS = 2.0


class LoadMeter:
    """Load of the run's devices, measured every few seconds because asking takes time."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._measured_at = 0.0
        self._cpu_seconds: float | None = None
        self.gpus: list[GpuLoad] = []
        self.cpu_percent: float | None = None
        self.memory_bytes: int | None = None
        self.cpu_count = machine.cpu_count()
        self.measure()
        if self._cpu_seconds is not None:
            wait_a_little()
            self.measure()

    def measure(self) -> None:
        """Measure the GPUs and the training process."""
        pid = training.running_pid(self._progress.run_dir)
        now, before = time.monotonic(), self._cpu_seconds
        self.gpus = activity.gpus() if pid else []
        self.memory_bytes = activity.memory_bytes(pid) if pid else None
        self._cpu_seconds = activity.cpu_seconds(pid) if pid else None
        if self._cpu_seconds is None:
            self.cpu_percent = None
        elif before is not None:
            used = (self._cpu_seconds - before) / (now - self._measured_at)
            self.cpu_percent = 100 * used / self.cpu_count
        self._measured_at = now

    def measure_if_due(self) -> None:
        """Measure if the last measurement is old enough."""
        if time.monotonic() - self._measured_at >= _LOAD_EVERY_SECONDS:
            self.measure()
