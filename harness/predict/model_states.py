"""Bytes of weights, gradients and optimizer states per rank, also under FSDP."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from harness.experiment.experiment import ExperimentSpec, OptimizerSpec, StateDtype
from harness.experiment.optimizer_states import dense_data_parallel_size, least_parameters, on_host, shards_of
from harness.experiment.software import Software
from harness.predict.compose import Parameters
from harness.units import parse_version

# megatron-core closes a bucket of gradients at so many elements, or at a million a data-parallel rank (DDP 0.16).
_BUCKET_ELEMENTS, _BUCKET_ELEMENTS_PER_RANK = 40_000_000, 1_000_000
_SMALLEST_UNIT = 1_000_000_000


def gathered_bytes(spec: ExperimentSpec, parameters: Parameters, gradient_bytes: int) -> tuple[int, int, int]:
    """The most bytes of whole weights outside of layers and in layers, and of whole gradients in layers, on one rank.

    ``parameters``: of its unsharded stage. ``gradient_bytes``: of one element of a gradient. Weights are fetched ahead
    in every pass. A layer gives its weights back after its forward pass, and gets them again when the output layer runs
    backward: at the loss none is whole (Megatron-FSDP 0.2 `_post_forward`, `_pre_backward_param_unshard`). The queue of
    gradients fills in the backward pass.
    """
    total = parameters.dense + parameters.expert
    num_layers = max(1, spec.model.num_layers // spec.parallelism.pipeline_model_parallel_size)
    outside = min(total, _outside_of_layers(spec))
    layer = (total - outside) / num_layers
    if not layer:
        return parameters.stored_bytes, 0, 0
    communication_unit = max(_SMALLEST_UNIT, 2 * layer)
    whole_layers = min(num_layers, 1 + ceil(communication_unit / 2 / layer))
    queued_layers = min(num_layers, 1 + int(communication_unit // layer))
    weight_bytes = parameters.stored_bytes / total
    whole = weight_bytes * outside, weight_bytes * whole_layers * layer
    return round(whole[0]), round(whole[1]), round(gradient_bytes * queued_layers * layer)


def _outside_of_layers(spec: ExperimentSpec) -> int:
    model, tp = spec.model, spec.parallelism.tensor_model_parallel_size
    table = model.padded_vocab_size(tp) // tp * model.hidden_size
    both = spec.parallelism.pipeline_model_parallel_size == 1 and not model.share_embeddings_and_output_weights
    return 2 * table if both else table


_SIZE: dict[StateDtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank. ``step_transient`` is alive inside the optimizer step only.

    Of it, ``copies`` of gradients in fp32 live on until the next step begins.
    What Megatron-FSDP holds while passes run, beside its shards: ``gathered``, whole weights outside of layers;
    ``fetched``, those of layers; ``queued``, whole gradients. The last two are nothing at the loss.
    """

    weights: int
    gradients: int
    optimizer: int
    step_transient: int
    copies: int = 0
    gathered: int = 0
    fetched: int = 0
    queued: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter: gradient buffer (never sharded), optimizer state and what its step adds (sharded).

    ``cast``: gradients in fp32, of all parameters before any optimizer steps. ``widened``: states in fp32, of the
    parameters that are stepped at once.
    """

    gradient: int
    optimizer: float
    cast: int
    widened: int


Adam = Literal["fused", "in place", "torch", "whole"]


def state_bytes(spec: ExperimentSpec, adam: Adam = "fused") -> StateBytes:
    """Return the bytes per parameter under ``spec``'s optimizer; ``adam`` as in :func:`adam_of`.

    transformer-engine's FusedAdam, used with ``use_precision_aware_optimizer``, stores only the lower 16 bits beside a
    bf16 weight where its own fp32 master weight is asked for (`store_param_remainders`), and reads gradients where they
    are; moments and master weights below fp32 are widened to fp32 for the step, group by group of each optimizer. With
    quantised weights megatron-core keeps the fp32 master itself, except under delayed scaling
    (`OptimizerConfig.__post_init__`). Where states may lie in host memory, those on the GPU are in fp32, and so is a
    copy of each gradient that is not, which stays (`HybridDeviceOptimizer`).
    """
    optimizer, widened = spec.optimizer, 0
    trains_fp32 = spec.precision.params_dtype == "fp32"
    gradient = 4 if spec.ddp.grad_reduce_in_fp32 or trains_fp32 else 2
    master = 0 if trains_fp32 else 4
    moments = _moments(optimizer) * _SIZE["fp32"]
    cast = 0 if gradient == 4 else 4
    if optimizer.optimizer_cpu_offload:
        return StateBytes(gradient, (1 - on_host(spec)) * (master + moments + cast), 0, 0)
    if optimizer.use_precision_aware_optimizer:
        dtypes = (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)
        moments = sum(_SIZE[dtype] for dtype in dtypes)
        widened = sum(4 for dtype in dtypes if dtype != "fp32") * (adam != "in place")
        if _adam_owns_master(spec):
            master = 2 if optimizer.main_params_dtype == "fp32" else _SIZE[optimizer.main_params_dtype]
            widened += 4 * (optimizer.main_params_dtype != "fp32")
            cast = 0
    return StateBytes(gradient, master + moments, cast, widened)


def _moments(optimizer: OptimizerSpec) -> int:
    """Return the number of states of a parameter beside its master weight: Adam's moments, or a momentum."""
    return {"adam": 2, "sgd": int(optimizer.sgd_momentum > 0)}.get(optimizer.optimizer, 1)


