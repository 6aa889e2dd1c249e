"""The shipped conversations: enough of them, in both languages, as any chat template takes them."""

from stoker.facts import prompts
from stoker.plan.parity_limits import LEAST_PROMPTS


def test_there_are_enough_and_no_two_are_the_same() -> None:
    said = [tuple(message["content"] for message in messages) for messages in prompts.conversations()]
    assert len(set(said)) == len(said) >= LEAST_PROMPTS


def test_turns_alternate_and_the_user_speaks_last() -> None:
    for messages in prompts.conversations():
        roles = [message["role"] for message in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_half_of_them_are_chinese() -> None:
    chinese = [one for one in prompts.conversations() if any(ord(letter) > 0x3000 for letter in one[-1]["content"])]
    assert len(chinese) * 2 == len(prompts.conversations())
