"""Lists installed packages whose version differs from a constraints file; exits with 1 if there are any.

``--list NAME ...`` names the installed versions instead.
What follows a ``+`` (2.13.0+cpu) is the build, not the version.
"""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def pinned(text: str) -> dict[str, str]:
    """Map package to version, from lines ``name==version``."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return dict(line.split("==") for line in lines if line)


def differing(pins: dict[str, str]) -> list[str]:
    """Return a line for every installed package whose version is not the pinned one; absent ones were not asked for."""
    found = []
    for name, wanted in pins.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if installed.partition("+")[0] != wanted:
            found.append(f"{name} {installed}, tested: {wanted}")
    return found


def installed(name: str) -> str:
    """Return name and version, or say that it is missing."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def main() -> int:
    """Compare this Python's packages with the file named on the command line, or list them."""
    if sys.argv[1] == "--list":
        print(", ".join(map(installed, sys.argv[2:])) + f", Python {platform.python_version()}")  # noqa: T201
        return 0
    path = Path(sys.argv[1])
    lines = differing(pinned(path.read_text()))
    if lines:
        sys.stderr.write("\n  ".join([f"installed in other versions than in {path}:", *lines]) + "\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
