"""Shows the runs, sweeps and nights of a results folder, and packs one to give away: redacted, complete as far as it says."""

import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.judging.derive import derive
from harness.launch.processes import life_of
from harness.records.inventory import FOLDERS, Stored, case_state, find_stored, outcome_of
from harness.records.night import NightCase
from harness.records.redact import Places, shareable
from harness.records.run import RunRecord
from harness.records.store import checkout_dir, results_dir, write_once
from harness.records.sweep import CellData
from harness.showing.figures import ABSENT
from harness.showing.page import Block, Column, Facts, Line, Page, Span, Table, Words, style_of, table, tabled
from harness.units import MIB, format_bytes, format_seconds

MAX_BYTES = 200 * MIB
SUFFIX = ".tar.gz"
_PICTURES = frozenset({".png"})
_LARGEST_NAMED = 3


@dataclass(frozen=True)
class Archived:
    """What was written. ``left_out``: files that are not in it, each with the reason."""

    path: Path
    num_files: int
    num_bytes: int
    left_out: tuple[str, ...]


def archive(folder: Path, target: Path, places: Places, *, max_bytes: int = MAX_BYTES) -> Archived:
    """Write ``folder`` as one gzipped tar at ``target``, whole or not at all; every text in it is redacted.

    BadRequestError, all at once: ``target`` is there already or is not called .tar.gz, a link leads out of the folder,
    the files are more than ``max_bytes`` together.
    """
    files = sorted(_files(folder), key=lambda path: path.relative_to(folder).parts)
    raise_all([*_target_problems(target), *_link_problems(folder), *_size_problems(files, max_bytes)])
    left_out: list[str] = []
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


def _files(folder: Path) -> Iterator[Path]:
    """Regular files, those behind links that stay inside included; sockets and pipes are not files."""
    return (path for path in folder.rglob("*") if path.is_file())


def _target_problems(target: Path) -> list[BadRequestError]:
    problems = []
    if not target.name.endswith(SUFFIX):
        problems.append(BadRequestError(f"-o {target}: not called *{SUFFIX}", remedy=f"e.g. -o {target.name}{SUFFIX}"))
    if target.exists() or target.is_symlink():
        problems.append(BadRequestError(f"-o {target}: is there already", remedy="name a new file"))
    if not target.absolute().parent.is_dir():
        problems.append(BadRequestError(f"-o {target}: its folder does not exist", remedy="make it first"))
    return problems


def _link_problems(folder: Path) -> list[BadRequestError]:
    root = folder.resolve()
    return [
        BadRequestError(f"{path}: a link that leads out of the folder", remedy="take it away, or copy what it means")
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() and not path.resolve().is_relative_to(root)
    ]


def _size_problems(files: list[Path], max_bytes: int) -> list[BadRequestError]:
    sizes = {path: path.stat().st_size for path in files}
    total = sum(sizes.values())
    if total <= max_bytes:
        return []
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_LARGEST_NAMED]
    named = ", ".join(f"{path} ({format_bytes(sizes[path])})" for path in largest)
    message = f"{format_bytes(total)} of files are more than the limit of {format_bytes(max_bytes)}; largest: {named}"
    return [BadRequestError(message, remedy="raise it with --max_mib, or move what is not needed")]


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
    """Without owner, times and permissions of this machine."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))


def _write(target: Path, content: bytes) -> None:
    try:
        write_once(target, content)
    except FileExistsError as error:
        raise BadRequestError(f"-o {target}: is there already", remedy="name a new file") from error
    except OSError as error:
        raise BadRequestError(f"-o {target}: cannot be written: {error.strerror}") from error


_INDENT = 12


def observed(entry: Stored) -> Stored:
    """The entry as it is now: ``running`` where a process of this machine is still filling its folder."""
    is_open = entry.state in ("incomplete", "unfinished")
    return replace(entry, state="running") if is_open and life_of(entry.path).state == "alive" else entry


def inventory_page(entries: Sequence[Stored], results: Path) -> Page:
    """One line per run, sweep and night, oldest first, and what they weigh together."""
    if not entries:
        return Page((f"No run, sweep or night in {results}",))
    columns = [
        (Column("Id"), lambda entry: entry.id),
        (Column("Kind"), lambda entry: entry.kind),
        (Column("Started"), _when),
        (Column("State"), _state),
        (Column("Size", right=True), lambda entry: format_bytes(entry.num_bytes)),
        (Column("What", long=True), _short),
    ]
    total = format_bytes(sum(entry.num_bytes for entry in entries))
    return Page((tabled(entries, columns), f"{len(entries)} in {results}, {total}"))


def run_figures(record: RunRecord) -> list[tuple[str, str]]:
    """Step time and peak of a run; of one that did not end well the peak so far."""
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
    """What became of it, ``facts`` by name, as of its figures or of who fills it, and its cells, cases or else files."""
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
    """The cells or cases as they lie on disk, unjudged."""
    columns = ("State", "Runs", "Why")
    if cells:
        rows = [(one.planned.name, outcome_of(one), str(len(one.runs)), one.reason) for one in cells]
        return table(("Cell", *columns), rows, right=("Runs",))
    if cases:
        done = [(case, sum(run.record is not None for run in case.runs)) for case in cases]
        rows = [(case.planned.name, case_state(case), str(num), case.planned.refused) for case, num in done]
        return table(("Case", *columns), rows, right=("Runs",))
    return table(("File", "Size"), [(name, format_bytes(size)) for name, size in files], right=("Size",))


def ailments_page(ailments: Sequence[tuple[str, Path, str, str]], results: Path) -> Page:
    """Lines of (kind, path, what is not in order, what to do); one line when there are none."""
    blocks: list[Block] = []
    for kind, path, message, remedy in ailments:
        lines = (line.strip() for text in (message, remedy) for line in text.splitlines())
        blocks.append(Line((Span(f"{kind:<{_INDENT}}", "doubt"), str(path)), hang=_INDENT))
        blocks.append(Facts(tuple(("", line) for line in dict.fromkeys(lines)), _INDENT))
    return Page(tuple(blocks) or (f"{results}: nothing is out of order",))


def _when(entry: Stored) -> str:
    """Marked where it is the time of an import, as in history."""
    return entry.when if entry.is_start_known else f"{entry.when}?"


def _state(entry: Stored) -> Span:
    return Span(entry.state, style_of(entry.state, "doubt"))


def _short(entry: Stored) -> str:
    """The first line; failures carry the words of libraries."""
    return entry.detail.strip().splitlines()[0] if entry.detail.strip() else ""


def give(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> Archived:
    """Archive what ``reference`` means. BadRequestError while a process is filling it, and as `archive` says."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    if observed(entry).state == "running":
        raise BadRequestError(f"{entry.id}: {life_of(entry.path).reason}", remedy="archive it when it has ended")
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return archive(entry.path, target, Places.of((*known, (Path.home(), "~"))), max_bytes=max_bytes)
