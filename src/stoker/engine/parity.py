"""The parity program: the trained model's answers, and those of an artifact.

    python -m stoker.engine.parity RUN_DIR                    writes artifacts/reference.json, unless it is current
    python -m stoker.engine.parity RUN_DIR NAME FOLDER OUT    and to OUT the observation of an artifact's folder
The verdict is made by `stoker.artifacts.parity_verdict`.
"""

import gc
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from stoker.engine import generate, models, program, streaming, template_limits, tensors, trained_on
from stoker.engine.dataset import token_ids
from stoker.engine.foreign import observe
from stoker.errors import StokerError
from stoker.facts import prompts as shipped
from stoker.plan import parity_limits
from stoker.plan.parity_limits import Prompt, Reference
from stoker.rundir import artifacts, digests, files, prepared, safetensors_headers
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

_DATA_PROMPTS = 32
_SEED = 0
_SAID_EVERY = 8
_BEYOND_ROUNDING = 4
"""Times the distance that rounding explains: a cache that gives other logits, not the same ones less exactly."""

Words = tuple[Literal["data", "shipped", "random"], list[dict[str, str]] | None, str, list[int]]
"""Source, messages, text and tokens of a prompt."""


def main(path: Path) -> int:
    """Make the reference, and observe a folder if one is given."""
    run_dir = RunDir(path)
    reference = current(run_dir) or _make(run_dir)
    if len(sys.argv) > 2:
        name, folder, out = sys.argv[2], *map(Path, sys.argv[3:5])
        files.write_json(out, look(run_dir, name, folder, reference))
    return 0


def look(run_dir: RunDir, name: str, folder: Path, reference: Reference) -> dict[str, Any]:
    """The observation of an artifact that transformers loads: files, tensors, tokenizer and answers."""
    try:
        safetensors_headers.read(folder)
        held = _compare_tensors(run_dir, folder, reference) if parity_limits.KINDS[name].exact else None
        return {**observe.observe(folder, reference.model_dump()), "weights": held}
    except StokerError as error:
        problem = error
    except (OSError, ValueError) as error:  # raised by transformers for files it cannot load
        problem = StokerError("STK644", str(folder), file=folder.name, reason=str(error).splitlines()[0])
    return {"through": "transformers", "problems": [problem.to_json()]}


def _compare_tensors(run_dir: RunDir, folder: Path, reference: Reference) -> dict[str, Any]:
    """Compared before the artifact's model is loaded, so that only one model is in memory."""
    model, _ = generate.load(run_dir)
    figures = tensors.compare(model, folder, reference.dtype)
    del model
    gc.collect()
    return figures


# ---- the reference


def current(run_dir: RunDir) -> Reference | None:
    """The reference on disk, if made with the same weights, data and versions."""
    path = artifacts.reference_file(run_dir)
    if not path.is_file():
        return None
    reference = Reference.model_validate(files.read_json(path))
    return reference if reference.key == _key(run_dir) else None


def _make(run_dir: RunDir) -> Reference:
    model, tokenizer = generate.load(run_dir)
    plain = generate.is_plain(run_dir, tokenizer)
    stops = generate.stop_ids(model, tokenizer)
    words = _prompts(run_dir, tokenizer, _room(model), plain=plain)
    corpus = _corpus(run_dir, words, _room(model) + parity_limits.ANSWER_TOKENS)
    with models.evaluating(model), closing(EventLog(run_dir.events_file)) as log:
        answered = []
        for done, prompt in enumerate(words):
            if done % _SAID_EVERY == 0:
                log.write("parity", part="reference", done=done, of=len(words))
            answered.append(_answer(model, prompt, stops))
        loss = observe.corpus_loss(model, corpus)
    prompts, largest, own = zip(*answered, strict=True)
    named = {token for prompt in prompts for row in prompt.top for token in row} | set(stops)
    reference = Reference(
        key=_key(run_dir),
        dtype=str(model.dtype).removeprefix("torch."),
        plain=plain,
        template=observe.template(tokenizer),
        stops=stops,
        tokenizer=observe.tokenizer_digest(tokenizer),
        largest_logit=max(largest),
        own_distance=max(own),
        texts={token: tokenizer.decode([token]) for token in sorted(named)},
        prompts=list(prompts),
        corpus=corpus,
        corpus_loss=loss,
    )
    files.write_json(artifacts.reference_file(run_dir), reference.model_dump())
    return reference


