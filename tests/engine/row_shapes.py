"""Conversation shapes, real chat templates, and an oracle that knows what each trained span must hold.

The templates are read from the installed `trl`. The oracle knows shapes by their words and templates by the tokens
that end a turn; it shares no code with `stoker.engine`.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers
from prepare_case import CORPUS, Case, Runs, write_jsonl
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

ENDS = {
    "cohere": ("<|END_OF_TURN_TOKEN|>",),
    "deepseek": ("<｜end▁of▁sentence｜>",),
    "diffusion_gemma": ("<turn|>", "<|tool_response>"),
    "gemma4": ("<turn|>", "<|tool_response>"),
    "gemma": ("<end_of_turn>",),
    "glm4moe": ("<|user|>", "<|observation|>", "<|endoftext|>"),
    "gptoss": ("<|return|>", "<|end|>", "<|call|>"),
    "idefics3": ("<end_of_utterance>",),
    "llama3": ("<|eot_id|>",),
    "llava_next": ("</s>",),
    "muse_glimmer": ("<|eot|>",),
    "phi3": ("<|end|>",),
    "smolvlm": ("<end_of_utterance>",),
    "": ("<|im_end|>",),
}
"""Tokens at which generation stops, by the beginning of a template's name (the model's own generation config)."""

FOREIGN = re.compile(
    r"<\|im_start\|>(user|system|tool)|<\|start_header_id\|>(user|system|ipython)|<start_of_turn>user|<\|turn>user"
    r"|<\|USER_TOKEN\|>|<\|SYSTEM_TOKEN\|>|<｜User｜>|\[INST\]|<\|start\|>(user|system|developer|tool|functions)"
    r"|<\|user\|>.|<\|observation\|>.|\nUser:|<tool_response>|<｜tool▁output"
)
"""What only another role's turn begins with."""
EMPTY_THOUGHTS = re.compile(r"<think>\s*</think>|^\s*</think>|<\|channel>thought\s*<channel\|>")
DOUBLE_ENCODED = re.compile(r'\\"(key|val)')

_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s'\"]+[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|</?s>|<(?:start|end)_of_turn>|<end_of_utterance>"
)


@dataclass(frozen=True)
class Said:
    """A message by its words: what must be seen of it, and whether it is trained."""

    role: str
    words: tuple[str, ...]
    thought: str = ""
    trained: bool = False


@dataclass(frozen=True)
class RowShape:
    """A row, and what it means."""

    row: dict[str, Any]
    said: list[Said]
    calls: list[dict[str, Any]] = field(default_factory=list)
    tools: tuple[str, ...] = ()


def _user(word: str) -> tuple[dict[str, Any], Said]:
    return {"role": "user", "content": f"{word} asks"}, Said("user", (f"{word} asks",))


def _answer(word: str, *, trained: bool = True, **marks: Any) -> tuple[dict[str, Any], Said]:
    return {"role": "assistant", "content": f"{word} says", **marks}, Said("assistant", (f"{word} says",), "", trained)


def _thought(word: str, *, inline: bool, trained: bool = True) -> tuple[dict[str, Any], Said]:
    thought, words = f"{word} ponders", f"{word} says"
    content = f"<think>\n{thought}\n</think>\n\n{words}" if inline else words
    extra = {} if inline else {"reasoning_content": thought}
    return {"role": "assistant", "content": content, **extra}, Said("assistant", (words,), thought, trained)


def _pondered(turn: tuple[dict[str, Any], Said], thought: str) -> tuple[dict[str, Any], Said]:
    message, said = turn
    return {**message, "reasoning_content": thought}, replace(said, thought=thought)


def _called(
    *calls: tuple[str, dict[str, Any]], as_text: bool, content: str | None = None
) -> tuple[dict[str, Any], Said]:
    made = [
        {
            "id": f"call{at}abcd"[:9],
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False) if as_text else given},
        }
        for at, (name, given) in enumerate(calls)
    ]
    words = [word for name, given in calls for word in (name, *_leaves(given))]
    message = {"role": "assistant", "content": content, "tool_calls": made}
    return message, Said("assistant", tuple(([content] if content else []) + words), "", trained=True)


def _result(word: str, at: int = 0) -> tuple[dict[str, Any], Said]:
    return {"role": "tool", "content": f"{word} found", "tool_call_id": f"call{at}abcd"[:9]}, Said(
        "tool", (f"{word} found",)
    )


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for key, inner in value.items() for word in (key, *_leaves(inner))]
    if isinstance(value, list):
        return [word for inner in value for word in _leaves(inner)]
    return [str(value)] if not isinstance(value, bool) else []


