"""Rows whose columns have names of their own: each row is given the names of a built-in format before it is read.

Knows `data.columns` and rows; what a format makes of them says `formats.py`.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from stoker import messages
from stoker.config import columns as column_names
from stoker.config import layouts
from stoker.config.columns import Columns
from stoker.config.objectives import ObjectiveFacts
from stoker.config.rewards import Reward
from stoker.errors import StokerError, closest
from stoker.rows import preferences, row_values
from stoker.rows.row_values import BadRow, Row

_KEYS = {
    "prompt_completion": {"answer": "completion"},
    "alpaca": {"prompt": "instruction", "answer": "output"},
}
"""By format: what each role's key is called there, where it is not the role's own name."""
_SPELLED = {"tool": "observation"}
"""Roles of messages that have another name where rows are read."""


_PROMPT = re.compile(r"^q$|prompt|quest|query|instr|input|ask|user|source|问|题|指令|输入", re.IGNORECASE)
_ANSWER = re.compile(r"answer|output|repl|respon|complet|target|label|assistant|答|回复|输出", re.IGNORECASE)
_TAKEN = {
    "pairs": (
        "rows.pairs",
        {
            "prompt": _PROMPT,
            "chosen": re.compile(r"chosen|good|better|best|win|prefer|accept|positive|好|优|赢", re.IGNORECASE),
            "rejected": re.compile(r"reject|bad|worse|worst|lose|losing|negative|坏|差|劣|输", re.IGNORECASE),
        },
    ),
    "labels": (
        "rows.labels",
        {
            "prompt": _PROMPT,
            "completion": re.compile(r"answer|output|repl|respon|complet|assistant|答|回复|输出", re.IGNORECASE),
            "label": re.compile(r"label|good|thumb|like|rating|score|标签|好评|赞", re.IGNORECASE),
        },
    ),
    "prompts": ("rows.prompts", {"prompt": _PROMPT}),
}
"""By what an objective takes: the sentence of what its rows need, and how the column of each role may be called."""
_SURE_PROMPT = re.compile(r"q|(prompt|question|query|instruction)s?(_?text)?|问题|提问|题目|指令", re.IGNORECASE)
_SURE_ANSWER = re.compile(r"a|(answer|reply|response|completion)s?(_?text)?|回答|答案|答复|回复", re.IGNORECASE)
"""Names of columns that leave no doubt; those above are for examples that somebody looks at."""
_LONGEST_ID = 20
"""Bytes."""
_PLAIN = re.compile(r"[^\W\d][\w-]*")


def suggested(row: Row) -> str:
    """`data.columns` for a row of no known format, by the names and kinds of its values: to be looked at, then used."""
    texts = [key for key, value in row.items() if isinstance(value, str)]
    talks = [
        key for key, value in row.items() if isinstance(value, list) and all(isinstance(one, dict) for one in value)
    ]
    if talks:
        return f"{{messages: {_scalar(talks[0])}}}"
    if len(texts) < 2:
        return f"{{text: {_scalar(texts[0])}}}" if texts else "{prompt: ..., answer: ...}"
    answer = next((key for key in texts if _ANSWER.search(key)), None)
    others = [key for key in texts if key != answer]
    prompt = next((key for key in others if _PROMPT.search(key)), others[0])
    answer = answer or next(key for key in texts if key != prompt)
    return f"{{prompt: {_scalar(prompt)}, answer: {_scalar(answer)}}}"


def guessed(rows: Sequence[Row]) -> list[str]:
    """The columns of a prompt and an answer; none where another name may mean one, or another text belong to them."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    prompts, answers = ([key for key in keys if name.fullmatch(key)] for name in (_SURE_PROMPT, _SURE_ANSWER))
    beside = [row[key] for row in rows for key in row if key not in (*prompts, *answers)]
    sure = len(prompts) == len(answers) == 1 and all(map(_is_short, beside))
    return [*prompts, *answers] if sure else []


def _is_short(given: Any) -> bool:
    """Whether a value is an id, a class or a number rather than words that an answer may rest on."""
    return given is None or isinstance(given, int | float) or len(str(given).encode("utf-8", "replace")) <= _LONGEST_ID


def lacking(rows: Sequence[Row], asked: ObjectiveFacts, where: str) -> StokerError:
    """None of these rows, the first of a file, has what the objective takes."""
    found = list(dict.fromkeys(key for row in rows for key in row))
    needed, marks = _TAKEN[asked.takes]
    names: dict[str, str] = {}
    for role, mark in marks.items():
        left = (_scalar(key) for key in found if mark.search(key))
        names[role] = next((key for key in left if key not in names.values()), "...")
    example = ", ".join(f"{role}: {name}" for role, name in names.items())
    return StokerError(
        "STK376",
        where,
        objective=asked.name,
        needed=messages.text(needed),
        keys=[f"`{key}`" for key in found] or "-",
        example=f"{{{example}}}",
    )


def _scalar(key: str) -> str:
    """A key as a flow mapping has it."""
    return key if _PLAIN.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def require(columns: Columns | None, rewards: Sequence[Reward] | None, rows: Sequence[Row], where: str) -> None:
    """Every column that is named, also by a reward, is in one of these rows, the first of a file.

    A typing error would else be a missing value, and a reward's would show once the model is loaded.
    """
    known = list(dict.fromkeys(key for row in rows for key in row))
    named = [("STK360", role, column) for role, column in (column_names.of_rows(columns) if columns else {}).items()]
    named += [("STK377", one.kind, one.column) for one in rewards or () if one.column]
    for code, role, column in named:
        if known and column not in known:
            keys = [f"`{key}`" for key in known]
            nearest = closest(column, known)
            raise StokerError(code, where, column=column, role=role, count=len(rows), keys=keys, nearest=nearest)


def renamed(row: Row, columns: Columns) -> Row:
    """The row in the names of its format; columns that are not named are left out, pictures and sounds refused."""
    format_ = column_names.layout_of(columns)
    assert format_ is not None
    row_values.refuse_media(row)
    named = column_names.of_rows(columns)
    for role in column_names.required(columns):
        if named[role] not in row:
            raise BadRow("row.missing_key", key=named[role])
    keys = _KEYS.get(format_, {"prompt": "instruction"} if "input" in named else {})
    if "input" in named and not isinstance(row[named["prompt"]], str):
        raise row_values.wrong_type(named["prompt"], "text")
    found = {keys.get(role, role): row[column] for role, column in named.items() if column in row}
    if format_ == layouts.PREFERENCE and "prompt" not in named:  # of pairs, often only the answers are called otherwise
        found |= {key: row[key] for key in preferences.ASKED if key in row and key not in {*found, *named.values()}}
    if isinstance(found.get("messages"), list):
        found["messages"] = [_message(one, columns) for one in found["messages"]]
    return found


def _message(given: Any, columns: Columns) -> Any:
    """A message with the usual keys and names; one that is none is left to who reads it."""
    if not isinstance(given, dict):
        return given
    row_values.refuse_media(given)
    found = dict(given)
    for key, column in (("role", columns.role), ("content", columns.content)):
        if column is None or column == key:
            continue
        if key == "role" and column not in given:
            raise BadRow("row.missing_key", key=column)
        if column in given:
            found[key] = found.pop(column)
    speakers = {name: role for role, name in columns.roles or () if name}
    spoken = "role" if "role" in found else "from"
    if isinstance(said := found.get(spoken), str) and said in speakers:
        found[spoken] = _SPELLED.get(speakers[said], speakers[said])
    return found
