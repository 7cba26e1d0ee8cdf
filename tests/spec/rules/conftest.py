"""One request per row of the rule table that breaks it, and the nearest one that does not."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness.spec.experiment import ExperimentSpec
from harness.spec.recompute import SelectiveRecompute
from harness.spec.rules.check import check
from harness.spec.rules.finding import Finding
from harness.spec.software import Software
from tests.spec.rules.releases import RAISED_BY_CONFIG, installed_megatron_core, is_of_installed_release


class Case(NamedTuple):
    """``breaks`` makes a legal request of ``kind`` violate ``rule``; ``keeps``, on top of it, repairs that."""

    rule: str
    severity: str
    kind: str
    breaks: dict[str, Any]
    keeps: dict[str, Any]


def breaks(**changes: Any) -> dict[str, Any]:
    """Changes to a legal request that violate a rule."""
    return changes


def keeps(**changes: Any) -> dict[str, Any]:
    """Changes to the violating request that repair it."""
    return changes


class Asked(NamedTuple):
    spec: ExperimentSpec
    software: Software
    rank_env: dict[str, str] | None


# Names that are not fields of the request: the software and the environment of the ranks.
OUTSIDE = {"mcore": "megatron_core", "te": "transformer_engine", "gpu_found": "gpu", "apex": "apex"}
FULL_ENV = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}

CASES = [Case(*row) for row in (
    ("R06", "error", "dense", breaks(tp=2, sp=True, recompute="full:uniform:1:distributed"), keeps(sp=False)),
    ("R07", "error", "dense", breaks(recompute=SelectiveRecompute(modules=("mlp", "core_atn"))), keeps(recompute="mlp")),
    ("R07", "error", "dense", breaks(recompute="mlp,gdn_norm_out", mcore="0.18.0"), keeps(recompute="mlp")),
    ("R08", "error", "moe", breaks(recompute="moe_act", model__moe__moe_grouped_gemm=False),
     keeps(model__moe__moe_grouped_gemm=True)),
    ("R08", "error", "dense", breaks(recompute="mlp,moe_act"), keeps(recompute="mlp")),
    ("R09", "error", "dense", breaks(recompute="mlp,mla_up_proj"), keeps(recompute="mlp")),
    ("R10", "warning", "dense", breaks(recompute="core_attn"), keeps(kernels__attention_backend="unfused")),
    ("R11", "error", "deepseek", breaks(recompute="shared_experts", kernels__moe_shared_expert_overlap=True),
     keeps(kernels__moe_shared_expert_overlap=False)),
    ("R12", "error", "moe", breaks(recompute="moe_act", dtype="fp8_ds"), keeps(dtype="fp8_cs")),
    ("R13", "error", "moe", breaks(recompute="moe_act", dtype="fp8_cs", te="2.5.0"), keeps(te="2.6.0")),
    ("R13", "error", "moe", breaks(recompute="moe_act", dtype="fp8_cs", te=None), keeps(te="2.11.0")),
    ("R16", "error", "dense", breaks(offload_layers=2, recompute="mlp"), keeps(recompute="none")),
    ("R17", "error", "dense", breaks(offload_layers=8), keeps(offload_layers=7)),
    ("R18", "error", "dense", breaks(offload_layers=2, pp=2), keeps(pp=1)),
    ("R19", "error", "dense", breaks(offload_layers=2, te=None), keeps(te="2.11")),
    ("R20", "error", "dense", breaks(recompute="full:uniform:1", graph="transformer_engine"),
     keeps(graph="full_iteration")),
    ("R21", "error", "moe", breaks(overlap=True, ep=2, recompute="full:uniform:1"), keeps(recompute="layernorm")),
    ("R22", "error", "moe", breaks(overlap=True, ep=2, recompute="moe"), keeps(recompute="layernorm")),
    ("R22", "error", "moe", breaks(overlap=True, ep=2, recompute="moe", mcore="0.17.0"), keeps(recompute="layernorm")),
    ("R23", "error", "dense", breaks(recompute="mlp,gdn_norm_out", mcore="0.19.2"), keeps(recompute="mlp")),
    ("T07", "warning", "dense", breaks(recompute="full:block:9"), keeps(recompute="full:block:8")),
    ("T07", "warning", "dense", breaks(pp=2, vp=2, recompute="full:block:3"), keeps(recompute="full:block:2")),
    ("T08", "error", "dense", breaks(pp=2, recompute="full:uniform:3"), keeps(recompute="full:uniform:2")),
    ("T08", "error", "dense", breaks(pp=2, recompute="full:uniform:3"), keeps(mcore="0.17.0")),
    ("T10", "warning", "dense", breaks(recompute="full:uniform:1:distributed"), keeps(tp=2)),
    ("T11", "warning", "dense", breaks(recompute="mlp,moe"), keeps(recompute="mlp")),
    ("T12", "warning", "moe", breaks(recompute="moe_act,shared_experts"),
     keeps(model__moe__moe_shared_expert_intermediate_size=1024)),
    ("T13", "warning", "moe", breaks(recompute="mlp,moe_act"), keeps(model__moe__moe_layer_freq=2)),
    ("T14", "warning", "dense", breaks(recompute="mlp,layernorm"), keeps(impl="local")),
    ("T16", "error", "dense", breaks(mtp=1, recompute="full:uniform:2"), keeps(recompute="full:uniform:1")),
    ("T17", "warning", "dense", breaks(mtp=1, recompute="full:block:2"), keeps(mtp=None)),
    ("T18", "error", "dense", breaks(mtp=1, recompute="full:uniform:1", dtype="fp8_cs"), keeps(mcore="0.18.0")),
    ("T21", "note", "dense", breaks(task="peft", recompute="full:block:2", dtype="fp8_cs"), keeps(task="sft")),
    ("T25", "warning", "deepseek", breaks(recompute="moe,shared_experts"), keeps(recompute="moe")),
    ("T26", "warning", "moe", breaks(recompute="moe,moe_act"), keeps(recompute="moe_act")),
    ("T30", "error", "moe", breaks(tp=2), keeps(sp=True)),
    ("EFF01", "error", "dense", breaks(recompute="layernorm"), keeps(recompute="mlp")),
    ("EFF01", "error", "moe", breaks(recompute="mlp"), keeps(recompute="moe")),
    ("EFF02", "warning", "dense", breaks(recompute="mlp,layernorm"), keeps(recompute="mlp")),
    ("EFF03", "note", "deepseek", breaks(recompute="mlp"), keeps(recompute="mla_up_proj")),
    ("F01", "error", "dense", breaks(offload_layers=2, offload_modules=("core_attn",)), keeps(offload_layers=0)),
    ("F03", "error", "dense", breaks(offload_modules=("core_atn",)), keeps(offload_modules=("core_attn",))),
    ("F03", "error", "moe", breaks(offload_modules=("fused_group_mlp",)), keeps(mcore="0.19.0")),
    ("F04", "error", "dense", breaks(offload_modules=("attn_proj",)), keeps(offload_modules=("attn_proj", "core_attn"))),
    ("F05", "error", "dense", breaks(offload_modules=("core_attn",), impl="local"), keeps(impl="auto")),
    ("F06", "error", "dense", breaks(offload_modules=("core_attn",), env__NVTE_CPU_OFFLOAD_V1="0"), keeps(te="2.9.0")),
    ("F06", "error", "dense", breaks(offload_modules=("core_attn",), rank_env={}),
     keeps(env__NVTE_CPU_OFFLOAD_V1="1")),
    ("F07", "warning", "dense", breaks(offload_modules=("core_attn",), recompute="core_attn"), keeps(recompute="mlp")),
    ("F08", "warning", "dense", breaks(offload_modules=("core_attn",), recompute="full:block:2"), keeps(recompute="mlp")),
    ("F09", "error", "moe", breaks(offload_modules=("moe_act",), recompute="moe"), keeps(recompute="layernorm")),
    ("F09", "error", "moe", breaks(offload_modules=("moe_act",), recompute="moe", mcore="0.19.0"),
     keeps(recompute="layernorm")),
    ("F11", "error", "dense", breaks(offload_modules=("core_attn",), graph="local", mcore="0.19.2"),
     keeps(graph="transformer_engine")),
    ("F11", "error", "moe", breaks(offload_modules=("moe_act",), graph="local", scope=("attn",), capacity=1.0, pad=True,
                                 mcore="0.18.0"),
     keeps(mcore="0.19.0")),
    ("F11", "error", "moe", breaks(offload_modules=("moe_act",), graph="local", capacity=1.0, pad=True, mcore="0.19.2"),
     keeps(graph="transformer_engine", scope=("attn",))),
    ("F11", "error", "dense", breaks(offload_modules=("core_attn",), graph="full_iteration", mcore="0.19.2"),
     keeps(graph="transformer_engine")),
    ("F11", "error", "dense", breaks(offload_modules=("core_attn",), graph="full_iteration", mcore="0.20.0.dev0"),
     keeps(mcore="0.17.0")),
    ("F11", "error", "moe", breaks(offload_modules=("moe_act",), graph="transformer_engine", scope=("moe",),
                                 capacity=1.0, pad=True, mcore="0.19.2"), keeps(scope=("attn",))),
    ("F12", "warning", "dense", breaks(offload_modules=("core_attn", "expert_fc1")), keeps(offload_modules=("core_attn",))),
    ("Q07", "error", "moe", breaks(dtype="fp8_cs", te="1.10.0"), keeps(te="2.11.0")),
    ("Q07", "error", "moe", breaks(dtype="fp8_ds", te="1.6.0"), keeps(te="1.11.0")),
    ("Q10", "error", "moe", breaks(dtype="fp8_cs", recompute="moe_act", impl="local"), keeps(impl="auto")),
    ("Q12", "error", "dense", breaks(dtype="fp8_mx"), keeps(gpu="b200")),
    ("Q12", "error", "dense", breaks(dtype="nvfp4", gpu="b200", gpu_found="h200"), keeps(gpu_found="b200")),
    ("Q12", "error", "dense", breaks(dtype="fp8_cs", gpu="a100"), keeps(dtype="bf16")),
    ("Q13", "error", "dense", breaks(dtype="fp8_sc", te="2.2.0"), keeps(te="2.3.0")),
    ("Q13", "error", "dense", breaks(dtype="nvfp4", gpu="b200", te=None), keeps(te="2.7.0.dev0")),
    ("Q14", "error", "dense", breaks(dtype="fp8_cs", impl="local"), keeps(dtype="bf16")),
    ("Q15", "error", "dense", breaks(dtype="fp8_cs", model__ffn_hidden_size=4104), keeps(dtype="bf16")),
    ("Q15", "error", "dense", breaks(dtype="fp8_cs", seq=2044), keeps(seq=2048)),
    ("Q15", "error", "moe", breaks(dtype="fp8_mx", gpu="b200", model__moe__moe_ffn_hidden_size=1008),
     keeps(model__moe__moe_ffn_hidden_size=1024)),
    ("Q16", "note", "dense", breaks(dtype="fp8_sc", gpu="b200"), keeps(gpu="h100")),
    ("G05", "error", "dense", breaks(offload_layers=2, graph="transformer_engine"), keeps(graph="none")),
    ("G05", "error", "dense", breaks(offload_layers=2, graph="full_iteration"), keeps(mcore="0.18.0")),
    ("G06", "error", "dense", breaks(graph="transformer_engine", scope=("full_iteration",)), keeps(graph="local")),
    ("G06", "error", "dense", breaks(graph="transformer_engine", scope=("full_iteration",), mcore="0.18.0"),
     keeps(graph="local")),
    ("G07", "error", "moe", breaks(graph="transformer_engine", scope=("moe", "moe_router"), capacity=1.0, pad=True),
     keeps(scope=("moe",))),
    ("G08", "error", "moe", breaks(graph="transformer_engine", scope=("moe_preprocess",)),
     keeps(scope=("moe_preprocess", "moe_router"))),
    ("G09", "error", "dense", breaks(graph="transformer_engine", scope=("moe_router",)), keeps(scope=("mlp",))),
    ("G10", "error", "moe", breaks(graph="transformer_engine", scope=("mlp",)), keeps(model__moe__moe_layer_freq=2)),
    ("G11", "error", "moe", breaks(graph="transformer_engine", scope=("moe",)), keeps(capacity=1.0, pad=True)),
    ("G12", "error", "moe", breaks(graph="transformer_engine", scope=("moe_router", "moe_preprocess"), capacity=1.0),
     keeps(pad=True)),
    ("G14", "error", "moe", breaks(graph="transformer_engine", scope=("moe_router",), recompute="moe"),
     keeps(recompute="layernorm,moe_act")),
    ("G15", "error", "dense", breaks(graph="transformer_engine", scope=("attn",), recompute="core_attn", te="2.12",
                                   model__attention_dropout=0.1), keeps(model__attention_dropout=0.0)),
    ("G16", "error", "dense", breaks(graph="full_iteration", recompute="mlp", model__hidden_dropout=0.1),
     keeps(model__hidden_dropout=0.0)),
    ("G18", "error", "moe", breaks(overlap=True, ep=2, graph="full_iteration", capacity=1.0, pad=True, mcore="0.16.1"),
     keeps(graph="transformer_engine", scope=("attn",))),
    ("G18", "error", "moe", breaks(overlap=True, ep=2, graph="full_iteration", capacity=1.0, pad=True),
     keeps(mcore="0.18.0")),
    ("G18", "error", "moe", breaks(overlap=True, ep=2, graph="transformer_engine", scope=("moe",), capacity=1.0, pad=True,
                                   mcore="0.19.2"), keeps(scope=("attn",))),
    ("G20", "error", "dense", breaks(graph="full_iteration", scope=("attn",)), keeps(scope=())),
    ("G21", "error", "dense", breaks(graph="local", recompute="mlp"), keeps(graph="full_iteration")),
    ("G22", "error", "dense", breaks(graph="transformer_engine", recompute="mlp"), keeps(te="2.12.0")),
    ("G22", "error", "dense", breaks(graph="transformer_engine", recompute="mlp"), keeps(scope=("attn",))),
    ("G22", "error", "dense", breaks(graph="transformer_engine", recompute="mlp", dtype="fp8_cs", mcore="0.18.0"),
     keeps(te="2.12.0")),
    ("G23", "warning", "dense", breaks(graph="local", recompute="mlp", mcore="0.18.0"), keeps(graph="full_iteration")),
    ("G24", "error", "dense", breaks(graph="local", recompute="mlp", dtype="fp8_cs", mcore="0.18.0"),
     keeps(graph="full_iteration")),
    ("G25", "error", "dense", breaks(graph="local", impl="local", recompute="layernorm"), keeps(mcore="0.17.0")),
    ("G26", "error", "dense", breaks(graph="full_iteration", recompute="full:uniform:1", model__hidden_dropout=0.1),
     keeps(model__hidden_dropout=0.0)),
    ("G27", "error", "moe", breaks(graph="full_iteration"), keeps(capacity=1.0, pad=True)),
    ("G27", "error", "moe", breaks(graph="transformer_engine"), keeps(scope=("attn", "moe_router"))),
    ("G28", "warning", "deepseek", breaks(graph="transformer_engine", scope=("moe_router",), recompute="layernorm"),
     keeps(scope=("moe_router", "moe_preprocess"))),
    ("G29", "error", "dense", breaks(graph="local", scope=("mlp",)), keeps(graph="transformer_engine")),
    ("G30", "error", "moe", breaks(graph="local", scope=("attn",)), keeps(graph="transformer_engine")),
    ("G30", "warning", "dense", breaks(graph="local", scope=("attn",)), keeps(graph="transformer_engine")),
    ("G31", "error", "moe", breaks(graph="local", scope=("moe_router", "moe_preprocess")),
     keeps(graph="transformer_engine")),
    ("G32", "warning", "dense", breaks(graph="transformer_engine", scope=("attn", "mamba")), keeps(scope=("attn",))),
    ("G33", "warning", "dense", breaks(scope=("attn",)), keeps(graph="transformer_engine")),
    ("P01", "error", "dense", breaks(sp=True), keeps(tp=2)),
    ("P03", "error", "dense", breaks(num_gpus=3, tp=3, gbs=3, model__num_query_groups=3, model__num_attention_heads=16,
                                   model__kv_channels=64, model__ffn_hidden_size=14337), keeps(model__num_attention_heads=15)),
    ("P04", "error", "dense", breaks(tp=4, model__num_query_groups=6, model__num_attention_heads=24,
                                   model__kv_channels=64), keeps(tp=2)),
    ("P33", "warning", "dense", breaks(tp=8, model__num_query_groups=4), keeps(tp=4)),
    ("P05", "error", "dense", breaks(ep=2), keeps(ep=1)),
    ("P06", "error", "moe", breaks(num_gpus=3, gbs=3, ep=3), keeps(model__moe__num_moe_experts=9)),
    ("P08", "error", "dense", breaks(layers=9, pp=2), keeps(layers=10)),
    ("P09", "error", "dense", breaks(layers=8, pp=2, vp=3), keeps(vp=2)),
    ("P10", "error", "dense", breaks(pp=2, parallelism__num_layers_in_first_pipeline_stage=4,
                                   parallelism__account_for_loss_in_pipeline_split=True),
     keeps(parallelism__account_for_loss_in_pipeline_split=False)),
    ("P11", "error", "dense", breaks(pp=2, layout="Ettt|tttttL",
                                   parallelism__account_for_embedding_in_pipeline_split=True),
     keeps(parallelism__account_for_embedding_in_pipeline_split=False)),
    ("P12", "error", "dense", breaks(pp=2, layout="Ettt|tt|tttL"), keeps(layout="Ettt|tttttL")),
    ("P13", "error", "dense", breaks(pp=2, layout="Ettt|ttttL"), keeps(layout="Ettt|tttttL")),
    ("P13", "error", "dense", breaks(pp=2, layout="Ex|t*8L"), keeps(layout="E|t*8L")),
    ("P14", "error", "dense", breaks(pp=2, vp=2, layout="Ettt|tttttL"), keeps(vp=None)),
    ("P15", "error", "dense", breaks(pp=4, parallelism__num_layers_in_first_pipeline_stage=1),
     keeps(parallelism__num_layers_in_first_pipeline_stage=2)),
    ("P16", "error", "dense", breaks(pp=2, parallelism__account_for_loss_in_pipeline_split=True), keeps(layers=9)),
    ("P31", "error", "dense", breaks(cp=2, impl="local"), keeps(cp=1)),
    ("A01", "error", "dense", breaks(tp=16), keeps(tp=8)),
    ("A03", "error", "moe", breaks(ep=16, num_gpus=24, gpus_per_node=8, gbs=48, model__moe__num_moe_experts=16),
     keeps(ep=8)),
    ("A06", "error", "dense", breaks(gbs=63), keeps(gbs=64)),
    ("A07", "error", "dense", breaks(pp=4, vp=2, gbs=4), keeps(gbs=8)),
    ("A07", "error", "dense", breaks(pp=4, vp=2, gbs=10), keeps(gbs=16)),
    ("A07", "error", "dense", breaks(pp=2, layout="E(tt|)*2tt|ttL", gbs=4), keeps(gbs=8)),
    ("A12", "error", "dense", breaks(vp=2), keeps(pp=2)),
    ("A13", "note", "dense", breaks(vp=1), keeps(vp=None)),
    ("A16", "error", "dense", breaks(cp=2, seq=2050), keeps(seq=2052)),
    ("A17", "error", "dense", breaks(tp=4, sp=True, seq=2050), keeps(seq=2052)),
    ("A22", "error", "deepseek", breaks(model__num_query_groups=8), keeps(model__num_query_groups=16)),
    ("A24", "warning", "dense", breaks(mtp=1, model__position_embedding_type="learned_absolute"),
     keeps(model__position_embedding_type="rope")),
    ("A25", "warning", "dense", breaks(tp=8, gpus_per_node=4), keeps(tp=4)),
    ("P17", "error", "deepseek", breaks(kernels__moe_shared_expert_overlap=True, dispatcher="allgather"),
     keeps(dispatcher="alltoall")),
    ("P17", "error", "deepseek", breaks(kernels__moe_shared_expert_overlap=True, dispatcher="flex", ep=2),
     keeps(mcore="0.18.0")),
    ("P18a", "error", "moe", breaks(dispatcher="flex"), keeps(ep=2)),
    ("P18b", "error", "moe", breaks(dispatcher="flex", ep=2, capacity=1.0, pad=True,
                                  kernels__moe_flex_dispatcher_backend="deepep"),
     keeps(kernels__moe_flex_dispatcher_backend="hybridep")),
    ("P18c", "warning", "moe", breaks(kernels__moe_flex_dispatcher_backend="deepep"), keeps(dispatcher="flex", ep=2)),
    ("P19", "error", "moe", breaks(pad=True), keeps(capacity=1.0)),
    ("P20", "error", "moe", breaks(model__moe__moe_router_topk=1), keeps(model__moe__moe_router_pre_softmax=True)),
    ("P21a", "error", "moe", breaks(model__moe__moe_router_group_topk=2), keeps(model__moe__moe_router_num_groups=4)),
    ("P21b", "error", "moe", breaks(model__moe__moe_router_group_topk=2, model__moe__moe_router_num_groups=3),
     keeps(model__moe__moe_router_num_groups=4)),
    ("P21c", "error", "moe", breaks(model__moe__moe_router_group_topk=8, model__moe__moe_router_num_groups=4),
     keeps(model__moe__moe_router_group_topk=4)),
    ("P21d", "error", "moe", breaks(model__moe__moe_router_group_topk=1, model__moe__moe_router_num_groups=8),
     keeps(model__moe__moe_router_num_groups=4)),
    ("P22", "error", "moe", breaks(model__moe__moe_router_enable_expert_bias=True),
     keeps(model__moe__moe_router_score_function="sigmoid")),
    ("P23a", "error", "moe", breaks(model__add_bias_linear=True, tp=2, sp=True), keeps(etp=1)),
    ("P23b", "error", "deepseek", breaks(model__add_bias_linear=True), keeps(model__add_bias_linear=False)),
    ("P27", "error", "moe", breaks(kernels__moe_permute_fusion=True, te="2.0.0"), keeps(te="2.1.0")),
    ("P28a", "error", "moe", breaks(overlap=True, ep=2, pp=2), keeps(vp=2)),
    ("P28b", "error", "moe", breaks(overlap=True), keeps(ep=2)),
    ("P28c", "error", "moe", breaks(overlap=True, ep=2, dispatcher="allgather"), keeps(dispatcher="alltoall")),
    ("P28d", "error", "moe", breaks(overlap=True, ep=2, dtype="fp32"), keeps(dtype="bf16")),
    ("P28e", "error", "deepseek", breaks(overlap=True, ep=2, kernels__moe_shared_expert_overlap=True),
     keeps(kernels__moe_shared_expert_overlap=False)),
    ("P28f", "error", "moe", breaks(overlap=True, ep=2, pp=2, vp=2, mtp=2), keeps(mtp=1)),
    ("P28g", "error", "moe", breaks(overlap=True, ep=2, mtp=1, mcore="0.16.1"), keeps(pp=2, vp=2)),
    ("P28g", "error", "moe", breaks(overlap=True, ep=2, mtp=1, mcore="0.17.0"), keeps(mcore="0.18.0")),
    ("P28h", "warning", "dense", breaks(overlap=True), keeps(overlap=False)),
    ("B04a", "warning", "dense", breaks(tp=2, kernels__tp_comm_overlap=True), keeps(sp=True)),
    ("B04a", "warning", "dense", breaks(kernels__tp_comm_overlap=True), keeps(tp=2, sp=True)),
    ("B04a", "warning", "dense", breaks(tp=2, sp=True, impl="local", kernels__tp_comm_overlap=True), keeps(impl="auto")),
    ("B04a", "warning", "deepseek", breaks(tp=2, sp=True, kernels__tp_comm_overlap=True), keeps(kernels__tp_comm_overlap=False)),
    ("B04b", "warning", "dense", breaks(kernels__tp_comm_overlap_cfg={"qkv_dgrad": {"method": "bulk"}}),
     keeps(tp=2, sp=True, kernels__tp_comm_overlap=True)),
    ("B04c", "error", "dense", breaks(tp=2, sp=True, kernels__tp_comm_overlap=True, dtype="fp8_sc"), keeps(dtype="fp8_cs")),
    ("B04c", "error", "dense", breaks(tp=2, sp=True, kernels__tp_comm_overlap=True, dtype="nvfp4", gpu="b200"),
     keeps(dtype="bf16")),
    ("B04d", "error", "dense", breaks(tp=8, sp=True, gpus_per_node=4, num_gpus=8, kernels__tp_comm_overlap=True),
     keeps(gpus_per_node=8)),
    ("B04d", "error", "dense", breaks(tp=8, sp=True, gpus_per_node=4, num_gpus=8, kernels__tp_comm_overlap=True),
     keeps(gpu="gb200")),
    ("B04e", "error", "dense", breaks(tp=2, sp=True, kernels__tp_comm_overlap=True, te="2.6.0"), keeps(te="2.7.0")),
    ("B04f", "error", "dense", breaks(tp=2, sp=True, kernels__tp_comm_overlap=True, dtype="fp8_mx", gpu="b200", seq=2112),
     keeps(seq=2048)),
    ("B05", "error", "dense", breaks(ddp__overlap_param_gather=True, ddp__overlap_grad_reduce=True,
                                   optimizer__use_distributed_optimizer=False), keeps(ddp__use_megatron_fsdp=True)),
    ("B05", "error", "dense", breaks(ddp__overlap_param_gather=True), keeps(ddp__overlap_grad_reduce=True)),
    ("B18a", "warning", "dense", breaks(ddp__align_grad_reduce=True), keeps(ddp__overlap_grad_reduce=True)),
    ("B18b", "warning", "dense", breaks(ddp__align_param_gather=True, ddp__overlap_grad_reduce=True, pp=2, vp=2),
     keeps(ddp__overlap_param_gather=True)),
    ("B18c", "error", "dense", breaks(ddp__align_param_gather=True, ddp__overlap_param_gather=True,
                                    ddp__overlap_grad_reduce=True, pp=2), keeps(vp=2)),
    ("B19", "warning", "dense", breaks(ddp__bucket_size=2**27), keeps(ddp__overlap_grad_reduce=True)),
    ("B20", "warning", "dense", breaks(train__manual_gc_interval=5), keeps(train__manual_gc=True)),
    ("P25a", "error", "deepseek", breaks(rope_fusion=True, model__mla__rope_type="rope"), keeps(rope_fusion=False)),
    ("P25b", "error", "deepseek", breaks(rope_fusion=True, gpu_found="cpu", te=None, impl="local",
                                       model__moe__moe_grouped_gemm=False), keeps(rope_fusion=False)),
    ("P34a", "error", "dense", breaks(defer=True), keeps(pp=2)),
    ("P34b", "error", "dense", breaks(defer=True, pp=2, kernels__gradient_accumulation_fusion=False), keeps(defer=False)),
    ("P34c", "error", "dense", breaks(defer=True, pp=2, mtp=1), keeps(mtp=None)),
    ("P34d", "error", "dense", breaks(defer=True, pp=2, apex=False), keeps(apex=True)),
    ("P35", "warning", "dense", breaks(deferral_limit=2, pp=2), keeps(defer=True)),
    ("B06", "error", "dense", breaks(dtype="fp8_cs", optimizer__use_distributed_optimizer=False), keeps(dtype="fp8_sc")),
    ("B10", "error", "dense", breaks(optimizer__use_precision_aware_optimizer=True, optimizer__main_grads_dtype="bf16"),
     keeps(ddp__grad_reduce_in_fp32=False)),
    ("B13", "warning", "moe", breaks(graph="local", ep=2), keeps(graph="transformer_engine")),
    ("B15a", "error", "dense", breaks(optimizer__use_precision_aware_optimizer=True,
                                    optimizer__use_distributed_optimizer=False),
     keeps(optimizer__use_distributed_optimizer=True)),
    ("B15b", "error", "dense", breaks(optimizer__use_precision_aware_optimizer=True, te=None), keeps(te="2.11")),
    ("B15c", "error", "dense", breaks(optimizer__exp_avg_dtype="bf16"),
     keeps(optimizer__use_precision_aware_optimizer=True)),
    ("V01", "error", "dense", breaks(tp=2, rank_env=FULL_ENV), keeps(env__CUDA_DEVICE_MAX_CONNECTIONS="1", rank_env=None)),
    ("V01", "error", "dense", breaks(tp=2, rank_env=FULL_ENV), keeps(gpu="b200")),
    ("V01", "error", "dense", breaks(tp=2, rank_env={}), keeps(tp=1)),
    ("V03", "error", "dense", breaks(graph="transformer_engine", env__PYTORCH_ALLOC_CONF="expandable_segments:True"),
     keeps(env__NCCL_GRAPH_REGISTER="0")),
    ("V04", "error", "dense", breaks(graph="full_iteration", env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
     keeps(gpu="b200")),
    ("V04", "error", "dense", breaks(graph="local", env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
                                   mcore="0.18.1"), keeps(mcore="0.19.0")),
    ("V04", "warning", "dense", breaks(graph="local", env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
                                     mcore="0.19.0"), keeps(env__NCCL_GRAPH_REGISTER="0")),
    ("V05", "warning", "dense", breaks(graph="full_iteration", mcore="0.18.0",
                                     env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
     keeps(env__NCCL_GRAPH_REGISTER="0")),
    ("V06", "error", "dense", breaks(env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
                                   env__PYTORCH_ALLOC_CONF="expandable_segments:False"),
     keeps(env__PYTORCH_ALLOC_CONF="expandable_segments:True")),
    ("V07", "error", "dense", breaks(ddp__nccl_ub=True, env__PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
     keeps(env__PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512")),
    ("V08", "error", "dense", breaks(env__NVTE_FLASH_ATTN="0"), keeps(env__NVTE_FLASH_ATTN="1")),
    ("V08", "error", "dense", breaks(env__NVTE_FUSED_ATTN="1", kernels__attention_backend="flash"),
     keeps(kernels__attention_backend="fused")),
    ("V10", "error", "dense", breaks(env__NVTE_APPLY_QK_LAYER_SCALING="1"), keeps(env__NVTE_APPLY_QK_LAYER_SCALING="0")),
    ("B09", "error", "dense", breaks(ddp__use_megatron_fsdp=True, env__CUDA_DEVICE_MAX_CONNECTIONS="1"),
     keeps(env__CUDA_DEVICE_MAX_CONNECTIONS="8")),
    ("ENV00", "note", "dense", breaks(mcore=None), keeps(mcore="0.16.1")),
    ("ENV01", "warning", "dense", breaks(mcore="0.15.3"), keeps(mcore="0.16.0")),
    ("ENV02", "note", "dense", breaks(mcore="0.21.0"), keeps(mcore="0.20.0")),
    ("K06", "warning", "moe", breaks(recompute="full:uniform:1"), keeps(mcore="0.20.0.dev0")),
    ("K07", "warning", "moe", breaks(dispatcher="flex", ep=2, recompute="moe_act"),
     keeps(kernels__moe_flex_dispatcher_backend="hybridep")),
    ("K11", "note", "deepseek", breaks(recompute="mla_up_proj"), keeps(recompute="mla_up_proj,moe_act")),
    ("K12", "note", "dense", breaks(recompute="full:uniform:2"), keeps(recompute="full:uniform:1")),
    ("K16", "note", "dense", breaks(ddp__use_megatron_fsdp=True, recompute="mlp"), keeps(recompute="none")),
    ("K18", "note", "deepseek", breaks(recompute="mla_up_proj", mcore="0.17.0"), keeps(mcore="0.16.1")),
    ("K18", "note", "cpu", breaks(recompute="layernorm", mcore="0.19.2"), keeps(recompute="mlp")),
    ("K20", "note", "dense", breaks(graph="local"), keeps(graph="none")),
    ("S01", "error", "dense", breaks(model__num_query_groups=3), keeps(model__num_query_groups=4)),
    ("S02", "error", "dense", breaks(tp=2, model__ffn_hidden_size=14335), keeps(model__ffn_hidden_size=14336)),
    ("K28", "error", "dense", breaks(recompute="mlp", model__add_bias_linear=True), keeps(model__add_bias_linear=False)),
    ("RUN01", "error", "dense", breaks(task="peft"), keeps(task="sft")),
    ("RUN02", "error", "dense", breaks(num_gpus=12, gbs=12), keeps(gpus_per_node=4)),
    ("RUN04", "error", "moe", breaks(te=None), keeps(impl="local")),
    ("RUN05", "warning", "moe", breaks(impl="local"), keeps(model__moe__moe_grouped_gemm=False)),
    ("RUN03", "warning", "dense", breaks(gpu_found="h200"), keeps(gpu_found="h100")),
    ("RUN07", "warning", "dense", breaks(measure__snapshot_on_oom=True), keeps(measure__snapshot_on_oom=False)),
    ("CPU19", "error", "cpu", breaks(measure__memory_snapshot=True), keeps(measure__memory_snapshot=False)),
    ("CPU19", "error", "cpu", breaks(measure__snapshot_on_oom=True), keeps(measure__snapshot_on_oom=False)),
    ("RUN06", "error", "dense", breaks(measure__memory_limit_bytes=81 * 2**30), keeps(measure__memory_limit_bytes=2**30)),
    ("CPU01", "error", "cpu", breaks(num_gpus=2, cp=2), keeps(cp=1)),
    ("CPU02", "error", "cpu moe", breaks(num_gpus=2, ep=2, dispatcher="flex"), keeps(dispatcher="alltoall")),
    ("CPU03", "error", "cpu", breaks(impl="transformer_engine"), keeps(impl="auto")),
    ("CPU04", "error", "cpu", breaks(dtype="fp8_cs"), keeps(dtype="bf16")),
    ("CPU05", "error", "cpu", breaks(graph="full_iteration"), keeps(graph="none")),
    ("CPU06", "error", "cpu", breaks(offload_layers=2), keeps(offload_layers=0)),
    ("CPU07", "error", "cpu", breaks(offload_modules=("core_attn",)), keeps(offload_modules=())),
    ("CPU08", "error", "cpu moe", breaks(dtype="fp32"), keeps(model__moe__moe_grouped_gemm=False)),
    ("CPU09", "error", "cpu moe", breaks(dtype="fp32", recompute="moe_act"), keeps(dtype="bf16")),
    ("CPU10", "error", "cpu", breaks(num_gpus=2, tp=2, sp=True, kernels__tp_comm_overlap=True),
     keeps(kernels__tp_comm_overlap=False)),
    ("CPU11", "error", "cpu", breaks(ddp__use_megatron_fsdp=True), keeps(ddp__use_megatron_fsdp=False)),
    ("CPU12", "error", "cpu", breaks(ddp__nccl_ub=True), keeps(ddp__nccl_ub=False)),
    ("CPU13", "error", "cpu moe", breaks(kernels__moe_permute_fusion=True), keeps(kernels__moe_permute_fusion=False)),
    ("CPU14", "error", "cpu", breaks(kernels__attention_backend="fused"), keeps(kernels__attention_backend="flash")),
    ("CPU15", "error", "cpu", breaks(optimizer__use_precision_aware_optimizer=True),
     keeps(optimizer__use_precision_aware_optimizer=False)),
    ("CPU16", "error", "cpu moe", breaks(num_gpus=2, ep=2, overlap=True), keeps(overlap=False)),
    ("CPU17", "error", "cpu", breaks(measure__memory_limit_bytes=2**30, measure__eval_time_start_step=1),
     keeps(measure__eval_time_start_step=2)),
    ("CPU18", "error", "cpu moe", breaks(num_gpus=4, gbs=4, tp=2, sp=True, ep=2), keeps(etp=1)),
    ("CPU18", "error", "cpu moe", breaks(num_gpus=4, gbs=4, tp=2, sp=True, ep=2), keeps(dispatcher="allgather")),
    ("CPU18", "error", "cpu moe", breaks(num_gpus=4, gbs=4, tp=2, sp=True, ep=2), keeps(capacity=1.0, pad=True)),
)]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[f"{case.rule}-{case.severity}-{i}" for i, case in enumerate(CASES)])
    if "config_case" in metafunc.fixturenames:
        raised = [case for case in CASES if case.rule in RAISED_BY_CONFIG and is_of_installed_release(case)]
        metafunc.parametrize("config_case", raised, ids=[f"{case.rule}-{i}" for i, case in enumerate(raised)])


@pytest.fixture(scope="session")
def installed_mcore() -> str:
    return installed_megatron_core()


@pytest.fixture(scope="session")
def raised_by_config() -> set[str]:
    return RAISED_BY_CONFIG


@pytest.fixture
def all_cases() -> list[Case]:
    return CASES


@pytest.fixture
def ask(request_for) -> Callable[[str, dict[str, Any]], Asked]:
    """The request, software and rank environment of a row; the software is that of a CPU or of a GPU node."""

    def asked(kind: str, changes: dict[str, Any]) -> Asked:
        te = None if kind.startswith("cpu") else "2.11.0"
        software = {"megatron_core": "0.16.1", "transformer_engine": te}
        software |= {field: changes[name] for name, field in OUTSIDE.items() if name in changes}
        fields = {name: value for name, value in changes.items() if name not in OUTSIDE and name != "rank_env"}
        return Asked(request_for(kind, **fields), Software(**software), changes.get("rank_env"))

    return asked


@pytest.fixture
def judge(ask) -> Callable[[str, dict[str, Any]], tuple[Finding, ...]]:
    def judged(kind: str, changes: dict[str, Any]) -> tuple[Finding, ...]:
        spec, software, rank_env = ask(kind, changes)
        return check(spec, software, env=rank_env)

    return judged
