"""What is asked of sbatch, and what a job's script does when its time is up: with Slurm's commands simulated."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.cluster import slurm_nodes
from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.launch import nodes
from stoker.places import registry
from stoker.places.box import Box
from stoker.places.package import Package
from stoker.places.queue import Queue
from stoker.rundir.layout import RunDir
from stoker.supervise import processes
from stoker.terminal import console

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


def a_queue(words: str = "", line: Line | None = None, base: str = "/shared/stoker") -> Queue:
    run = load.parse(RUN_FILE + words, "run.yaml")
    made = Queue(line or Line(), Host(name="login", host="login", base=base, python="python3"), run)  # type: ignore[arg-type]
    made._facts = BoxFacts()
    return made


def options(words: str) -> dict[str, str]:
    lines = [line for line in a_queue(words).script(PACKAGE, []).splitlines() if line.startswith("#SBATCH --")]
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


def test_a_job_has_as_many_nodes_as_the_run_asks_for_and_one_task_on_each() -> None:
    asked = options("where: {nodes: 4, gpus: 8}\n")
    assert [asked[name] for name in ("nodes", "ntasks-per-node", "gres")] == ["4", "1", "gpu:8"]
    assert "no-kill" not in asked
    assert "no-kill" in options("where: {nodes: 4, elastic: true}\n")
    assert options("")["nodes"] == "1"
    assert "join=(" not in a_queue().script(PACKAGE, [])


@pytest.mark.parametrize("value", ['"a\\nrm -rf /"', "{a: b}", "", '"\\e[0m"'])
def test_a_value_cannot_begin_a_line_of_its_own(value: str) -> None:
    with pytest.raises(StokerError, match="STK743"):
        options(f"native: {{slurm: {{comment: {value}}}}}\n")


def test_a_secret_is_named_in_the_script_and_its_value_goes_to_sbatch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    line = Line()
    a_queue(line=line).start(PACKAGE)
    assert "#SBATCH --export=HF_TOKEN\n" in "".join(line.scripts)
    assert "hf_canary" not in "".join(line.scripts)
    assert [secrets for secrets in line.secrets if secrets] == [{"HF_TOKEN": "hf_canary"}]


# ---- submitting, looking, stopping


def test_a_login_node_without_slurm_is_an_error_with_its_name() -> None:
    with pytest.raises(StokerError, match="STK740"):
        a_queue(line=Line({"squeue": "none\n"})).start(PACKAGE)


def test_what_sbatch_says_is_told() -> None:
    refusal = StokerError("STK702", host="login", reason="sbatch: error: invalid partition")
    with pytest.raises(StokerError, match="invalid partition") as caught:
        a_queue(line=Line({"sbatch --parsable": refusal})).start(PACKAGE)
    assert caught.value.code == "STK741"


def test_a_run_in_the_queue_is_not_submitted_twice() -> None:
    with pytest.raises(StokerError, match="STK742"):
        a_queue(line=Line({"squeue": "17|PENDING|Priority|N/A|N/A|\n"})).start(PACKAGE)


def test_a_run_that_waits_is_queued_and_one_that_runs_is_running() -> None:
    waiting = a_queue(line=Line({"squeue": "17|PENDING|Priority|2026-11-16T08:00:00|N/A|\n"}))
    assert (waiting.status("night") or {})["state"] == "queued"
    assert (waiting.status("night") or {})["jobs"][0]["id"] == "17"
    assert (a_queue(line=Line({"squeue": "17|RUNNING|None|x|y|n1\n"})).status("night") or {})["state"] == "running"
    assert a_queue().status("night") is None
    with pytest.raises(StokerError, match="Priority"):
        waiting.watch("night", console, once=True, as_json=False)


def test_stop_takes_only_what_waits_out_of_the_queue() -> None:
    line = Line()
    a_queue(line=line).stop("night")
    assert "touch /shared/stoker/runs/night/slurm/end /shared/stoker/runs/night/stop" in line.scripts[0]
    assert "scancel --state=PENDING" in line.scripts[0]


def test_a_host_with_a_queue_gets_jobs_unless_the_machine_itself_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    known.save(Host(name="cluster", host="c", facts=BoxFacts(tools=("rsync", "sbatch"))))
    known.save(Host(name="box", host="b", facts=BoxFacts(tools=("rsync",))))

    def kind(words: str, on: str | None) -> type:
        return type(registry.find(load.parse(RUN_FILE + words, "run.yaml"), on))

    assert [kind("", on) for on in ("cluster", "box")] == [Queue, Box]
    assert kind("where: {place: ssh, host: cluster}\n", None) is Box
    assert kind("where: {place: slurm, host: box}\n", None) is Queue
    assert kind("where: {place: slurm}\n", None) is Queue
    assert kind("where: {place: slurm}\n", "localhost") is Queue


# ---- what a job does

TRAINER = """#!/bin/sh
# Stands for `stoker train`: works until it is asked to stop, commits, and ends with the code it was told.
cd "$STOKER_RUNS/night"
echo "$$ $STOKER_NODE $STOKER_MEETING" > "$5-er"
[ "$5" = train ] || exec sleep 30  # takes part until it is ended
touch working
step=$(sed -n 's/^ "committed_step": \\([0-9]*\\).*/\\1/p' supervisor.json 2>/dev/null)
for i in $(seq 100); do [ -e stop ] || [ "$UNASKED" ] && break; sleep 0.1; done
rm -f stop
printf '{\\n "state": "stopped",\\n "asked": "%s",\\n "committed_step": %d,\\n "x": ""\\n}\\n' \\
  "${REASON:-user}" $((${step:-0} + ${GAIN:-5})) > supervisor.json
