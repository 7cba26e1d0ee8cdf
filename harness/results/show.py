"""Shows the runs, sweeps and nights of a results folder, and packs a redacted archive of a folder."""

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.judge.derive import derive
from harness.launch.processes import life_of
from harness.records.folders import checkout_dir, results_dir
from harness.records.inventory import FOLDERS, Stored, case_state, find_stored, outcome_of
from harness.records.night import NightCase
from harness.records.redact import Places, shareable
from harness.records.run import RunRecord
from harness.records.store import write_once
from harness.records.sweep import CellData
from harness.show.figures import ABSENT
from harness.show.page import Block, Column, Facts, Line, Page, Span, Table, Words, style_of, table, tabled
from harness.units import MIB, first_line, format_bytes, format_seconds

MAX_BYTES = 200 * MIB
SUFFIX = ".tar.gz"
_PICTURES = frozenset({".png"})
_LARGEST_NAMED = 3


@dataclass(frozen=True)
class Archived:
    """The written archive. ``left_out``: files that it does not contain, each with the reason."""

    path: Path
    num_files: int
    num_bytes: int
    left_out: tuple[str, ...]


def archive(folder: Path, target: Path, places: Places, *, max_bytes: int = MAX_BYTES) -> Archived:
    """Write ``folder`` as one gzipped tar at ``target``, completely or not at all; redacts every text.

    BadRequestError names all problems: ``target`` exists or is not named .tar.gz, a link leads out of the folder, or the
    files are larger than ``max_bytes`` together.
    """
    every = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts)
    files = [path for path in every if path.is_file()]  # also behind links that stay inside; no sockets or pipes
    raise_all([*_target_problems(target), *_link_problems(folder), *_size_problems(files, max_bytes)])
    broken = (path for path in every if path.is_symlink() and not path.exists())
    left_out = [f"{path.relative_to(folder)}: a link to no file" for path in broken]
    packed = io.BytesIO()
    count = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in files:
            inside = path.relative_to(folder)
            content = _content(path, places)
            if content is None:
                left_out.append(f"{inside}: neither text nor a picture")
                continue
            _add(tar, f"{folder.name}/{places.hidden(str(inside))}", content)
            count += 1
    _write(target, packed.getvalue())
    return Archived(target, count, packed.tell(), tuple(left_out))


def _target_problems(target: Path) -> list[BadRequestError]:
    problems = []
    if not target.name.endswith(SUFFIX):
        problems.append(
            BadRequestError(f"-o {target}: the name must end in {SUFFIX}", remedy=f"e.g. -o {target.name}{SUFFIX}")
        )
    if target.exists() or target.is_symlink():
        problems.append(BadRequestError(f"-o {target}: already exists", remedy="name a new file"))
    if not target.absolute().parent.is_dir():
        problems.append(BadRequestError(f"-o {target}: its folder does not exist", remedy="create the folder first"))
    return problems


def _link_problems(folder: Path) -> list[BadRequestError]:
    root = folder.resolve()
    return [
        BadRequestError(
            f"{path}: a link that leads out of the folder",
            remedy="remove the link, or replace it with a copy of its target",
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root)  # resolve() fails for a circle
    ]


def _size_problems(files: list[Path], max_bytes: int) -> list[BadRequestError]:
    sizes = {path: path.stat().st_size for path in files}
    total = sum(sizes.values())
    if total <= max_bytes:
        return []
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_LARGEST_NAMED]
    named = ", ".join(f"{path} ({format_bytes(sizes[path])})" for path in largest)
    message = (
        f"the files have {format_bytes(total)}, more than the limit of {format_bytes(max_bytes)}; largest: {named}"
    )
    return [BadRequestError(message, remedy="raise the limit with --max_mib, or move files that you do not need")]


def _content(path: Path, places: Places) -> bytes | None:
    raw = path.read_bytes()
    if path.suffix in _PICTURES:
        return raw
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return shareable(path.name, text, places).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file without the owner, times and permissions of this machine."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))


def _write(target: Path, content: bytes) -> None:
    try:
        write_once(target, content)
    except FileExistsError as error:
        raise BadRequestError(f"-o {target}: already exists", remedy="name a new file") from error
    except OSError as error:
        raise BadRequestError(
            f"-o {target}: cannot be written: {error.strerror}", remedy="name a file in a writable folder"
        ) from error


_INDENT = 12


def observed(entry: Stored) -> Stored:
    """Return the entry with the state ``running`` if a process of this machine is filling its folder."""
    is_open = entry.state in ("incomplete", "unfinished")
    return replace(entry, state="running") if is_open and life_of(entry.path).state == "alive" else entry


