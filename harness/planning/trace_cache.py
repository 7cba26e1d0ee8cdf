"""Traces kept on disk: one file per traced chunk, in a folder named after everything that decides its content."""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.records.atomic import write_atomically
from harness.records.trace import ChunkTrace
from harness.spec.frozen import Frozen


class CachedTrace(Frozen):
    """A traced chunk, or the reason why the tracer declined it; the versions are for people who look inside."""

    megatron_core: str
    torch: str
    stand_in: str | None = None
    chunk: ChunkTrace | None = None
    refused: str | None = Field(default=None)


def tracer_fingerprint(package: Path, installed: Iterable[str | None]) -> str:
    """Sixteen hex digits of the tracer's sources, the tables behind specs, and what is ``installed``.

    ``package`` is the folder of this package; ``installed``: versions, and stamps of files where a version says too
    little. A changed stand-in, adaptation or precision row never meets old traces.
    """
    return source_fingerprint(package, ("engine", "spec", "records/trace.py"), installed)


def source_fingerprint(package: Path, parts: Iterable[str], installed: Iterable[str | None]) -> str:
    """Sixteen hex digits of what is ``installed`` and of the sources in ``parts``, files and folders of ``package``."""
    digest = hashlib.sha256("\n".join(map(str, installed)).encode())
    for part in parts:
        root = package / part
        for source in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            digest.update(str(source.relative_to(package)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TraceCache:
    """Safe for concurrent use: files are written whole and renamed, and equal names hold equal content."""

    folder: Path

    def read(self, key: str, imbalance: float) -> CachedTrace | None:
        """None where there is nothing, or nothing readable: the trace is then made and written again."""
        try:
            return CachedTrace.model_validate_json(self._file(key, imbalance).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, key: str, imbalance: float, trace: CachedTrace) -> None:
        """Keep one trace. A folder that cannot be written costs time at the next question, not the answer to this one."""
        file = self._file(key, imbalance)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, trace.model_dump_json())

    def _file(self, key: str, imbalance: float) -> Path:
        return self.folder / f"{key}-{imbalance:g}.json"
