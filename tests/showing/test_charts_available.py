"""Whether pictures can be drawn is known before the engine that draws them ends the process."""

import subprocess
import sys

ASKED = "from harness.showing.charts.drawing import obstacle; print(obstacle())"


def test_a_limit_of_addresses_that_the_engine_dies_of_is_told():
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_AS, (12_000_000_000, r.RLIM_INFINITY)); {ASKED}"
    told = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True).stdout
    assert "ulimit -v allows 12 GB" in told
