"""The cases of the files that travel with mbr-perf: traces, and requests for memory."""

from collections.abc import Iterator
from itertools import product

from harness.experiment.effective import NO_SOFTWARE, Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import NoRecompute
from harness.experiment.software import Software
from harness.predict.search import traced_policies
from harness.predict.trace_cases import CaseMaker
from harness.records.trace import TraceCase


def every_case(
    spec: ExperimentSpec, implementation: Implementation, software: Software = NO_SOFTWARE
) -> Iterator[TraceCase]:
    """Yield all traces for the settings of ``spec`` under any pipeline layout and number of GPUs.

    Some of them several times.
    """
    spec = _eager(spec)
    make, kinds, offload = CaseMaker(spec, implementation, software), spec.model.layer_kinds, spec.offload
    for kind, policy in product(sorted(set(kinds)), traced_policies(spec, implementation, software)):
        yield from (make.layers(kind, policy, n) for n in (1, 2))
        if offload.cpu_offloading_num_layers or offload.offload_modules:
            yield from (make.offloaded(kind, policy, n) for n in (1, 2, 3))
        if kind in (kinds[0], kinds[-1]):
            yield make.first(kind, policy)
        if kind == kinds[-1]:
            mtp = [True] * bool(spec.model.mtp_num_layers) + [False] * isinstance(policy, NoRecompute)
            yield from (make.last(kind, policy, pre=pre, mtp=with_mtp) for pre in (False, True) for with_mtp in mtp)


def event_cases(
    spec: ExperimentSpec, implementation: Implementation, software: Software = NO_SOFTWARE
) -> Iterator[TraceCase]:
    """Yield the cases from whose requests for memory every setting of ``spec`` is composed, under any layout."""
    spec = _eager(spec)
    make, kinds = CaseMaker(spec, implementation, software), spec.model.layer_kinds
    for kind, policy in product(sorted(set(kinds)), traced_policies(spec, implementation, software)):
        yield make.layers(kind, policy, 3)
    has_mtp = bool(spec.model.mtp_num_layers)
    for pre, mtp in product((True, False), {False, has_mtp}):
        yield make.last(kinds[-1], NoRecompute(), pre=pre, mtp=mtp)
    for policy in traced_policies(spec, implementation, software) if has_mtp else ():
        yield make.last(kinds[-1], policy, pre=False, mtp=True)


def _eager(spec: ExperimentSpec) -> ExperimentSpec:
    """``spec`` without CUDA graphs, under which some modules recompute nothing: a plan may leave the graphs out."""
    graph = spec.cuda_graph.model_copy(update={"impl": "none", "scope": ()})
    return spec.model_copy(update={"cuda_graph": graph})
