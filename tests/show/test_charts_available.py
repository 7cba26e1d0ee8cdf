"""Whether pictures can be drawn is known before the engine that draws them ends the process."""

import subprocess
import sys

ASKED = "from harness.show.charts.drawing import obstacle; print(obstacle())"


def test_a_limit_of_addresses_that_the_engine_dies_of_is_reported():
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_AS, (12_000_000_000, r.RLIM_INFINITY)); {ASKED}"
    printed = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True).stdout
    assert "ulimit -v allows 12 GB" in printed


def test_without_the_extra_report_commands_start_and_show_what_pictures_need():
    lacking = "import sys; sys.modules |= {'altair': None, 'vl_convert': None}"
    users = "import harness.sweep.run"
    printed = subprocess.run(
        [sys.executable, "-c", f"{lacking}; {users}; {ASKED}"], capture_output=True, text=True, check=True
    ).stdout
    assert "mbr-perf[report] is not installed" in printed
