"""Measures memory and floating-point operations, records the CUDA allocator's history, and limits memory."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import torch
from torch.autograd.profiler import record_function
from torch.ops import aten
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from harness.engine.tracing.ledger import StorageLedger, StorageWatch
from harness.records.rank import MemoryRecord
from harness.units import format_bytes

# torch's table lacks the processor's flash kernels, which take (the output's gradient,) query, key, value.
_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *args, **_: sdpa_flop_count(*(each.shape for each in args[:3]))
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *args, **_: sdpa_backward_flop_count(*(each.shape for each in args[:4]))
    ),
}


class FlopTally(TorchDispatchMode):
    """Counts FLOPs inside its block in ``flops``, recomputed work included, by `torch.utils.flop_counter`.

    Attention is the whole score matrix, causal or not. The hooks of torch's own `FlopCounterMode` keep tensors alive.
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


class CudaMeter:
    """Reads the caching allocator's counters of the whole process; nothing is reset. It counts no FLOPs."""

    probes = False
    counted_flops: int | None = None

    def __init__(self, limit_bytes: int | None = None):
        self._limit = limit_bytes
        self._after_setup = self._static = None

    def watching(self, *_index) -> AbstractContextManager:
        """Do nothing: the allocator enforces the limit, and counts all the time."""
        return nullcontext()

    probing = watching

    def after_setup(self, _chunks, _optimizer) -> None:
        """Note the memory once parameters and gradient buffers exist; optimizer state does not yet."""
        self._after_setup = torch.cuda.memory_allocated()

    def after_first_step(self) -> None:
        """Note the memory once everything that lives between steps exists."""
        torch.cuda.synchronize()
        self._static = torch.cuda.memory_allocated()

    def record(self) -> MemoryRecord:
        """Return the peaks so far, also after a failure."""
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
        )


class CpuMeter:
    """Measures model and optimizer, what the first step leaves, and the peak of an untimed step at the end of the run.

    The kernel's high-water mark is no substitute: the C allocator keeps freed memory. Under a limit the meter reports
    the figure that it compared with the limit.
    """

    probes = True

    def __init__(self, limit_bytes: int | None = None):
        self._limit = CpuLimit(limit_bytes) if limit_bytes else None
        self._ledger = StorageLedger()
        self._after_setup = self._static = self._step_peak = None
        self.counted_flops: int | None = None

    def watching(self, index) -> AbstractContextManager:
        """Watch step ``index`` if it is one of the first. The block raises MemoryLimitError above the limit."""
        if self._limit is None:
            return StorageWatch(self._ledger) if index == 0 else nullcontext()
        return self._limit.step(self._after_setup, self._ledger) if index < WATCHED_STEPS else nullcontext()

    def after_setup(self, chunks, optimizer) -> None:
        """Note the memory of parameters and gradient buffers, before optimizer state exists. MemoryLimitError."""
        self._after_setup = static_bytes(chunks, optimizer)
        if self._limit is not None:
            self._limit.hold(self._after_setup)

    def after_first_step(self) -> None:
        """Note the memory once everything that lives between steps exists."""
        self._static = self._after_setup + self._ledger.live_bytes

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Count the storages and the FLOPs (``counted_flops``) of one more step, which the block runs untimed."""
        watch = StorageWatch(self._ledger)
        with FlopTally() as tally, watch:
            yield
        self._step_peak, self.counted_flops = watch.peak_bytes, tally.flops

    def record(self) -> MemoryRecord:
        """Return the peak if the run reached the probe; under a limit, the peak so far."""
        limit, probed = self._limit, self._after_setup is not None and self._step_peak is not None
        steps = f"the first {WATCHED_STEPS} steps, under a limit" if limit else "the first step and in one untimed step"
        return MemoryRecord(
            meter=f"model and optimizer + tensors made in {steps}",
            max_allocated_bytes=limit.peak_bytes if limit else self._after_setup + self._step_peak if probed else None,
            static_bytes=self._static,
            after_setup_bytes=self._after_setup,
            limit_bytes=limit.limit_bytes if limit else None,
        )


def static_bytes(chunks, optimizer) -> int:
    """Return bytes of parameters, gradient buffers and optimizer state; each storage counts once."""
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
        if inner is None:  # of weights that are all frozen, megatron-core makes an optimizer around none
            continue
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (v for v in state.values() if torch.is_tensor(v))


MAX_ENTRIES = 100_000  # the newest; each takes some KB of the host's memory


@contextmanager
def recorded_step(path: Path, memory=torch.cuda.memory) -> Iterator[Callable[[str], None]]:
    """Record the history of one step, which the block runs, and write it to ``path``; a failed step leaves no file.

    The block calls the function that it gets for each new phase, an annotation of the snapshot. All ranks must do this.
    """
    _start(memory)
    with ExitStack() as phase:

        def enter(name: str) -> None:
            phase.close()
            phase.enter_context(record_function(name))

        yield enter
    _write(path, memory)
    memory._record_memory_history(enabled=None)


def record_until_out_of_memory(path: Path, memory=torch.cuda.memory, attach: Callable | None = None) -> None:
    """Record from now on. Each failed request rewrites ``path`` before the exception frees anything."""
    _start(memory)
    (attach or torch._C._cuda_attach_out_of_memory_observer)(lambda *_: _write(path, memory))


def _start(memory) -> None:
    """Record Python stacks only: they show megatron-core's modules, and C++ frames are slow to resolve."""
    asked = {"max_entries": MAX_ENTRIES, "stacks": "python"}
    if "global_record_annotations" in inspect.signature(memory._record_memory_history_impl).parameters:
        asked["global_record_annotations"] = True  # releases without the option always do it
    memory._record_memory_history(**asked)


