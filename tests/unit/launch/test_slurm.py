"""What is asked of sbatch, and what a job's script does when its time is up: with Slurm's commands simulated."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import hosts, place
from stoker.launch.found import BoxFacts
from stoker.launch.hosts import Host
from stoker.launch.package import Package
from stoker.launch.slurm import Queue
from stoker.launch.ssh import Box

PACKAGE = Package("night", {}, "inputs/night", ("train", "run.yaml", "--set", "x=a b", "--detach"), {}, prepared=True)
RUN_FILE = "model: a/b\ndata: {train: rows.jsonl}\n"


class Line:
    """Answers a script by the first word in it that is known."""

    name = "login"

    def __init__(self, answers: Mapping[str, str | StokerError] | None = None) -> None:
        self.answers = {"squeue": "", **(answers or {})}
        self.scripts: list[str] = []
        self.secrets: list[dict[str, str]] = []

    def run(self, script: str, *, secrets: Mapping[str, str] | None = None, seconds: float = 60) -> str:
        self.scripts.append(script)
        self.secrets.append(dict(secrets or {}))
        found = next((answer for word, answer in self.answers.items() if word in script), "")
        if isinstance(found, StokerError):
            raise found
        return found


def queue(words: str = "", line: Line | None = None, base: str = "/shared/stoker") -> Queue:
    run = load.parse(RUN_FILE + words, "run.yaml")
    made = Queue(line or Line(), Host(name="login", host="login", base=base, python="python3"), run)  # type: ignore[arg-type]
    made._facts = BoxFacts()
    return made


def options(words: str) -> dict[str, str]:
    lines = [line for line in queue(words).script(PACKAGE, []).splitlines() if line.startswith("#SBATCH --")]
    return dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines)


# ---- what is asked for


def test_a_job_is_as_long_as_a_session_and_is_told_before_its_end() -> None:
    asked = options("where: {session: 8h}\n")
    assert (asked["time"], asked["signal"]) == ("480", "B:USR1@600")
    assert "requeue" in asked
    asked = options("where: {session: 90s}\n")
    assert (asked["time"], asked["signal"]) == ("2", "B:USR1@120")
    assert "time" not in options("")


def test_native_options_pass_as_they_are_and_a_flag_stands_alone() -> None:
    asked = options("native: {slurm: {qos: low, exclude: [n1, n2], exclusive: true, hold: false, cpus_per_task: 4}}\n")
    found = [asked[name] for name in ("qos", "exclude", "exclusive", "cpus-per-task")]
    assert found == ["low", "n1,n2", "", "4"]
    assert "hold" not in asked


def test_a_job_asks_for_the_cards_of_the_run_unless_native_does() -> None:
    assert options("")["gres"] == "gpu:1"
    assert options("where: {gpus: 4}\n")["gres"] == "gpu:4"
    assert options("where: {gpus: '0,2'}\n")["gres"] == "gpu:3"
    assert "gres" not in options("where: {gpus: 0}\n")
    assert "gres" not in options("native: {slurm: {gpus_per_node: 2}}\n")


@pytest.mark.parametrize("value", ['"a\\nrm -rf /"', "{a: b}", "", '"\\e[0m"'])
def test_a_value_cannot_begin_a_line_of_its_own(value: str) -> None:
    with pytest.raises(StokerError, match="STK743"):
        options(f"native: {{slurm: {{comment: {value}}}}}\n")


def test_a_secret_is_named_in_the_script_and_its_value_goes_to_sbatch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    line = Line()
    queue(line=line).start(PACKAGE)
    assert "#SBATCH --export=HF_TOKEN\n" in "".join(line.scripts)
    assert "hf_canary" not in "".join(line.scripts)
    assert [secrets for secrets in line.secrets if secrets] == [{"HF_TOKEN": "hf_canary"}]


# ---- submitting, looking, stopping


def test_a_login_node_without_slurm_is_an_error_with_its_name() -> None:
    with pytest.raises(StokerError, match="STK740"):
        queue(line=Line({"squeue": "none\n"})).start(PACKAGE)


def test_what_sbatch_says_is_told() -> None:
    refusal = StokerError("STK702", host="login", reason="sbatch: error: invalid partition")
    with pytest.raises(StokerError, match="invalid partition") as caught:
        queue(line=Line({"sbatch --parsable": refusal})).start(PACKAGE)
    assert caught.value.code == "STK741"


def test_a_run_in_the_queue_is_not_submitted_twice() -> None:
    with pytest.raises(StokerError, match="STK742"):
        queue(line=Line({"squeue": "17|PENDING|Priority|N/A|N/A|\n"})).start(PACKAGE)


def test_a_run_that_waits_is_queued_and_one_that_runs_is_running() -> None:
    waiting = queue(line=Line({"squeue": "17|PENDING|Priority|2026-11-16T08:00:00|N/A|\n"}))
    assert (waiting.status("night") or {})["state"] == "queued"
    assert (waiting.status("night") or {})["jobs"][0]["id"] == "17"
    assert (queue(line=Line({"squeue": "17|RUNNING|None|x|y|n1\n"})).status("night") or {})["state"] == "running"
    assert queue().status("night") is None
    with pytest.raises(StokerError, match="Priority"):
        waiting.follow(["watch", "night"])


def test_stop_takes_only_what_waits_out_of_the_queue() -> None:
    line = Line()
    queue(line=line).stop("night")
    assert "touch /shared/stoker/runs/night/slurm/end /shared/stoker/runs/night/stop" in line.scripts[0]
    assert "scancel --state=PENDING" in line.scripts[0]


def test_a_host_with_a_queue_gets_jobs_unless_the_machine_itself_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    hosts.save(Host(name="cluster", host="c", facts=BoxFacts(tools=("rsync", "sbatch"))))
    hosts.save(Host(name="box", host="b", facts=BoxFacts(tools=("rsync",))))

    def kind(words: str, on: str | None) -> type:
        return type(place.find(load.parse(RUN_FILE + words, "run.yaml"), on))

    assert [kind("", on) for on in ("cluster", "box")] == [Queue, Box]
    assert kind("where: {place: ssh, host: cluster}\n", None) is Box
    assert kind("where: {place: slurm, host: box}\n", None) is Queue
    assert kind("where: {place: slurm}\n", None) is Queue
    assert kind("where: {place: slurm}\n", "localhost") is Queue


# ---- what a job does

TRAINER = """#!/bin/sh
# Stands for `stoker train`: works until it is asked to stop, commits, and ends with the code it was told.
cd "$STOKER_RUNS/night"
touch working
step=$(sed -n 's/^ "committed_step": \\([0-9]*\\).*/\\1/p' supervisor.json 2>/dev/null)
for i in $(seq 100); do [ -e stop ] || [ "$UNASKED" ] && break; sleep 0.1; done
rm -f stop
printf '{\\n "state": "stopped",\\n "asked": "%s",\\n "committed_step": %d,\\n "x": ""\\n}\\n' \\
  "${REASON:-user}" $((${step:-0} + ${GAIN:-5})) > supervisor.json