def _tool(name: str, *keys: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": f"what {key} means"} for key in keys}
    schema = {"type": "object", "properties": properties, "required": list(keys)}
    return {
        "type": "function",
        "function": {"name": name, "description": f"does the {name} thing", "parameters": schema},
    }


def _shape(*turns: tuple[dict[str, Any], Said], tools: list[dict[str, Any]] | None = None, **rest: Any) -> RowShape:
    row: dict[str, Any] = {"messages": [message for message, _ in turns]}
    if tools:
        row["tools"] = tools
    names = tuple(word for tool in tools or [] for word in (tool["function"]["name"], tool["function"]["description"]))
    return RowShape(row, [said for _, said in turns], tools=names, **rest)


SYSTEM = ({"role": "system", "content": "sysword rules"}, Said("system", ("sysword rules",)))
WEATHER = ("fnweather", {"keycity": "valParis"})
HOTEL = ("fnhotel", {"keynight": 7341, "keywish": {"keyview": ["valsea"]}, "keyname": "val“七”"})
TOOLS = [_tool("fnweather", "keycity"), _tool("fnhotel", "keynight")]


def _loop(*, as_text: bool) -> RowShape:
    return _shape(
        _user("uone"),
        _called(WEATHER, as_text=as_text),
        _result("tone"),
        _answer("aone"),
        tools=TOOLS,
        calls=[{"name": WEATHER[0], "arguments": WEATHER[1]}],
    )


def _observation() -> RowShape:
    """As LLaMA-Factory writes it: roles `function_call` and `observation`, the tools as text."""
    call = {"name": WEATHER[0], "arguments": WEATHER[1]}
    turns = [("human", "uone asks"), ("function_call", json.dumps(call)), ("observation", "tone found")]
    turns += [("gpt", "aone says")]
    meant = _loop(as_text=False)
    row = {
        "conversations": [{"from": role, "value": value} for role, value in turns],
        "tools": json.dumps([tool["function"] for tool in TOOLS]),
    }
    return RowShape(row, meant.said, meant.calls, meant.tools)


SHAPES: dict[str, RowShape] = {
    "plain": _shape(_user("uone"), _answer("aone")),
    "system": _shape(SYSTEM, _user("uone"), _answer("aone")),
    "several turns": _shape(
        _user("uone"), _answer("aone"), _user("utwo"), _answer("atwo"), _user("usix"), _answer("asix")
    ),
    "call, arguments as text": _shape(
        _user("uone"),
        _called(WEATHER, as_text=True),
        tools=TOOLS,
        calls=[{"name": WEATHER[0], "arguments": WEATHER[1]}],
    ),
    "call and result, arguments as text": _loop(as_text=True),
    "call and result, arguments as object": _loop(as_text=False),
    "call without tools": _shape(
        _user("uone"),
        _called(WEATHER, as_text=True),
        calls=[{"name": WEATHER[0], "arguments": WEATHER[1]}],
    ),
    "call with words": _shape(
        _user("uone"),
        _called(WEATHER, as_text=False, content="aone says"),
        _result("tone"),
        _answer("atwo"),
        tools=TOOLS,
        calls=[{"name": WEATHER[0], "arguments": WEATHER[1]}],
    ),
    "nested arguments": _shape(
        _user("uone"),
        _called(HOTEL, as_text=True),
        _result("tone"),
        _answer("aone"),
        tools=TOOLS,
        calls=[{"name": HOTEL[0], "arguments": HOTEL[1]}],
    ),
    "parallel calls": _shape(
        _user("uone"),
        _called(WEATHER, HOTEL, as_text=True),
        _result("tone"),
        _result("ttwo", 1),
        _answer("aone"),
        tools=TOOLS,
        calls=[{"name": name, "arguments": given} for name, given in (WEATHER, HOTEL)],
    ),
    "thinking as a field": _shape(_user("uone"), _thought("aone", inline=False)),
    "thinking in the content": _shape(_user("uone"), _thought("aone", inline=True)),
    "thinking in several turns": _shape(
        _user("uone"), _thought("aone", inline=False), _user("utwo"), _thought("atwo", inline=False)
    ),
    "thinking before a call": _shape(
        _user("uone"),
        _pondered(_called(WEATHER, as_text=True), "cone ponders"),
        _result("tone"),
        _thought("aone", inline=False),
        tools=TOOLS,
        calls=[{"name": WEATHER[0], "arguments": WEATHER[1]}],
    ),
    "an empty thought in the content": _shape(
        _user("uone"),
        ({"role": "assistant", "content": "<think>\n\n</think>\n\naone says"}, _answer("aone")[1]),
    ),
    "weight 0": _shape(
        _user("uone"), _answer("aone", trained=False, weight=0), _user("utwo"), _answer("atwo", weight=1)
    ),
    "train false": _shape(
        SYSTEM,
        _user("uone"),
        _answer("aone"),
        _user("utwo"),
        _answer("atwo", trained=False, train=False),
        _user("usix"),
        _answer("asix"),
    ),
    "loss false": _shape(_user("uone"), _answer("aone", trained=False, loss=False), _user("utwo"), _answer("atwo")),
    "observation roles": _observation(),
}


def templates() -> dict[str, str]:
    """The chat templates of the installed `trl`, by name."""
    folder = resources.files("trl") / "chat_templates"
    found = {one.name.removesuffix(".jinja"): one for one in folder.iterdir() if one.name.endswith(".jinja")}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def ends_of(name: str) -> tuple[str, ...]:
    """The tokens that end a turn of a template."""
    return next(ends for prefix, ends in ENDS.items() if name.startswith(prefix))


def make_tokenizer(folder: Path, name: str, template: str) -> None:
    """A byte-level BPE of few tokens with the special tokens that a template writes."""
    from transformers import PreTrainedTokenizerFast

    eos = "<|endoftext|>" if name.startswith("glm") else ends_of(name)[0]
    special = dict.fromkeys(["<bos>", "<|endoftext|>", eos, *_SPECIAL.findall(template)])
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400 + len(special),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=template, bos_token="<bos>", eos_token=eos, pad_token=eos
    ).save_pretrained(folder)


