"""Every shipped GPU point that the rules let run builds its layers and trains them under transformer-engine's own Python.

Process groups send nothing and kernels compute nothing. Left out: capture of CUDA graphs, Megatron-FSDP, offloading, and the
overlap of expert-parallel communication, whose schedule runs two micro-batches.
"""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.train, pytest.mark.slow]
HERE = Path(__file__).parent

# Points that do not run, by the rules that refuse them: how many of which recipe on which GPU.
REFUSED = {
    ("G18", "G27"): {
        "deepseek_v3 b300": 2, "deepseek_v3 gb200": 2, "deepseek_v3 gb300": 2, "qwen3_235b_a22b b200": 2,
        "qwen3_235b_a22b b300": 2, "qwen3_235b_a22b gb200": 3, "qwen3_235b_a22b gb300": 3, "qwen3_30b_a3b b300": 1,
        "qwen3_30b_a3b gb200": 1, "qwen3_30b_a3b gb300": 1,
    },
    ("G27",): {"deepseek_v3 gb300": 1, "qwen3_30b_a3b gb200": 1},
    ("K28",): {"gpt3_175b a100": 1},
    ("RUN01",): {
        "llama31_405b h100": 1, "llama3_70b b200": 3, "llama3_70b b300": 3, "llama3_70b gb200": 3, "llama3_70b gb300": 3,
        "llama3_70b h100": 3, "llama3_8b h100": 1, "qwen3_235b_a22b h100": 1, "qwen3_30b_a3b h100": 1,
    },
    ("inconsistent",): {
        "deepseek_v3 gb200": 1, "deepseek_v3 gb300": 1, "deepseek_v3 h100": 2, "qwen3_235b_a22b b200": 1,
        "qwen3_235b_a22b gb200": 3, "qwen3_235b_a22b gb300": 4,
    },
}  # fmt: skip


def _module(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


POINTS = _module("shipped_points")


@pytest.fixture(scope="module")
def points():
    return POINTS.shipped_points()


@pytest.fixture(scope="module")
def layers(points):
    """The layers of all points that run, each once; key -> case and the points that have it."""
    found = {}
    for point in points:
        for case in POINTS.layers_of(point) if not point.refused else ():
            found.setdefault(case.key, (case, []))[1].append(f"{point.name} {point.gpu} {point.spec.compute_dtype}")
    return found


def test_the_rules_refuse_these_points_and_no_others(points):
    counted = Counter((point.refused, f"{point.name} {point.gpu}") for point in points if point.refused)
    expected = {(rules, name): count for rules, names in REFUSED.items() for name, count in names.items()}
    assert counted == expected
    assert len(points) == 250


def test_one_layer_of_every_point_trains(layers, real_trace, pytestconfig):
    cases = [case for case, _ in layers.values()]
    if not pytestconfig.getoption("--slow"):
        cases = list({form(case): case for case in cases}.values())
    found = real_trace(cases)
    assert {key: (layers[key][1], answer["failed"]) for key, answer in found.items() if "failed" in answer} == {}
    assert all(answer["saved_bytes"] > 0 for answer in found.values())


def form(case):
    """Kind of layer, precision and recompute: one layer of each is the sample."""
    spec, kernels = case.spec, case.spec.kernels
    kind = (case.layer_kind, spec.model.mla is not None, spec.makes_user_buffers, kernels.moe_flex_dispatcher_backend)
    return kind if spec.recompute.granularity == "none" and spec.compute_dtype == "bf16" else (
        case.layer_kind, spec.model.mla is not None, spec.compute_dtype, spec.recompute.text,
    )  # fmt: skip