exit ${CODE:-75}
"""


class Job:
    """A job's script with Slurm's commands simulated: each notes its words and ends with the code it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "base" / "runs" / "night"
        (self.run / "slurm").mkdir(parents=True)
        (folder / "base" / "inputs" / "night").mkdir(parents=True)
        self._program(folder / "base" / "env" / "bin" / "python", TRAINER)
        for name in ("squeue", "scontrol", "sbatch"):
            said = {"squeue": "${END:-2099-01-01T20:00:00}", "sbatch": "18"}.get(name, "")
            text = f'#!/bin/sh\necho {name} "$@" >> "{folder}/calls"\necho {said}\nexit ${{{name}:-0}}\n'
            self._program(folder / "bin" / name, text)
        script = queue(base=str(folder / "base")).script(PACKAGE, [])
        (self.run / "slurm" / "job.sh").write_text(script.replace("#!/bin/bash -l", "#!/bin/bash"))

    def _program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def __call__(self, number: signal.Signals | None = None, **settings: str) -> int:
        """Run it, tell it that its time is up or that it is cancelled, and bring back its code."""
        (self.run / "working").unlink(missing_ok=True)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", str(self.run / "slurm" / "job.sh")],
            env={**os.environ, "PATH": path, "SLURM_JOB_ID": "17", **settings},
            start_new_session=True,
        )
        if number is not None:
            until = time.monotonic() + 20
            while not (self.run / "working").exists() and time.monotonic() < until:
                time.sleep(0.02)
            # As Slurm does: the notice goes to the script, a cancellation to every process of the job.
            (os.kill if number == signal.SIGUSR1 else os.killpg)(process.pid, number)
        return process.wait(30)

    @property
    def calls(self) -> list[str]:
        """Of commands that change the queue."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if not line.startswith("squeue")]

    @property
    def last(self) -> list[str]:
        return (self.run / "slurm" / "jobs").read_text().splitlines()[-1].split()


pytest_bash = pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="no bash")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "a home").mkdir()
    return Job(tmp_path / "a home")


@pytest_bash
def test_a_job_whose_time_is_up_is_requeued(job: Job) -> None:
    assert job(signal.SIGUSR1) == 0
    assert job.calls == ["scontrol requeue 17"]
    assert job.last[3:] == ["0", "5", "requeue"]


@pytest_bash
def test_where_requeue_is_not_allowed_the_next_job_follows_this_one(job: Job) -> None:
    assert job(signal.SIGUSR1, scontrol="1") == 0
    assert job.calls[1] == f"sbatch --parsable --dependency=afterany:17 {job.run}/slurm/job.sh"
    assert job.last[5:] == ["next", "18"]


@pytest_bash
def test_where_neither_is_allowed_the_job_ends_with_the_code_that_says_so(job: Job) -> None:
    assert job(signal.SIGUSR1, scontrol="1", sbatch="1") == 75
    assert job.last[5:] == ["refused", "75"]


@pytest_bash
@pytest.mark.parametrize("reason", ["deadline", "notice"])
def test_a_supervisor_that_stopped_before_the_end_goes_on_in_the_next_job(job: Job, reason: str) -> None:
    assert job(UNASKED="1", REASON=reason) == 0
    assert job.calls == ["scontrol requeue 17"]


@pytest_bash
@pytest.mark.parametrize(("code", "reason"), [("0", ""), ("1", ""), ("2", ""), ("75", "user"), ("75", "money")])
def test_what_is_over_is_not_requeued(job: Job, code: str, reason: str) -> None:
    assert job(UNASKED="1", CODE=code, REASON=reason) == int(code)
    assert job.calls == []
    assert job.last[5:] == ["ended", code, "by-itself"]


@pytest_bash
def test_who_was_cancelled_commits_and_is_not_requeued(job: Job) -> None:
    assert job(signal.SIGTERM) == 75
    assert job.calls == []
    assert job.last[5] == "ended"


@pytest_bash
def test_who_is_killed_at_the_time_limit_is_requeued_if_it_could_still_commit(job: Job) -> None:
    assert job(signal.SIGTERM, END="2026-01-01T00:00:00") == 0
    assert job.calls == ["scontrol requeue 17"]


@pytest_bash
def test_a_job_without_a_known_end_is_cancelled_by_a_signal(job: Job) -> None:
    assert job(signal.SIGTERM, END="NONE") == 75
    assert job.calls == []


@pytest_bash
def test_who_was_asked_to_stop_is_not_requeued_when_its_time_is_up(job: Job) -> None:
    (job.run / "slurm" / "end").touch()
    assert job(signal.SIGUSR1) == 75
    assert job.calls == []


@pytest_bash
def test_jobs_that_get_nowhere_end_after_three_and_progress_counts_anew(job: Job) -> None:
    count = job.run / "slurm" / "fruitless"
    counted = []
    for gain in ("0", "5", "0"):
        count.write_text("1\n")
        assert job(signal.SIGUSR1, GAIN=gain) == 0
        counted.append(count.read_text())
    assert counted == ["2\n", "0\n", "2\n"]
    assert job(signal.SIGUSR1, GAIN="0") == 1
    assert job.last[5:] == ["fruitless", "75"]


@pytest_bash
def test_the_supervisor_is_told_when_the_node_is_taken_back(job: Job) -> None:
    python = job.folder / "base" / "env" / "bin" / "python"
    python.write_text(
        '#!/bin/sh\necho "$STOKER_DEADLINE" > "$STOKER_RUNS/deadline"\necho "$@" > "$STOKER_RUNS/words"\n'
    )
    assert job(TZ="Asia/Shanghai") == 0
    assert (job.run.parent / "deadline").read_text() == "2099-01-01T20:00:00+08:00\n"
    assert (job.run.parent / "words").read_text() == "-X utf8 -m stoker train run.yaml --set x=a b\n"
