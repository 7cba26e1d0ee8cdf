"""Fetch transformer-engine's Python, once per version, into the cache that `tests/real_te` reads; print the folder.

Usage: ``fetch_te.py VERSION``. The wheel holds all of it beside a compiled library that the tests replace.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The one platform with wheels whose name does not depend on the machine; nothing compiled is kept.
PLATFORM = "manylinux_2_28_x86_64"


def folder_of(version: str) -> Path:
    """Return `$XDG_CACHE_HOME/mbr-perf/te/VERSION`, by default below `~/.cache`."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "mbr-perf" / "te" / version


def download(version: str, into: Path) -> Path:
    """Return the wheel of ``version``; raises CalledProcessError with pip's own words."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", f"--platform={PLATFORM}", f"--dest={into}", f"transformer_engine_cu13=={version}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(into.glob("*.whl"))


def unpack(wheel: Path, into: Path) -> None:
    """Unpack only the Python files, and the version metadata of an installed transformer-engine."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.endswith(".py")])
    version = wheel.name.split("-")[1]
    metadata = into / f"transformer_engine-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: transformer_engine\nVersion: {version}\n")


def fetch(version: str) -> Path:
    """Return the folder with the package; a rename makes it appear whole or not at all."""
    target = folder_of(version)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"fetching transformer-engine {version} (about 180 MB, once)\n")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        python = Path(scratch) / "python"
        unpack(download(version, Path(scratch)), python)
        try:
            python.rename(target)
        except OSError:
            if not target.is_dir():  # another process was first
                raise
    return target


def main() -> int:
    """Fetch the version named on the command line; exit 2 where that fails."""
    version = sys.argv[1]
    try:
        folder = fetch(version)
    except (subprocess.CalledProcessError, OSError) as error:
        lines = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else [str(error)]
        sys.stderr.write(
            f"cannot fetch transformer-engine {version}: {lines[-1] if lines else 'pip failed'}\n"
            f"Its tests need network access once, or its Python in {folder_of(version)}.\n"
        )
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
