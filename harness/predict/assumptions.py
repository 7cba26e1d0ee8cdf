"""The assumptions behind a prediction, and how far each may move the peak."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.optimizer_states import HOST_ADAM_PER_S, on_host
from harness.predict.model_states import Adam, widens_bf16_moments

# Tokens of the busiest expert-parallel rank over the mean, for routing that nothing forces to be even. With a bias per
# expert, which follows the load from step to step, published peaks of 100 steps stay below 1.25, the usual capacity
# factor of training that drops what exceeds it (Fedus et al. 2021, arXiv 2101.03961). With an auxiliary loss alone they
# rose up to 1.8 times (Megatron-LM's MoE proxies of DeepSeek-V3 and Qwen3, 16 layers, 32 experts, EP 8: a peak of 34.4
# GB against 29.5 GB in the second step).
_BIASED, _UNBIASED = 1.25, 1.8
# Tokens of the longest sequence in a step of H100 whose time is in `results/accuracy`.
_LONGEST = 8192


def imbalance_of(spec: ExperimentSpec) -> float:
    """Return the largest factor on a rank's equal share of the tokens; 1 where the share is fixed."""
    if spec.model.moe is None or not spec.is_routed_naturally:
        return 1.0
    return _BIASED if spec.model.moe.moe_router_enable_expert_bias else _UNBIASED


@dataclass(frozen=True)
class Assumption:
    """One statement. ``lower`` and ``higher``: judged shares of the peak that it adds to the range of the class."""

    text: str
    applies: Callable[[ExperimentSpec, Implementation], bool]
    lower: float = 0.0
    higher: float = 0.0


def _may_lose_cudnn(spec: ExperimentSpec) -> bool:
    is_deterministic = spec.env.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    return is_deterministic and spec.kernels.attention_backend == "auto" and spec.gpu_type.capability != (9, 0)


def _moe(spec: ExperimentSpec, _: Implementation) -> bool:
    return spec.model.moe is not None


def _offloads(spec: ExperimentSpec) -> bool:
    return bool(spec.offload.cpu_offloading_num_layers or spec.offload.offload_modules)


def _routing(factor: float) -> Assumption:
    return Assumption(
        f"expert routing: equal shares of the tokens; the upper end of the range assumes {factor:g} times that share "
        "on the busiest rank",
        lambda spec, impl: _moe(spec, impl) and imbalance_of(spec) == factor,
    )


