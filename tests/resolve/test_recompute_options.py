from pathlib import Path

import pytest

from harness.records.strict_yaml import read_yaml
from harness.resolve.recipe import Request
from harness.resolve.recompute import recompute_setting
from harness.resolve.resolve import resolve_recipe
from tests.commands import refused

CASES = read_yaml(Path(__file__).parents[1] / "data" / "recipes" / "bridge_recompute_overrides.yaml", "cases").value


def request(**options: object) -> Request:
    return Request(model_recipe_name="tiny", gpu="h100", **options)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_options_over_a_recipe_leave_one_whole_policy(load, case):
    recipe = load(("recompute: full:block:2", f"recompute: {case['recipe']}"))
    if "error" in case:
        refused(lambda: resolve_recipe(recipe, request(**case["options"])), *case["error"], num=None)
    else:
        assert resolve_recipe(recipe, request(**case["options"])).spec.recompute.text == case["ours"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recompute_modules": "none"}, "none"),
        ({"recompute_modules": "mlp,core_attn"}, "mlp,core_attn"),
        ({"recompute_modules": "mlp", "recompute_granularity": "selective"}, "mlp"),
        ({"recompute_granularity": "selective"}, "core_attn"),
        ({"recompute_granularity": "none"}, "none"),
        ({"recompute_num_layers": 4}, "full:block:4"),
        ({"recompute_num_layers": 4, "recompute_method": "uniform"}, "full:uniform:4"),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, "full:uniform:1"),
        ({"recompute_num_layers": 1, "distribute_saved_activations": True}, "full:block:1:distributed"),
        ({"recompute": "full:uniform:1"}, "full:uniform:1"),
        ({"recompute": " none "}, "none"),
    ],
)
def test_options_say_one_policy(options: dict[str, object], text: str):
    setting = recompute_setting(request(**options))
    assert setting.value.text == text
    assert setting.source == ", ".join(f"--{name}" for name in sorted(options, key=_option_order))


def _option_order(name: str) -> int:
    return ["recompute", "recompute_modules", "recompute_granularity", "recompute_method", "recompute_num_layers",
            "distribute_saved_activations"].index(name)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"recompute_modules": "mlp", "recompute_num_layers": 2}, ["--recompute_modules mlp", "--recompute_num_layers 2"]),
        ({"recompute_modules": "mlp", "recompute_granularity": "full"}, ["--recompute_modules mlp", "--recompute_granularity full"]),
        ({"recompute_granularity": "selective", "recompute_method": "block"},
         ["--recompute_granularity selective", "--recompute_method block"]),
        ({"recompute": "mlp", "recompute_modules": "mlp"}, ["--recompute mlp", "--recompute_modules mlp"]),
        ({"recompute_method": "uniform"}, ["--recompute_method needs --recompute_granularity full"]),
        ({"recompute_granularity": "full"}, ["needs --recompute_method", "needs --recompute_num_layers"]),
        ({"recompute_granularity": "ful"}, ["--recompute_granularity: ", "'ful'", "'full'"]),
        ({"recompute_num_layers": 1, "recompute_method": "blok"}, ["--recompute_method: ", "'blok'", "'block'"]),
        ({"recompute_num_layers": -1}, ["--recompute_num_layers: ", " 1 ", " -1"]),
        ({"recompute_modules": "mhc,gdn,mlp"}, ["'mhc': ", "'gdn': ", "June 2026"]),
        ({"recompute_modules": "mpl,core_attn,core_attn"}, ["'mpl'", "'mlp'", "'core_attn'"]),
        ({"recompute": "full:block"}, ["--recompute: ", "full:uniform:1"]),
    ],
)  # fmt: skip
def test_contradictions_name_both_options(options: dict[str, object], parts: list[str]):
    refused(lambda: recompute_setting(request(**options)), *parts, num=None)


def test_no_option_says_nothing():
    assert recompute_setting(request()) is None
