"""Tiny tokenizers and run directories for the tests of `prepare`, and a way to read back what it wrote."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from stoker.config import load
from stoker.engine import prepare
from stoker.errors import StokerError, StokerErrors
from stoker.rundir import layout, prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

CORPUS = [
    "The stoker keeps the fire going, so the train never stops. How many wagons does it pull? Seven.",
    "司炉让炉火不灭，列车就不会停下。它拉多少节车厢？七节。你好，世界！",
    "emoji 👋🏽 🎉 and a family 👨‍👩‍👧 with  two   spaces\n\nand lines\n",
]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Runs = list[tuple[str, bool]]


def make_tokenizer(
    folder: Path, template: str | None = CHATML, *, trim: bool = False, more: Sequence[str] = (), **special: str
) -> Path:
    """A byte-level BPE of a few hundred tokens; by default pad is eos, and eos ends a turn."""
    from transformers import PreTrainedTokenizerFast

    names = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", **special}
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.ByteLevel(trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template, **names).save_pretrained(folder)
    return folder


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """Each row as a line; text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


class Case:
    """A folder with a tokenizer, in which runs are prepared."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.folder = folder
        self.tokenizer = folder / "tokenizer"
        monkeypatch.setenv("STOKER_RUNS", str(folder / "runs"))
        monkeypatch.setenv("STOKER_LANG", "en")

    def make(self, name: str = "run", *, data: dict[str, Any] | None = None, **words: Any) -> RunDir:
        """A run directory; data is `train.jsonl` unless told."""
        content = {
            "model": {"shape": "llama", "layers": 1, "width": 64, "heads": 1},
            "tokenizer": "tokenizer",
            "data": {"train": "train.jsonl", "length": 128, "pack": False, **(data or {})},
            **words,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return layout.create(load.load(str(path)))

    def prepare(self, rows: Sequence[Any] | None = None, name: str = "run", **words: Any) -> "Prepared":
        """Write rows, prepare them, read them back."""
        if rows is not None:
            write_jsonl(self.folder / "train.jsonl", rows)
        run_dir = self.make(name, **words)
        prepare.main(run_dir.path)
        return Prepared(run_dir)

    def read_rows(self, run_dir: RunDir) -> tuple[list["Runs"], dict[int, str]]:
        """Prepare; the runs of every row that was used, and by number the reason of every row that was not."""
        try:
            prepare.main(run_dir.path)
            found = Prepared(run_dir)
            used = [found.runs(segment) for segment in found.segments()]
        except StokerError:
            used = []
        path = run_dir.data / "bad_rows.jsonl"
        bad = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return used, {entry["row"]: entry["text"] for entry in bad}

    def errors(self, rows: Sequence[Any] | None = None, **words: Any) -> list[str]:
        """`where: what` of every error that preparing raises."""
        try:
            self.prepare(rows, **words)
        except StokerErrors as several:
            return [f"{error.where}: {error.what}" for error in several.errors]
        raise AssertionError("nothing was raised")


class Prepared:
    """What was prepared."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        report = prepared.read_report(run_dir.data)
        assert report is not None
        self.report: Report = report
        self._core = tokenizers.Tokenizer.from_file(str(run_dir.data / "tokenizer" / "tokenizer.json"))

    def rows(self, split: str = "train") -> list[list[np.ndarray]]:
        """The rows of a split, each a list of segments."""
        part = getattr(self.report, split)
        rows: list[list[np.ndarray]] = []
        for name in part.shards if part else []:
            shard = self.run_dir.data / split / name
            tokens, segments, offsets = (
                np.fromfile(shard / f"{kind}.bin", dtype=dtype)
                for kind, dtype in (("tokens", "<i4"), ("segments", "<i8"), ("rows", "<i8"))
            )
            pieces = [tokens[a:b] for a, b in itertools.pairwise(segments)]
            rows += [pieces[a:b] for a, b in itertools.pairwise(offsets)]
        return rows

    def segments(self, split: str = "train") -> list[np.ndarray]:
        """All segments of a split."""
        return [segment for row in self.rows(split) for segment in row]

    def texts(self, split: str = "train") -> list[str]:
        """All segments of a split, decoded."""
        return ["".join(text for text, _ in self.runs(segment)) for segment in self.segments(split)]

    def ids(self, segment: np.ndarray) -> list[int]:
        """Token ids, whether trained or not."""
        return [token if token >= 0 else ~token for token in segment.tolist()]

    def runs(self, segment: np.ndarray) -> Runs:
        """A segment as runs of trained or untrained text."""
        groups = itertools.groupby(segment.tolist(), key=lambda token: token >= 0)
        return [
            (self._core.decode([t if trained else ~t for t in tokens], skip_special_tokens=False), trained)
            for trained, tokens in groups
        ]

    def only(self) -> Runs:
        """The runs of the only segment there is."""
        (segment,) = self.segments()
        return self.runs(segment)


MakeTokenizer = Callable[..., Path]


def prepare_killed(run_dir: RunDir, commits: int, monkeypatch: Any) -> None:
    """Prepare until so many positions of the pass were committed, then die."""
    plain, left = prepare.PreparePass.commit, [commits]

    def dying(job: prepare.PreparePass) -> None:
        plain(job)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare.PreparePass, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare.main(run_dir.path)
