"""Mixture-of-experts settings that megatron-core refuses, hangs on or ignores."""

from harness.experiment.rules.rule import CONFIG, Predicate, Rule, Situation, Values, has_shared_experts, where


def _overlap(condition: Predicate) -> Predicate:
    return where(lambda s: s.overlaps_experts, condition)


def _several_mtp_layers(s: Situation) -> Values | None:
    if (s.spec.model.mtp_num_layers or 0) < 2:
        return None
    older = "MTP layernum only supports 1 when enabling"
    newer = "MTP supports at most one layer when enabling"
    return {"mcore": older if s.mcore_before("0.19") else newer}


def _shared_overlap_without_its_dispatcher(s: Situation) -> bool:
    allowed = ("alltoall",) if s.mcore_before("0.18") else ("alltoall", "flex")
    return has_shared_experts(s) and s.spec.kernels.moe_shared_expert_overlap and s.dispatcher not in allowed


def _permute_fusion_missing(s: Situation) -> Values | None:
    if s.moe is None or not s.spec.kernels.moe_permute_fusion or s.gpu.is_cpu:
        return None
    if s.te_is_missing or s.te_before("2.1.0"):
        return {"found": s.software.transformer_engine or "none"}
    return None


def _groups(s: Situation) -> dict[str, int] | None:
    if s.moe is None or not s.moe.moe_router_group_topk or not s.moe.moe_router_num_groups:
        return None
    return {"topk": s.moe.moe_router_group_topk, "groups": s.moe.moe_router_num_groups}


def _groups_too_small(s: Situation) -> Values | None:
    """A group is scored by its best topk / group_topk experts."""
    found = _groups(s)
    if not found or s.moe is None:
        return None
    size, wanted = s.moe.num_moe_experts // found["groups"], s.moe.moe_router_topk // found["topk"]
    if wanted <= size:
        return None
    return {"topk": s.moe.moe_router_topk, "group_topk": found["topk"], "wanted": wanted, "size": size}


