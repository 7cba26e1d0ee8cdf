"""Which cells a sweep has: one change at a time, every combination, every setting, each once."""

from types import SimpleNamespace

import pytest

from harness.resolve.recipe import Request
from harness.sweep.axes import Expansion, as_text, control_values, name_of
from harness.sweep.plan import _with_values
from harness.sweep.request import read_axes, split_over
from tests.commands import refused

ASKED = Request(model_recipe_name="llama3_70b", gpu="h100")


def cells(*over, grid=False, chosen=None, every=("none", "mlp")):
    axes = read_axes(map(split_over, over))
    control = control_values(axes, chosen or {})
    expansion = Expansion(ASKED, axes, control, lambda _: tuple(every))
    return [dict(cell.values) for cell in expansion.cells(grid=grid)]


def test_one_change_at_a_time_is_made_from_no_recompute():
    assert cells("recompute=mlp;core_attn", "tp=2,8") == [
        {"recompute": "none"},
        {"recompute": "mlp"},
        {"recompute": "core_attn"},
        {"recompute": "none", "tp": "2"},
        {"recompute": "none", "tp": "8"},
    ]


def test_without_recompute_the_control_is_the_request_itself():
    assert cells("tp=2", "pp=4") == [{}, {"tp": "2"}, {"pp": "4"}]


def test_a_grid_holds_the_control_and_every_combination_recompute_fastest():
    assert cells("recompute=mlp;none", "tp=2,8", grid=True) == [
        {"recompute": "none"},
        {"tp": "2", "recompute": "mlp"},
        {"tp": "2", "recompute": "none"},
        {"tp": "8", "recompute": "mlp"},
        {"tp": "8", "recompute": "none"},
    ]


def test_auto_stands_for_every_setting_and_no_cell_comes_twice():
    assert cells("recompute=auto;full:uniform:1") == [
        {"recompute": "none"}, {"recompute": "mlp"}, {"recompute": "full:uniform:1"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "grid", "count"), [(0, True, 1_001), (0, False, 111), (1, False, 112), (1, True, None)]
)
def test_more_cells_than_anybody_can_run_are_refused_with_the_bound(more, grid, count):
    """The control is one more."""
    axes = (f"tp={','.join(map(str, range(1, 11 + more)))}", f"pp={','.join(map(str, range(1, 101)))}")
    if count is None:
        refused(lambda: cells(*axes, grid=grid), "1,100", "1,000")
    else:
        assert len(cells(*axes, grid=grid)) == count


def test_a_leaf_is_shown_as_it_is_typed_and_auto_as_the_settings_of_its_cells():
    values = (None, True, 0.5, (), ("mlp", "moe"), "mlp", 8)
    assert list(map(as_text, values)) == ["none", "true", "0.5", "none", "mlp,moe", "mlp", "8"]
    auto, sizes = read_axes(map(split_over, ("recompute=auto", "tp=2,8")))
    found = [SimpleNamespace(changes={"recompute": text, "tp": "2"}) for text in ("none", "mlp", "none")]
    assert (_with_values(auto, found).values, _with_values(sizes, found).values) == (("none", "mlp"), ("2", "8"))


def test_auto_asks_for_the_settings_of_each_layout():
    seen = []
    axes = read_axes(map(split_over, ("recompute=auto", "pp=2,4")))

    def every(asked):
        seen.append(asked.pipeline_model_parallel_size)
        return ("none",)

    Expansion(ASKED, axes, {"recompute": "none"}, every).cells(grid=True)
    assert seen == [2, 4]


def test_a_chosen_control_is_what_others_differ_from():
    assert cells("recompute=none;mlp", "tp=2,8", chosen={"recompute": "mlp", "tp": "2"}) == [
        {"recompute": "mlp", "tp": "2"},
        {"recompute": "none", "tp": "2"},
        {"recompute": "mlp", "tp": "8"},
    ]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"recompute": "mlp", "tp": "4"}, "mlp"),
        ({"recompute": "none", "tp": "8"}, "tp=8"),
        ({"recompute": "mlp", "tp": "8"}, "mlp tp=8"),
    ],
)
def test_a_cell_is_named_by_what_differs_from_the_control(changes, name):
    control = {"recompute": "none", "tp": "4"}
    assert name_of(changes, control) == name
    assert name_of(control, None) == "none tp=4"
