"""``harness.json`` of a run or sweep folder: the process that filled it, known so that no other is taken for it."""

from harness.records.rank import SCHEMA_VERSION
from harness.spec.frozen import Frozen

OWNER, RELEASED = "harness.json", "released.json"


class Owner(Frozen):
    """A process of one machine and one boot. ``start_ticks`` is since boot; ids of the kernel's tell boots and containers."""

    schema_version: int = SCHEMA_VERSION
    hostname: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
