"""The NVML sampler around the ranks: started before them, ended after them."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.launch.interruption import Interruption
from harness.launch.plan import LaunchPlan
from harness.launch.starting import start_process
from harness.records.launch import ended_how

START_S = 10.0
STOP_S = 5.0
POLL_S = 0.02


@contextmanager
def sampling(plan: LaunchPlan, caught: Interruption) -> Iterator[Callable[[], str | None]]:
    """The sampler around the ranks: they start after its first look, so that what it saw then is not theirs.

    Yields a function that ends the sampler and says why it did not watch the GPUs to the end; None where it did.
    """
    if plan.sampler is None or plan.sampler_file is None:
        yield lambda: None
        return
    plan.sampler_file.unlink(missing_ok=True)
    sampler = start_process(plan, plan.sampler, plan.sampler_log)
    try:
        deadline = time.monotonic() + START_S
        while not plan.sampler_file.exists() and sampler.poll() is None and time.monotonic() < deadline:
            if caught.signal is not None:
                break
            time.sleep(POLL_S)
        yield lambda: _unwatched(sampler, plan)
    finally:
        _stop_sampler(sampler)


def _unwatched(sampler: subprocess.Popen[bytes], plan: LaunchPlan) -> str | None:
    """Without NVML the sampler ends well and at once: its file says why."""
    code = sampler.poll()
    if code is None:
        if _stop_sampler(sampler):
            return None
        how = f"was frozen: it did not end within {STOP_S:g} s"
    elif code:
        how = ended_how(code)
    else:
        return None
    return f"the GPUs were not watched to the end: the sampler {how}; see logs/{plan.sampler_log.name}"


def _stop_sampler(sampler: subprocess.Popen[bytes]) -> bool:
    """Terminate the sampler. Return False if it did not end, stuck in the driver or stopped, and had to be killed."""
    sampler.terminate()
    try:
        sampler.wait(STOP_S)
    except subprocess.TimeoutExpired:
        sampler.kill()
        sampler.wait()
        return False
    return True
