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
    found = ((name, installed(name), wanted) for name, wanted in pins.items())
    return [f"{name} {has}, tested: {wanted}" for name, has, wanted in found if has and has.partition("+")[0] != wanted]


def installed(name: str) -> str:
    """Return the version, empty if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def main() -> int:
    """Compare this Python's packages with the file named on the command line, or list them."""
    if sys.argv[1] == "--list":
        listed = (f"{name} {has}" if (has := installed(name)) else f"no {name}" for name in sys.argv[2:])
        print(*listed, f"Python {platform.python_version()}", sep=", ")  # noqa: T201
        return 0
    path = Path(sys.argv[1])
    lines = differing(pinned(path.read_text()))
    if lines:
        sys.stderr.write("\n  ".join([f"installed in other versions than in {path}:", *lines]) + "\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
