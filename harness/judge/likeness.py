"""Finds differences of two measurements that mean that their figures must not be compared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadRequestError, closest, nearest, raise_all
from harness.experiment.flops import FORMULA_VERSION
from harness.judge.coverage import NOT_LOGGED, measured_device
from harness.judge.readings import bare_uuid, combined_clocks, rank_clocks, run_clocks
from harness.records.golden import (
    ALL_KINDS,
    TIME_ONLY,
    Difference,
    GoldenRecord,
    MeasuredOn,
    setting_differences,
    unstated_options,
)
from harness.records.metrics import GateKind, RunClocks
from harness.records.run import DeviceSample, RunRecord
from harness.resolve.recipe import LEAVES, SECTION_MODELS

SOFTWARE = ("torch", "megatron-core", "transformer-engine")
GROUPS = {"software": (*SOFTWARE, "driver_version"), "hardware": ("device_name",)}
SM_CLOCK = "sm_clock_mhz"
_ENGINE = "engine.name"  # other loops do other work in a step: never compared
CLOCK_TOLERANCE = 0.03  # of the golden's median; smaller differences occur from run to run
_OF_WORK = ("recompute", "parallelism", "batch", "model", "num_gpus")
_OPEN = ("env.", "engine.", "kernels.tp_comm_overlap_cfg.")  # settings with any names below them
_FIXED = (*SOFTWARE, *GROUPS, SM_CLOCK, "device_name", "driver_version", "formula_version")


REFERENCE_RUN = ("reference run", "compare")
"""Reason and author of a golden that stands for a run in one comparison."""


def is_reference_run(golden: GoldenRecord) -> bool:
    """Return whether the golden stands for a run, and is stored nowhere."""
    return (golden.reason, golden.promoted_by) == REFERENCE_RUN


@dataclass(frozen=True)
class Likeness:
    """The differences, and caveats on values that the golden lacks."""

    differences: tuple[Difference, ...] = ()
    caveats: tuple[str, ...] = ()

    def against(self, kind: GateKind) -> tuple[Difference, ...]:
        """Return the unaccepted differences that affect gates of this kind."""
        return tuple(d for d in self.differences if kind in d.kinds and not d.accepted)

    def other_work(self) -> tuple[Difference, ...]:
        """Return the accepted differences of settings that change what a step computes by definition."""
        return tuple(d for d in self.differences if d.accepted and d.name.partition(".")[0] in _OF_WORK)


def likeness(
    record: RunRecord, golden: GoldenRecord, accept: Sequence[str] = (), clocks: RunClocks | None = None
) -> Likeness:
    """Find all differences, and mark those in ``accept``. BadRequestError for a name that is no difference."""
    raise_all(impossible_names(accept))
    found = [
        *setting_differences(golden, record.spec, record.fingerprint),
        *_environment(record, golden),
        *_clock(clocks, golden),
    ]
    reference = "reference" if is_reference_run(golden) else "golden"
    unstated = [d.name for d in found if golden.kind == "external" and d.before is None]
    differences = tuple(
        replace(d, accepted=_accepts(accept, d.name), reference=reference) for d in found if d.name not in unstated
    )
    unstated += unstated_options(golden, record.spec, record.sources)
    caveats = [f"the {reference} does not state: {', '.join(unstated)}"] if unstated else []
    return Likeness(differences, (*golden.caveats, *caveats))


def is_for(golden: GoldenRecord, record: RunRecord, accept: Sequence[str] = ()) -> bool:
    """Return whether ``golden`` has the settings of ``record``, except for differences in ``accept``."""
    found = setting_differences(golden, record.spec, record.fingerprint)
    return all(_accepts(accept, each.name) for each in found)


def _environment(record: RunRecord, golden: GoldenRecord) -> Iterable[Difference]:
    """Yield differences of hardware and software; on a CPU, processor and torch build only affect time."""
    here, there, unknown = record.provenance, golden.measured_on, NOT_LOGGED if record.imported else None
    is_cpu = record.spec.gpu_type.is_cpu
    rows = [
        ("device_name", there.device_name, measured_device(record), is_cpu),
        ("driver_version", there.driver_version, here.driver_version, False),
        *((name, there.versions.get(name), here.versions.get(name), is_cpu and name == "torch") for name in SOFTWARE),
    ]
    for name, golden_value, recorded, time_only in rows:
        current = unknown if recorded is None else recorded
        if golden_value != current:
            kinds = TIME_ONLY if time_only else ALL_KINDS
            yield Difference(name, golden_value, current, kinds=kinds, blocks=not time_only)
    if golden.formula_version != FORMULA_VERSION:
        yield Difference("formula_version", golden.formula_version, FORMULA_VERSION, kinds=TIME_ONLY)


def _clock(clocks: RunClocks | None, golden: GoldenRecord) -> Iterable[Difference]:
    """Yield a difference of SM clocks. Step times depend on the clock; memory does not."""
    here, there = clocks.sm_clock_mhz if clocks else None, golden.measured_on.sm_clock_mhz
    if here is None or there is None:
        return
    change = abs(here - there) / there if there else math.inf
    if change > CLOCK_TOLERANCE and not math.isclose(change, CLOCK_TOLERANCE, rel_tol=1e-9):
        yield Difference(SM_CLOCK, f"{there:.0f} MHz", f"{here:.0f} MHz", kinds=TIME_ONLY)


def _accepts(accept: Sequence[str], difference: str) -> bool:
    names = (name for name in accept if difference != _ENGINE)
    return any(
        difference == name or difference.startswith(f"{name}.") or difference in GROUPS.get(name, ()) for name in names
    )


def impossible_names(accept: Sequence[str]) -> list[BadRequestError]:
    """Return a problem for each name in ``accept`` that is not a package, a group, a setting or its section."""
    known = (*_FIXED, *SECTION_MODELS, *LEAVES)
    usual = f"name one of {', '.join(_FIXED)}, or a setting such as recompute or parallelism.context_parallel_size"
    return [
        BadRequestError(
            f"--accept_difference {name!r}: no such difference",
            remedy=nearest(name, known) if closest(name, known) else usual,
        )
        for name in accept
        if name not in known and not name.startswith(_OPEN)
    ]


def measured_on(records: Sequence[RunRecord]) -> MeasuredOn:
    """Return hardware and software of repeats, which are equal, and the variables that are equal in all repeats."""
    first, *others = records
    shared = {
        name: value
        for name, value in first.provenance.environment.items()
        if all(other.provenance.environment.get(name) == value for other in others)
    }
    clocks = combined_clocks(
        [run_clocks(rank_clocks(each.ranks, each.nodes, each.spec.measure.window)) for each in records]
    )
    return MeasuredOn(
        gpu=first.spec.gpu,
        device_name=measured_device(first),
        driver_version=first.provenance.driver_version,
        versions={name: first.provenance.versions.get(name) for name in SOFTWARE},
        environment=shared or None,  # none was recorded in a replay
        container=first.provenance.container,
        hostnames=tuple(sorted({name for record in records for name in hostnames(record)})),
        sm_clock_mhz=clocks.sm_clock_mhz if clocks else None,
        power_cap_share=clocks.power_cap_share if clocks else None,
    )


def own_devices(record: RunRecord) -> list[tuple[str, DeviceSample]]:
    """Return the sampled GPUs that the run used, each with its host, without other GPUs of the node."""
    own = {bare_uuid(rank.device.uuid) for rank in record.ranks if rank.device and rank.device.uuid}
    return [
        (node.hostname, device) for node in record.nodes for device in node.devices if bare_uuid(device.uuid) in own
    ]


def hostnames(record: RunRecord) -> tuple[str, ...]:
    """Return the hosts of the ranks by name; the harness's host if no rank left a record."""
    return tuple(sorted({rank.hostname for rank in record.ranks} or {record.provenance.hostname}))
