"""Packs a run, a sweep or a night into a redacted archive."""

import gzip
import io
import tarfile
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.launch.processes import life_of
from harness.records.folders import checkout_dir, results_dir
from harness.records.inventory import FOLDERS, find_stored
from harness.records.store import write_once
from harness.results.shareable import Places, shareable
from harness.results.show import observed
from harness.show.json import Document
from harness.units import MIB, format_bytes

MAX_BYTES = 200 * MIB
SUFFIX = ".tar.gz"
_PICTURES = frozenset({".png"})
_LARGEST_NAMED = 3


class ArchiveDocument(Document):
    """``mbr-perf results archive --json``. ``left_out``: files that are not in the archive, with reasons."""

    path: Path
    files: int
    bytes: int
    left_out: tuple[str, ...]


def archive(folder: Path, target: Path, places: Places, *, max_bytes: int = MAX_BYTES) -> ArchiveDocument:
    """Write ``folder`` as one gzipped tar at ``target``, completely or not at all; redacts every text.

    BadRequestError names all problems: ``target`` exists or is not named .tar.gz, or the files are larger than
    ``max_bytes`` together.
    """
    every = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts)
    files = [path for path in every if path.is_file() and not path.is_symlink()]  # no sockets or pipes
    raise_all([*_target_problems(target), *_size_problems(files, max_bytes)])
    left_out = [f"{path.relative_to(folder)}: a link" for path in every if path.is_symlink()]
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
    return ArchiveDocument(path=target, files=count, bytes=packed.tell(), left_out=tuple(left_out))


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


def archive_stored(reference: str, target: Path, results: Path | None, *, max_bytes: int) -> ArchiveDocument:
    """Archive the named folder. BadRequestError: a process is filling it, or a problem of `archive`."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    if observed(entry).state == "running":
        raise BadRequestError(f"{entry.id}: {life_of(entry.path).reason}", remedy="archive it after it has ended")
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return archive(entry.path, target, Places.of((*known, (Path.home(), "~"))), max_bytes=max_bytes)
