"""What files a folder holds, by size and time of change: cheap enough to be asked at every command."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


def tree_stamps(root: Path) -> Iterator[str]:
    """A file, or all files below a folder, each with size and time of change; byte code is no input."""
    if not root.is_dir():
        yield file_stamp(root)
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            yield file_stamp(os.path.join(folder, name))  # noqa: PTH118 several times faster than Path, for many files


def file_stamp(path: str | Path) -> str:
    """One line that another content changes, ``none`` at its end where there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 as above
    except OSError:
        return f"{path} none"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def megatron_core_stamps() -> Iterator[str]:
    """Of the megatron-core that would be imported, which is not: a checkout may change while its version does not."""
    found = find_spec("megatron")
    for folder in (found.submodule_search_locations or ()) if found else ():
        yield from tree_stamps(Path(folder) / "core")
