"""Every known symptom: its evidence, cause and fix, and jobs that only look like it."""

import pytest

from harness.diagnose.symptoms import SYMPTOMS, names_symptom, recognised
from tests.diagnose.conftest import FRAGMENTED, FULL

GRAPHS = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}}


def found(case):
    return {row.id: row for row in recognised(case)}


@pytest.mark.parametrize(
    ("text", "symptom", "cause", "fix"),
    [
        ("AssertionError: full recompute is only supported with full iteration CUDA graph.",
         "full_recompute_with_graphs", "whole layers are recomputed", "--cuda_graph_impl none"),
        ("AssertionError: recompute_granularity must not be full when CUDA Graphs are enabled.",
         "full_recompute_with_graphs", "CUDA graphs capture parts of a layer", "recompute modules instead of layers"),
        ("ValueError: Currently there is no support for Pipeline parallelism with CPU offloading",
         "pipeline_with_cpu_offloading", "PP is above 1", "-pp 1"),
        ("AssertionError: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is currently not supported with nccl_ub due to x",
         "user_buffers_with_expandable_segments", "registered with NCCL", "drop expandable_segments:True, or nccl_ub"),
        ("AssertionError: recompute method is not yet supported for selective activation checkpointing",
         "method_with_selective", "belong to full recompute", "drop --recompute_method"),
    ],
)  # fmt: skip
def test_megatron_cores_own_message_names_the_symptom_without_any_settings(case, text, symptom, cause, fix):
    row = found(case(text, spec=None))[symptom]
    assert cause in row.cause
    assert fix in row.fix
    assert row.evidence == f"rank.log:1: {text}"


def test_full_recompute_with_graphs_is_seen_in_settings(case):
    row = found(case("", GRAPHS | {"recompute": "full:uniform:1"}))["full_recompute_with_graphs"]
    assert row.evidence == "recompute full:uniform:1 with cuda_graph_impl=transformer_engine of mlp"


def test_full_recompute_with_a_graph_of_the_iteration_is_no_symptom(case):
    whole = {"cuda_graph": {"impl": "local", "scope": ("full_iteration",)}, "recompute": "full:uniform:1"}
    assert "full_recompute_with_graphs" not in found(case("", whole))


def test_offloading_of_layers_over_pipeline_stages_is_seen_in_settings(case):
    row = found(case("", {"offload": {"cpu_offloading_num_layers": 2}}))["pipeline_with_cpu_offloading"]
    assert row.evidence == "2 layers are offloaded with PP 4"


def test_user_buffers_beside_expandable_segments_are_seen_in_settings(case):
    asked = {"ddp": {"nccl_ub": True}}
    assert "user_buffers_with_expandable_segments" in found(case("", asked, expandable_segments=True))
    assert "user_buffers_with_expandable_segments" not in found(case("", asked, expandable_segments=False))


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


def test_the_fix_for_nan_with_fp8_is_to_recompute_core_attn_only(case):
    row = found(case("", {"recompute": "core_attn,layernorm"}, has_nan=True))["nan_with_fp8"]
    assert row.fix.startswith("recompute core_attn only, not layernorm")
    assert "layernorm is among the modules" in row.evidence


