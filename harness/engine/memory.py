"""Meters of memory, the tally of floating-point operations, and the recorded history of torch's CUDA allocator."""

import inspect
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path

import torch
from torch.autograd.profiler import record_function
from torch.ops import aten
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from harness.engine.memory_limit import WATCHED_STEPS, CpuLimit
from harness.engine.tracing.ledger import StorageLedger, StorageWatch, watched_peak_bytes
from harness.records.rank import MemoryRecord, SeriesRecorder


def _attention(query, key, value, *_args, **_kwargs) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad_out, query, key, value, *_args, **_kwargs) -> int:
    return sdpa_backward_flop_count(grad_out.shape, query.shape, key.shape, value.shape)


# torch's table lacks the processor's flash kernels.
_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class FlopTally(TorchDispatchMode):
    """Inside it ``flops`` grows, recomputed work included, by the formulas of `torch.utils.flop_counter`.

    Attention is counted as torch counts it on a GPU: the whole score matrix, causal or not. torch's own `FlopCounterMode`
    gives the same figure, but hangs hooks into modules and so keeps tensors alive for longer: in a step that it counts,
    memory cannot be measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self._formulas = {**flop_registry, **_CPU_ATTENTION}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run ``func`` and add its FLOPs."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


_FINEST_S = 0.001  # of the memory timeline of the watched step
_TIMELINE = "live tensors of this rank in one untimed step, watched operation by operation, which slows it"


class CudaMeter:
    """The caching allocator's counters since the process began; nothing is reset, so warm-up and capture count."""

    def __init__(self, limit_bytes: int | None = None):
        self._limit = limit_bytes
        self._after_setup = self._static = None

    def watching(self, _index) -> AbstractContextManager:
        """Nothing: the allocator itself keeps to the limit."""
        return nullcontext()

    def after_setup(self, _chunks, _optimizer) -> None:
        """Parameters and gradient buffers stand; optimizer state does not yet."""
        self._after_setup = torch.cuda.memory_allocated()

    def after_first_step(self) -> None:
        """Everything that lives between steps stands."""
        torch.cuda.synchronize()
        self._static = torch.cuda.memory_allocated()

    def probe(self, _run_step) -> int | None:
        """Nothing to add on a GPU: the allocator has counted all along. No FLOPs are counted."""
        return None

    def record(self) -> MemoryRecord:
        """The peaks so far; also after a failure."""
        stats = torch.cuda.memory_stats()
        return MemoryRecord(
            meter="torch.cuda caching allocator, whole run",
            max_allocated_bytes=torch.cuda.max_memory_allocated(),
            max_reserved_bytes=torch.cuda.max_memory_reserved(),
            num_alloc_retries=stats.get("num_alloc_retries", 0),
            num_ooms=stats.get("num_ooms", 0),
            static_bytes=self._static,
            after_setup_bytes=self._after_setup,
            device_total_bytes=torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory,
            limit_bytes=self._limit,
            host_max_rss_bytes=host_max_rss_bytes(),
        )


class CpuMeter:
    """What was built, what the first step leaves, and the peak of what an untimed step at the end of the run makes.

    The first step, which no window holds unasked, is watched too: masks, rotary tables and buffers are made in it and kept.

    The kernel's own high-water mark is no substitute: the C allocator keeps freed memory. Nor are the events of torch's
    profiler: what a gloo thread is the last to let go of is freed without one, so their sum drifts. Under a limit the
    figure is what was compared with the limit, so that a run that passed is never above it.
    """

    def __init__(self, limit_bytes: int | None = None):
        self._limit = CpuLimit(limit_bytes) if limit_bytes else None
        self._ledger = StorageLedger()
        self._after_setup = self._static = self._step_peak = None
        self._series = SeriesRecorder(_FINEST_S)

    def watching(self, index) -> AbstractContextManager:
        """Around step ``index``: the first ones are watched and held to the limit. MemoryLimitError out of the block."""
        if self._limit is None:
            return StorageWatch(self._ledger) if index == 0 else nullcontext()
        return self._limit.step(self._after_setup, self._ledger) if index < WATCHED_STEPS else nullcontext()

    def after_setup(self, chunks, optimizer) -> None:
        """Parameters and gradient buffers stand; optimizer state does not yet. MemoryLimitError."""
        self._after_setup = static_bytes(chunks, optimizer)
        if self._limit is not None:
            self._limit.hold(self._after_setup)

    def after_first_step(self) -> None:
        """Everything that lives between steps stands."""
        self._static = self._after_setup + self._ledger.live_bytes

    def probe(self, run_step) -> int | None:
        """One further step, untimed, whose storages and FLOPs are counted. Returns the FLOPs."""
        with FlopTally() as tally:
            self._step_peak = watched_peak_bytes(run_step, self._series, self._after_setup or 0, self._ledger)
        return tally.flops

    def record(self) -> MemoryRecord:
        """The peak, if the run came as far as the probe; under a limit, the peak so far."""
        if self._limit is not None:
            return self._limited(self._limit)
        known = self._after_setup is not None and self._step_peak is not None
        return MemoryRecord(
            meter="storages made in the first and in one untimed step + what was built",
            max_allocated_bytes=self._after_setup + self._step_peak if known else None,
            static_bytes=self._static,
            after_setup_bytes=self._after_setup,
            host_max_rss_bytes=host_max_rss_bytes(),
            timeline=self._series.series(_TIMELINE),
        )

    def _limited(self, limit: CpuLimit) -> MemoryRecord:
        return MemoryRecord(
            meter=f"storages made in the first {WATCHED_STEPS} steps + what was built, held to a limit",
            max_allocated_bytes=limit.peak_bytes,
            static_bytes=self._static,
            after_setup_bytes=self._after_setup,
            limit_bytes=limit.limit_bytes,
            host_max_rss_bytes=host_max_rss_bytes(),
            timeline=self._series.series(_TIMELINE),
        )