def _key(run_dir: RunDir) -> str:
    """Digest of everything the reference depends on."""
    folder = generate.trained_folder(run_dir)
    report = prepared.read_report(run_dir.data)
    parts = {
        "format": parity_limits.FORMAT,
        "trained": {path.name: digests.of(path) for path in sorted(folder.iterdir()) if path.is_file()},
        "base": models.base_digest(run_dir.run(), run_dir.folder(), trained_on.recorded(run_dir)),
        "data": report.digest if report else "",
        "prompts": shipped.conversations(),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "plan": files.read_json(run_dir.plan_file)["native"],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _room(model: Any) -> int:
    """The largest number of prompt tokens."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or parity_limits.PROMPT_TOKENS
    return max(1, min(parity_limits.PROMPT_TOKENS, positions - parity_limits.ANSWER_TOKENS))


def _answer(model: Any, words: Words, stops: list[int]) -> tuple[Prompt, float, float]:
    """A prompt with its greedy answer; the largest logit, and the distance of stepwise and single-pass logits.

    Some classes compute something else from their cache (MiniMax in transformers 5.22). Their weights are judged by
    answers without it. Remove when no family of `stoker models` needs it.
    """
    prompt, largest, distance = _asked(model, words, stops, cached=True)
    rounding = parity_limits.ROUNDING[str(model.dtype).removeprefix("torch.")]
    if distance > _BEYOND_ROUNDING * rounding.logits * rounding.unit * max(1.0, largest):
        return _asked(model, words, stops, cached=False)
    return prompt, largest, distance


def _asked(model: Any, words: Words, stops: list[int], *, cached: bool) -> tuple[Prompt, float, float]:
    source, messages, text, ids = words
    answer, stepwise = _decode(model, ids, stops, cached=cached)
    logits = observe.answer_logits(model, ids, answer)
    lines = logits.log_softmax(-1)
    # The answer's own token is always among them, also if the two computations differ at a tie.
    chosen = torch.tensor(answer, device=lines.device)[:, None]
    top = torch.cat(
        [chosen, lines.scatter(1, chosen, -torch.inf).topk(min(parity_limits.TOP, lines.shape[1]) - 1).indices], 1
    )
    logprobs = lines.gather(1, top)
    distance = (logprobs - stepwise.log_softmax(-1).gather(1, top)).abs().max().item()
    prompt = Prompt(
        source=source,
        messages=messages,
        text=text,
        ids=ids,
        answer=answer,
        stopped=answer[-1] in stops,
        top=top.tolist(),
        logprobs=logprobs.tolist(),
    )
    return prompt, logits.gather(1, top).abs().max().item(), distance


def _decode(model: Any, prompt: list[int], stops: list[int], *, cached: bool) -> tuple[list[int], torch.Tensor]:
    """The greedy answer, token by token with a KV cache, as an engine serves it, or without; and its logits."""
    step, cache = torch.tensor([prompt], device=model.device), None
    answer: list[int] = []
    lines = []
    while len(answer) < parity_limits.ANSWER_TOKENS and not (answer and answer[-1] in stops):
        out = model(input_ids=step, past_key_values=cache, use_cache=cached)
        cache = out.get("past_key_values") if cached else None  # Mamba 2 has one of another kind
        lines.append(out.logits[0, -1].float())
        answer.append(int(lines[-1].argmax()))
        step = torch.tensor([[*prompt, *answer] if cache is None else answer[-1:]], device=model.device)
    return answer, torch.stack(lines)


# ---- prompts


def _prompts(run_dir: RunDir, tokenizer: Any, room: int, *, plain: bool) -> list[Words]:
    """Prompts from the run's data and the shipped ones, each once; random tokens if these are too few."""
    found: dict[tuple[int, ...], Words] = {}
    for words in _candidates(run_dir, tokenizer, plain=plain):
        if 0 < len(words[3]) <= room and len(found) < parity_limits.PROMPTS:
            found.setdefault(tuple(words[3]), words)
    draw = random.Random(_SEED)  # noqa: S311  # prompts, not secrets
    while len(found) < parity_limits.LEAST_PROMPTS:
        ids = [draw.randrange(len(tokenizer)) for _ in range(min(8, room))]
        found.setdefault(tuple(ids), ("random", None, tokenizer.decode(ids), ids))
    return list(found.values())


def _candidates(run_dir: RunDir, tokenizer: Any, *, plain: bool) -> Iterator[Words]:
    from_data = (_opening(segment) for segment in _segments(run_dir, _DATA_PROMPTS))
    for ids in from_data:
        yield "data", None, tokenizer.decode(ids), ids
    for messages in shipped.conversations():
        spoken = None if plain else messages
        with template_limits.limited(tokenizer.name_or_path):
            text, ids = observe.render(tokenizer, spoken, messages[-1]["content"])
        yield "shipped", spoken, text, ids


def _segments(run_dir: RunDir, count: int) -> Iterator[np.ndarray]:
    """Documents spread evenly over the eval split, else the train split."""
    report = prepared.read_report(run_dir.data)
    if report is None:
        return
    name = "eval" if report.eval else "train"
    split = streaming.open_split(run_dir, name, report.eval or report.train)
    for number in split.spread(count):
        yield from split.row(number)[:1]


def _opening(segment: np.ndarray) -> list[int]:
    """The tokens before the trained ones; of plain text, its first quarter."""
    trained = np.flatnonzero(segment >= 0)
    end = int(trained[0]) if len(trained) and trained[0] > 1 else max(1, len(segment) // 4)
    return token_ids(segment[: min(end, parity_limits.PROMPT_TOKENS)]).tolist()


def _corpus(run_dir: RunDir, words: list[Words], room: int) -> list[list[int]]:
    """Sequences for the perplexity: from the run's data, else the prompts."""
    corpus: list[list[int]] = []
    for segment in _segments(run_dir, parity_limits.CORPUS_TOKENS):
        sequence = segment[:room].tolist()
        if sum(len(one) for one in corpus) + len(sequence) > parity_limits.CORPUS_TOKENS and corpus:
            break
        if any(token >= 0 for token in sequence[1:]):
            corpus.append(sequence)
    return corpus or [ids for _, _, _, ids in words if len(ids) > 1]


if __name__ == "__main__":
    sys.exit(program.run(main))
