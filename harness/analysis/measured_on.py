"""What runs were measured on, as their golden keeps it."""

from collections.abc import Sequence

from harness.analysis.clocks import RunClocks, combined_clocks, rank_clocks, run_clocks
from harness.analysis.likeness import SOFTWARE, measured_device
from harness.analysis.peaks import bare_uuid
from harness.records.golden import MeasuredOn
from harness.records.run import DeviceSample, RunRecord


def measured_on(records: Sequence[RunRecord]) -> MeasuredOn:
    """Hardware and software of repeats, which agree in both; of their variables those that are the same in all."""
    first = records[0]
    clocks = combined_clocks([clocks_of(record) for record in records])
    return MeasuredOn(
        gpu=first.spec.gpu,
        device_name=measured_device(first),
        driver_version=first.provenance.driver_version,
        versions={name: first.provenance.versions.get(name) for name in SOFTWARE},
        environment=_shared_environment(records),
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


def _shared_environment(records: Sequence[RunRecord]) -> dict[str, str] | None:
    """None where none was recorded, as in a replay."""
    first, *others = (record.provenance.environment for record in records)
    shared = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
    return shared or None
