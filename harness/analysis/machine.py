"""Whether the runs of a sweep were measured on one machine."""

from collections.abc import Iterable, Sequence

from harness.analysis.likeness import measured_device
from harness.records.run import RunRecord
from harness.records.sweeps import CellData, SweepData


def first_run(data: SweepData) -> RunRecord | None:
    """The run whose machine is that of the sweep: the control's first that ended well, or else any cell's first."""
    cells: tuple[CellData, ...] = (data.control, *data.cells)
    return next((run for cell in cells for run in cell.runs if run.status == "ok"), None)


def elsewhere(data: SweepData, hostname: str) -> str:
    """What going on with the sweep on that host would do to it; empty on the host where it began."""
    first = first_run(data)
    if first is None or first.provenance.hostname == hostname:
        return ""
    began = first.provenance.hostname
    return f"the sweep began on {began}, this is {hostname}: what is measured here will be in doubt, never recommended"


def another_machine(runs: Sequence[RunRecord], first: RunRecord | None) -> str:
    """In what the machines of ``runs`` differ from that of ``first``; empty where nothing known does."""
    if first is None:
        return ""
    expected = dict(_machine(first))
    found = dict.fromkeys(row for run in runs for row in _machine(run))
    other = [f"{name} {here}, not {expected[name]}" for name, here in found if here != expected.get(name, here)]
    return f"measured on another machine than the first run: {'; '.join(other)}" if other else ""


def _machine(run: RunRecord) -> Iterable[tuple[str, str]]:
    """What is known of it: a driver, for one, only where NVML could be asked."""
    where = run.provenance
    rows = (("device", measured_device(run)), ("host", where.hostname), ("driver", where.driver_version))
    return [(name, value) for name, value in rows if value is not None]
