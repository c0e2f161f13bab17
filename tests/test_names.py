"""Messages are worded as in a sentence, on one line."""

import pytest

from saligraft.names import listed, one_line, plural


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("two\n  lines", "two lines"),
        (ValueError("a\n\tb "), "a b"),
        (KeyError(), "KeyError"),
        (UserWarning(" "), "UserWarning"),
    ],
)
def test_a_message_takes_one_line_and_is_never_empty(message: object, expected: str) -> None:
    assert one_line(message) == expected


def test_a_noun_agrees_with_its_number() -> None:
    assert [plural(count, "run") for count in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [plural(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]


def test_a_long_list_ends_with_the_number_of_the_others() -> None:
    assert listed(["a"]) == "a"
    assert listed("abcde") == "a, b, c, d, e"
    assert listed("abcdefg") == "a, b, c, d, e and 2 more"
    assert listed(["a", "b"], most=1) == "a and 1 more"
