"""The model that teaches: loaded once by each rank beside the one that is trained, frozen, without an adapter."""

import contextlib
from pathlib import Path
from typing import Any

import tokenizers
import torch
from huggingface_hub import hf_hub_download
from torch.distributed.fsdp import FSDPModule

from stoker.engine import fsdp, models, reading
from stoker.engine.dataset import DOCUMENT_ENDS
from stoker.engine.known_rows import KnownRows
from stoker.engine.opened import Opened
from stoker.engine.shared_build import build_once
from stoker.errors import StokerError
from stoker.rundir import inputs

_HELD = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Its weights have the type that the run computes in."""
_OF_ROWS = ("input_ids", "position_ids", *DOCUMENT_ENDS)
"""What of a micro batch any model takes; the rest the student is told for being what it is."""
_TOKENIZER = "tokenizer.json"


class Teacher:
    """Logits of another model for the tokens that a student wrote."""

    def __init__(self, opened: Opened, student: Any) -> None:
        """Load it to where the student computes.

        Raises:
            StokerError: STK469 or STK471, if its vocabulary is not the student's.
        """
        plan, name = opened.plan, opened.run.train.teacher
        assert name is not None
        options: dict[str, Any] = {"dtype": _HELD[plan.precision], "attn_implementation": plan.attention}
        folder, digest = opened.run_dir.folder(), opened.fingerprint["teacher"]
        asked = opened.run.train.objective
        self._model = build_once(lambda: models.load(name, folder, asked, digest, **options), opened.ranks)
        _require_same_words(name, self._model, student, opened)
        self._model.config.use_cache = False
        self._model.requires_grad_(False).eval()
        if plan.strategy == "fsdp2":
            fsdp.shard(self._model, plan)
        else:
            self._model.to(opened.device)
        self._rows = KnownRows(self._model, plan.attention)
        self._opened = opened

    def logits(self, inputs: dict[str, Any], picked_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
        """Of the picked positions of a micro batch, one below the other."""
        own = self._rows.told({name: value for name, value in inputs.items() if name in _OF_ROWS})
        with torch.no_grad(), self._opened.autocast():
            found: torch.Tensor = self._model(**own).logits[picked_BL]
        for module in self._model.modules():  # no backward pass comes, which would give back what was gathered
            if isinstance(module, FSDPModule):
                module.reshard()
        return found


def _require_same_words(name: str, teacher: Any, student: Any, opened: Opened) -> None:
    """Both give a probability to the same tokens."""
    sizes = [models.without_adapter(one).config.get_text_config().vocab_size for one in (student, teacher)]
    if sizes[0] != sizes[1]:
        raise StokerError("STK469", teacher=name, words=sizes[1], own=sizes[0])
    theirs, ours = _words(_tokenizer_file(name, opened)), _words(opened.run_dir.data / "tokenizer" / _TOKENIZER)
    if other := [number for number in sorted(theirs.keys() & ours.keys()) if theirs[number] != ours[number]]:
        first = other[0]
        raise StokerError("STK471", teacher=name, number=first, word=theirs[first], own=ours[first], count=len(other))


def _words(path: Path | None) -> dict[int, str]:
    """The tokens of a tokenizer by number, without those that were added to it; none where its file is not there."""
    if path is None or not path.is_file():
        return {}
    with reading.named("STK312", tokenizer=path):
        known = tokenizers.Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False)
    return {number: word for word, number in known.items()}


def _tokenizer_file(name: str, opened: Opened) -> Path | None:
    folder = Path(inputs.model_path(name, opened.run_dir.folder()))
    if folder.is_dir():
        return folder / _TOKENIZER
    with contextlib.suppress(OSError):  # a model without one: then the number of its tokens has to do
        return Path(hf_hub_download(name, _TOKENIZER, revision=opened.fingerprint["teacher"]))
    return None
