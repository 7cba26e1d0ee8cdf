"""Finds options that together make a request legal: other graphs, no overlap of experts, fewer modules, a layout."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import product

from harness.experiment.balanced_layout import balanced_layout
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.recompute import NoRecompute, SelectiveRecompute
from harness.experiment.rules.rule import Finding

_SCOPES = ("attn,moe_router,moe_preprocess", "attn,moe_router", "attn,mlp", "attn")
_OVERLAP = "overlap_moe_expert_parallel_comm"
_LAYOUT = "pipeline_model_parallel_layout"
# Options, and the parts of the request that they replace.
_Change = tuple[tuple[str, ...], Mapping[str, object]]


def cure(
    spec: ExperimentSpec, judge: Callable[[ExperimentSpec], Iterable[Finding]], sources: Mapping[str, str]
) -> tuple[str, ...]:
    """Return options, of as few changes as possible, with which no finding of ``judge`` blocks; empty without any.

    What the command line sets, by ``sources``, stays.
    """
    typed = {path for path, source in sources.items() if source.startswith("-")}
    ways = product(*([((), {}), *changes(spec, typed)] for changes in _CHANGES))
    for way in sorted(ways, key=lambda way: sum(bool(words) for words, _ in way))[1:]:
        changed = spec.model_copy(update={name: part for _, parts in way for name, part in parts.items()})
        if not any(finding.blocks for finding in judge(changed)):
            return tuple(word for words, _ in way for word in words)
    return ()


def _graphs(spec: ExperimentSpec, typed: Set[str]) -> Iterator[_Change]:
    """Yield graphs of transformer-engine, the largest scope first, and none."""
    is_chosen = "cuda_graph.impl" in typed
    impl = spec.cuda_graph.impl if is_chosen else "transformer_engine"
    for scope in _SCOPES if spec.cuda_graph.impl != "none" and "cuda_graph.scope" not in typed else ():
        graph = {**spec.cuda_graph.model_dump(), "impl": impl, "scope": tuple(scope.split(","))}
        words = () if is_chosen else ("--cuda_graph_impl", impl)
        yield (*words, "--cuda_graph_scope", scope), {"cuda_graph": CudaGraphSpec.model_validate(graph)}
    if not typed & {"cuda_graph.impl", "cuda_graph.scope"}:
        yield ("--cuda_graph_impl", "none"), {"cuda_graph": CudaGraphSpec()}


def _overlap(spec: ExperimentSpec, typed: Set[str]) -> Iterator[_Change]:
    if f"kernels.{_OVERLAP}" in typed:
        return
    yield ("--set", f"kernels.{_OVERLAP}=false"), {"kernels": spec.kernels.model_copy(update={_OVERLAP: False})}


def _layout(spec: ExperimentSpec, typed: Set[str]) -> Iterator[_Change]:
    if f"parallelism.{_LAYOUT}" not in typed and (layout := balanced_layout(spec)):
        parallelism = spec.parallelism.model_copy(update={_LAYOUT: layout})
        yield ("--set", f"parallelism.{_LAYOUT}={layout}"), {"parallelism": parallelism}


def _recompute(spec: ExperimentSpec, typed: Set[str]) -> Iterator[_Change]:
    """Yield the request's modules without one of them, and no recompute."""
    if "recompute" in typed:
        return
    modules = spec.recompute.modules if isinstance(spec.recompute, SelectiveRecompute) else ()
    for name in modules if len(modules) > 1 else ():
        fewer = tuple(other for other in modules if other != name)
        yield ("--recompute", ",".join(fewer)), {"recompute": SelectiveRecompute(modules=fewer)}
    yield ("--recompute", "none"), {"recompute": NoRecompute()}


_CHANGES: tuple[Callable[[ExperimentSpec, Set[str]], Iterator[_Change]], ...] = (
    _graphs,
    _overlap,
    _recompute,
    _layout,
)
