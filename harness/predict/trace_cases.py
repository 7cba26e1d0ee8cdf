"""Which traces a prediction needs, and the cache that keeps them."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from harness.experiment.effective import NO_SOFTWARE, Implementation, effective_recompute
from harness.experiment.experiment import CudaGraphSpec, DdpSpec, ExperimentSpec, KernelSpec
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS
from harness.experiment.layout_text import Chunk
from harness.experiment.model import BatchSpec, LayerKind, ParallelismSpec
from harness.experiment.recompute import (
    FullRecompute,
    NoRecompute,
    RecomputePolicy,
    SelectiveRecompute,
    policy_of_layer,
)
from harness.experiment.recompute_plan import PlannedRecompute
from harness.experiment.software import Software
from harness.records.store import write_atomically
from harness.records.trace import ChunkTrace, TraceCase


@dataclass(frozen=True)
class CaseMaker:
    """Makes trace cases of one request; the pipeline, data parallelism and optimizer are composition, no case."""

    spec: ExperimentSpec
    implementation: Implementation
    software: Software = NO_SOFTWARE
    made: dict[object, TraceCase] = field(default_factory=dict, repr=False, compare=False)

    def layers(self, kind: LayerKind, policy: RecomputePolicy, num_layers: int) -> TraceCase:
        """Return a chunk of ``num_layers`` layers and nothing else."""
        return self._case(kind, policy, num_layers=num_layers)

    def offloaded(self, kind: LayerKind, policy: RecomputePolicy, num_layers: int) -> TraceCase:
        """Return the same chunk with layers or modules in host memory between the passes, as asked."""
        return self._case(kind, policy, num_layers=num_layers, offloads=True)

    def first(self, kind: LayerKind, policy: RecomputePolicy) -> TraceCase:
        """One layer behind the embedding."""
        return self._case(kind, policy, pre=True)

    def last(self, kind: LayerKind, policy: RecomputePolicy, *, pre: bool, mtp: bool) -> TraceCase:
        """One layer before MTP layers, output layer and loss; with the embedding where one chunk has both."""
        return self._case(kind, policy, pre=pre, post=True, mtp=mtp)

    def _case(
        self,
        kind: LayerKind,
        policy: RecomputePolicy,
        *,
        num_layers: int = 1,
        pre: bool = False,
        post: bool = False,
        mtp: bool = False,
        offloads: bool = False,
    ) -> TraceCase:
        asked = kind, policy.text, num_layers, pre, post, mtp, offloads
        if asked not in self.made:
            spec = _reduced(self.spec, kind, self.implementation, mtp=mtp)
            changes: dict[str, object] = {"recompute": in_effect(spec, policy, self.implementation, self.software)}
            if offloads:  # how many layers go decides what is composed, not what is traced
                offload = self.spec.offload
                num_offloaded = min(1, offload.cpu_offloading_num_layers)
                changes["offload"] = offload.model_copy(update={"cpu_offloading_num_layers": num_offloaded})
            spec = spec.model_copy(update=changes)
            case = TraceCase(key="", spec=spec, layer_kind=kind, num_layers=num_layers, pre=pre, post=post, mtp=mtp)
            self.made[asked] = keyed(case, self.implementation)
        return self.made[asked]


def keyed(case: TraceCase, implementation: Implementation) -> TraceCase:
    """Return the case with the key under which its trace is kept: equal cases have equal keys."""
    text = f"{implementation} {case.model_copy(update={'key': ''}).model_dump_json()}"
    return case.model_copy(update={"key": hashlib.sha256(text.encode()).hexdigest()[:24]})


def base_policies(policy: RecomputePolicy) -> tuple[RecomputePolicy, ...]:
    """Return the policies to trace for ``policy``: full recompute of any N is composed of kept and single layers."""
    if isinstance(policy, PlannedRecompute):
        return tuple(map(policy_of_layer, policy.distinct))
    if not isinstance(policy, FullRecompute):
        return (policy,)
    return NoRecompute(), single(policy)


def single(policy: FullRecompute) -> FullRecompute:
    """Return full recompute with one layer per checkpoint."""
    return FullRecompute(
        method="uniform", num_layers=1, distribute_saved_activations=policy.distribute_saved_activations
    )


def kind_of(kinds: Sequence[LayerKind], chunk: Chunk, layer: int) -> LayerKind:
    """Return the kind of the chunk's ``layer``-th layer; of the model's last one for a chunk without layers."""
    return kinds[chunk.layers[layer] if chunk.layers else -1]


def in_effect(
    spec: ExperimentSpec, policy: RecomputePolicy, implementation: Implementation, software: Software
) -> RecomputePolicy:
    """Return ``policy`` without modules that do nothing in ``spec``, so that equal computations are traced once."""
    if not isinstance(policy, SelectiveRecompute):
        return policy
    asked = spec.model_copy(update={"recompute": policy})
    active = tuple(sorted(effective_recompute(asked, implementation, software).modules))
    return SelectiveRecompute(modules=active) if active else NoRecompute()


def _reduced(spec: ExperimentSpec, kind: LayerKind, implementation: Implementation, *, mtp: bool) -> ExperimentSpec:
    """Return ``spec`` without the settings that do not change one chunk of one kind of layer."""
    model = spec.model.of_kind(kind, 1)
    model = model.model_copy(update={"mtp_num_layers": spec.model.mtp_num_layers if mtp else None})
    p = spec.parallelism
    return ExperimentSpec(
        recipe="",
        family="",
        gpu=_alike(spec),
        num_gpus=1,
        gpus_per_node=1,
        compute_dtype=spec.compute_dtype,
        model=model,
        parallelism=ParallelismSpec(
            tensor_model_parallel_size=p.tensor_model_parallel_size,
            context_parallel_size=p.context_parallel_size,
            cp_comm_type=p.cp_comm_type if p.context_parallel_size > 1 else "p2p",
            expert_model_parallel_size=p.expert_model_parallel_size,
            expert_tensor_parallel_size=p.expert_tensor_size,
            sequence_parallel=p.sequence_parallel,
        ),
        batch=BatchSpec(
            micro_batch_size=spec.batch.micro_batch_size,
            global_batch_size=spec.batch.micro_batch_size,
            seq_length=spec.batch.seq_length,
        ),
        ddp=DdpSpec(grad_reduce_in_fp32=spec.ddp.grad_reduce_in_fp32),
        cuda_graph=CudaGraphSpec(),
        kernels=traceable(spec.kernels, implementation),
        peft=spec.peft,
    )


def _alike(spec: ExperimentSpec) -> str:
    """The first GPU type of the same compute capability: a trace of a layer depends on nothing else of its GPU."""
    return next(name for name, row in GPUS.items() if row.capability == spec.gpu_type.capability)


def traceable(kernels: KernelSpec, implementation: Implementation) -> KernelSpec:
    """Return ``kernels`` without settings that the tracer cannot run."""
    flex = kernels.has_flex_dispatcher
    return kernels.model_copy(
        update={
            "transformer_impl": implementation,
            "overlap_moe_expert_parallel_comm": False,
            "moe_token_dispatcher_type": "alltoall" if flex else kernels.moe_token_dispatcher_type,
            "moe_flex_dispatcher_backend": None,
        }
    )


class CachedTrace(Frozen):
    """A traced chunk, or the reason why the tracer declined it; the versions are for readers of the file."""

    megatron_core: str
    torch: str
    stand_in: str | None = None
    chunk: ChunkTrace | None = None
    refused: str | None = Field(default=None)


def tracer_fingerprint(package: Path, installed: Iterable[str | None]) -> str:
    """Hash the tracer's sources, the tables behind specs, and what is ``installed``, to sixteen hex digits."""
    return source_fingerprint(package, ("engine", "experiment", "records/trace.py"), installed)


def source_fingerprint(package: Path, parts: Iterable[str], installed: Iterable[str | None]) -> str:
    """Hash what is ``installed`` and the sources in ``parts`` (files, folders of ``package``) to sixteen hex digits."""
    digest = hashlib.sha256("\n".join(map(str, installed)).encode())
    for part in parts:
        root = package / part
        for source in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(str(source.relative_to(package)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TraceCache:
    """Safe for concurrent use: files are written whole and renamed, and equal names hold equal content."""

    folder: Path

    def read(self, key: str, imbalance: float) -> CachedTrace | None:
        """Return the trace; None if the file is missing or unreadable, and the caller then traces again."""
        try:
            return CachedTrace.model_validate_json(self._file(key, imbalance).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, key: str, imbalance: float, trace: CachedTrace) -> None:
        """Keep one trace. If the folder is not writable, the next request traces again."""
        file = self._file(key, imbalance)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, trace.model_dump_json())

    def _file(self, key: str, imbalance: float) -> Path:
        return self.folder / f"{key}-{imbalance:g}.json"
