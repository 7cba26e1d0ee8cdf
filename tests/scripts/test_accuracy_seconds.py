"""How scripts/accuracy judges seconds: the noise of equal settings, and ranges of classes of few models."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch):
    """A module of scripts/accuracy.d by name; the folder is no package."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "accuracy.d")
    return importlib.import_module


def _row(settings, *runs):
    return SimpleNamespace(step=SimpleNamespace(spec=SimpleNamespace(fingerprint=settings), runs=runs))


def test_noise_is_the_error_of_a_geometric_mean_of_equal_settings(module):
    floor = module("h100_page").noise_floor([_row("a", 1.0, 4.0 / 2.25), _row("b", 5.0), _row("a", 40.0)])
    assert (floor.num_runs, floor.num_repeated, floor.slow) == (3, 2, 1)
    assert floor.repeated_error == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert floor.error == pytest.approx((1 / 3 + 1 / 4) / 3)


def test_a_class_of_few_models_with_experts_has_a_range_at_least_as_wide_as_dense_models(module):
    def rows(kind, ratios):
        return [SimpleNamespace(kind=kind, ratio=ratio, step=SimpleNamespace(model="one")) for ratio in ratios]

    found = module("h100_fit").spreads([*rows("9.x dense", (0.8, 1.1)), *rows("9.x experts", (1.0, 1.5))])
    assert found["9.x experts"][0] == pytest.approx(found["9.x dense"][0])
    assert found["9.x experts"][1] > found["9.x dense"][1]
