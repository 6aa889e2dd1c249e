"""Kinds of values as a run file writes them: numbers that are no truth values, shares, amounts, intervals."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticKnownError

from stoker.config import layouts, objectives, place_names, values


def _no_truth(value: Any) -> Any:
    """`epochs: true` is a mistake, not one epoch."""
    if isinstance(value, bool):
        raise PydanticKnownError("finite_number")
    return value


NotTruth = BeforeValidator(_no_truth)


def _amount(value: Any) -> Any:
    """`5M` and `500万` are numbers."""
    if not isinstance(value, str):
        return _no_truth(value)
    number = values.amount(value)
    if number is None:
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": values.AMOUNT_PATTERN})
    return number


Amount = BeforeValidator(_amount, json_schema_input_type=int | Annotated[str, Field(pattern=values.AMOUNT_PATTERN)])


def _at_most_all(text: str) -> str:
    if values.share(text) > 1:
        raise PydanticKnownError("less_than_equal", {"le": 100})
    return text


def share_or_path(text: str) -> str:
    """What ends in `%` is a share and must read as one."""
    if not text.rstrip().endswith(("%", "％")):
        return text
    if not re.fullmatch(values.PERCENT_PATTERN, text.strip()):
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": values.PERCENT_PATTERN})
    return _at_most_all(text)


def _not_zero(text: str) -> str:
    interval = values.every(text)
    if interval.kind in ("steps", "seconds") and not interval.amount:
        raise PydanticKnownError("greater_than", {"gt": 0})
    return text


Auto = Literal["auto"]
FormatName = Annotated[
    str,
    BeforeValidator(layouts.check),
    WithJsonSchema({"enum": [layouts.AUTO, *layouts.BUILT_IN], "type": "string"}),
]
ObjectiveName = Annotated[
    str,
    BeforeValidator(objectives.check),
    WithJsonSchema({"enum": list(objectives.BUILT_IN), "type": "string"}),
]
Percent = Annotated[str, Field(pattern=values.PERCENT_PATTERN), AfterValidator(_at_most_all)]
Duration = Annotated[str, Field(pattern=values.DURATION_PATTERN)]
Money = Annotated[str, Field(pattern=values.MONEY_PATTERN)]
Price = Annotated[str, Field(pattern=values.PRICE_PATTERN)]
EveryText = Annotated[str, Field(pattern=values.EVERY_PATTERN), AfterValidator(_not_zero)]
IntervalText = Annotated[str, Field(pattern=values.INTERVAL_PATTERN), AfterValidator(_not_zero)]
PlaceName = Annotated[
    str,
    BeforeValidator(place_names.check),
    WithJsonSchema({"enum": list(place_names.BUILT_IN), "type": "string"}),
]


def kind(value: Any) -> str:
    """Which member of a text-or-mapping union a value belongs to."""
    return "mapping" if isinstance(value, dict | BaseModel) else "text"


def kind_or_list(value: Any) -> str:
    """Of a union of a text, a mapping and a list."""
    return "list" if isinstance(value, list) else kind(value)


def text_or_list(value: Any) -> str:
    """Of a union of a text and a list."""
    return "list" if isinstance(value, list) else "text"


def number_kind(value: Any) -> str:
    """Of a union of a number and a text."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else "text"


def auto_kind(value: Any) -> str:
    """Of a union of `auto` and something else."""
    return "auto" if value == "auto" else "value"


def word_kind(value: Any) -> str:
    """Of a union of words and something else."""
    return "text" if isinstance(value, str) else "value"
