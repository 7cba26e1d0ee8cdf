"""Runs one rank from process group to record: build, read back, train, measure."""

import gc
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from importlib import metadata
from operator import attrgetter

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks
from megatron.core.transformer.transformer_block import TransformerBlock

from harness.engine import cpu_backend, gpu_setup
from harness.engine.config import has_weight_gradient_kernel, transformer_config
from harness.engine.layer_plan import set_plan
from harness.engine.memory import CpuMeter, CudaMeter, limit_cuda, record_until_out_of_memory, recorded_step
from harness.engine.model import build_chunks, wrap_ddp
from harness.engine.rank_log import NonFiniteLossError, RankLog
from harness.engine.training import StepResult, Trainer, group_sizes
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.modules import MODULES, RecomputeModule
from harness.experiment.recompute import base_of_plan
from harness.experiment.recompute_plan import PlannedRecompute
from harness.records.rank import Coordinates, Device, LayerRecompute, StepRecord, processor_name

RECORDED_PACKAGES = ("torch", "megatron-core", "transformer-engine", "numpy")


def run(spec: ExperimentSpec, log: RankLog) -> None:
    """Train ``spec.measure.max_steps`` steps and fill ``log``; exceptions are the caller's to record."""
    device = join(spec, log)
    if spec.measure.snapshot_on_oom:
        record_until_out_of_memory(log.snapshot_path)
    trainer = build(spec, log, device)
    log.enter("step")
    for index in range(spec.measure.max_steps):
        log.step_index = index
        with log.meter.watching(index):
            measured_step(log, trainer, device, index)
        if index == 0:
            log.meter.after_first_step()
    log.step_index = None
    log.enter("probe")
    if log.meter.probes:
        with log.meter.probing():
            trainer.step(index=spec.measure.max_steps)
    log.fields["counted_flops_per_step"] = log.meter.counted_flops
    if spec.measure.memory_snapshot:
        with recorded_step(log.snapshot_path) as on_phase:
            trainer.step(index=spec.measure.max_steps, on_phase=on_phase)
    log.enter("finish")
    synchronize(device)
    log.write()  # complete the record first, because the end of communication can hang
    leave(spec, trainer, device)


def join(spec: ExperimentSpec, log: RankLog) -> torch.device:
    """Return this rank's device, after setting up process groups and random generators."""
    device = use_device(spec, log)
    log.enter("init_process_group")
    adapt(spec)
    _join(spec, device)
    log.fields["coordinates"] = coordinates()
    return device


def leave(spec: ExperimentSpec, trainer: Trainer, device: torch.device) -> None:
    """End communication when all ranks are done: delete graphs and user buffers, then the process groups they use."""
    _barrier(device)
    trainer.delete_graphs()
    gc.collect()
    synchronize(device)
    gpu_setup.destroy_user_buffers(spec)
    dist.destroy_process_group()


def _barrier(device: torch.device) -> None:
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def use_device(spec: ExperimentSpec, log: RankLog) -> torch.device:
    """Return this rank's device, with its meter, after recording the device and the versions of packages."""
    log.fields["versions"] = {name: _version(name) for name in RECORDED_PACKAGES} | {"cuda": torch.version.cuda}
    if spec.gpu_type.is_cpu:
        log.fields["device"] = Device(kind="cpu", name=processor_name())
        log.meter = CpuMeter(spec.measure.memory_limit_bytes)
        return torch.device("cpu")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    p = torch.cuda.get_device_properties(local)
    uuid = str(getattr(p, "uuid", "")) or None
    log.fields["device"] = Device(
        kind="cuda",
        name=p.name,
        uuid=uuid if uuid is None or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        pci_bus_id=_pci_bus_id(p),
        capability=(p.major, p.minor),
    )
    device, limit = torch.device("cuda", local), spec.measure.memory_limit_bytes
    if limit is not None:
        limit_cuda(limit, device)
    log.meter = CudaMeter(limit)
    return device


def _pci_bus_id(properties) -> str | None:
    """Return the address on the PCI bus as NVML writes it; None in torch releases without it."""
    if not hasattr(properties, "pci_domain_id"):
        return None
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"


def _version(package: str) -> str | None:
    if package == "torch":
        return torch.__version__  # the metadata lacks the build tag (+cpu, +cu130)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def adapt(spec: ExperimentSpec) -> None:
    """Adapt megatron-core to a processor, or to a GPU without transformer-engine."""
    if spec.gpu_type.is_cpu:
        cpu_backend.install()
    elif spec.kernels.transformer_impl == "local":
        cpu_backend.install_local()


def _join(spec: ExperimentSpec, device: torch.device) -> None:
    """Set up the default process group, megatron's groups, and every random generator."""
    timeout = timedelta(minutes=30)
    if device.type == "cpu":
        dist.init_process_group("gloo", timeout=timeout)
    else:
        gpu_setup.leave_default(spec)
        # No device_id: with it, all ranks would create every group at once, used or not.
        dist.init_process_group("nccl", timeout=timeout)
        _barrier(device)
    join_model_parallel(spec)
    gpu_setup.make_user_buffers(spec)
    seed_all(spec)


def join_model_parallel(spec: ExperimentSpec) -> None:
    """Create megatron's process groups over the default one."""
    extra = {}
    if spec.model.mtp_num_layers:
        config = transformer_config(_without_plan(spec))
        tied = spec.model.share_embeddings_and_output_weights

        def embedding_ranks(pp_ranks: list[int]) -> list[int]:
            return sorted({pp_ranks[0], *([pp_ranks[-1]] if tied else []), *get_mtp_ranks(pp_ranks, config)})

        extra["get_embedding_ranks"] = embedding_ranks
    parallel_state.initialize_model_parallel(**group_sizes(spec), **extra)


