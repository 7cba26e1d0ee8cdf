from collections.abc import Callable
from pathlib import Path

import pytest

from harness.resolve.options import read_layer_freq
from harness.resolve.recipe import Recipe
from harness.resolve.recipe_file import load_recipe
from tests.commands import refused

Load = Callable[..., Recipe]


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
    refused(lambda: load(("profile: fast", "profile: [fast, fats]")), "'fats'")


def test_name_and_family_are_reported_at_their_own_lines(load: Load):
    layer = load(("name: tiny\n", "# a comment\nname: tiny\n")).points[0].layer
    assert (layer["recipe"].source, layer["family"].source) == ("tiny.yaml:2", "tiny.yaml:3")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("recompute: full:block:2", "recompute: full:block:2\n    ddp:\n      bucket_siz: 2"),
         ["tiny.yaml:27: points[0].ddp.bucket_siz: ", "'bucket_size'"]),
        (("title: Tiny", "titel: Tiny"), ["tiny.yaml:3: titel: ", "'title'"]),
        (("gpu: h100", "gpu: h101"), ["tiny.yaml:19: points[0].gpu: ", "'h101'", "'h100'"]),
        (("num_gpus: 8", "num_gpus: 0"), ["tiny.yaml:21: points[0].num_gpus: ", " 1, ", " 0\n"]),
        (("    source: a test\n", ""), ["tiny.yaml:18: points[0].source: missing"]),
        (("{tensor_model_parallel_size: 2}", "[2]"), ["tiny.yaml:23: points[0].parallelism: ", "mapping", "list"]),
        (("name: tiny", "name: Tiny!"), ["tiny.yaml:1: name: ", "'Tiny!'"]),
        (("{tp_comm_overlap: true}", "{tp_comm_overlap_cfg: {qkv_fprop: {method: pipeline}}}"),
         ["tiny.yaml:16: profiles.fast.kernels.tp_comm_overlap_cfg.qkv_fprop.method: ", "'ring_exchange'", "'pipeline'"]),
        (("{tp_comm_overlap: true}", "{tp_comm_overlap_cfg: userbuffers_bf16_h100}"),
         ["tiny.yaml:16: profiles.fast.kernels.tp_comm_overlap_cfg: ", "'userbuffers_bf16_h100'",
          "'userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192'", "'userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048'"]),
        (("OWN: text", "OWN: 0.5"), ["tiny.yaml:26: points[0].env.OWN: ", "0.5"]),
    ],
)  # fmt: skip
def test_a_fault_is_reported_at_its_line(load: Load, change: tuple[str, str], names: list[str]):
    refused(lambda: load(change), *names, num=1 + (change[1] == "titel: Tiny"))


def test_wrong_types_ranges_and_gaps_are_reported_all_at_once(load: Load):
    changes = (("tensor_model_parallel_size: 2", "tensor_model_parallel_size: two"), ("micro_batch_size: 1, ", ""),
               ("hidden_size: 64", "hidden_size: 64.5"))  # fmt: skip
    refused(
        lambda: load(*changes), "tiny.yaml:18: points[0].batch.micro_batch_size: ", "tiny.yaml:6: model.hidden_size: ",
        "tiny.yaml:23: points[0].parallelism.tensor_model_parallel_size: ", "'two'", "64.5", num=3,
    )  # fmt: skip


def test_a_fault_in_a_shared_section_counts_once(load: Load):
    twice = ("points:\n  - task: pretrain", "points:\n  - task: [pretrain, sft]")
    refused(lambda: load(twice, ("overlap_grad_reduce: true", "overlap_grad_reduce: 1")), "overlap_grad_reduce")


def test_a_list_of_tasks_is_one_point_for_each(load: Load):
    points = load(("task: pretrain", "task: [pretrain, sft]")).points
    assert [p.key.task for p in points] == ["pretrain", "sft"]


def test_two_points_for_the_same_request_need_a_variant(load: Load, write: Callable[..., Path]):
    text = write().read_text(encoding="utf-8")
    point = text[text.index("  - task") :]
    refused(lambda: load_recipe(write(text=text + point), "tiny.yaml"), "points[1]: ")
    assert len(load_recipe(write(text=text + point + "    variant: other\n"), "tiny.yaml").points) == 2


def test_a_recipe_without_points_is_refused(load: Load, write: Callable[..., Path]):
    text = write().read_text(encoding="utf-8")
    text = text[: text.index("points:")] + "points: []\n"
    refused(lambda: load_recipe(write(text=text), "tiny.yaml"), "points: ")


def test_a_layer_pattern_may_be_written_short(load: Load):
    moe = "  moe: {num_moe_experts: 4, moe_router_topk: 2, moe_ffn_hidden_size: 32, moe_layer_freq: '[0]*1+[1]*3'}\n"
    layer = load(("defaults:", f"{moe}defaults:")).points[0].layer
    assert layer["model.moe.moe_layer_freq"].value == (0, 1, 1, 1)
    wrong = (moe.replace("[0]*1+[1]*3", "[0]+[2]"),)
    refused(lambda: load(("defaults:", f"{wrong[0]}defaults:")), "layer pattern", num=None)


@pytest.mark.parametrize(
    ("text", "layers"),
    [("[0,1]*2", (0, 1, 0, 1)), ("([0]*1+[1]*2)*2", (0, 1, 1, 0, 1, 1)), ("( [0] * 1 + [1] )", (0, 1)), ("[0,1,1]", (0, 1, 1))],
)  # fmt: skip
def test_layers_are_read_as_megatron_writes_them(text, layers):
    assert read_layer_freq(text) == layers


@pytest.mark.parametrize(
    "text",
    ["", "1", "[]", "[2]*3", "[True]", "[0]*-1", "[0]*0", "[0]*n", "3*[0]", "f([0])", "[0]*99999999", "([0]*9999)*9999",
     "[[0]]", "[0]*3;", "(" * 300, "[0]" + "+[0]" * 10_001, "[0]*10**9", "\0"],
)  # fmt: skip
def test_other_texts_are_no_layers(text):
    refused(lambda: read_layer_freq(text), "layer pattern", num=None)


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
    ("recompute: core_atn", "'core_atn'", "'core_attn'"),
    ("recompute: 3", " 3"),
    ("recompute: [mlp, 3]", "'3'"),
    ("recompute: {granularity: full}", "mapping"),
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_POLICIES)
def test_recompute_that_megatron_core_would_refuse_or_ignore_is_an_error(load: Load, row: tuple[str, ...]):
    yaml, *names = row
    refused(lambda: load(("recompute: full:block:2", yaml)), "tiny.yaml:25: points[0].recompute: ", *names)