def host_max_rss_bytes() -> int:
    """The kernel's high-water mark of this process; it includes the interpreter and libraries."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def static_bytes(chunks, optimizer) -> int:
    """Bytes of parameters, gradient buffers and optimizer state: every distinct storage counted once."""
    storages = {}
    for tensor in chain(_model_tensors(chunks), _optimizer_tensors(optimizer)):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _model_tensors(chunks):
    for chunk in chunks:
        for module in chunk.modules():  # not chunk.buffers(): megatron's DDP keeps a list under that name
            yield from (b for b in module._buffers.values() if b is not None)
        for parameter in chunk.parameters():
            yield parameter
            if getattr(parameter, "main_grad", None) is not None:
                yield parameter.main_grad


def _optimizer_tensors(optimizer):
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = getattr(part, "optimizer", part)
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (v for v in state.values() if torch.is_tensor(v))


MAX_ENTRIES = 100_000  # the newest; each takes some KB of the host's memory


def record_step(run_step: Callable[[Callable[[str], None]], object], path: Path, memory=torch.cuda.memory) -> None:
    """Run one step with its history recorded and write it to ``path``; its phases become the snapshot's annotations.

    ``run_step`` is given a function to tell of each new phase. Weights and optimizer states are in the snapshot without
    their stacks: they were made before. All ranks must call it, for it is a step of all.
    """
    _start(memory)
    phases = _Phases()
    run_step(phases.enter)
    phases.leave()
    _write(path, memory)
    memory._record_memory_history(enabled=None)


def record_until_out_of_memory(path: Path, memory=torch.cuda.memory, attach: Callable | None = None) -> None:
    """Record from now on; each time a request fails, ``path`` is written anew, before the failure unwinds anything.

    ``attach`` takes the function that torch calls then; torch's own unless given.
    """
    _start(memory)

    def out_of_memory(_device, _request, _device_total, _device_free) -> None:
        _write(path, memory)

    (attach or torch._C._cuda_attach_out_of_memory_observer)(out_of_memory)


def _start(memory) -> None:
    """Python stacks only: megatron-core's modules are in them, and C++ frames are many and slow to be named."""
    asked = {"max_entries": MAX_ENTRIES, "stacks": "python"}
    if _records_annotations_when_asked(memory):
        asked["global_record_annotations"] = True
    memory._record_memory_history(**asked)


def _records_annotations_when_asked(memory) -> bool:
    """Older releases of torch do so unasked, and refuse to be asked."""
    return "global_record_annotations" in inspect.signature(memory._record_memory_history_impl).parameters


def _write(path: Path, memory) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".pickle.tmp")
    memory._dump_snapshot(str(temporary))
    temporary.replace(path)


class _Phases:
    """One annotation at a time: each phase ends where the next begins."""

    def __init__(self) -> None:
        self._open = None

    def enter(self, phase: str) -> None:
        """The phase from now on."""
        self.leave()
        self._open = record_function(phase)
        self._open.__enter__()

    def leave(self) -> None:
        """No phase from now on."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
