"""Figures as people read them."""

import pytest

from harness.units import counted, four_figures


def test_a_single_item_is_in_the_singular():
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


@pytest.mark.parametrize(
    ("value", "text"), [(12.3456, "12.35"), (-164403.7, "-164,400"), (0.5, "0.5"), (1234.56, "1,235"), (0.0, "0")]
)
def test_a_price_is_written_without_an_exponent(value, text):
    assert four_figures(value) == text
