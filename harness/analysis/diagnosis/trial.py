"""What an A/B of the allocator has shown: the same job without and with expandable segments."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.diagnosis.seen_in_memory import is_device_oom
from harness.analysis.diagnosis.values import Case
from harness.spec.experiment import ExperimentSpec


@dataclass(frozen=True, slots=True)
class Trial:
    """``confirmed``: whether fragmentation was the cause; None where the runs do not show it. ``told``: why, in one sentence."""

    confirmed: bool | None
    told: str


def allocator_trial(cases: Sequence[Case]) -> Trial | None:
    """Judge runs of one job, some without and some with expandable segments; None where they are no such trial."""
    without = [case for case in cases if case.expandable_segments is False]
    with_them = [case for case in cases if case.expandable_segments is True]
    if not without or not with_them or len(without) + len(with_them) != len(cases):
        return None
    if not _are_alike(cases):
        return Trial(None, "The runs differ in more than the allocator: nothing is proved about fragmentation.")
    full = [case for case in without if is_device_oom(case)]
    still = [case for case in with_them if is_device_oom(case)]
    well = [case for case in with_them if case.status == "ok"]
    before, after = f"{len(full)} of {len(without)} runs without", f"{len(still)} of {len(with_them)} with"
    counts = f"{before} expandable segments ran out of memory, {after} them"
    if not full:
        return Trial(None, f"{counts}: without a failure nothing is shown.")
    if len(full) == len(without) and len(well) == len(with_them):
        return Trial(True, f"{counts}: fragmentation is confirmed.")
    if len(still) == len(with_them):
        return Trial(False, f"{counts}: fragmentation is refuted.")
    return Trial(None, f"{counts}: too mixed to tell; repeat it with --repeats 3.")


def _are_alike(cases: Sequence[Case]) -> bool:
    """Whether all known settings but the allocator's variables agree."""
    known = [_but_allocator(case.spec) for case in cases if case.spec]
    return len(known) in (0, len(cases)) and all(one == known[0] for one in known)


def _but_allocator(spec: ExperimentSpec) -> dict[str, object]:
    env = {
        name: value
        for name, value in spec.env.items()
        if not name.endswith("_ALLOC_CONF") and name != "NCCL_GRAPH_REGISTER"
    }
    return spec.model_copy(update={"env": env}).identity()