def test_one_rank_out_of_memory_beside_headroom_points_at_the_allocator(case, figures):
    ranks = figures((0, 74, True), (1, 60, False), (2, 58, False))
    row = found(case(FRAGMENTED, ranks=ranks, expandable_segments=False))["rank_out_of_memory_beside_headroom"]
    assert row.fix.startswith("first set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert row.evidence == "only rank 0; the other 2 held at most 60.00 GiB of 79.11 GiB; no expandable segments"


def test_expandable_segments_of_the_recipe_are_not_taken_for_those_of_the_job(case, figures):
    setting = {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
    ranks = figures((0, 74, True), (1, 60, False))
    for settings, evidence in (
        (setting, "the recipe sets expandable segments, but the logs do not show whether the job had"),
        ({}, "is not known"),
    ):
        row = found(case(FRAGMENTED, settings, ranks=ranks))["rank_out_of_memory_beside_headroom"]
        assert evidence in row.evidence


def test_on_a_cpu_the_allocator_is_not_the_cause(case, figures):
    limited = {"gpu": "cpu", "measure": {"max_steps": 10, "memory_limit_bytes": 2 * 10**9}}
    text = (
        "MemoryLimitError: out of memory under --memory_limit. Tried to allocate 1835008 bytes (1.75 MiB) in aten.silu"
    )
    job = case(text, limited, ranks=figures((0, 1.8, True), (1, 1.0, False)), expandable_segments=False)
    assert job.has_oom
    assert "rank_out_of_memory_beside_headroom" not in found(job)


def test_a_job_out_of_memory_gets_no_advice_that_needs_more_memory(case, predicted):
    for recompute in ("mlp,core_attn", "full:uniform:1"):
        full = case(FULL, {"recompute": recompute}, prediction=predicted(60, recompute_flops=40))
        dear = {"utilization_drop_with_mlp", "core_attn_beside_mlp", "slow_with_full_recompute"}
        assert not dear & set(found(full))


def test_without_headroom_on_other_ranks_the_allocator_is_not_the_cause(case, figures):
    both = figures((0, 74, True), (1, 74, True))
    near = figures((0, 74, True), (1, 78, False))
    for ranks in (both, near):
        assert "rank_out_of_memory_beside_headroom" not in found(case(FULL, ranks=ranks))


def test_out_of_memory_with_expandable_segments_is_capacity(case):
    row = found(case(FULL, expandable_segments=True))["out_of_memory_with_expandable_segments"]
    assert "more memory than the device has" in row.cause
    assert "distributed optimizer" in row.fix
    assert "out_of_memory_with_expandable_segments" not in found(case(FULL, expandable_segments=False))


def test_a_prediction_above_the_device_names_the_largest_part(case, predicted):
    row = found(case(FULL, prediction=predicted(95, 70)))["predicted_too_large"]
    assert row.evidence == "95.00 GiB of 80.00 GiB on stage 0, most of it activations (79.00 GiB)"
    assert "predicted_too_large" not in found(case(FULL, prediction=predicted(70, 60)))
    assert "predicted_too_large" not in found(case("", prediction=predicted(95, 70)))


def test_layernorm_and_still_out_of_memory(case, figures):
    with_norm = case(FULL, {"recompute": "core_attn,layernorm"}, ranks=figures((0, 59.6, True)))
    row = found(with_norm)["layernorm_and_still_out_of_memory"]
    assert row.cause == "the activations of the norms are too small to lower the peak"
    assert row.fix.startswith("recompute a module that frees more (mlp, moe), or whole layers")


def test_layernorm_with_mlp_is_not_the_symptom(case):
    assert "layernorm_and_still_out_of_memory" not in found(case(FULL, {"recompute": "mlp,layernorm"}))


def test_recompute_and_still_out_of_memory_names_the_memory_that_stays(case):
    row = found(case(FULL, {"optimizer": {"use_distributed_optimizer": False}}))["recompute_and_still_out_of_memory"]
    assert "optimizer state stay" in row.cause
    assert row.evidence == "recompute is core_attn; the optimizer is not distributed"
    assert "recompute_and_still_out_of_memory" not in found(case(FULL, {"recompute": "none"}))


@pytest.mark.parametrize(
    ("recompute", "symptom"), [("mlp", "utilization_drop_with_mlp"), ("full:uniform:1", "slow_with_full_recompute")]
)
def test_a_job_that_ended_well_shows_the_cost_of_recompute_by_its_flops(case, predicted, recompute, symptom):
    dear = case("", {"recompute": recompute}, prediction=predicted(60, recompute_flops=22))
    assert found(dear)[symptom].evidence.startswith("18% of the predicted FLOPs")
    cheap = case("", {"recompute": recompute}, prediction=predicted(60, recompute_flops=10))
    assert symptom not in found(cheap)


def test_core_attn_beside_mlp_is_seen_in_settings(case):
    assert found(case("", {"recompute": "mlp,core_attn"}))["core_attn_beside_mlp"].fix == "recompute mlp alone"


def test_a_healthy_job_shows_no_symptom(case, predicted):
    assert found(case("", prediction=predicted(60, 58))) == {}


def test_every_symptom_has_its_own_id_and_a_fix():
    assert len({row.id for row in SYMPTOMS[:14]}) == 14  # the others are megatron-core's texts, several of one rule
    assert all(row.cause and row.confirm and row.fix for row in SYMPTOMS)


def test_lines_of_ordinary_training_name_no_symptom():
    assert not names_symptom(
        " [2026-01-02 03:04:05] iteration 5/ 50 | lm loss: 1.1E+01 | number of nan iterations: 0 |"
    )


@pytest.mark.parametrize("text", ["recompute_granularity ........ selective", "cpu_offloading ........ False"])
def test_a_line_that_only_names_recompute_or_offloading_names_no_symptom(text):
    assert not names_symptom(text)


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: full recompute is only supported with full iteration CUDA graph.",
        "AssertionError: recompute_granularity must not be full when CUDA Graphs are enabled.",
        "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading",
        "AssertionError: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is currently not supported with nccl_ub due to x",
        "RuntimeError: NCCL user buffers: --use-nccl-ub cannot be used with expandable segments",
        "AssertionError: recompute method is not yet supported for selective activation checkpointing",
    ],
)
def test_lines_that_name_a_symptom_are_kept(text):
    assert names_symptom(text)
