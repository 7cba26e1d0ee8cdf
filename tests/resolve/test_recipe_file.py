from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.resolve.recipe import Recipe
from harness.resolve.recipe_file import load_recipe

Load = Callable[..., Recipe]


def problems_of(load: Load, *changes: tuple[str, str]) -> list[str]:
    with pytest.raises(BadRequestError) as caught:
        load(*changes)
    error = caught.value
    return [str(p) for p in error.problems]


def test_default_profile_and_point_meet_field_by_field(load: Load):
    layer = load().points[0].layer
    assert layer["ddp.overlap_grad_reduce"].value is True
    assert layer["kernels.tp_comm_overlap"].value is True
    assert {path: s.value for path, s in layer.items() if path.startswith("env.")} == {
        "env.COMMON": "2",
        "env.FAST": None,
        "env.OWN": "text",
    }
    assert layer["env.COMMON"].source == "tiny.yaml:15"
    assert layer["parallelism.tensor_model_parallel_size"].source == "tiny.yaml:23"


def test_of_several_profiles_a_later_one_wins_and_each_must_exist(load: Load):
    slow = (
        "profiles:\n",
        "profiles:\n  slow:\n    env: {COMMON: 3, SLOW: 1}\n    kernels: {moe_permute_fusion: true}\n",
    )
    layer = load(slow, ("profile: fast", "profile: [slow, fast]")).points[0].layer
    assert layer["env.COMMON"].value == "2"
    assert layer["kernels.tp_comm_overlap"].value is layer["kernels.moe_permute_fusion"].value is True
    assert layer["env.SLOW"].where == "profiles.slow.env.SLOW"
    with pytest.raises(BadRequestError, match="no such profile 'fats'"):
        load(("profile: fast", "profile: [fast, fats]"))


def test_name_and_family_are_reported_at_their_own_lines(load: Load):
    layer = load(("name: tiny\n", "# a comment\nname: tiny\n")).points[0].layer
    assert (layer["recipe"].source, layer["family"].source) == ("tiny.yaml:2", "tiny.yaml:3")


def test_an_unknown_key_is_named_with_line_path_and_nearest(load: Load):
    changes = ("recompute: full:block:2", "recompute: full:block:2\n    ddp:\n      bucket_siz: 2")
    assert problems_of(load, changes) == [
        "tiny.yaml:27: points[0].ddp.bucket_siz: no such setting\n  did you mean 'bucket_size'?"
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("title: Tiny", "titel: Tiny"), "tiny.yaml:3: titel: no such setting\n  did you mean 'title'?"),
        (("gpu: h100", "gpu: h101"), "tiny.yaml:19: points[0].gpu: no such value 'h101'\n  did you mean 'h100'?"),
        (("num_gpus: 8", "num_gpus: 0"), "tiny.yaml:21: points[0].num_gpus: must be greater than or equal to 1, is 0\n  GPUs in all"),
        (("    source: a test\n", ""), "tiny.yaml:18: points[0].source: missing\n  add source"),
        (("{tensor_model_parallel_size: 2}", "[2]"),
         "tiny.yaml:23: points[0].parallelism: must be a mapping, is a list\n  write key: value pairs"),
        (("name: tiny", "name: Tiny!"),
         "tiny.yaml:1: name: must be lower-case letters, digits, '.', '_' or '-', 64 at most, a letter or digit first, is 'Tiny!'\n"
         "  the file's stem; lower-case letters, digits, _ . -"),
        (("{tp_comm_overlap: true}", "{tp_comm_overlap_cfg: {qkv_fprop: {method: pipeline}}}"),
         "tiny.yaml:16: profiles.fast.kernels.tp_comm_overlap_cfg.qkv_fprop.method: must be 'ring_exchange', is 'pipeline'\n"
         "  see recipes/README.md for the types"),
        (("{tp_comm_overlap: true}", "{tp_comm_overlap_cfg: userbuffers_bf16_h100}"),
         "tiny.yaml:16: profiles.fast.kernels.tp_comm_overlap_cfg: must be a mapping of GEMMs, or the name of a known "
         "configuration, is 'userbuffers_bf16_h100'\n  did you mean 'userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192' or "
         "'userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048'?"),
        (("OWN: text", "OWN: 0.5"), "tiny.yaml:26: points[0].env.OWN: must be text, is 0.5\n  quote the value"),
    ],
)  # fmt: skip
def test_a_fault_is_reported_at_its_line(load: Load, change: tuple[str, str], problem: str):
    assert problem in problems_of(load, change)


