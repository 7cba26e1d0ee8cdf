"""What two measurements must have in common before their figures are compared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadRequestError, raise_all
from harness.experiment.experiment import ExperimentSpec
from harness.judging.coverage import coverage_of, measured_device
from harness.judging.metrics import GateKind
from harness.judging.readings import RunClocks, bare_uuid, combined_clocks, rank_clocks, run_clocks
from harness.planning.flops import FORMULA_VERSION
from harness.records.golden import (
    GoldenRecord,
    MeasuredOn,
    difference_text,
    leaves,
    setting_differences,
    unstated_options,
)
from harness.records.run import DeviceSample, RunRecord

SOFTWARE = ("torch", "megatron-core", "transformer-engine")
ALL_KINDS: tuple[GateKind, ...] = ("time", "memory", "exact")
TIME_ONLY: tuple[GateKind, ...] = ("time",)
GROUPS = {"software": (*SOFTWARE, "driver_version"), "hardware": ("device_name",)}
SM_CLOCK = "sm_clock_mhz"
CLOCK_TOLERANCE = 0.03  # of the golden's median; below it clocks differ from run to run
_FIXED = (*SOFTWARE, *GROUPS, SM_CLOCK, "device_name", "driver_version", "formula_version", "fingerprint")


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. ``kinds``: the gates it touches; ``blocks`` False: it only takes them out.

    ``name`` is a dotted path of the spec, a package, or ``device_name``, ``driver_version``, ``formula_version``,
    ``sm_clock_mhz``.
    """

    name: str
    golden: str | None
    current: str | None
    kinds: tuple[GateKind, ...] = ALL_KINDS
    blocks: bool = True
    accepted: bool = False

    @property
    def text(self) -> str:
        """For people: ``torch: golden 2.9.1, here 2.10.0``."""
        return difference_text(self.name, self.golden, self.current)


@dataclass(frozen=True)
class Likeness:
    """What differs, and what the golden does not say."""

    differences: tuple[Difference, ...] = ()
    caveats: tuple[str, ...] = ()

    def against(self, kind: GateKind) -> tuple[Difference, ...]:
        """Differences nobody accepted that touch gates of this kind."""
        return tuple(d for d in self.differences if kind in d.kinds and not d.accepted)


def likeness(
    record: RunRecord, golden: GoldenRecord, accept: Sequence[str] = (), clocks: RunClocks | None = None
) -> Likeness:
    """All differences, those named in ``accept`` (names, groups, or parents of a spec path) marked as accepted.

    What an external golden does not say is a caveat; in a measured one absence is a value (not installed). ``clocks``: those
    of the run, or of its repeats together.
    BadRequestError for an accepted name that can never be a difference.
    """
    possible = possible_names(accept, record, golden)
    raise_all([_no_such(name) for name in accept if name not in possible])
    found = [*_settings(record, golden), *_environment(record, golden), *_clock(clocks, golden)]
    unsaid = [d.name for d in found if golden.kind == "external" and d.golden is None]
    differences = tuple(
        replace(d, accepted=any(_covers(name, d.name) for name in accept)) for d in found if d.name not in unsaid
    )
    rows = (
        ("the golden does not say", unsaid),
        (
            "options of the run set what the golden does not state",
            unstated_options(golden, record.spec, record.sources),
        ),
    )
    caveats = (f"{told}: {', '.join(names)}" for told, names in rows if names)
    return Likeness(differences, (*golden.caveats, *caveats, *_clock_caveats(clocks, golden)))


def is_for(golden: GoldenRecord, record: RunRecord, accept: Sequence[str] = ()) -> bool:
    """Whether ``golden`` was measured with the settings of ``record``, but for differences named in ``accept``."""
    return all(any(_covers(name, found.name) for name in accept) for found in _settings(record, golden))


def _settings(record: RunRecord, golden: GoldenRecord) -> Iterable[Difference]:
    found = setting_differences(golden, record.spec, record.fingerprint)
    return [Difference(path, theirs, ours) for path, (theirs, ours) in found.items()]


