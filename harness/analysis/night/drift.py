"""In what the machine and the software of runs differ from the golden's, also where it does not stand in the way."""

from collections.abc import Sequence

from harness.analysis.likeness import SOFTWARE, Difference, Likeness
from harness.records.golden import GoldenRecord
from harness.records.run import RunRecord

_MACHINE = (*SOFTWARE, "device_name", "driver_version")


def drift_of(records: Sequence[RunRecord], golden: GoldenRecord, alike: Likeness) -> tuple[Difference, ...]:
    """Device, driver and packages as `analysis.likeness` found them, then container and variables of the ranks; no settings.

    Older goldens keep neither container nor variables: these are then no drift.
    """
    found = [difference for difference in alike.differences if difference.name in _MACHINE]
    stored, image = golden.measured_on.environment, golden.measured_on.container
    if stored is not None:
        images = [record.provenance.container for record in records]
        found += [Difference("container", image, here, blocks=False) for here in images if here != image]
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
