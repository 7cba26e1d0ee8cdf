"""Starts runs one after the other until the time is used up."""

import time
from collections.abc import Sequence
from pathlib import Path

from harness.runner.gpu_check.product import Ran, run_product
from harness.runner.gpu_check.target import Target

# A run that has less than this left cannot even import torch.
LEAST_S = 20.0


class Runs:
    """``runs_dir`` receives one folder per run; none is started that would likely outlast ``deadline_s``.

    ``deadline_s`` is on the monotonic clock.
    """

    def __init__(self, target: Target, runs_dir: Path, deadline_s: float) -> None:
        self.target, self._runs_dir, self._deadline_s = target, runs_dir, deadline_s
        self._longest_s = LEAST_S
        self._count = 0

    def run(self, name: str, options: Sequence[str]) -> Ran | None:
        """One run, or None when there is no time left for it. A run is stopped at the deadline at the latest."""
        left = self._deadline_s - time.monotonic()
        if left < self._longest_s:
            return None
        self._count += 1
        ran = run_product(self.target.host, options, self._runs_dir / f"{self._count:02d}-{name}", left)
        self._longest_s = max(self._longest_s, ran.seconds)
        return ran
