"""The process that opens a memory snapshot: it limits itself, reads plain values only, and prints their summary.

``python -m harness.runner.snapshots.child NAME BYTES MEMORY_LIMIT`` reads the file on stdin. Exit 0: one JSON document on
stdout; exit 2: on stdout, in one line, what is wrong with the file. Anything else: it was stopped by a limit.
"""

import gc
import resource
import sys

from harness.analysis.snapshots.fields import SnapshotFormatError
from harness.analysis.snapshots.safe_pickle import RefusedPickleError, load_plain
from harness.analysis.snapshots.summary import summarise


def main() -> int:
    """Read, summarise, print."""
    name, num_bytes, limit_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _, hardest = resource.getrlimit(resource.RLIMIT_AS)
    if hardest != resource.RLIM_INFINITY:  # a shell's `ulimit -v`, which nobody may raise
        limit_bytes = min(limit_bytes, hardest)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are no files: it can write nothing
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # millions of small objects live to the end: looking for cycles takes longer than all else
    try:
        answer, code = summarise(load_plain(sys.stdin.buffer), file=name, file_bytes=num_bytes).model_dump_json(), 0
    except (RefusedPickleError, SnapshotFormatError) as error:
        answer, code = str(error), 2
    except MemoryError:
        answer, code = (
            f"opening it takes more than the {limit_bytes / 1e9:.1f} GB that {num_bytes / 1e6:.1f} MB may take",
            2,
        )
    except RecursionError:
        answer, code = "its values are nested too deeply", 2
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    # The values are thrown away with the process: taking them apart one by one would take seconds.
    import os

    os._exit(main())