def inventory_page(entries: Sequence[Stored], results: Path) -> Page:
    """Return one line per run, sweep and night, oldest first, and their total size."""
    if not entries:
        return Page((f"No run, sweep or night in {results}",))
    columns = [
        (Column("Id"), lambda entry: entry.id),
        (Column("Kind", drop=1), lambda entry: entry.kind),
        (Column("Started", drop=2), _when),
        (Column("State"), _state),
        (Column("Size", right=True, drop=3), lambda entry: format_bytes(entry.num_bytes)),
        (Column("Summary", long=True), lambda entry: first_line(entry.detail)),
    ]
    total = format_bytes(sum(entry.num_bytes for entry in entries))
    return Page((tabled(entries, columns), f"{len(entries)} in {results}, {total}"))


def run_figures(record: RunRecord) -> list[tuple[str, str]]:
    """Return step time and peak of a run; the peak so far if it did not end well."""
    metrics = derive(record)
    seconds, peak = metrics.step_time_s, metrics.peak_allocated_bytes
    least = "" if record.status == "ok" else "at least "
    return [
        ("Step time", f"{format_seconds(seconds.median)}, median of {seconds.n} steps" if seconds else ABSENT),
        ("Peak", f"{least}{format_bytes(peak.value)} allocated, rank {peak.rank}" if peak else ABSENT),
    ]


def entry_page(
    entry: Stored,
    facts: Sequence[tuple[str, str]],
    files: Sequence[tuple[str, int]],
    cells: Sequence[CellData],
    cases: Sequence[NightCase],
) -> Page:
    """Return the outcome, ``facts`` by name (metrics or process), and the cells, cases or files."""
    about: tuple[tuple[str, Words], ...] = (
        ("Folder", str(entry.path)),
        ("Started", _when(entry) or "-"),
        ("Recipe", entry.recipe or "-"),
        ("State", (_state(entry), f": {entry.detail}")),
        *facts,
        ("Size", format_bytes(entry.num_bytes)),
    )
    return Page((f"{entry.kind} {entry.id}", Facts(about, _INDENT), _parts(files, cells, cases)))


def _parts(files: Sequence[tuple[str, int]], cells: Sequence[CellData], cases: Sequence[NightCase]) -> Table:
    """Return the cells or cases as stored, without verdicts."""
    columns = ("State", "Runs", "Why")
    if cells:
        rows = [(cell.planned.name, outcome_of(cell), str(len(cell.runs)), cell.reason) for cell in cells]
        return table(("Cell", *columns), rows, right=("Runs",))
    if cases:
        done = [(case, sum(run.record is not None for run in case.runs)) for case in cases]
        rows = [(case.planned.name, case_state(case), str(num), case.planned.refused) for case, num in done]
        return table(("Case", *columns), rows, right=("Runs",))
    return table(("File", "Size"), [(name, format_bytes(size)) for name, size in files], right=("Size",))


def ailments_page(ailments: Sequence[tuple[str, Path, str, str]], results: Path) -> Page:
    """Return lines of (kind, path, problem, remedy); one line if there is no problem."""
    blocks: list[Block] = []
    for kind, path, message, remedy in ailments:
        lines = (line.strip() for text in (message, remedy) for line in text.splitlines())
        blocks.append(Line((Span(f"{kind:<{_INDENT}}", "doubt"), str(path)), hang=_INDENT))
        blocks.append(Facts(tuple(("", line) for line in dict.fromkeys(lines)), _INDENT))
    return Page(tuple(blocks) or (f"{results}: no problems",))


def _when(entry: Stored) -> str:
    """Return the start; marked with ? if it is the time of an import, as in history."""
    return entry.when if entry.is_start_known else f"{entry.when}?"


def _state(entry: Stored) -> Span:
    return Span(entry.state, style_of(entry.state, "doubt"))


def archive_stored(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> Archived:
    """Archive the named folder. BadRequestError: a process is filling it, or a problem of `archive`."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    if observed(entry).state == "running":
        raise BadRequestError(f"{entry.id}: {life_of(entry.path).reason}", remedy="archive it after it has ended")
    return archive(entry.path, target, places_of(entry, folder), max_bytes=max_bytes)


def places_of(entry: Stored, folder: Path) -> Places:
    """Return the folders whose names must not leave this machine; ``folder``: of the results."""
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return Places.of((*known, (Path.home(), "~")))
