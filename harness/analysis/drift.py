"""In what the machine and the software of runs differ from the golden's, also where it does not stand in the way."""

from collections.abc import Sequence

from harness.analysis.likeness import SOFTWARE, Difference, Likeness
from harness.records.golden import GoldenRecord
from harness.records.run import RunRecord

_MACHINE = (*SOFTWARE, "device_name", "driver_version")


def drift_of(records: Sequence[RunRecord], golden: GoldenRecord, alike: Likeness) -> tuple[Difference, ...]:
    """Device, driver and packages as `analysis.likeness` found them, then variables of the ranks; no differing settings.

    Variables that a golden does not keep are no drift.
    """
    found = [difference for difference in alike.differences if difference.name in _MACHINE]
    stored = golden.measured_on.environment
    if stored is not None:
        found += [d for record in records for d in _variables(record, stored)]
    return tuple(dict.fromkeys(found))


def _variables(record: RunRecord, stored: dict[str, str]) -> list[Difference]:
    here = record.provenance.environment
    names = sorted(here.keys() | stored.keys())
    return [
        Difference(f"environment.{name}", stored.get(name), here.get(name), blocks=False)
        for name in names
        if stored.get(name) != here.get(name)
    ]
