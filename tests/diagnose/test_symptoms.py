"""Every known symptom, and jobs that only look like it."""

import pytest

from harness.diagnose.symptoms import names_symptom, recognised
from harness.measure.prediction import limits_for
from harness.units import format_bytes
from tests.diagnose.conftest import FRAGMENTED, FULL

TEXTS = (
    ("R20", "AssertionError: full recompute is only supported with full iteration CUDA graph."),
    ("R18", "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"),
    ("memory_pool_with_expandable_segments",
     "RuntimeError: NCCL user buffers: --use-nccl-ub cannot be used with expandable segments"),
)  # fmt: skip


def found(case):
    return {row.id: row for row in recognised(case)}


@pytest.mark.parametrize(("symptom", "text"), TEXTS)
def test_megatron_cores_own_message_names_the_symptom_without_any_settings(case, symptom, text):
    assert names_symptom(text)
    row = found(case(text, spec=None))[symptom]
    assert (row.evidence, row.is_said) == (f"rank.log:1: {text}", True)


@pytest.mark.parametrize(
    ("symptom", "settings", "is_seen"),
    [
        ("core_attn_beside_mlp", {"recompute": "mlp,core_attn"}, True),
        ("core_attn_beside_mlp", {"recompute": "mlp"}, False),
    ],
)
def test_settings_show_it(case, symptom, settings, is_seen):
    assert (symptom in found(case("", settings))) is is_seen


@pytest.mark.parametrize(
    ("dtype", "recompute", "has_nan", "expected"),
    [
        ("fp8_cs", "core_attn,layernorm", True, True),
        ("bf16", "core_attn,layernorm", True, False),
        ("fp8_cs", "none", True, False),
        ("fp8_cs", "core_attn,layernorm", False, False),
    ],
)
def test_nan_is_a_symptom_with_fp8_and_recompute_only(case, dtype, recompute, has_nan, expected):
    rows = found(case("", {"compute_dtype": dtype, "recompute": recompute}, has_nan=has_nan))
    assert ("nan_with_fp8" in rows) == expected


@pytest.mark.parametrize(
    ("rows", "changes", "is_seen"),
    [
        (((0, 74, True), (1, 60, False), (2, 58, False)), {"expandable_segments": False}, True),
        (((0, 74, True), (1, 60, False)), {}, True),
        (((0, 74, True), (1, 60, False)), {"expandable_segments": True}, True),
        (((0, 74, True), (1, 60, False)), {"origin": "log"}, False),
        (((0, 74, True), (1, 74, False)), {}, False),
        (((0, 74, True), (1, 74, True)), {}, False),
        (((0, 74, True), (1, 78, False)), {}, False),
    ],
)
def test_other_ranks_have_room_by_their_own_peaks_until_the_failure_only(case, figures, rows, changes, is_seen):
    symptoms = found(case(FRAGMENTED, ranks=figures(*rows), **changes))
    assert ("rank_out_of_memory_beside_headroom" in symptoms) is is_seen


def test_a_job_out_of_memory_gets_no_advice_that_needs_more_memory(case, predicted):
    for recompute in ("mlp,core_attn", "full:uniform:1"):
        full = case(FULL, {"recompute": recompute}, prediction=predicted(60, recompute_flops=40))
        dear = {"core_attn_beside_mlp", "slow_with_recompute"}
        assert not dear & set(found(full))


@pytest.mark.parametrize("is_on", [True, False])
def test_out_of_memory_with_expandable_segments_is_capacity(case, is_on):
    assert ("out_of_memory_with_expandable_segments" in found(case(FULL, expandable_segments=is_on))) is is_on


def test_a_prediction_above_the_device_names_the_largest_part(case, predicted):
    job = case(FULL, prediction=predicted(95, 70))
    row, usable = found(job)["predicted_too_large"], format_bytes(limits_for(job.spec).budget_bytes)
    assert row.evidence == f"95.00 GiB of {usable} usable on stage 0, most of it activations (79.00 GiB)"
    assert "predicted_too_large" not in found(case(FULL, prediction=predicted(70, 60)))
    assert "predicted_too_large" not in found(case("", prediction=predicted(95, 70)))


@pytest.mark.parametrize(
    ("symptom", "recompute", "is_seen"),
    [
        ("recompute_and_still_out_of_memory", "core_attn", True),
        ("recompute_and_still_out_of_memory", "none", False),
    ],
)
def test_still_out_of_memory_with_recompute(case, symptom, recompute, is_seen):
    assert (symptom in found(case(FULL, {"recompute": recompute}))) is is_seen


@pytest.mark.parametrize(
    ("recompute", "symptom"), [("mlp", "slow_with_recompute"), ("full:uniform:1", "slow_with_recompute")]
)
def test_a_job_that_ended_well_shows_the_cost_of_recompute_by_its_flops(case, predicted, recompute, symptom):
    dear = case("", {"recompute": recompute}, prediction=predicted(60, recompute_flops=22))
    assert found(dear)[symptom].evidence.startswith("18% ")
    cheap = case("", {"recompute": recompute}, prediction=predicted(60, recompute_flops=10))
    assert symptom not in found(cheap)


@pytest.mark.parametrize(
    "text",
    [
        " [2026-01-02 03:04:05] iteration 5/ 50 | lm loss: 1.1E+01 | number of nan iterations: 0 |",
        "recompute_granularity ........ selective",
        "cpu_offloading ........ False",
    ],
)
def test_ordinary_lines_name_no_symptom(text):
    assert not names_symptom(text)
