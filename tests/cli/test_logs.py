"""`stoker logs` over logs made by hand."""

from pathlib import Path

import pytest
from made_runs import CommandLine, make_run, training

from stoker.cli import runs_commands
from stoker.terminal import plain_text


def write_log(folder: Path, attempt: int, text: bytes) -> Path:
    log = folder / "logs" / f"train-{attempt}-rank0.log"
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(text)
    return log


def test_newest_attempt_is_printed(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_log(folder, 9, b"old\n")
    write_log(folder, 10, "第一行\nloss\r1.5\nnot utf-8: \xff\n".encode() + b"\xff end")
    outcome = stoker("logs", "medical")
    assert outcome.code == 0
    assert outcome.out == "第一行\n1.5\nnot utf-8: ÿ\n\ufffd end"


def test_an_attempt_that_wrote_nothing_yet_is_said_and_the_one_before_shown(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "medical")
    write_log(folder, 1, b"".join(b"line %d\n" % number for number in range(30)))
    write_log(folder, 2, b"")
    outcome = stoker("logs", "medical")
    assert outcome.err.strip() == "Attempt 2 has written nothing yet. The last lines of attempt 1:"
    assert outcome.out.splitlines() == [f"line {number}" for number in range(10, 30)]
    assert stoker("logs", "medical", "--lines", "1").out == "line 29\n"
    write_log(folder, 2, b"new\n")
    assert (stoker("logs", "medical").out, stoker("logs", "medical").err) == ("new\n", "")


@pytest.mark.parametrize(
    ("count", "expected"), [("2", "line 3\nline 4\n"), ("0", ""), ("99", "line 1\nline 2\nline 3\nline 4\n")]
)
def test_lines_counts_from_the_end(stoker: CommandLine, runs: Path, count: str, expected: str) -> None:
    write_log(make_run(runs, "medical"), 1, b"line 1\nline 2\nline 3\nline 4\n")
    assert stoker("logs", "medical", "--lines", count).out == expected


def test_following_a_run_that_is_over_ends_at_once(stoker: CommandLine, runs: Path) -> None:
    write_log(make_run(runs, "medical"), 1, b"done\n")
    assert stoker("logs", "medical", "-f").out == "done\n"


def test_following_ends_with_the_process_and_misses_nothing(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(runs, "medical")
    log = write_log(folder, 1, b"start\n")
    chunks = iter([b"step 1: ", "损失".encode()[:4], "损失".encode()[4:] + b"\n", b"last words\n"])
    with training(folder) as process:

        def write_on() -> None:
            """What happens between two looks: the training writes, a character in two halves, and at last ends."""
            chunk = next(chunks)
            with log.open("ab") as file:
                file.write(chunk)
            if chunk.startswith(b"last"):
                assert process.stdin
                process.stdin.close()
                process.wait()

        monkeypatch.setattr(runs_commands, "wait_a_little", write_on)
        out = stoker("logs", "medical", "-f").out
    assert out == "start\nstep 1: 损失\nlast words\n"


def test_following_goes_on_with_the_next_attempt(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(runs, "medical")
    write_log(folder, 1, b"first\n")
    looks = iter(range(9))
    with training(folder) as process:

        def restart() -> None:
            if next(looks) == 0:
                write_log(folder, 2, b"second\n")
            else:
                assert process.stdin
                process.stdin.close()
                process.wait()

        monkeypatch.setattr(runs_commands, "wait_a_little", restart)
        out = stoker("logs", "medical", "-f").out
    assert out == "first\nsecond\n"


def test_ctrl_c_leaves_and_the_run_goes_on(stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(runs, "medical")
    write_log(folder, 1, b"start\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_commands, "wait_a_little", interrupt)
    with training(folder) as process:
        outcome = stoker("logs", "medical", "-f")
        assert (outcome.code, outcome.out) == (0, "start\n")
        assert process.poll() is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_run_without_a_log_and_unknown_run_are_told_apart(stoker: CommandLine, runs: Path, language: str) -> None:
    make_run(runs, "medical")
    without, unknown = (stoker("logs", name, language=language) for name in ("medical", "nobody"))
    assert (without.code, unknown.code) == (1, 1)
    assert "STK505" in without.err
    assert "STK501" in unknown.err


def test_every_character_that_a_terminal_obeys_is_shown_by_another() -> None:
    every = "".join(map(chr, range(0x3000)))
    shown = plain_text.plain(every)
    assert not plain_text._OBEYED.search(shown)
    assert [a for a, b in zip(every, shown, strict=True) if a != b] == plain_text._OBEYED.findall(every)
