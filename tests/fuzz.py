"""Arbitrary and damaged input for everything that reads what others wrote, for as many seconds as asked.

``python -m tests.fuzz TARGET SECONDS SEED`` prints how many inputs there were; what breaks a reader is printed with its
traceback. It holds its own memory to 2 GiB; who starts it ends it when it hangs.
"""

import resource
import sys
import time
from collections.abc import Callable
from unittest import SkipTest

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.failures import test_fuzz as oom
from tests.foreign.logs import test_fuzz as logs
from tests.imports import test_fuzz as foreign
from tests.snapshot.snapshot_fuzz import damaged_snapshots

MEMORY_BYTES = 2 << 30
_BATCH = 2_000  # what hypothesis remembers of its examples grows, so that it begins anew after these

Fuzz = Callable[[float, int], int]


def generated(check: Callable[..., None], *strategies: st.SearchStrategy) -> Fuzz:
    """``check`` over examples of ``strategies`` until the time is over; the number of examples."""

    def fuzz(seconds: float, first_seed: int) -> int:
        until, count = time.monotonic() + seconds, 0

        def one(values: tuple[object, ...]) -> None:
            nonlocal count
            if time.monotonic() > until:
                raise SkipTest("time is up")  # the one way to end a run of hypothesis early
            count += 1
            check(*values)

        batch = settings(max_examples=_BATCH, database=None, suppress_health_check=list(HealthCheck))
        number = first_seed
        while time.monotonic() < until:
            try:
                seed(number)(batch(given(st.tuples(*strategies))(one)))()
            except SkipTest:
                break
            number += 1
        return count

    return fuzz


TARGETS: dict[str, Fuzz] = {
    "log_lines": generated(logs.any_bytes, logs.LOGS),
    "foreign_logs": generated(foreign.any_log, foreign.LOGS),
    "foreign_goldens": generated(foreign.any_golden, foreign.GOLDENS),
    "oom_texts": generated(oom.judged_whole, oom.TEXTS, oom.ENDINGS),
    "snapshots": damaged_snapshots,
}


def main() -> int:
    """0, or a traceback."""
    target, seconds, first_seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stderr.write(f"{target}: seed {first_seed}\n")
    sys.stdout.write(f"{TARGETS[target](seconds, first_seed)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
