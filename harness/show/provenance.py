"""Shows where the figures of a report come from: machine, software and command."""

import shlex
from collections.abc import Callable, Iterable, Sequence

from harness.records.run import Provenance
from harness.show.page import Facts, Words

_SOFTWARE = ("torch", "megatron-core", "transformer-engine")
WIDTH = 20


def command_text(command: Sequence[str]) -> str:
    """Return the command as a shell takes it. mbr-perf goes by its name, wherever it was installed."""
    return shlex.join(["mbr-perf", *command[1:]]) if command else ""


def machine_facts(runs: Iterable[Provenance], first: Sequence[tuple[str, Words]] = ()) -> Facts:
    """Return ``first``, then hardware, host, driver and software of the runs; several values where they differ."""
    where = list(runs)
    rows = ((name, "; ".join(dict.fromkeys(filter(None, map(read, where))))) for name, read in _ROWS.items())
    return Facts((*first, *(row for row in rows if row[1])), WIDTH)


def _version(name: str) -> Callable[[Provenance], str | None]:
    return lambda provenance: provenance.versions.get(name)


def _commit(text: str) -> str:
    return f"{text.rstrip('+')[:12]}{' with local changes' * text.endswith('+')}"


_ROWS: dict[str, Callable[[Provenance], str | None]] = {
    "Hardware": lambda provenance: provenance.device_name or provenance.processor,
    "Driver": lambda provenance: provenance.driver_version,
    **{name: _version(name) for name in _SOFTWARE},
    "mbr-perf": lambda provenance: provenance.mbr_perf,
    "git commit": lambda provenance: _commit(provenance.git_commit or ""),
    "Host": lambda provenance: provenance.hostname,
    "Container": lambda provenance: provenance.container,
    "Cluster job": lambda provenance: provenance.job_id,
}