def seed_all(spec: ExperimentSpec) -> None:
    """Seed torch and megatron's RNG tracker: different per pipeline stage, as megatron's launcher does."""
    seed = spec.measure.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    graphs = spec.cuda_graph.impl != "none"
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed, te_rng_tracker=graphs and spec.kernels.transformer_impl == "transformer_engine",
        use_cudagraphable_rng=graphs,
    )  # fmt: skip


def coordinates() -> Coordinates:
    """Return the place of this rank in megatron's process groups."""
    return Coordinates(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        dp=parallel_state.get_data_parallel_rank(),
        cp=parallel_state.get_context_parallel_rank(),
        ep=parallel_state.get_expert_model_parallel_rank(),
    )


def build(spec: ExperimentSpec, log: RankLog, device: torch.device) -> Trainer:
    """Build model, optimizer and schedule as megatron does, and read the model back into ``log``."""
    log.enter("build_model")
    config = transformer_config(_without_plan(spec))
    chunks = build_chunks(spec, config)
    if isinstance(spec.recompute, PlannedRecompute):
        stage = parallel_state.get_pipeline_model_parallel_rank()
        set_plan(chunks, [spec.recompute.settings(stage, chunk) for chunk in range(len(chunks))])
    chunks = wrap_ddp(spec, config, chunks)
    record_model(log, config, chunks)
    te = spec.kernels.transformer_impl == "transformer_engine"
    if te and spec.kernels.gradient_accumulation_fusion and not has_weight_gradient_kernel():
        lacks = "Apex's fused_weight_gradient_mlp_cuda is not installed"
        log.notes.append(f"the output layer allocates its weight gradient: {lacks}")
    log.enter("build_optimizer")
    trainer = Trainer(spec, config, chunks, device)
    log.meter.after_setup(chunks, trainer.optimizer)
    return trainer


def _without_plan(spec: ExperimentSpec) -> ExperimentSpec:
    """Return what a model is built from: a plan of recompute is set on its layers."""
    return spec.model_copy(update={"recompute": base_of_plan(spec.recompute)})


def record_model(log: RankLog, config, chunks) -> None:
    """Read the built model back, and megatron-core's view of the request, after the changes of its `__post_init__`."""
    log.fields["recompute"] = read_back(chunks)
    log.fields["num_parameters"] = sum(p.numel() for chunk in chunks for p in chunk.parameters())
    names = (
        "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
        "distribute_saved_activations", "cuda_graph_impl", "cuda_graph_scope", "attention_backend", "fp8", "fp8_recipe",
        "gradient_accumulation_fusion", "sequence_parallel", "deallocate_pipeline_outputs", "overlap_p2p_comm",
        "batch_p2p_comm", "cp_comm_type",
    )  # fmt: skip
    log.fields["config"] = {name: str(getattr(config, name)) for name in names if hasattr(config, name)}


def read_back(chunks) -> LayerRecompute:
    """Count the decoder layers of this rank on which each module acts. Full recompute is a setting of the block."""
    counts: Counter[str] = Counter()
    num_layers = full_layers = 0
    for block in (m for chunk in chunks for m in chunk.modules() if isinstance(m, TransformerBlock)):
        config, here = block.config, len(block.layers)
        num_layers += here
        if config.recompute_granularity == "full":
            full_layers += here if config.recompute_method == "uniform" else min(config.recompute_num_layers, here)
        counts.update(name for layer in block.layers for name, row in MODULES.items() if _acts(row, layer))
    return LayerRecompute(num_layers=num_layers, modules=dict(sorted(counts.items())), full_layers=full_layers)


def _acts(row: RecomputeModule, layer) -> bool:
    has_part = not row.part or _at(layer, row.part) is not None
    return has_part and any(_at(layer, switch) for switch in row.switches)


def _at(layer, path: str) -> object:
    try:
        return attrgetter(path)(layer)
    except AttributeError:
        return None


def measured_step(log: RankLog, trainer: Trainer, device: torch.device, index: int) -> float:
    """Run and record one step between device synchronisations; return its seconds. NonFiniteLossError."""
    synchronize(device)
    began = time.perf_counter()
    result = trainer.step(index=index, on_phase=log.within_step)
    return finished_step(log, device, index, began, lambda: result)


def finished_step(
    log: RankLog, device: torch.device, index: int, began: float, result_of: Callable[[], StepResult]
) -> float:
    """Record the step that ends now; return its seconds. NonFiniteLossError. ``result_of`` may copy from the device."""
    synchronize(device)
    seconds, ended_s = time.perf_counter() - began, round(time.monotonic(), 3)
    result = result_of()
    found = {"loss": result.loss, "grad_norm": result.grad_norm}
    finite = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
    log.finished_step(StepRecord(step=index, seconds=seconds, ended_s=ended_s, **finite))  # a record holds no others
    for name, value in found.items():  # without a loss scaler, a gradient that is not finite ruins the next step
        if value is not None and name not in finite:
            raise NonFiniteLossError(f"{name.replace('grad_', 'gradient ')} is {value} at step {index}")
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work; a processor always has."""
    if device.type == "cuda":
        torch.cuda.synchronize()
