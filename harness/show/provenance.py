"""Shows where the figures of a report come from: machine, software, command, and links to runs and their logs."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.records.run import Provenance, RunRecord
from harness.records.store import RECORD
from harness.show.page import Column, Facts, Span, Table, Words
from harness.units import format_seconds

_PROGRAM = "mbr-perf"
_OWN_FILES = frozenset({_PROGRAM, "app.py", "__main__.py"})
_SOFTWARE = ("torch", "megatron-core", "transformer-engine")
_MOST_VALUES, _MOST_LOGS = 4, 4
WIDTH = 20
"""The column in which the values begin."""


def command_text(command: Sequence[str]) -> str:
    """Return the command as a shell takes it. mbr-perf goes by its name, wherever it was installed."""
    if not command:
        return ""
    program = _PROGRAM if Path(command[0]).name in _OWN_FILES else command[0]
    return shlex.join([program, *command[1:]])


def machine_facts(runs: Iterable[Provenance], first: Sequence[tuple[str, Words]] = ()) -> Facts:
    """``first``, then hardware, host, driver and software of the runs.

    Runs that differ give several values; none: left out.
    """
    where = list(runs)
    rows = ((name, _values(read(provenance) for provenance in where)) for name, read in _ROWS.items())
    return Facts((*first, *((name, value) for name, value in rows if value)), WIDTH)


def _version(name: str) -> Callable[[Provenance], str | None]:
    return lambda provenance: provenance.versions.get(name)


def _commit(provenance: Provenance) -> str | None:
    """Return the commit of mbr-perf's checkout, with the branch; records mark local changes by a plus sign."""
    if provenance.git_commit is None:
        return None
    changed = "with local changes" if provenance.git_commit.endswith("+") else ""
    branch = f"on {provenance.git_branch}" if provenance.git_branch else ""
    return " ".join(filter(None, (provenance.git_commit.rstrip("+")[:12], branch, changed)))


_ROWS: dict[str, Callable[[Provenance], str | None]] = {
    "Hardware": lambda provenance: provenance.device_name or provenance.processor,
    "Driver": lambda provenance: provenance.driver_version,
    **{name: _version(name) for name in _SOFTWARE},
    "mbr-perf": lambda provenance: provenance.mbr_perf,
    "git commit": _commit,
    "Host": lambda provenance: provenance.hostname,
    "Container": lambda provenance: provenance.container,
    "Cluster job": lambda provenance: provenance.job_id,
}


def _values(found: Iterable[str | None]) -> str:
    values = list(dict.fromkeys(value for value in found if value))
    more = len(values) - _MOST_VALUES
    return "; ".join([*values[:_MOST_VALUES], *([f"and {more} more"] if more > 0 else [])])


def run_table(runs: Iterable[tuple[str, Path, RunRecord | None]], folder: Path) -> Table:
    """Return a row per run: its name, how it ended, and links from a page in ``folder`` to its record and logs."""

    def row(name: str, run_dir: Path, record: RunRecord | None) -> tuple[Words, ...]:
        where = record.provenance if record else None
        return (
            name,
            record.status if record else "not finished",
            where.started_at[:19].replace("T", " ") if where else "",
            format_seconds(where.duration_s) if where else "",
            where.hostname if where else "",
            _linked([run_dir / RECORD], folder),
            _linked(_logs(run_dir), folder),
        )

    columns = ("Run", "Status", "Started (UTC)", "Duration", "Host", "Record", "Logs")
    right = ("Duration",)
    return Table(
        tuple(Column(name, right=name in right, optional=name in ("Host", "Record", "Logs")) for name in columns),
        tuple(row(*run) for run in runs),
    )


def _logs(run_dir: Path) -> list[Path]:
    """Return the launcher's log first; of many the first few."""
    logs = sorted((run_dir / "logs").rglob("*.log"), key=lambda path: (not path.name.startswith("launcher"), path))
    return logs[:_MOST_LOGS]


def _linked(paths: Iterable[Path], folder: Path) -> Words:
    """Names of the files that exist, each with its relative address."""
    parts: list[str | Span] = []
    for path in (path for path in paths if path.is_file()):
        address = quote(Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix())
        parts += [*([", "] if parts else []), Span(_short(path), link=address)]
    return tuple(parts)


def _short(path: Path) -> str:
    """From ``logs`` on, or the file's own name."""
    return "/".join(path.parts[path.parts.index("logs") + 1 :]) if "logs" in path.parts else path.name