exit ${CODE:-75}
"""


SRUN = """#!/bin/sh
# Stands for `srun`: does on this machine what is to be done on the node n2. Asked to end, it kills that; but not when
# the controller has told it that the whole job is cancelled.
echo srun "$1" "$2" "$3" "$4" >> "CALLS"
while [ "${1#--}" != "$1" ]; do shift; done
trap '[ "$CANCELLED" ] || kill -9 $there' TERM
SLURMD_NODENAME=n2 "$@" &
there=$!
wait
"""


ON_THE_FIRST_OF_TWO = {"SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": "2"}


class Job:
    """A job's script with Slurm's commands simulated: each notes its words and ends with the code it is told."""

    def __init__(self, folder: Path, words: str = "") -> None:
        self.folder, self.run = folder, folder / "base" / "runs" / "night"
        self.awaited = ["working"]
        """Files that are there before it is told anything."""
        (self.run / "slurm").mkdir(parents=True)
        (folder / "base" / "inputs" / "night").mkdir(parents=True)
        self._program(folder / "base" / "env" / "bin" / "python", TRAINER)
        for name in ("squeue", "scontrol", "sbatch"):
            said = {"squeue": "${END:-2099-01-01T20:00:00}", "sbatch": "18"}.get(name, "")
            text = f'#!/bin/sh\necho {name} "$@" >> "{folder}/calls"\necho {said}\nexit ${{{name}:-0}}\n'
            self._program(folder / "bin" / name, text)
        self._program(folder / "bin" / "srun", SRUN.replace("CALLS", f"{folder}/calls"))
        script = a_queue(words, base=str(folder / "base")).script(PACKAGE, [])
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
            env={**os.environ, "PATH": path, "SLURM_JOB_ID": "17", **ON_THE_FIRST_OF_TWO, **settings},
            start_new_session=True,
        )
        if number is not None:
            until = time.monotonic() + 20
            while not all((self.run / name).exists() for name in self.awaited) and time.monotonic() < until:
                time.sleep(0.02)
            # As Slurm does: the notice goes to the script, a cancellation to every process of the job.
            (os.kill if number == signal.SIGUSR1 else os.killpg)(process.pid, number)
        return process.wait(30)

    @property
    def calls(self) -> list[str]:
        """Of commands that change the queue or start something elsewhere."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if not line.startswith("squeue")]

    def who(self, part: str) -> list[str]:
        """Number of the process that had a part, its node, and the meeting."""
        return (self.run / f"{part}-er").read_text().split()

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
def test_a_requeue_that_ends_the_processes_of_the_job_at_once_is_no_refusal(job: Job) -> None:
    scontrol = job.folder / "bin" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("exit ", "kill -TERM 0\nexit "))
    assert job(signal.SIGUSR1) == 0
    assert job.calls == ["scontrol requeue 17"]


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