def _write(path: Path, memory) -> None:
    """Write the whole file or nothing."""
    temporary = path.with_suffix(".pickle.tmp")
    memory._dump_snapshot(str(temporary))
    temporary.replace(path)


WATCHED_STEPS = 2  # the first makes the optimizer's state, the second is like all later ones


class MemoryLimitError(MemoryError):
    """A rank asked for more memory than its limit allows. The text follows torch's."""


class CpuLimit:
    """Limits a rank on the CPU to ``limit_bytes``, in the first :data:`WATCHED_STEPS` steps."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.peak_bytes: int | None = None

    def hold(self, num_bytes: int) -> None:
        """Check that model and optimizer fit. MemoryLimitError."""
        if num_bytes > self.limit_bytes:
            raise MemoryLimitError(_refusal(num_bytes, in_use=0, limit=self.limit_bytes, where="weights and gradients"))
        self.peak_bytes = max(self.peak_bytes or 0, num_bytes)

    @contextmanager
    def step(self, built_bytes: int, ledger: StorageLedger | None = None) -> Iterator[None]:
        """Watch one step on top of ``built_bytes`` and of what is in ``ledger``. MemoryLimitError."""
        watch = _Watch(built_bytes, self.limit_bytes, ledger)
        try:
            with watch:
                yield
        finally:
            self.peak_bytes = max(self.peak_bytes or 0, built_bytes + watch.peak_bytes)


class _Watch(StorageWatch):
    """Stops a step at the operation that exceeds the limit. ``peak_bytes`` is the peak before that operation."""

    def __init__(self, built_bytes: int, limit_bytes: int, ledger: StorageLedger | None) -> None:
        super().__init__(ledger)
        self._built, self._limit = built_bytes, limit_bytes

    def grown(self, before: int, where: str) -> None:
        """Raise MemoryLimitError if built and allocated bytes together exceed the limit."""
        live = self.ledger.live_bytes
        if self._built + live > self._limit:
            raise MemoryLimitError(_refusal(live - before, self._built + before, self._limit, where))
        super().grown(before, where)


def _refusal(request: int, in_use: int, limit: int, where: str) -> str:
    return (
        f"out of memory under --memory_limit. Tried to allocate {request} bytes ({format_bytes(request)}) in {where}; "
        f"{format_bytes(in_use)} of the limit of {format_bytes(limit)} are in use"
    )


def limit_cuda(limit_bytes: int, device: torch.device) -> None:
    """Limit the reserved memory of torch's caching allocator to ``limit_bytes``; it then raises its usual error."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
