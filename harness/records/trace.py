"""Files that the planner reads: traces, with stamps of their sources."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import PeakKey
from harness.experiment.model import LayerKind, Size, has_experts
from harness.records.rank import Recorded

Phase = Literal["forward", "backward", "recompute"]
OpKind = Literal["gemm", "attention", "elementwise", "comm"]
CommGroup = Literal["tp", "ep", "cp", "etp"]


class TraceCase(Frozen):
    """One model chunk to trace: ``num_layers`` decoder layers of one kind under the settings of ``spec``.

    ``pre`` adds the embedding, ``post`` final norm, output layer and loss, ``mtp`` the multi-token prediction layers,
    which need ``post``. Sizes of pipeline and data parallelism play no part: one micro-batch, one rank. Results are
    linear in ``num_layers`` except where ``recompute`` groups layers.
    """

    key: str
    spec: ExperimentSpec
    layer_kind: LayerKind
    num_layers: Size
    pre: bool = False
    post: bool = False
    mtp: bool = False

    @property
    def has_experts(self) -> bool:
        return has_experts(self.layer_kind)


def progress_file(answer: Path) -> Path:
    """Return the file next to the tracer's answer that grows by one byte per finished case."""
    return answer.with_suffix(".done")


class TraceRequest(Recorded):
    """Input of ``python -m harness.engine.trace``. ``imbalance``: the share of tokens over the balanced share.

    ``device`` cpu runs the same trace on real tensors, for small models; transformer-engine's stand-in takes meta.
    """

    cases: tuple[TraceCase, ...]
    implementation: Implementation
    imbalance: float = Field(default=1.0, ge=1.0)
    device: Literal["meta", "cpu"] = "meta"


class OpCost(Frozen):
    """``count`` executions of operations that cost the same; the figures are totals over all of them.

    ``dtype``: the peak of ``GpuType.peak_flops``. ``bytes``: read and written. ``comm_bytes``: sent by a rank: (n-1)/n
    of the whole buffer, twice that for all-reduce (ring). ``overlapped``: during GEMMs that do not wait for it.
    """

    phase: Phase
    kind: OpKind
    dtype: PeakKey
    flops: int = 0
    bytes: int = 0
    comm_bytes: int = 0
    comm_group: CommGroup | None = None
    overlapped: bool = False
    count: int = 1


class ChunkTrace(Frozen):
    """Bytes and operations of one micro-batch through one chunk, on one rank.

    ``saved_bytes``: alive between forward and backward, with the received hidden states, and with the sent hidden
    states unless megatron-core deallocates them. ``forward_peak_bytes``: peak above the state before the forward pass.
    ``backward_peak_bytes``: peak above ``saved_bytes``, with the received output gradient. ``persistent_bytes``:
    buffers that stay allocated and belong to no micro-batch (dummy weight gradients, the global memory buffer, rotary
    tables). ``lingering_bytes``: memory that the backward pass keeps until the chunk's next forward pass replaces it.
    Token dispatchers hold on to the graph: inputs and their gradients of every MoE layer under full recompute,
    https://github.com/NVIDIA/Megatron-LM/issues/3221. ``hidden_bytes``: the hidden states that pass between pipeline
    stages. ``leaving_over_bytes``: the forward peak minus the memory left after it, if the modules of all layers are
    offloaded. ``reloaded_bytes``: copies that offloaded modules bring back, of all layers. ``attention_bytes``,
    ``mlp_bytes``: memory that the two parts of the layers leave alive after the forward pass, output included; CUDA
    graphs capture parts. ``num_parameters_dense``, ``num_parameters_expert``: parameters that are trained.
    ``parameter_bytes``: all parameters as stored for compute, with quantised data and transposes, and
    registered buffers, but without main gradients and optimizer state.
    """

    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    persistent_bytes: int
    lingering_bytes: int = 0
    leaving_over_bytes: int = 0
    reloaded_bytes: int = 0
    attention_bytes: int = 0
    mlp_bytes: int = 0
    hidden_bytes: int
    num_parameters_dense: int
    num_parameters_expert: int
    parameter_bytes: int
    ops: tuple[OpCost, ...] = ()
    inert_modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class TraceFile(Recorded):
    """The tracer's answer. ``refused``: cases that could not be traced, with the reason."""

    megatron_core: str
    torch: str
    stand_in: str | None = None
    chunks: dict[str, ChunkTrace] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    seconds: float


class ExactRequest(Recorded):
    """Input of ``python -m harness.engine.trace --exact``: a job, and its pipeline ranks to trace, in this order."""

    spec: ExperimentSpec
    implementation: Implementation
    pp_ranks: tuple[Size, ...]


class ExactStage(Frozen):
    """A rank of a stage through one step. ``peak_bytes``: all tensors but parameters, copies, gradient buffers."""

    pp_rank: int
    peak_bytes: int
    num_parameters: int
    seconds: float


class ExactFile(Recorded):
    """The answer, written again after every rank. ``refused``: why megatron-core or the tracer declined."""

    stages: tuple[ExactStage, ...] = ()
    refused: str | None = Field(default=None)


def tree_stamps(root: Path) -> Iterator[str]:
    """Yield a stamp for a file, or for every file below a folder except byte code."""
    if not root.is_dir():
        yield file_stamp(root)
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            yield file_stamp(os.path.join(folder, name))  # noqa: PTH118 several times faster than Path, for many files


def file_stamp(path: str | Path) -> str:
    """Return path, size and modification time; ``none`` at the end if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 as above
    except OSError:
        return f"{path} none"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def megatron_core_stamps() -> Iterator[str]:
    """Yield stamps of megatron-core without importing it. A checkout may change while its version does not."""
    found = find_spec("megatron")
    for folder in (found.submodule_search_locations or ()) if found else ():
        yield from tree_stamps(Path(folder) / "core")