RULES = (
    Rule("T30", "error", lambda s: s.moe is not None and s.tp > 1 and not s.spec.parallelism.sequence_parallel,
         "MoE with TP {s.tp} needs sequence_parallel",
         "set parallelism.sequence_parallel",
         "transformer/moe/moe_layer.py:379", "run", "performance may degrade if MoE and tensor parallelismare enabled"),
    Rule("P17", "error", _shared_overlap_without_its_dispatcher,
         "moe_shared_expert_overlap does not work with the {s.spec.kernels.moe_token_dispatcher_type} dispatcher",
         "use kernels.moe_token_dispatcher_type=alltoall",
         f"{CONFIG}:1089", "run", "moe_shared_expert_overlap only works with"),
    Rule("P18a", "error", lambda s: s.dispatcher == "flex" and s.etp * s.ep == 1,
         "the flex dispatcher needs expert or tensor parallelism; EP x ETP is 1",
         "use kernels.moe_token_dispatcher_type=alltoall, or -ep > 1",
         "transformer/moe/token_dispatcher.py", "run", "Flex token dispatcher requires TPxEP > 1"),
    Rule("P18b", "error",
         lambda s: s.dispatcher == "flex" and s.spec.kernels.moe_pad_expert_input_to_capacity
         and s.spec.kernels.moe_flex_dispatcher_backend != "hybridep",
         "DeepEP, the default of the flex dispatcher, cannot pad experts to capacity",
         "use kernels.moe_flex_dispatcher_backend=hybridep, or no padding",
         f"{CONFIG}:1063", "run", "Flex token dispatcher with deepep backend does not support"),
    Rule("P19", "error",
         lambda s: s.moe is not None and s.spec.kernels.moe_pad_expert_input_to_capacity
         and s.spec.kernels.moe_expert_capacity_factor is None,
         "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor",
         "set kernels.moe_expert_capacity_factor",
         f"{CONFIG}:1105", "run", "moe_expert_capacity_factor must be set to use"),
    Rule("P20", "error",
         lambda s: s.moe is not None and s.moe.moe_router_topk == 1 and s.moe.moe_router_score_function == "softmax"
         and not s.moe.moe_router_pre_softmax,
         "top-1 routing after softmax over the chosen expert has no gradient",
         "set model.moe.moe_router_pre_softmax",
         f"{CONFIG}:1633", "run", "Please use --moe-router-pre-softmax when topk is 1."),
    Rule("P21a", "error",
         lambda s: s.moe is not None and bool(s.moe.moe_router_group_topk) and s.moe.moe_router_num_groups is None,
         "moe_router_group_topk needs moe_router_num_groups",
         "set model.moe.moe_router_num_groups",
         f"{CONFIG}:1643", "run", "When using group limited routing, moe_router_num_groups"),
    Rule("P21b", "error", lambda s: bool(s.moe and (of := _groups(s)) and s.moe.num_moe_experts % of["groups"]),
         "{s.moe.num_moe_experts} experts do not divide into {s.moe.moe_router_num_groups} routing groups",
         "use a number of groups that divides the experts",
         f"{CONFIG}:1643", "run",
         "num_moe_experts ({s.moe.num_moe_experts}) should be divisible by moe_router_num_groups "
         "({s.moe.moe_router_num_groups})."),
    Rule("P21c", "error", lambda s: {**of} if (of := _groups(s)) and of["topk"] > of["groups"] else None,
         "moe_router_group_topk {topk} exceeds moe_router_num_groups {groups}",
         "use a moe_router_group_topk of at most {groups}",
         f"{CONFIG}:1643", "run",
         "moe_router_group_topk ({topk}) should be smaller than moe_router_num_groups ({groups})."),
    Rule("P21d", "error", _groups_too_small,
         "top-{topk} from {group_topk} groups takes {wanted} experts from each group, but a group has only {size}",
         "use fewer moe_router_num_groups, or a larger moe_router_group_topk",
         "moe/moe_utils.py:554", "run", "selected index k out of range"),
    Rule("P22", "error",
         lambda s: s.moe is not None and s.moe.moe_router_enable_expert_bias
         and s.moe.moe_router_score_function != "sigmoid",
         "moe_router_enable_expert_bias does not work with {s.moe.moe_router_score_function} routing",
         "use model.moe.moe_router_score_function=sigmoid, or no expert bias",
         f"{CONFIG}:1593", "run", "Expert bias for aux-loss-free routing only supports "),
    Rule("P23a", "error", lambda s: s.moe is not None and s.spec.model.add_bias_linear and s.etp != 1,
         "experts with biases (add_bias_linear) need ETP 1; it is {s.etp}",
         "use model.add_bias_linear=false, or -et 1",
         f"{CONFIG}:1588", "run", "Bias in Moe is only supported when ETP==1"),
    Rule("P23b", "error", lambda s: has_shared_experts(s) and s.spec.model.add_bias_linear,
         "shared experts cannot have biases (add_bias_linear)",
         "use model.add_bias_linear=false",
         "transformer/moe/shared_experts.py:47", "source", "bias is not supported in the shared experts, "),
    Rule("P27", "error", _permute_fusion_missing,
         "moe_permute_fusion needs transformer-engine 2.1; found {found}",
         "upgrade transformer-engine, or use kernels.moe_permute_fusion=false",
         f"{CONFIG}:1834", "run", "fused permutation is not available."),
    Rule("P28a", "error", _overlap(lambda s: s.pp > 1 and s.vp == 1),
         "overlap_moe_expert_parallel_comm with PP {s.pp} needs virtual stages",
         "set -vp, or drop the overlap",
         f"{CONFIG}:1856", "run", "If enabling EP A2A overlap, virtual_pipeline"),
    Rule("P28b", "error", _overlap(lambda s: s.ep == 1),
         "overlap_moe_expert_parallel_comm needs expert parallelism; EP is 1",
         "set -ep, or drop the overlap",
         f"{CONFIG}:1862", "run", "overlap_moe_expert_parallel_comm is only supported with expert model parallelism"),
    Rule("P28c", "error", _overlap(lambda s: s.dispatcher == "allgather"),
         "overlap_moe_expert_parallel_comm does not work with the allgather dispatcher",
         "use kernels.moe_token_dispatcher_type=alltoall",
         f"{CONFIG}:1866", "run", "overlap_moe_expert_parallel_comm is supported with alltoall"),
    Rule("P28d", "error", _overlap(lambda s: s.spec.precision.params_dtype == "fp32"),
         "overlap_moe_expert_parallel_comm does not work in fp32",
         "use --compute_dtype bf16",
         f"{CONFIG}:1881", "run", "overlap_moe_expert_parallel_comm is only supported with bf16"),
    Rule("P28e", "error", _overlap(lambda s: s.spec.kernels.moe_shared_expert_overlap),
         "moe_shared_expert_overlap and overlap_moe_expert_parallel_comm exclude each other",
         "keep one of the two",
         f"{CONFIG}:1886", "run", "disable moe_shared_expert_overlap when enabling"),
    Rule("P28f", "error", _overlap(_several_mtp_layers),
         "overlap_moe_expert_parallel_comm allows at most 1 MTP layer; the model has {s.spec.model.mtp_num_layers}",
         "use one MTP layer, or drop the overlap",
         f"{CONFIG}:1889", "run", "{mcore}"),
    Rule("P28g", "error", _overlap(lambda s: s.spec.model.mtp_num_layers == 1 and s.pp == 1),
         "overlap_moe_expert_parallel_comm with an MTP layer needs pipeline parallelism; PP is 1",
         "use -pp 2 or more, or drop the overlap",
         f"{CONFIG}:1892", "run",
         "Pipeline model parallel size must be larger than 1 when enabling overlap", until="0.18"),
    Rule("L13", "error",
         lambda s: s.moe is not None and s.spec.model.add_bias_linear and not s.uses_te and s.ep == 1,
         "megatron-core's own layers at EP 1 cannot train experts with biases",
         "use -ep 2 or more",
         "transformer/mlp.py:247", "run", "Output 0 of _ReduceFromModelParallelRegion is a view"),
    Rule("L14", "error",
         lambda s: s.moe is not None and s.moe.moe_grouped_gemm and not s.uses_te and s.spec.model.add_bias_linear,
         "grouped experts of megatron-core's own layers have no biases",
         "set model.moe.moe_grouped_gemm=false",
         "transformer/moe/experts.py:82", "run", "bias not supported in Grouped GEMM yet", until="0.17"),
    Rule("L17", "error",
         lambda s: s.moe is not None and s.moe.moe_router_load_balancing_type == "sinkhorn"
         and s.moe.moe_aux_loss_coeff > 0,
         "sinkhorn routing balances by itself; moe_aux_loss_coeff is {s.moe.moe_aux_loss_coeff}",
         "set model.moe.moe_aux_loss_coeff=0",
         "transformer/moe/router.py:238", "source", "Sinkhorn routing does not support aux loss."),
    Rule("L15", "error",
         lambda s: s.spec.model.activation_func in ("quick_gelu", "squared_relu") and s.moe is not None
         and s.moe.moe_grouped_gemm and not s.uses_te,
         "grouped experts of megatron-core's own layers have silu or gelu only",
         "set model.moe.moe_grouped_gemm=false",
         "transformer/moe/experts.py:92", "run",
         "Activation function must be silu or gelu when using GroupedMLP.", until="0.17"),
)  # fmt: skip
