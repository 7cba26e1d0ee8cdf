"""What a prediction takes for granted, and how far each assumption may move the peak."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec

# Peaks of eager runs of dense models with complete arguments lay within this share of the prediction, but for one model
# of 0.4 GB: results/accuracy/megatron_lm.json and other_published.json.
EAGER_BAND = 0.03

# Tokens of the busiest expert-parallel rank over the mean, for routing that nothing forces to be even. With a bias per expert,
# which follows the load from step to step, published peaks of 100 steps stay below 1.25, the usual capacity factor of training
# that drops what exceeds it (Fedus et al. 2021, arXiv 2101.03961). With an auxiliary loss alone they rose up to 1.8 times
# (Megatron-LM's MoE proxies of DeepSeek-V3 and Qwen3, 16 layers, 32 experts, EP 8: a peak of 34.4 GB against 29.5 GB in the second step).
_BIASED, _UNBIASED = 1.25, 1.8


def imbalance_of(spec: ExperimentSpec) -> float:
    """How many times its share of the tokens a rank may receive, at the upper end of the range; 1 where the share is fixed."""
    if spec.model.moe is None or not spec.is_routed_naturally:
        return 1.0
    return _BIASED if spec.model.moe.moe_router_enable_expert_bias else _UNBIASED


@dataclass(frozen=True)
class Assumption:
    """One statement. ``lower`` and ``higher``: by which share the true peak may lie below or above because of it."""

    text: str
    applies: Callable[[ExperimentSpec, Implementation], bool]
    lower: float = 0.0
    higher: float = 0.0


def _graphs(spec: ExperimentSpec, _: Implementation) -> bool:
    return spec.cuda_graph.impl != "none"


def _may_lose_cudnn(spec: ExperimentSpec) -> bool:
    is_deterministic = spec.env.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    return is_deterministic and spec.kernels.attention_backend == "auto" and spec.gpu_type.capability != (9, 0)


def _moe(spec: ExperimentSpec, _: Implementation) -> bool:
    return spec.model.moe is not None


ASSUMPTIONS = (
    Assumption(
        "CUDA graphs: eager execution is predicted; private pools and static buffers of graphs are not modelled "
        "(published runs with TE-scoped graphs lie up to 18 % lower)",
        _graphs, lower=0.18, higher=0.10,
    ),
    Assumption(
        "tp_comm_overlap: user buffers lie outside of torch's allocator; they count where a setting is judged and are not in "
        "the peak, and gathers that go through them are predicted as without overlap (up to 0.1 GB too much)",
        lambda spec, _: spec.makes_user_buffers, lower=0.005,
    ),
    Assumption(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0: outside of Hopper transformer-engine may give up cuDNN's attention, which is "
        "predicted, for flash-attn (a few per cent more) or, where that is not installed, for scores in memory (much more); "
        "kernels.attention_backend says which",
        lambda spec, impl: impl == "transformer_engine" and _may_lose_cudnn(spec), higher=0.04,
    ),
    Assumption(
        "nccl_ub: registered NCCL buffers are not modelled",
        lambda spec, _: spec.ddp.nccl_ub, higher=0.02,
    ),
    Assumption(
        "flex dispatcher: predicted as alltoall; DeepEP and HybridEP keep buffers of their own",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.moe_token_dispatcher_type == "flex",  # noqa: S105
        lower=0.05, higher=0.05,
    ),
    Assumption(
        "overlapped expert-parallel communication: forward and backward of two micro-batches take turns layer by layer; "
        "memory counts one layer of each at once, time counts one pass after the other",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.overlap_moe_expert_parallel_comm, higher=0.05,
    ),
    Assumption(
        "shared experts overlap: predicted without streams of their own",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.moe_shared_expert_overlap, higher=0.01,
    ),
    Assumption(
        "expert routing: every rank receives its share of the tokens, at the upper end of the range "
        f"{_BIASED:g} times as many",
        lambda spec, impl: _moe(spec, impl) and imbalance_of(spec) == _BIASED,
    ),
    Assumption(
        "expert routing without a bias per expert: every rank receives its share of the tokens, at the upper end of the range "
        f"{_UNBIASED:g} times as many",
        lambda spec, impl: _moe(spec, impl) and imbalance_of(spec) == _UNBIASED,
    ),
    Assumption(
        "Megatron-FSDP: shards, and the whole weights and gradients that its queues may hold, by megatron-core's own "
        "rules; when a slow link lets a queue fill up is not known",
        lambda spec, _: spec.ddp.use_megatron_fsdp, lower=0.10, higher=0.03,
    ),
    Assumption(
        "layer-wise offloading: copies are taken to be done when transformer-engine 2.11 waits for them; the host's link "
        "is not part of the seconds, pinned host memory not part of the bytes",
        lambda spec, _: spec.offload.cpu_offloading_num_layers > 0, higher=0.02,
    ),
    Assumption(
        "offload_modules: megatron-core 0.16.1's manager, each copy taken to be done at once; the host's link is not part "
        "of the seconds, pinned host memory not part of the bytes; MTP layers are taken to stay whole",
        lambda spec, _: bool(spec.offload.offload_modules), lower=0.02, higher=0.05,
    ),
    Assumption(
        "peft: predicted as training of all weights; adapters take less",
        lambda spec, _: spec.task == "peft", lower=0.9,
    ),
    Assumption(
        "packed sequences: predicted as one sequence of the full length; their metadata is not counted",
        lambda spec, _: spec.task != "pretrain",
    ),
    Assumption(
        "transformer-engine: what its kernels save was read from its source, not measured",
        lambda _, impl: impl == "transformer_engine",
    ),
    Assumption(
        "peaks are bytes of tensors in torch's allocator; fragmentation, the CUDA context and NCCL come on top",
        lambda spec, _: not spec.gpu_type.is_cpu,
    ),
    Assumption(
        "seconds are a roofline at typical efficiencies; ratios between settings deserve more trust than they do",
        lambda spec, _: not spec.gpu_type.is_cpu,
    ),
    Assumption(
        "Blackwell: published steps took 1.5 to 2.3 times as long as the likely seconds; the range reaches as far",
        lambda spec, _: spec.gpu_type.is_at_least(10),
    ),
    Assumption(
        "cpu: no step time is predicted; settings are ordered by the FLOPs that they run again",
        lambda spec, _: spec.gpu_type.is_cpu,
    ),
)  # fmt: skip


TORCH_ADAM = Assumption(
    "torch's AdamW steps, as transformer-engine is not installed: beside its states it holds the root of the second moment, 4 "
    "bytes per parameter, counted in the optimizer step; Apex's fused one, where that is installed, does not",
    lambda _spec, _implementation: True,
)


def _fuses_accumulation(spec: ExperimentSpec, implementation: Implementation) -> bool:
    return implementation == "transformer_engine" and spec.kernels.gradient_accumulation_fusion


APEX_THERE = Assumption(
    "Apex's fused_weight_gradient_mlp_cuda is installed where the job runs, as in NVIDIA's images; without it the last "
    "pipeline stage also holds one weight gradient of the output layer",
    _fuses_accumulation,
)
APEX_MISSING = Assumption(
    "Apex's fused_weight_gradient_mlp_cuda is not installed: the weight gradient of the output layer is counted; "
    "transformer-engine's layers add theirs inside the matrix product",
    _fuses_accumulation,
)


def assumptions(
    spec: ExperimentSpec, implementation: Implementation, *, torch_adam: bool = False, apex: bool | None = None
) -> tuple[Assumption, ...]:
    """Those that ``spec`` rests on; ``torch_adam`` as in `model_states`, ``apex`` as in `Software`."""
    rows = (*ASSUMPTIONS, *(() if apex else (APEX_THERE if apex is None else APEX_MISSING,)))
    found = tuple(row for row in rows if row.applies(spec, implementation))
    return (*found, TORCH_ADAM) if torch_adam else found


def band(rows: tuple[Assumption, ...]) -> tuple[float, float]:
    """By which shares the true peak may lie below and above; every assumption widens."""
    lower = min(0.95, EAGER_BAND + sum(row.lower for row in rows))
    return lower, EAGER_BAND + sum(row.higher for row in rows)
