"""The environment of a revision whose file pins versions: those versions, with everything else of this environment."""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from harness.bisect.revisions import pins_at
from harness.errors import BadRequestError
from harness.launch.build import find_build
from harness.launch.environment import Host
from harness.records.batches import Build
from harness.records.quoting import quoted_error

_PATIENCE_S = 3600.0  # a stack with torch is gigabytes


def pinned_build(repo: Path, sha: str, file: str, environments: Path, host: Host) -> Build:
    """Return the environment of a revision. Equal pins share one. BadRequestError if pip cannot install them."""
    text = pins_at(repo, sha, file)
    folder = environments / sha256(f"{sys.prefix}\n{text}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.half")
        shutil.rmtree(half, ignore_errors=True)
        python = str(half / "bin" / "python")
        _run(sys.executable, "-m", "venv", str(half))
        beneath = (
            f"site.addsitedir({path!r})" for path in sys.path if path.endswith(("site-packages", "dist-packages"))
        )
        (packages,) = half.glob("lib/python*/site-packages")
        (packages / "beneath.pth").write_text("; ".join(("import site", *beneath)) + "\n")
        (half / "pins.txt").write_text(text)
        _run(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-r", str(half / "pins.txt"))
        half.rename(folder)  # so that a killed bisect leaves no incomplete environment
    return find_build(f"{file} at {sha[:10]}:", str(folder), host)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequestError(f"{' '.join(words[:4])}: {error}") from error
    if done.returncode:
        raise BadRequestError(f"{' '.join(words[1:4])}: {quoted_error(done.stderr)}", remedy="correct the pins")
