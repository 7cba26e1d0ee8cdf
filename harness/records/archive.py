"""One file of a run or a sweep to send to somebody: redacted, complete as far as said, the same bytes every time."""

import gzip
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.records.redact import Places, shareable
from harness.records.store import write_once
from harness.units import MIB, format_bytes

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