@dataclass(frozen=True)
class Cell:
    """A shape prepared with a template: `right`, `refused` (by row, with its reason) or `wrong` (and why)."""

    template: str
    shape: str
    verdict: str
    reason: str = ""


def cells(case: Case, name: str, template: str) -> Iterator[Cell]:
    """Every shape prepared with one template."""
    make_tokenizer(case.folder / f"tokenizer-{name}", name, template)
    for kind in ("messages", "conversations"):
        shapes = {title: shape for title, shape in SHAPES.items() if kind in shape.row}
        yield from _prepared(case, name, kind, shapes)


def _prepared(case: Case, name: str, kind: str, shapes: dict[str, RowShape]) -> Iterator[Cell]:
    path = write_jsonl(case.folder / f"{name}-{kind}.jsonl", [shape.row for shape in shapes.values()])
    run_dir = case.make(
        f"{name}-{kind}",
        data={"train": path.name, "length": 100_000, "on_bad_row": "skip"},
        tokenizer=f"tokenizer-{name}",
    )
    segments, refused = case.read_rows(run_dir)
    given = iter(segments)
    for number, (title, shape) in enumerate(shapes.items(), start=1):
        if number in refused:
            yield Cell(name, title, "refused", refused[number])
        elif wrong := fault(next(given), shape, ends_of(name)):
            yield Cell(name, title, "wrong", wrong)
        else:
            yield Cell(name, title, "right")


def fault(runs: Runs, shape: RowShape, ends: tuple[str, ...]) -> str:
    """What is wrong with a prepared row; nothing where it is as meant."""
    trained = [text for text, is_trained in runs if is_trained]
    whole, learned = "".join(text for text, _ in runs), "\0".join(trained)
    other = "\0".join(text for text, is_trained in runs if not is_trained)
    for said in shape.said:
        lost = [word for word in said.words if word not in whole]
        if lost:
            return f"lost: {lost}"
        if not said.trained and any(word in learned for word in said.words if " " in word):
            return f"{said.role} is trained: {said.words}"
        if said.role != "assistant" and not all(word in other for word in said.words):
            return f"{said.role} is trained: {said.words}"
    if missing := [word for word in shape.tools if word not in other]:
        return f"tools are lost: {missing}"
    return _span_fault(trained, shape, ends) or _scaffold_fault(trained) or _call_fault(learned, shape)


def _span_fault(trained: list[str], shape: RowShape, ends: tuple[str, ...]) -> str:
    """Each trained turn has its words and its end in spans of its own, in order."""
    answers = [said for said in shape.said if said.trained]
    # A turn whose thinking the template leaves out is context, by the documented rule; never the last one.
    learned = "\0".join(trained)
    kept = [said for said in answers if not said.thought or said.thought in learned]
    for said in answers:
        if said not in kept and (said is answers[-1] or any(word in learned for word in said.words)):
            return f"thinking is lost: {said.thought}"
    spans = iter(trained)
    for said in kept:
        wanted = [*said.words, *([said.thought] if said.thought else [])]
        text = ""
        while any(word not in text for word in wanted) or not text.endswith(ends):
            part = next(spans, None)
            if part is None:
                return f"no span of its own with its end: {wanted}"
            text += part
        if any(word in text for another in kept if another is not said for word in another.words if " " in word):
            return f"two turns in one span: {text}"
    rest = "".join(spans)
    return f"more is trained: {rest}" if rest else ""


def _scaffold_fault(trained: list[str]) -> str:
    for span in trained:
        if foreign := FOREIGN.search(span):
            return f"another role's beginning is trained: {foreign.group()}"
        if EMPTY_THOUGHTS.search(span):
            return "an empty thought is trained"
        if DOUBLE_ENCODED.search(span):
            return "arguments are encoded twice"
    return ""


def _call_fault(learned: str, shape: RowShape) -> str:
    """Where a template writes a call as JSON, it reads back as it was."""
    decoder, found = json.JSONDecoder(), []
    for at in (match.start() for match in re.finditer(r'\{"name":', learned)):
        try:
            call, _ = decoder.raw_decode(learned, at)
        except ValueError as error:
            return f"a call is no JSON: {error}"
        found.append({"name": call["name"], "arguments": call.get("arguments", call.get("parameters"))})
    return f"calls read back otherwise: {found}" if found and found != shape.calls else ""


def counted(found: list[Cell]) -> dict[str, int]:
    """Cells by verdict."""
    kinds = sorted(cell.verdict for cell in found)
    return {"right": 0, "refused": 0, "wrong": 0} | {kind: len(list(group)) for kind, group in itertools.groupby(kinds)}