def _environment(record: RunRecord, golden: GoldenRecord) -> Iterable[Difference]:
    """On a CPU the processor and the torch build decide the time, and nothing else that is measured.

    What a training log does not say is not known to be the same.
    """
    here, there, coverage = record.provenance, golden.measured_on, coverage_of(record)
    is_cpu = record.spec.gpu_type.is_cpu
    rows = [
        ("device_name", there.device_name, coverage.device_name, is_cpu),
        ("driver_version", there.driver_version, here.driver_version, False),
        *((name, there.versions.get(name), here.versions.get(name), is_cpu and name == "torch") for name in SOFTWARE),
    ]
    for name, golden_value, recorded, time_only in rows:
        current = coverage.unknown if recorded is None else recorded
        if golden_value != current:
            kinds = TIME_ONLY if time_only else ALL_KINDS
            yield Difference(name, golden_value, current, kinds=kinds, blocks=not time_only)
    if golden.formula_version != FORMULA_VERSION:
        yield Difference("formula_version", golden.formula_version, FORMULA_VERSION, kinds=TIME_ONLY)


def _clock(clocks: RunClocks | None, golden: GoldenRecord) -> Iterable[Difference]:
    """Step times follow the clock, so that at another clock they say nothing about the software; memory does not."""
    here, there = clocks.sm_clock_mhz if clocks else None, golden.measured_on.sm_clock_mhz
    if here is None or there is None:
        return
    change = abs(here - there) / there if there else math.inf
    if change > CLOCK_TOLERANCE and not math.isclose(change, CLOCK_TOLERANCE, rel_tol=1e-9):
        yield Difference(SM_CLOCK, f"{there:.0f} MHz", f"{here:.0f} MHz", kinds=TIME_ONLY)


def _clock_caveats(clocks: RunClocks | None, golden: GoldenRecord) -> tuple[str, ...]:
    """What keeps the clocks from being compared, where one side has them."""
    here, there = clocks.sm_clock_mhz if clocks else None, golden.measured_on.sm_clock_mhz
    if here is not None and there is None:
        return (f"the golden has no SM clock; this run's median is {here:.0f} MHz, so the clocks are not compared",)
    if here is None and there is not None:
        return (f"this run has no SM clock; the golden's median is {there:.0f} MHz, so the clocks are not compared",)
    if clocks is not None and clocks.over == "run" and here is not None:
        return ("this run's SM clock is of the whole run: the times of its steps or samples were not recorded",)
    return ()


def _covers(name: str, difference: str) -> bool:
    return difference == name or difference.startswith(f"{name}.") or difference in GROUPS.get(name, ())


def impossible_names(accept: Sequence[str]) -> list[BadRequestError]:
    """What is wrong with ``accept`` whatever is compared: names of no package, group, or section of a spec."""
    known = {*_FIXED, *ExperimentSpec.model_fields}
    return [_no_such(name) for name in accept if name not in known and name.partition(".")[0] not in known]


def possible_names(accept: Sequence[str], record: RunRecord, golden: GoldenRecord) -> tuple[str, ...]:
    """Those of ``accept`` that can be a difference between these two; a night accepts for all its cases at once."""
    paths = leaves(record.spec.identity()).keys() | leaves(golden.spec).keys()
    return tuple(name for name in accept if name in _FIXED or any(_covers(name, path) for path in paths))


def _no_such(name: str) -> BadRequestError:
    return BadRequestError(
        f"--accept_difference {name!r}: no such difference",
        remedy=f"name one of {', '.join(_FIXED)}, or a setting such as recompute or parallelism.context_parallel_size",
    )


def measured_on(records: Sequence[RunRecord]) -> MeasuredOn:
    """Hardware and software of repeats, which agree in both; of their variables those that are the same in all."""
    first, *others = records
    shared = {
        name: value
        for name, value in first.provenance.environment.items()
        if all(other.provenance.environment.get(name) == value for other in others)
    }
    clocks = combined_clocks([clocks_of(record) for record in records])
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


def clocks_of(record: RunRecord) -> RunClocks | None:
    """The clocks that decide the pace of a run, over its own window."""
    return run_clocks(rank_clocks(record.ranks, record.nodes, record.spec.measure.window))


def own_devices(record: RunRecord) -> list[tuple[str, DeviceSample]]:
    """The sampled GPUs that ranks of the run used, each with its host; those of others on the node are left out."""
    own = {bare_uuid(rank.device.uuid) for rank in record.ranks if rank.device and rank.device.uuid}
    return [
        (node.hostname, device) for node in record.nodes for device in node.devices if bare_uuid(device.uuid) in own
    ]


def hostnames(record: RunRecord) -> tuple[str, ...]:
    """The hosts of the ranks, by name; that of the harness where no rank left a record."""
    return tuple(sorted({rank.hostname for rank in record.ranks} or {record.provenance.hostname}))