def state_parts(spec: ExperimentSpec) -> tuple[float, tuple[float, ...]]:
    """Return the bytes per parameter that the optimizer makes when it is built, and those at the first step's end."""
    per, optimizer = state_bytes(spec).optimizer, spec.optimizer
    if not optimizer.use_precision_aware_optimizer:
        num_moments = _moments(optimizer)
        return per - 4 * num_moments, (4,) * num_moments
    moments = (_SIZE[optimizer.exp_avg_dtype], _SIZE[optimizer.exp_avg_sq_dtype])
    master = per - sum(moments)
    return (0, (*moments, master)) if _adam_owns_master(spec) else (master, moments)


def _adam_owns_master(spec: ExperimentSpec) -> bool:
    recipe, optimizer = spec.precision.transformer_config.get("fp8_recipe"), spec.optimizer
    if optimizer.optimizer_cpu_offload:
        return True
    masters = optimizer.main_params_dtype != "fp32" or recipe in (None, "delayed")
    return optimizer.use_precision_aware_optimizer and masters


def model_states(spec: ExperimentSpec, parameters: Parameters, *, adam: Adam = "fused") -> ModelStates:
    """Return the states of one rank that holds ``parameters``, or under Megatron-FSDP a shard of them."""
    per, p = state_bytes(spec, adam), spec.parallelism
    owned = stepped = owned_parameters(spec, parameters)
    if adam == "whole":
        stepped = parameters.dense * p.tensor_model_parallel_size, parameters.expert * p.expert_tensor_size
    sharded, total = sum(owned), parameters.dense + parameters.expert
    shards = spec.ddp.use_megatron_fsdp
    kept_beside = 0 if _adam_owns_master(spec) or spec.precision.params_dtype == "fp32" else _SIZE["fp32"]
    widened = per.widened + (_SIZE["fp32"] if adam == "torch" and not shards else 0)
    gathered, fetched, queued = gathered_bytes(spec, parameters, per.gradient) if shards else (0, 0, 0)
    kept = sharded / total if shards and total else 1.0
    stepping = max(widened * _stepped_at_once(spec, stepped), 2 * _quantised_at_once(spec, owned))
    return ModelStates(
        weights=round(parameters.stored_bytes * kept),
        gradients=round(per.gradient * total * kept),
        optimizer=round(
            kept_beside * sharded
            + (per.optimizer - kept_beside) * sum(stepped)
            + _moments_beside_muon(spec, parameters)
        ),
        step_transient=round(per.cast * sharded + stepping + _beside_step(spec, parameters, owned)),
        copies=round(per.cast * sharded),
        gathered=gathered,
        fetched=fetched,
        queued=queued,
    )


def _moments_beside_muon(spec: ExperimentSpec, parameters: Parameters) -> float:
    """Return the bytes of Adam's second moments beside Muon: of embeddings and the output layer, without norms."""
    return spec.optimizer.is_muon * _SIZE["fp32"] * min(parameters.dense, _outside_of_layers(spec)) / shards_of(spec)[0]


def _beside_step(spec: ExperimentSpec, parameters: Parameters, owned: tuple[float, float]) -> float:
    """Return the bytes that Muon's step adds, or the building of states that may lie in host memory.

    Muon: the momentum of the largest matrix is copied in fp32, normalised, and cast to bf16 (emerging_optimizers
    `newton_schulz`). `dist_muon` then gathers whole weights from the ranks that own them, into buffers of their own
    (megatron-core 0.16.1 `allgather_params`). `HybridDeviceOptimizer` is built twice, at first of whole weights; the
    states of which it replaces the first master weights are not there yet.
    """
    whole = parameters.dense, parameters.expert
    if spec.optimizer.optimizer_cpu_offload:
        masters = 4 * (1 - on_host(spec)) * (sum(whole) + sum(owned))
        return max(0, masters - state_bytes(spec).optimizer * sum(owned))
    if not spec.optimizer.is_muon:
        return 0
    gathers = spec.optimizer.optimizer == "dist_muon"
    gathered = [2 * (all_of + own) for all_of, own in zip(whole, owned, strict=True) if gathers and own < all_of]
    return max([_NEWTON_SCHULZ_BYTES * largest_matrix(spec), *gathered])


_NEWTON_SCHULZ_BYTES = 4 + 4 + 2  # per element


