"""Reward functions as users write them, and as they go wrong. Read as a file by the tests; `asked` is a column."""

import asyncio
import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def contains(prompts, completions, answer, **kwargs):
    return [float(one in text) for one, text in zip(answer, completions, strict=True)]


async def slowly(completions, **kwargs):
    await asyncio.sleep(0)
    return [0.5 for _ in completions]


def as_messages(prompts, completions, **kwargs):
    """How TRL gives conversations."""
    assert all(one[0]["role"] == "user" for one in prompts)
    return [len(one[0]["content"]) for one in completions]


def what_trl_gives(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("seen", prompts)
    log_metric("count", len(prompts))
    assert not kwargs
    return [trainer_state.global_step + sum(ids) for ids in completion_ids]


def only_some(completions, answer, **kwargs):
    return [None if one == "7" else 1 for one in answer]


def talkative(completions, **kwargs):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"past Python\n")
    subprocess.run(["echo", "from a child"], check=True)
    return [1.0 for _ in completions]


def says_and_fails(completions, **kwargs):
    print("last words")
    raise ValueError


# ---- what the sandbox is for: 1 where it succeeded


def connects(completions, port, **kwargs):
    with socket.create_connection(("127.0.0.1", port[0]), 2):
        return [1.0 for _ in completions]


def reads(completions, path, **kwargs):
    return [float(len(Path(one).read_text())) for one in path]


def writes(completions, path, **kwargs):
    for one in path:
        Path(one).write_text("written")
    return [1.0 for _ in completions]


def scratches(completions, **kwargs):
    Path("/tmp/mine").write_text("here")
    return [float(len(Path("mine").read_text())) for _ in completions]


def fills_scratch(completions, **kwargs):
    for number in range(10_000):
        Path(f"/tmp/{number}").write_bytes(bytes(10_000_000))
    return [1.0 for _ in completions]


def environment(completions, name, **kwargs):
    return [float(one in os.environ) for one in name]


def stays_behind(completions, word, **kwargs):
    program = f"import time; time.sleep(600)  # {word[0]}"
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    return [1.0 for _ in completions]


# ---- misbehaviour, where `asked` says so


def misbehaves(completions, asked, **kwargs):
    values = [1.0 for _ in completions]
    for one in asked:
        if one != "well":
            values = globals()[one](values)
    return values


def raises(values):
    return [1 / 0 for _ in values]


def leaves(values):
    sys.exit(3)


def exits(values):
    os._exit(0)


def crashes(values):
    ctypes.string_at(0)


def hangs(values):
    while True:
        time.sleep(1)


def closes(values):
    os.closerange(0, 200)
    return values


def floods(values):
    while True:
        print("x" * 10_000)


def floods_the_channel(values):
    while True:
        for number in range(3, 10):
            with contextlib.suppress(OSError):
                os.write(number, b"{" * 10_000)


def takes_memory(values):
    return [bytearray(100_000_000) for _ in range(1_000)]


def forks(values):
    while True:
        os.fork()


def counts_forks(completions, **kwargs):
    """How many processes it gets."""
    children = 0
    try:
        while children < 1_000:
            if not os.fork():
                time.sleep(60)
                os._exit(0)
            children += 1
    except OSError:
        pass
    return [float(children) for _ in completions]


def answers_twice(values):
    if not os.fork():
        return values
    time.sleep(0.5)
    return values


def one_value(values):
    return values[:1]


def one_number(values):
    return 1.0


def not_numbers(values):
    return ["good" for _ in values]


def not_finite(values):
    return [float("nan"), 1e39]


def no_dict(values):
    return {0: 1.0, 1: 1.0}
