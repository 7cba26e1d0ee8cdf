"""Figures as people read them."""

import pytest

from harness.units import counted, first_line, four_figures, grouped


def test_a_single_item_is_in_the_singular():
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@pytest.mark.parametrize(
    ("value", "text"), [(12.3456, "12.35"), (-164403.7, "-164,400"), (0.5, "0.5"), (1234.56, "1,235"), (0.0, "0")]
)
def test_a_price_is_written_without_an_exponent(value, text):
    assert four_figures(value) == text


def test_grouped_values_keep_their_order():
    assert grouped([("b", 1), ("a", 2), ("b", 3)]) == {"b": [1, 3], "a": [2]}
    assert list(grouped([("b", 1), ("a", 2)])) == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("lost\nTraceback", "lost"), ("\n  lost \n", "lost"), ("", "none"), (" \n", "none"), (None, "none")],
)
def test_the_first_line_is_the_first_with_words(text, shown):
    assert first_line(text, "none") == shown
