"""Shipped recipes and examples: each is read as it stands, resolves, and keeps the rules."""

from pathlib import Path

import pytest

from harness.experiment.flops import model_flops_per_step
from harness.experiment.layout import layout_problem
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.recipes.rows import check_files, full_size, parameter_count
from harness.resolve.find import all_recipe_files, load_recipe, recipes_dir
from harness.resolve.recipe import build_spec
from harness.resolve.suite_file import read_suite
from harness.resolve.sweep_file import read_sweep_file

RECIPES = {f.name: load_recipe(f.path, f.label) for f in all_recipe_files(recipes_dir())}
POINTS = [(f"{name} {p.title}", p) for name, r in RECIPES.items() for p in r.points]


def test_every_recipe_and_every_runnable_point_resolves():
    checked, problems = check_files([], None)
    assert problems == []
    assert len(checked) == len(RECIPES) >= 9


@pytest.mark.parametrize("point", [p for _, p in POINTS], ids=[t for t, _ in POINTS])
def test_grid_batch_and_layers_of_a_point_divide_unless_it_says_why_not(point):
    spec = build_spec(point.layer, point.place)
    cut, world = spec.parallelism, spec.num_gpus
    rests = [
        world % cut.model_parallel_size,
        spec.batch.global_batch_size % (spec.batch.micro_batch_size * spec.data_parallel_size),
    ]
    if spec.model.moe:
        rests.append(
            world % (cut.expert_tensor_size * cut.expert_model_parallel_size * cut.pipeline_model_parallel_size)
        )
        rests.append(spec.model.moe.num_moe_experts % cut.expert_model_parallel_size)
    arithmetic_fails = any(rests) or layout_problem(spec.model, cut) is not None
    assert arithmetic_fails == any(
        not reason.startswith("Megatron-Bridge refuses") for reason in point.key.inconsistent
    )


OWN = [(t, p) for t, p in POINTS if p.key.gpu == "cpu" or "example" in p.key.profiles]


@pytest.mark.parametrize("point", [p for _, p in OWN], ids=[t for t, _ in OWN])
def test_points_of_our_own_break_no_rule(point):
    findings = check(build_spec(point.layer, point.place), Software())
    known = (
        {"K28"} if point.layer["recompute"].value.text == "core_attn,mlp" else set()
    )  # the 175B example as published
    assert {f.id for f in findings if f.severity == "error"} == known


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_on_a_cpu_for_pretraining_and_fine_tuning(name):
    points = [p for p in RECIPES[name].points if p.key.gpu == "cpu"]
    assert [p.key.task for p in points] == ["pretrain", "sft", "peft"]
    spec = build_spec(points[0].layer, points[0].place)
    assert (spec.num_gpus, spec.compute_dtype, spec.batch.seq_length) == (2, "fp32", 512)
    assert parameter_count(spec) < 25_000_000
    # about 60 GFLOP/s on one core make it a step of at most 1.5 s on two
    assert model_flops_per_step(spec) / 2 < 90e9


@pytest.mark.parametrize("name", RECIPES)
def test_the_small_model_keeps_the_character_of_the_large_one(name):
    large = full_size(RECIPES[name]).model
    small = build_spec(RECIPES[name].points[0].layer, "").model
    for field in ("normalization", "gated_linear_unit", "activation_func", "add_bias_linear", "qk_layernorm",
                  "position_embedding_type", "share_embeddings_and_output_weights", "mtp_num_layers", "add_qkv_bias",
                  "softmax_type", "attention_output_gate", "glu_linear_offset", "activation_func_clamp_value",
                  "window_attn_skip_freq", "yarn"):  # fmt: skip
        assert getattr(small, field) == getattr(large, field)
    for section in ("moe", "mla", "window_size", "linear_attention"):
        assert (getattr(small, section) is None) == (getattr(large, section) is None)
    assert small.num_attention_heads // small.query_groups == large.num_attention_heads // large.query_groups
    assert bool(large.moe and large.moe.moe_shared_expert_intermediate_size) == bool(
        small.moe and small.moe.moe_shared_expert_intermediate_size
    )


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2_7b", 6.74), ("llama3_8b", 8.03), ("llama3_70b", 70.55), ("llama31_405b", 405.85), ("gpt3_175b", 174.6),
        ("mixtral_8x7b", 46.70), ("deepseek_v3", 671.03), ("qwen3_30b_a3b", 30.53), ("qwen3_235b_a22b", 235.09),
        ("gpt_oss_120b", 116.83), ("kimi_k2", 1026.4), ("moonlight_16b", 15.96), ("qwen25_7b", 7.616),
        ("qwen3_next_80b_a3b", 79.67), ("glm45_air_106b", 106.85),
    ],
)  # fmt: skip
def test_models_have_the_published_number_of_parameters(name, billions):
    assert parameter_count(full_size(RECIPES[name])) / 1e9 == pytest.approx(billions, rel=1e-3)


EXAMPLES = Path(__file__).parents[2] / "recipes" / "examples"


@pytest.mark.parametrize("name", ["dense", "moe"])
@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_an_example_recipe_breaks_no_rule(mbr_perf, name, gpu):
    answer = mbr_perf("check", "-mr", EXAMPLES / f"{name}.yaml", "-g", gpu, "--no_megatron")

    assert answer.code == 0, answer.out
    assert answer.out.startswith(f"LEGAL: {name} pretrain, ")  # with an error or a warning, its words stand there


def test_examples_are_not_listed(mbr_perf):
    assert "examples" not in mbr_perf("recipes", "list").out


def test_the_example_suite_is_read():
    assert "dense_under_a_limit" in {case.name for case in read_suite(str(EXAMPLES / "suite.yaml")).cases}


def test_the_example_sweep_is_read():
    sweep = read_sweep_file(str(EXAMPLES / "sweep.yaml"))

    assert sweep.title.startswith("What does recompute save")
