"""Packs a run, a sweep, a night or a bisect into an archive without secrets and names of folders."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from harness.errors import BadRequestError, os_errors_reported, raise_all
from harness.launch.processes import life_of
from harness.records.folders import checkout_dir, results_dir
from harness.records.inventory import FOLDERS, find_stored
from harness.records.redact import MASK, is_secret_name, redact
from harness.records.store import write_once
from harness.results.show import observed
from harness.show.json import Document
from harness.units import MIB

# Home folders, also of other machines, as records contain them. The user's name goes, the rest of the path stays.
_ANY_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"'\\:;,<>|]+|(?<![\w.~/-])/root(?=/|\b)")

_OF_VARIABLES = frozenset({"env", "environment"})


@dataclass(frozen=True)
class Places:
    """Folders of this machine and their placeholders, the most specific first."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, folders: Iterable[tuple[Path | None, str]]) -> "Places":
        """Take each folder as given and with its links resolved; skip None."""
        known: dict[str, str] = {}
        for folder, name in folders:
            for path in (folder.absolute(), folder.resolve()) if folder else ():
                if path != Path(path.anchor):
                    known.setdefault(str(path), name)
        return cls(tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def hidden(self, text: str) -> str:
        """Replace the folders and all home folders in ``text``."""
        for path, name in self.names:
            text = re.sub(rf"(?<![\w.~-]){re.escape(path)}(?![\w.-])", name, text)
        return _ANY_HOME.sub("~", text)


def shareable(name: str, text: str, places: Places) -> str:
    """Redact the text of the file ``name``: in JSON and JSON lines, only values; in HTML, only paths.

    Masks would break a page's script, and its texts come from records that were redacted when written.
    """
    suffix = Path(name).suffix
    if suffix == ".json":
        return _json(text, places, indent=1)
    if suffix == ".jsonl":
        return "".join(_json(line, places, indent=None).removesuffix("\n") + "\n" for line in text.splitlines())
    return places.hidden(text if suffix == ".html" else redact(text))


def _json(text: str, places: Places, indent: int | None) -> str:
    try:
        value = json.loads(text)  # of any program, so not as one of mbr-perf's documents
    except (ValueError, RecursionError):
        return places.hidden(redact(text))
    return json.dumps(_clean(value, places), indent=indent, ensure_ascii=False) + "\n"


def _clean(value: object, places: Places, *, variables: bool = False) -> object:
    """Redact a JSON value. ``variables``: all keys of ``value`` name variables; otherwise only keys in capitals do.

    A setting such as moe_token_dispatcher_type looks like the name of a secret, but is not.
    """
    match value:
        case str():
            return places.hidden(redact(value))
        case list():
            return [_clean(item, places) for item in value]
        case dict():
            is_pair = is_secret_name(str(value.get("name", "")))  # {"name": "HF_TOKEN", "value": "..."}
            secret = {key for key in value if is_secret_name(key) and (variables or key.isupper())}
            secret |= {"value"} if is_pair else set()
            return {
                places.hidden(key): MASK
                if isinstance(inner, str) and key in secret
                else _clean(inner, places, variables=key in _OF_VARIABLES)
                for key, inner in value.items()
            }
        case _:
            return value


SUFFIX = ".tar.gz"
_PICTURES = frozenset({".png"})


class ArchiveDocument(Document):
    """``mbr-perf results archive --json``. ``left_out``: files that are not in the archive, with reasons."""

    path: Path
    files: int
    bytes: int
    left_out: tuple[str, ...]


def archive(folder: Path, target: Path, places: Places) -> ArchiveDocument:
    """Write ``folder`` as one redacted tar at ``target``, or nothing. BadRequestError names all problems."""
    every = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts)
    files = [path for path in every if path.is_file() and not path.is_symlink()]  # no sockets or pipes
    raise_all(_target_problems(target))
    left_out = [f"{path.relative_to(folder)}: a link" for path in every if path.is_symlink()]
    binary: list[str] = []

    def pack(packed: BinaryIO) -> None:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in files:
                inside = str(path.relative_to(folder))
                content = _content(path, places)
                if content is None:
                    binary.append(f"{inside}: neither text nor a picture")
                    continue
                info = tarfile.TarInfo(f"{folder.name}/{places.hidden(inside)}")  # without owner, times, permissions
                with content:
                    info.size, info.mode = content.seek(0, io.SEEK_END), 0o644
                    content.seek(0)
                    tar.addfile(info, content)

    with os_errors_reported(f"-o {target}: cannot be written", "name a new file in a writable folder"):
        write_once(target, pack)
    size = target.stat().st_size
    return ArchiveDocument(path=target, files=len(files) - len(binary), bytes=size, left_out=(*left_out, *binary))


def _target_problems(target: Path) -> list[BadRequestError]:
    wrong = {
        f"the name must end in {SUFFIX}": not target.name.endswith(SUFFIX),
        "already exists": target.exists() or target.is_symlink(),
        "its folder does not exist": not target.absolute().parent.is_dir(),
    }
    remedy = f"name a new file, e.g. -o run{SUFFIX}"
    return [BadRequestError(f"-o {target}: {what}", remedy=remedy) for what, is_wrong in wrong.items() if is_wrong]


def _content(path: Path, places: Places) -> BinaryIO | None:
    with os_errors_reported(f"{path}: cannot be read", "make it readable for you"):
        if path.suffix in _PICTURES:
            return path.open("rb")
        try:
            with path.open(encoding="utf-8", newline="") as stream:  # in pieces: of a large binary file, only the first
                text = "".join(iter(lambda: stream.read(MIB), ""))
        except UnicodeDecodeError:
            return None
    return io.BytesIO(shareable(path.name, text, places).encode())


def archive_stored(reference: str, target: Path, results: Path | None) -> ArchiveDocument:
    """Archive the named folder. BadRequestError: a process is filling it, or a problem of `archive`."""
    folder = results_dir(results)
    entry = find_stored(reference, folder)
    if observed(entry).state == "running":
        raise BadRequestError(f"{entry.id}: {life_of(entry.path).reason}", remedy="archive it after it has ended")
    own = entry.path.parents[1] if entry.path.parent.name in FOLDERS else None  # also of another results folder
    known = ((entry.path, entry.id), (own, "RESULTS"), (folder, "RESULTS"), (checkout_dir(), "CHECKOUT"))
    return archive(entry.path, target, Places.of((*known, (Path.home(), "~"))))
