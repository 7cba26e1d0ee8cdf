"""The environment of a revision whose file pins versions: those versions, with everything else of this environment."""

import subprocess
import sys
from fcntl import LOCK_EX, flock
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from harness.bisect.revisions import pins_at
from harness.errors import BadRequestError, os_errors_reported
from harness.launch.build import find_build
from harness.launch.environment import Host
from harness.records.batches import Build
from harness.records.quoting import quoted_error

_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--quiet")
_PATIENCE_S = 3600.0  # a stack with torch is gigabytes


def pinned_build(repo: Path, sha: str, file: str, environments: Path, host: Host) -> Build:
    """Return the environment of a revision. Equal pins share one. BadRequestError if pip cannot install them."""
    text = pins_at(repo, sha, file)
    folder = environments / sha256(f"{sys.prefix}\n{text}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        environments.mkdir(parents=True, exist_ok=True)
        lock = environments / f"{folder.name}.lock"
        with os_errors_reported(str(lock), "name a --results_dir on another disk"), lock.open("a") as held:
            flock(held, LOCK_EX)  # waits for another bisect that installs the same
            if not folder.is_dir():
                _install(environments / f"{folder.name}.half", text, folder)
    return find_build(f"{file} at {sha[:10]}:", str(folder), host)


def _install(half: Path, text: str, folder: Path) -> None:
    """Install into ``half``, then rename it. A killed bisect leaves ``half``, which the next one removes."""
    rmtree(half, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(half))
    sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages,) = half.glob("lib/python*/site-packages")
    beneath = "; ".join(("import site", *map("site.addsitedir({!r})".format, sites)))
    (packages / "beneath.pth").write_text(f"{beneath}\n")
    (pins := half / "pins.txt").write_text(text)
    _run(str(half / "bin" / "python"), *_PIP, "-r", str(pins))
    half.rename(folder)


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequestError(f"{' '.join(words[:4])}: {error}") from error
    if done.returncode:
        raise BadRequestError(f"{' '.join(words[1:4])}: {quoted_error(done.stderr)}", remedy="correct the pins")