ASSUMPTIONS = (
    Assumption(
        "CUDA graphs: the peak is of replayed steps without the graphs' private pools; Device also has these, the "
        "eager steps and the capture",
        lambda spec, _: spec.cuda_graph.impl != "none",
    ),
    Assumption(
        "tp_comm_overlap: gathers count as without overlap, which may be too much",
        lambda spec, _: spec.makes_user_buffers, lower=0.005,
    ),
    Assumption(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0: predicted with cuDNN's attention; transformer-engine may use "
        "flash-attn (a few percent more memory) or unfused attention (much more); set kernels.attention_backend",
        lambda spec, impl: impl == "transformer_engine" and _may_lose_cudnn(spec), higher=0.04,
    ),
    Assumption(
        "nccl_ub: registered NCCL buffers are not modelled",
        lambda spec, _: spec.ddp.nccl_ub, higher=0.02,
    ),
    Assumption(
        "flex dispatcher: tensors as with alltoall; DeepEP's and HybridEP's buffers are outside torch's allocator",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.has_flex_dispatcher,
        lower=0.05, higher=0.05,
    ),
    Assumption(
        "overlap of expert-parallel communication: two micro-batches alternate layer by layer; memory counts one "
        "layer of each",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.overlap_moe_expert_parallel_comm,
    ),
    Assumption(
        "shared experts overlap: predicted without separate streams",
        lambda spec, impl: _moe(spec, impl) and spec.kernels.moe_shared_expert_overlap, higher=0.01,
    ),
    *map(_routing, (_BIASED, _UNBIASED)),
    Assumption(
        "Megatron-FSDP: memory holds the shards, and the whole weights and gradients that may queue",
        lambda spec, _: spec.ddp.use_megatron_fsdp,
    ),
    Assumption(
        "layer-wise offloading: pinned host memory is not counted",
        lambda spec, _: spec.offload.cpu_offloading_num_layers > 0,
    ),
    Assumption(
        "offload_modules: as in megatron-core 0.16.1; pinned host memory is not counted; MTP layers stay on the "
        "device",
        lambda spec, _: bool(spec.offload.offload_modules),
    ),
    Assumption(
        "offloading: copies run beside the computation, at 80 % of the link's rate in the data sheet",
        lambda spec, _: _offloads(spec) and not spec.gpu_type.is_cpu,
    ),
    Assumption(
        "optimizer states in host memory: in fp32, with the gradients in pinned blocks of powers of two; each "
        f"thread of a rank (OMP_NUM_THREADS, or one) updates {HOST_ADAM_PER_S / 1e9:g}e9 parameters a second, as on an "
        "AMD EPYC",
        lambda spec, _: on_host(spec) > 0,
    ),
    Assumption(
        "Muon: one momentum for each weight; Adam for embeddings and the output layer; five Newton-Schulz "
        "iterations in bf16",
        lambda spec, _: spec.optimizer.is_muon,
    ),
    Assumption(
        "packed sequences: predicted as one sequence of full length",
        lambda spec, _: spec.task != "pretrain",
    ),
    Assumption(
        "transformer-engine: its kernels' saved tensors follow from its source, not from measurement",
        lambda _, impl: impl == "transformer_engine",
    ),
    Assumption(
        "peaks are tensors in torch's allocator; memory outside it is estimated from NCCL's source and jobs of up "
        "to 64 GPUs",
        lambda spec, _: not spec.gpu_type.is_cpu,
    ),
    Assumption(
        "seconds: a model fitted to measured steps; trust ratios of settings more than seconds",
        lambda spec, _: not spec.gpu_type.is_cpu,
    ),
    Assumption(
        f"sequences of more than {_LONGEST} tokens: longer than all measured ones; attention may take longer "
        "than predicted",
        lambda spec, _: spec.gpu_type.capability == (9, 0) and spec.batch.seq_length > _LONGEST,
    ),
    Assumption(
        "cpu: no step time is predicted; settings are ordered by the FLOPs that they run again",
        lambda spec, _: spec.gpu_type.is_cpu,
    ),
)  # fmt: skip


TORCH_ADAM = Assumption(
    "torch's AdamW, because transformer-engine is not installed: its step needs 4 more bytes per parameter than Apex's",
    lambda _spec, _implementation: True,
)


WIDENED_MOMENTS = Assumption(
    "the optimizer step copies bf16 moments to fp32, as transformer-engine before 2.13 does; --assume "
    "transformer-engine=2.13 plans without these copies",
    lambda spec, _: widens_bf16_moments(spec),
)


def _fuses_accumulation(spec: ExperimentSpec, implementation: Implementation) -> bool:
    fuses = implementation == "transformer_engine" and spec.kernels.gradient_accumulation_fusion
    return fuses and spec.peft is None  # with adapters, the output layer has no weight gradient


APEX_THERE = Assumption(
    "Apex is installed where the job runs, as in NVIDIA's images: its fused_weight_gradient_mlp_cuda keeps a dummy "
    "gradient of the output layer's size; --assume apex=none plans without it",
    _fuses_accumulation,
)
APEX_MISSING = Assumption(
    "Apex's fused_weight_gradient_mlp_cuda is not installed: the output layer's backward pass allocates its weight "
    "gradient",
    _fuses_accumulation,
)


def assumptions(
    spec: ExperimentSpec, implementation: Implementation, *, adam: Adam = "fused", apex: bool | None = None
) -> tuple[Assumption, ...]:
    """Return the assumptions that apply to ``spec``; ``adam`` as in `model_states`, ``apex`` as in `Software`."""
    rows = (*ASSUMPTIONS, *(() if apex else (APEX_THERE if apex is None else APEX_MISSING,)))
    rows += {"torch": (TORCH_ADAM,), "fused": (WIDENED_MOMENTS,)}.get(adam, ())
    return tuple(row for row in rows if row.applies(spec, implementation))


def band(rows: tuple[Assumption, ...]) -> tuple[float, float]:
    """Return the shares by which assumptions widen the range of the job's class below and above."""
    return min(0.95, sum(row.lower for row in rows)), sum(row.higher for row in rows)
