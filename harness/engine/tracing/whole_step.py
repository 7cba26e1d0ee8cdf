"""One step of one pipeline rank, traced whole: all chunks and micro-batches in megatron-core's own order."""

import gc
import time
from collections.abc import Callable
from itertools import chain

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.engine.layer_plan import set_plan
from harness.engine.model import build_chunks
from harness.engine.tracing.chunk import attach_main_grads, stage_config, workspaces, world_size
from harness.engine.tracing.ledger import StorageLedger
from harness.engine.tracing.routing import PLACE
from harness.engine.tracing.run import set_up
from harness.engine.tracing.tracer import Tracer
from harness.engine.training import batches_of_chunks, forward_step, group_sizes, run_schedule
from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import base_of_plan
from harness.experiment.recompute_plan import PlannedRecompute
from harness.records.trace import ExactFile, ExactRequest, ExactStage


def trace_ranks(request: ExactRequest, keep: Callable[[ExactFile], None]) -> None:
    """Trace every rank of the request in order; keep the results after each rank, so that a timeout loses little."""
    PLACE.device = torch.device("meta")
    stages: tuple[ExactStage, ...] = ()
    try:
        for pp_rank in request.pp_ranks:
            stages = (*stages, trace_rank(request.spec, request.implementation, pp_rank))
            keep(ExactFile(stages=stages))
    except (ValueError, AssertionError) as error:  # how megatron-core turns down a configuration
        keep(ExactFile(stages=stages, refused=f"megatron-core: {error or type(error).__name__}"))


def trace_rank(spec: ExperimentSpec, implementation: Implementation, pp_rank: int) -> ExactStage:
    """Trace a step of the first rank of a stage; ValueError or AssertionError if megatron-core refuses."""
    began = time.perf_counter()
    _join(spec, pp_rank)
    set_up(spec, implementation)
    config = stage_config(spec.model_copy(update={"recompute": base_of_plan(spec.recompute)}))
    config.batch_p2p_comm = False  # the same tensors one by one: grouped messages ask a group for its meta backend
    with PLACE.device:
        chunks = build_chunks(spec, config)
    if isinstance(spec.recompute, PlannedRecompute):
        set_plan(chunks, [spec.recompute.settings(pp_rank, chunk) for chunk in range(len(chunks))])
    reduced = torch.float32 if spec.ddp.grad_reduce_in_fp32 else config.params_dtype
    ledger = StorageLedger()
    main_grads = [grad for chunk in chunks for grad in attach_main_grads(chunk, reduced)]
    for tensor in chain(main_grads, *((*chunk.parameters(), *chunk.buffers()) for chunk in chunks)):
        ledger.add(tensor)
    ledger.new_epoch()
    batches, schedule = batches_of_chunks(spec, PLACE.device, chunks), get_forward_backward_func()
    gc.disable()  # the time of Python's collections must not decide which tensors count as alive
    try:
        with BytesOnly(ledger, PLACE.device.type, fuses=PLACE.stands_for_cuda):
            run_schedule(schedule, forward_step, spec, chunks, batches)
            if spec.offload.offload_modules:  # in the first step megatron-core only learns what it can offload
                gc.collect()
                ledger.mark()
                run_schedule(schedule, forward_step, spec, chunks, batches)
    finally:
        gc.enable()
    return ExactStage(
        pp_rank=pp_rank,
        peak_bytes=ledger.peak_bytes - sum(map(workspaces, chunks)),
        num_parameters=sum(p.numel() for chunk in chunks for p in chunk.parameters()),
        seconds=time.perf_counter() - began,
    )


class BytesOnly(Tracer):
    """Counts only bytes: the cost of operations does not depend on their order."""

    def _record(self, *_operation) -> None:
        pass

    def _record_collective(self, *_operation) -> None:
        pass


def _join(spec: ExperimentSpec, pp_rank: int) -> None:
    """Join as the first rank of the stage in the smallest job of these sizes; its process groups send nothing."""
    per_stage = world_size(spec.parallelism)
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    size = per_stage * spec.parallelism.pipeline_model_parallel_size
    dist.init_process_group("fake", rank=pp_rank * per_stage, world_size=size, store=FakeStore())
    parallel_state.initialize_model_parallel(**group_sizes(spec))
