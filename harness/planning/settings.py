"""Every recompute setting of a request that computes something different from the others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from harness.experiment.effective import Implementation, computation, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.recompute import MODULES, FullRecompute, NoRecompute, RecomputePolicy, SelectiveRecompute
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software

# Above this many combinations, modules that free almost nothing are tried alone only.
_MANY = 16
# What forbids the window of steps to be measured, of which a prediction has none.
_OF_MEASURING = frozenset({"CPU17"})


@dataclass(frozen=True)
class Candidate:
    """One setting: the request with it, what the rules say, and modules of it without effect, each with the reason."""

    spec: ExperimentSpec
    findings: tuple[Finding, ...]
    inert_modules: dict[str, str]

    @property
    def text(self) -> str:
        """The setting as text."""
        return self.spec.recompute.text

    @property
    def is_legal(self) -> bool:
        """Whether a run with it may start, its window aside."""
        return not any(finding.blocks for finding in self.findings)

    @property
    def rules(self) -> tuple[str, ...]:
        """Ids of the rules that forbid it."""
        return tuple(finding.id for finding in self.findings if finding.blocks)


@dataclass(frozen=True)
class Candidates:
    """Settings in the order none, modules, whole layers; the asked one is always among them.

    ``inert``: modules that do nothing in this model and are therefore tried in no combination.
    """

    rows: tuple[Candidate, ...]
    inert: dict[str, str]
    skipped: tuple[str, ...] = ()


def candidates(spec: ExperimentSpec, software: Software, implementation: Implementation) -> Candidates:
    """All settings for ``spec``; LayoutError where the model cannot be cut over its pipeline stages."""
    every = effective_recompute(_with(spec, SelectiveRecompute(modules=tuple(MODULES))), implementation, software)
    modules = tuple(name for name in MODULES if name in every.modules)
    weak = _weak(spec, modules)
    policies: list[RecomputePolicy] = [NoRecompute(), *_selective(modules, weak), *_full(spec)]
    rows: list[Candidate] = []
    seen: list[object] = []
    for policy in (spec.recompute, *policies):
        asked = _with(spec, policy)
        what = computation(asked, software)
        if what in seen:
            continue
        seen.append(what)
        effect = effective_recompute(asked, implementation, software)
        findings = tuple(f for f in check(asked, software, implementation=implementation) if f.id not in _OF_MEASURING)
        rows.append(Candidate(asked, findings, effect.inert_modules))
    rows.sort(key=lambda row: _place(row.spec.recompute, policies))
    skipped = tuple(f"{name} with other modules: it frees almost nothing" for name in sorted(weak))
    return Candidates(tuple(rows), every.inert_modules, skipped)


def _with(spec: ExperimentSpec, policy: RecomputePolicy) -> ExperimentSpec:
    return spec.model_copy(update={"recompute": policy})


def _weak(spec: ExperimentSpec, modules: tuple[str, ...]) -> frozenset[str]:
    """core_attn behind flash-like attention, where there are many combinations without it."""
    if len(list(_subsets(modules))) <= _MANY or spec.kernels.attention_backend == "unfused":
        return frozenset()
    return frozenset({"core_attn"}) & set(modules)


def _selective(modules: tuple[str, ...], weak: frozenset[str]) -> Iterator[SelectiveRecompute]:
    for subset in _subsets(modules):
        if len(subset) == 1 or not weak & set(subset):
            yield SelectiveRecompute(modules=subset)


def _subsets(modules: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Non-empty subsets, small ones first; without parts of `moe` beside `moe`, which would run a third time for nothing."""
    for size in range(1, len(modules) + 1):
        for subset in combinations(modules, size):
            if "moe" not in subset or not {"moe_act", "shared_experts"} & set(subset):
                yield subset


def _full(spec: ExperimentSpec) -> Iterator[FullRecompute]:
    """Uniform N for every N that divides some chunk, block N up to the largest chunk; the rules remove what does not fit."""
    sizes = {len(chunk.layers) for stage in chunks(spec.model, spec.parallelism) for chunk in stage if chunk.layers}
    for n in sorted({n for size in sizes for n in range(1, size + 1) if size % n == 0}):
        yield FullRecompute(method="uniform", num_layers=n)
    for n in range(1, max(sizes, default=0) + 1):
        yield FullRecompute(method="block", num_layers=n)


def _place(policy: RecomputePolicy, order: Iterable[RecomputePolicy]) -> int:
    """Position among the enumerated; a setting of the request's own spelling behind those of its kind."""
    order = list(order)
    if policy in order:
        return order.index(policy)
    last = [i for i, other in enumerate(order) if other.granularity == policy.granularity]
    return last[-1] if last else len(order)
