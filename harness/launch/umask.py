"""Files of runs are nobody else's: whatever the shell's umask says, other users can neither read nor write them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

OF_PROCESSES = 0o027
"""Of agents, ranks and samplers: the group may read, as it may in run folders."""

_OF_OTHERS = 0o007


def open_log(path: Path) -> BinaryIO:
    """The file to append to, made for this user to write and the group to read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640), "ab")


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Inside the block, what this process makes is closed to other users; the group has what the shell gives it."""
    before = os.umask(OF_PROCESSES)  # the kernel tells the old one only in exchange for another
    os.umask(before | _OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)
