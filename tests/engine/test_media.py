"""Rows with images, videos or sound are bad rows by name: what would be left out is never trained around."""

from typing import Any

import pytest

from stoker.rows import formats
from stoker.rows.row_values import BadRow

TURNS = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A boiler."}]
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def parts(*more: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *more]}, TURNS[1]]


@pytest.mark.parametrize(
    ("row", "format_", "key"),
    [
        ({"messages": TURNS, "images": ["a.png"]}, "messages", "images"),
        ({"conversations": [{"from": "human", "value": "<image>?"}], "image": "a.png"}, "sharegpt", "image"),
        ({"prompt": "a", "completion": "b", "videos": [{"bytes": "AA=="}]}, "prompt_completion", "videos"),
        ({"instruction": "a", "output": "b", "audio": {"path": "a.wav"}}, "alpaca", "audio"),
        ({"text": "a", "image": {"bytes": "AA=="}}, "text", "image"),
        ({"messages": [{**TURNS[0], "images": ["a.png"]}, TURNS[1]]}, "messages", "images"),
        ({"messages": parts(PICTURE)}, "messages", "content[].type: image_url"),
        ({"messages": parts({"type": "image"})}, "messages", "content[].type: image"),
        ({"messages": parts({"type": "input_audio", "input_audio": {}})}, "messages", "content[].type: input_audio"),
        ({"messages": parts({"type": "text", "text": "and", "image": "a.png"})}, "messages", "image"),
    ],
)
def test_a_row_with_anything_but_text_is_bad_by_name(row: dict[str, Any], format_: str, key: str) -> None:
    with pytest.raises(BadRow) as caught:
        formats.parse(row, format_, has_template=True)
    assert (caught.value.reason, caught.value.fields) == ("row.media", {"key": key})
    assert key in caught.value.text


def test_a_row_whose_columns_for_images_are_empty_is_text() -> None:
    """As tables have it where other rows have images."""
    row = {"messages": parts({"type": "text", "text": " Tell me.", "image": None}), "images": [], "videos": None}
    document = formats.parse(row, "messages", has_template=True)
    assert isinstance(document, formats.Conversation)
    assert document.turns[0].content == "What is it? Tell me."
