"""Which code measures: sittings of different code are not put together."""

import hashlib
from pathlib import Path

import harness
from harness.runner.provenance import git_commit

CHANGED = "+"


def code_of(programs: Path) -> str:
    """The checkout's commit, with ``+`` where more than results differs from it; without git, a digest of what measures."""
    return git_commit(".", ":!results") or f"sources:{_digest(programs)}"


def is_changed(code: str | None) -> bool:
    """Whether there were changes that no commit holds: such code is equal to none, not even to itself."""
    return (code or "").endswith(CHANGED)


def _digest(programs: Path) -> str:
    """Sixteen hex digits of the harness and of the folder ``programs``, by name and content."""
    package = Path(harness.__file__).parent
    digest = hashlib.sha256()
    for folder, pattern in ((package, "**/*.py"), (programs, "*.*")):
        for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
