"""C7: corrupted checkpoint, configuration, tokenizer and data files: bits flipped, cut, zeroed, swapped, doubled, gone.

A damaged checkpoint must be passed over for the one before, with a reason; damaged data, tokenizers and reports must be
a named error; a damaged base model must refuse the resume; a damaged best checkpoint must not keep a run from its end.
Nothing may be accepted, and nothing may end in a traceback.
Controls: sizes are compared and digests are not; the record's own digest is not looked at.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
import trainings
from campaign import Campaign

from stoker.engine import models
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files, prepared
from stoker.rundir.layout import RunDir

CONTROL_CASES = 60
RESUMED_EVERY = 500
NOT_TRAINED_ON = {"generation_config.json"}
"""Of a base model: how it samples text, which no training looks at; in a checkpoint it is damaged like all others."""
KINDS = ("flip", "flip", "flip", "cut", "zero", "swap", "grow", "empty", "gone", "noise")


def run(campaign: Campaign) -> None:
    run_dir = _trained(campaign)
    whole = campaign.folder / "whole"
    assert trainings.start(trainings.again(run_dir, whole)).wait() == 0
    wanted = trainings.outcome(RunDir(whole / "runs" / run_dir.name))
    for number in range(campaign.n):
        _case(campaign, run_dir, number)
        if number % RESUMED_EVERY == 0:
            _resumed(campaign, run_dir, number, wanted)
    for number in range(max(2, campaign.n // RESUMED_EVERY)):
        _best(campaign, number)
    _controls(campaign, run_dir)


def _trained(campaign: Campaign) -> RunDir:
    """A real run with three committed checkpoints."""
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    words = trainings.text(base, train="{batch: 4, steps: 12, learning_rate: 1e-3}", save="{every: 2 steps, keep: 3}")
    run_dir = trainings.make(campaign.folder / "run", words)
    attempt = trainings.start(run_dir, before=_end_at(7))
    attempt.wait()
    assert [c.step for c in checkpoints.committed(run_dir.checkpoints)] == [2, 4, 6], trainings.log_of(run_dir)
    return run_dir


def _end_at(step: int) -> Callable[[], None]:
    def before() -> None:
        from stoker.engine import callbacks, saving

        plain = callbacks.Schedule.on_step_end
        saving.Saver.begin = _in_order(saving.Saver.begin)  # type: ignore[method-assign]

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step == step:
                os.kill(os.getpid(), 9)
            return plain(self, args, state, control, **kwargs)

        callbacks.Schedule.on_step_end = on_step_end  # type: ignore[method-assign]

    return before


def _in_order(begin: Any) -> Any:
    def waited(self: Any, job: Any) -> None:
        begin(self, job)
        self.wait()

    return waited


# ---- one case


def _case(campaign: Campaign, run_dir: RunDir, number: int) -> None:
    random = campaign.random(number)
    about = random.choices(("checkpoint", "data", "base"), (12, 6, 2))[0]
    folder, others = {
        "checkpoint": (run_dir.checkpoints / "step-00000006", run_dir.checkpoints / "step-00000004"),
        "data": (run_dir.data, None),
        "base": (campaign.folder / "base", None),
    }[about]
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_TRAINED_ON)
    path = random.choice(paths)
    kind = random.choice(KINDS)
    name = path.relative_to(folder).as_posix()
    other = others / name if others else random.choice(paths)
    before = path.read_bytes()
    try:
        while not _damage(path, other, kind, random):
            kind = random.choice(KINDS)
        wrong = JUDGES[about](run_dir)
    except Exception as error:  # what must not happen
        wrong = f"{type(error).__name__}: {error}"
    finally:
        path.write_bytes(before)
    if wrong:
        campaign.fail([number, about, name, kind], wrong)
    campaign.case(about, f"kind: {kind}")


def _damage(path: Path, other: Path, kind: str, random: Any) -> bool:
    """Change the file; False where nothing changed."""
    raw = bytearray(path.read_bytes())
    before, at = bytes(raw), random.randrange(max(1, len(raw)))
    if kind == "gone":
        path.unlink()
        return True
    if kind == "flip" and raw:
        raw[at] ^= 1 << random.randrange(8)
    elif kind == "cut":
        del raw[at:]
    elif kind == "zero":
        end = min(len(raw), at + random.choice((1, 512, 4096)))
        raw[at:end] = bytes(end - at)
    elif kind == "swap":
        raw = bytearray(other.read_bytes())
    elif kind == "grow":
        raw += random.randbytes(random.randint(1, 4096))
    elif kind == "empty":
        raw.clear()
    elif kind == "noise":
        end = min(len(raw), at + 512)
        raw[at:end] = random.randbytes(end - at)
    path.write_bytes(raw)
    return bytes(raw) != before


def _checkpoint(run_dir: RunDir) -> str:
    found, rejected = checkpoints.newest_verified(run_dir.checkpoints)
    if found is None or found.step != 4 or [one.path.name for one in rejected] != ["step-00000006"]:
        return f"found {found and found.step}, rejected {rejected}"
    return "" if rejected[0].reason else "no reason"


def _data(run_dir: RunDir) -> str:
    """As the training program opens its data."""
    try:
        report = prepared.read_report(run_dir.data)
        if report is None:
            return ""  # no report: `train` says that nothing is prepared (STK206)
        for name, split in (("train", report.train), ("eval", report.eval)):
            if split is not None:
                prepared.check_sizes(run_dir.data, name, split)
        prepared.check_digests(run_dir.data, report)
    except StokerError as error:
        return "" if error.code == "STK311" and error.where else f"{error}"
    return "accepted"


def _base(run_dir: RunDir) -> str:
    """As a resume compares the base model with the one the checkpoint was trained on."""
    recorded = checkpoints.committed(run_dir.checkpoints)[-1].commit.fingerprint["base"]
    return "accepted" if models.base_digest(run_dir.run(), run_dir.folder()) == recorded else ""


JUDGES: dict[str, Callable[[RunDir], str]] = {"checkpoint": _checkpoint, "data": _data, "base": _base}


# ---- through the whole program


def _resumed(campaign: Campaign, run_dir: RunDir, number: int, wanted: trainings.Outcome) -> None:
    """A damaged newest checkpoint: the next start goes on from the one before, to the same end."""
    random = campaign.random("resumed", number)
    folder = campaign.folder / "resumed"
    copy = trainings.again(run_dir, folder)
    shutil.copytree(run_dir.checkpoints, copy.checkpoints)
    shutil.copy(run_dir.events_file, copy.events_file)
    newest = copy.checkpoints / "step-00000006"
    path = random.choice(sorted(p for p in newest.rglob("*") if p.is_file()))
    while not _damage(path, copy.checkpoints / "step-00000004" / path.relative_to(newest), "flip", random):
        pass
    attempt = trainings.start(copy)
    wrong = f"{attempt.codes} {trainings.log_of(copy)}" if attempt.wait() else ""
    wrong = wrong or trainings.difference(trainings.outcome(copy), wanted)
    if not wrong and not list((copy.checkpoints / ".quarantine").glob("step-00000006.*/REASON.json")):
        wrong = "nothing in quarantine"
    if wrong:
        campaign.fail(["resumed", number, path.name], wrong)
    campaign.counts["resumed past a damaged one, same end"] += not wrong


def _best(campaign: Campaign, number: int) -> None:
    """A damaged best checkpoint of a run whose steps are all done, or half done: the last one is the result."""
    random = campaign.random("best", number)
    words = trainings.text(
        campaign.folder / "base",
        train="{batch: 4, steps: 12, learning_rate: 1e-3, eval_every: 4 steps}",
        save="{every: 2 steps, keep: 2, best: eval_loss}",
    )
    run_dir = trainings.make(campaign.folder / f"best{number}", words)
    half = number % 2 == 1
    ended = trainings.start(run_dir, before=_both(_worse_and_worse, _end_at(9)) if half else _worse_and_worse).wait()
    assert ended == (-9 if half else 0), trainings.log_of(run_dir)
    shutil.rmtree(run_dir.artifacts, ignore_errors=True)
    best = run_dir.checkpoints / "step-00000004"
    record = number % 4 < 2
    path = best / checkpoints.COMMIT_NAME if record else random.choice(sorted(best.rglob("*.safetensors")))
    while not _damage(path, path, random.choice(("flip", "cut", "empty", "noise")), random):
        pass
    attempt = trainings.start(run_dir, before=_worse_and_worse)
    wrong = f"{attempt.codes} {trainings.log_of(run_dir)}" if attempt.wait() else _is_last(run_dir)
    if wrong:
        campaign.fail(["best", number, path.name], wrong)
    campaign.counts["ended past a damaged best one"] += not wrong


def _is_last(run_dir: RunDir) -> str:
    """Whether the result is the last checkpoint's, and the damage was said and put aside."""
    last = checkpoints.committed(run_dir.checkpoints)[-1]
    if last.step != 12 or tiny_run.weights_sha(last.path) != tiny_run.weights_sha(run_dir.final):
        return f"the result is not step {last.step}"
    if not any(e["event"] == "rejected" and e["path"] == "step-00000004" for e in events.read(run_dir.events_file)):
        return "nothing was said"
    aside = list((run_dir.checkpoints / ".quarantine").glob("step-00000004.*/REASON.json"))
    return "" if aside else "nothing in quarantine"