def largest_matrix(spec: ExperimentSpec) -> int:
    """Return the elements of a rank's largest weight in a layer."""
    model, p = spec.model, spec.parallelism
    tp, projections = p.tensor_model_parallel_size, 2 if model.gated_linear_unit else 1
    heads = model.num_attention_heads + 2 * model.query_groups
    widths = [projections * model.ffn_hidden_size // tp, heads * model.head_dim // tp]
    if model.moe:
        widths.append(projections * model.moe.moe_ffn_hidden_size // p.expert_tensor_size)
    return model.hidden_size * max(widths)


def owned_parameters(spec: ExperimentSpec, parameters: Parameters) -> tuple[float, float]:
    """Return the numbers of parameters of dense layers and of experts whose optimizer state one rank holds."""
    dense, expert = shards_of(spec)
    return parameters.dense / dense, parameters.expert / expert


def adam_of(spec: ExperimentSpec, software: Software | None) -> Adam:
    """Return which Adam steps.

    ``torch``: torch's AdamW, megatron-core's fallback on a GPU without transformer-engine. mbr-perf does not check for
    Apex, which has a fused Adam too. ``whole``: the FusedAdam of transformer-engine 2.10 and 2.11 makes its states in
    `param.shape`, which a DTensor of Megatron-FSDP has whole, over its data-parallel and its tensor-parallel ranks
    (https://github.com/NVIDIA/TransformerEngine/issues/2424). A release that is only assumed is not taken for those.
    ``in place``: from 2.13 on its kernel reads and writes moments that are both bf16, without copies in fp32
    (https://github.com/NVIDIA/TransformerEngine/pull/2632).
    """
    if software is None or software.megatron_core is None or spec.gpu_type.is_cpu:
        return "fused"
    if software.transformer_engine is None:
        return "torch"
    release = parse_version(software.transformer_engine).release[:2]
    if release >= _FIRST_IN_PLACE and widens_bf16_moments(spec):
        return "in place"
    is_whole = (2, 10) <= release <= (2, 11)
    return "whole" if is_whole and spec.ddp.use_megatron_fsdp and not software.assumed else "fused"


_FIRST_IN_PLACE = (2, 13)


def widens_bf16_moments(spec: ExperimentSpec) -> bool:
    """Return whether transformer-engine before 2.13 copies both moments in each step, which later releases do not."""
    optimizer = spec.optimizer
    are_bf16 = (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype) == ("bf16", "bf16")
    return are_bf16 and state_bytes(spec).widened > 0


def _stepped_at_once(spec: ExperimentSpec, owned: tuple[float, float]) -> float:
    """Return the number of parameters whose temporaries are alive together: those of one optimizer.

    transformer-engine's FusedAdam widens the states of one group of parameters at a time. torch's AdamW on CUDA holds
    the root of the second moment, in fp32, of all parameters (`foreach`, torch/optim/adam.py `_multi_tensor_adam`), but
    not of the DTensors of Megatron-FSDP. Experts that are spread over ranks have an optimizer of their own, which steps
    after the other.
    """
    return max(owned) if spec.parallelism.expert_model_parallel_size > 1 else sum(owned)


def _quantised_at_once(spec: ExperimentSpec, owned: tuple[float, float]) -> float:
    """Return the number of FP8 weights of one optimizer, which are cast to bf16 together before they are quantised.

    transformer-engine 2.11 `cast_master_weights_to_fp8`, after the step; gradients in fp32 are still there. Embeddings
    and the output layer are not FP8, nor are adapters.
    """
    if not spec.precision.transformer_config.get("fp8_param") or spec.ddp.use_megatron_fsdp or spec.peft:
        return 0
    dense, expert = owned
    share = dense_data_parallel_size(spec) if spec.optimizer.use_distributed_optimizer else 1
    return _stepped_at_once(spec, (max(0, dense - _outside_of_layers(spec) / share), expert))


def least_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of states that some rank holds at least; activations come on top."""
    dense, expert = least_parameters(spec)
    stored = int(spec.precision.weight_bytes * (dense + expert))
    trained = Parameters(stored_bytes=stored) if spec.peft else Parameters(dense, expert, stored)
    return model_states(spec, trained).total


def owned_parts(elements: Sequence[float], shards: int, *, has_buckets: bool) -> list[float]:
    """Return the elements of each parameter in the first of the shards of every bucket, which fill from the last."""
    least = max(_BUCKET_ELEMENTS, _BUCKET_ELEMENTS_PER_RANK * shards) if has_buckets else sum(elements)
    owned, bucket = list[float](), list[float]()
    for place, size in enumerate(reversed(elements), 1):
        bucket.append(size)
        if sum(bucket) < least and place < len(elements):
            continue
        room = sum(bucket) / shards
        while room > 0 and bucket:
            owned.append(min(room, bucket.pop(0)))
            room -= owned[-1]
        bucket = []
    return owned