def test_wrong_types_ranges_and_gaps_are_reported_all_at_once(load: Load):
    changes = (("tensor_model_parallel_size: 2", "tensor_model_parallel_size: two"), ("micro_batch_size: 1, ", ""),
               ("hidden_size: 64", "hidden_size: 64.5"))  # fmt: skip
    messages = [p.splitlines()[0] for p in problems_of(load, *changes)]
    assert sorted(messages) == [
        "tiny.yaml:18: points[0].batch.micro_batch_size: missing",
        "tiny.yaml:23: points[0].parallelism.tensor_model_parallel_size: must be an integer, is 'two'",
        "tiny.yaml:6: model.hidden_size: must be an integer, is 64.5",
    ]


def test_a_fault_in_a_shared_section_counts_once(load: Load):
    twice = ("points:\n  - task: pretrain", "points:\n  - task: [pretrain, sft]")
    assert len(problems_of(load, twice, ("overlap_grad_reduce: true", "overlap_grad_reduce: 1"))) == 1


def test_a_list_of_tasks_is_one_point_for_each(load: Load):
    points = load(("task: pretrain", "task: [pretrain, sft]")).points
    assert [p.key.task for p in points] == ["pretrain", "sft"]


def test_two_points_for_the_same_request_need_a_variant(load: Load, write: Callable[..., Path]):
    text = write().read_text(encoding="utf-8")
    point = text[text.index("  - task") :]
    with pytest.raises(BadRequestError, match=r"points\[1\]: the same task, GPU, precision and number of GPUs"):
        load_recipe(write(text=text + point), "tiny.yaml")
    assert len(load_recipe(write(text=text + point + "    variant: other\n"), "tiny.yaml").points) == 2


def test_a_recipe_without_points_is_refused(load: Load, write: Callable[..., Path]):
    text = write().read_text(encoding="utf-8")
    with pytest.raises(BadRequestError, match="at least one operating point"):
        load_recipe(write(text=text[: text.index("points:")] + "points: []\n"), "tiny.yaml")


def test_a_layer_pattern_may_be_written_short(load: Load):
    moe = "  moe: {num_moe_experts: 4, moe_router_topk: 2, moe_ffn_hidden_size: 32, moe_layer_freq: '[0]*1+[1]*3'}\n"
    layer = load(("defaults:", f"{moe}defaults:")).points[0].layer
    assert layer["model.moe.moe_layer_freq"].value == (0, 1, 1, 1)
    wrong = (moe.replace("[0]*1+[1]*3", "[0]+[1]"),)
    assert "is not a layer pattern" in problems_of(load, ("defaults:", f"{wrong[0]}defaults:"))[0]


POLICIES = [
    ("recompute: none", "none"),
    ("recompute: core_attn,mlp", "core_attn,mlp"),
    ("recompute: [mlp, core_attn]", "mlp,core_attn"),
    ("recompute: []", "none"),
    ("recompute: full:block:3:distributed", "full:block:3:distributed"),
]  # fmt: skip


@pytest.mark.parametrize(("yaml", "text"), POLICIES)
def test_recompute_is_one_text_or_a_list_of_modules(load: Load, yaml: str, text: str):
    setting = load(("recompute: full:block:2", yaml)).points[0].layer["recompute"]
    assert (setting.value.text, setting.note, setting.source) == (text, "", "tiny.yaml:25")


WRONG_POLICIES = [
    ("recompute: core_atn", "tiny.yaml:25: points[0].recompute: unknown recompute module 'core_atn'\n  did you mean 'core_attn'?"),
    ("recompute: 3", "tiny.yaml:25: points[0].recompute: must be text or a list of modules, is 3"),
    ("recompute: [mlp, 3]", "tiny.yaml:25: points[0].recompute: unknown recompute module '3'"),
    ("recompute: {granularity: full}", "tiny.yaml:25: points[0].recompute: must be text or a list of modules, is a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("yaml", "problem"), WRONG_POLICIES, ids=[p[0][:50] for p in WRONG_POLICIES])
def test_recompute_that_megatron_core_would_refuse_or_ignore_is_an_error(load: Load, yaml: str, problem: str):
    assert any(found.startswith(problem) for found in problems_of(load, ("recompute: full:block:2", yaml)))


def test_a_bad_name_is_reported_once_and_brings_no_other_faults(load: Load):
    (found,) = problems_of(load, ("name: tiny", "name: Tiny!"))
    assert found.startswith("tiny.yaml:1: name: must be lower-case letters")
