"""Which code measures: sittings of different code are not put together."""

import hashlib
from pathlib import Path

import harness


def code_of(programs: Path) -> str:
    """Sixteen hex digits of the harness and of the folder ``programs``, by name and content.

    Not the commit: it moves when results are committed between two sittings, and an image may hold no git.
    """
    package = Path(harness.__file__).parent
    digest = hashlib.sha256()
    for folder, pattern in ((package, "**/*.py"), (programs, "*.*")):
        for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