def _worse_and_worse() -> None:
    """The first eval is the best."""
    from stoker.engine import callbacks

    plain = callbacks.Best.on_evaluate

    def on_evaluate(self: Any, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> Any:
        worse = {**metrics, "eval_loss": metrics["eval_loss"] + state.global_step}
        return plain(self, args, state, control, worse, **kwargs)

    callbacks.Best.on_evaluate = on_evaluate  # type: ignore[method-assign]


def _both(*changes: Callable[[], None]) -> Callable[[], None]:
    def before() -> None:
        for change in changes:
            change()

    return before


# ---- controls


def _controls(campaign: Campaign, run_dir: RunDir) -> None:
    changes = {
        "digests of files are not compared": (files, "sha256", _digest_of_nothing(run_dir)),
        "the record's digest is not compared": (checkpoints, "_digest", lambda said: said.get("digest", "")),
    }
    for name, (module, word, changed) in changes.items():
        plain = getattr(module, word)
        setattr(module, word, changed)
        try:
            for number in range(CONTROL_CASES):
                random = campaign.random("control", number)
                folder = run_dir.checkpoints / "step-00000006"
                path = folder / (checkpoints.COMMIT_NAME if word == "_digest" else "adapter_model.safetensors")
                before = path.read_bytes()
                try:
                    _damage(path, path, "flip", random)
                    campaign.control(name, caught=bool(_checkpoint(run_dir)), what=_checkpoint(run_dir))
                finally:
                    path.write_bytes(before)
        finally:
            setattr(module, word, plain)


def _digest_of_nothing(run_dir: RunDir) -> Callable[..., str]:
    """Every file has the digest that its record asks for."""
    asked = {
        str(one.path / name): entry.sha256
        for one in checkpoints.committed(run_dir.checkpoints)
        for name, entry in one.commit.files.items()
    }
    return lambda path, **_: asked[str(path)]