# ---- several nodes


@pytest.fixture
def job_of_two(tmp_path: Path) -> Job:
    return Job(tmp_path / "two", "where: {nodes: 2}\n")


@pytest_bash
def test_a_job_of_two_nodes_trains_on_the_first_and_somebody_takes_part_on_the_other(job_of_two: Job) -> None:
    assert job_of_two(signal.SIGUSR1, SLURM_RESTART_COUNT="3") == 0
    assert job_of_two.calls == ["srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --exclude=n1", "scontrol requeue 17"]
    assert job_of_two.who("train")[1:] == ["n1", "17.3"]
    assert job_of_two.who("join")[1:] == ["n2", "17.3"]
    until = time.monotonic() + 10
    while (lives := bool(processes.words_of(int(job_of_two.who("join")[0])))) and time.monotonic() < until:
        time.sleep(0.02)
    assert not lives


@pytest_bash
def test_who_takes_part_outlives_the_signal_of_a_cancellation(job_of_two: Job) -> None:
    """Else the first node could not commit."""
    there = "for i in $(seq 100); do [ -s join-er ] && break; sleep 0.1; done"
    lives = 'kill -0 "$(cut -d " " -f 1 join-er)" && touch lived'
    slow = TRAINER.replace("rm -f stop\n", f"rm -f stop; {there}; sleep 1; {lives}\n")
    job_of_two._program(job_of_two.folder / "base" / "env" / "bin" / "python", slow)
    job_of_two.awaited.append("join-er")
    assert job_of_two(signal.SIGTERM, CANCELLED="1") == 75
    os.kill(int(job_of_two.who("join")[0]), signal.SIGKILL)
    assert (job_of_two.run / "lived").exists()


@pytest_bash
def test_a_job_of_one_node_has_nobody_take_part(job: Job) -> None:
    assert job(UNASKED="1", CODE="0") == 0
    assert job.calls == []
    assert len(job.who("train")) == 1


INTERFACES = '[{"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]}]'


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Answers for every node of this job, which runs on n2."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{INTERFACES}'\n")
    program.with_name("scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    for one in (program, program.with_name("scontrol")):
        one.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_NUM_NODES": "2", "STOKER_NODE": "n2", "STOKER_MEETING": "17.3"}.items():
        monkeypatch.setenv(name, value)
    return program


@pytest_bash
def test_the_nodes_of_a_job_meet_at_the_one_that_asks(srun: Path, tmp_path: Path) -> None:
    slurm_nodes.record_nodes(
        RunDir(tmp_path), load.parse(f"{RUN_FILE}where: {{nodes: 2, interface: lo}}\n", "run.yaml")
    )
    found = nodes.read(tmp_path / "nodes.json")
    assert found is not None
    assert (found.meeting, found.head.name, found.present) == ("17.3", "n2", ("n2", "n1"))
    assert {(one.address, one.interface) for one in found.nodes} == {("127.0.0.1", "lo")}
    assert found.port > 0


@pytest_bash
def test_a_job_with_another_number_of_nodes_is_refused(srun: Path, tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="STK746"):
        slurm_nodes.record_nodes(RunDir(tmp_path), load.parse(f"{RUN_FILE}where: {{nodes: 3}}\n", "run.yaml"))


@pytest_bash
def test_what_srun_says_is_told(srun: Path, tmp_path: Path) -> None:
    srun.write_text("#!/bin/sh\necho 'srun: error: n1 is down' >&2\nexit 1\n")
    with pytest.raises(StokerError, match="n1 is down") as caught:
        slurm_nodes.record_nodes(RunDir(tmp_path), load.parse(f"{RUN_FILE}where: {{nodes: 2}}\n", "run.yaml"))
    assert caught.value.code == "STK747"
