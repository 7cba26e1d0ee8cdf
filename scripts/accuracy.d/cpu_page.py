"""The page of runs on a processor."""

from pathlib import Path

import cpu_runs
from page import Page

from harness.launch.environment import Host


def page(host: Host, measured: Path | None = None) -> Page:
    """Real runs on this machine's processor, or those kept in ``measured``: every stage of every run."""
    rows = cpu_runs.compare(host, measured)
    errors = sorted(abs(row["error"]) for row in rows)
    within = sum(error <= 0.01 for error in errors)
    headline = f"{within} of {len(rows)} stages within 1 %, the worst off by {errors[-1] * 100:.2f} %."
    title = "Predicted and measured peaks: runs on a processor"
    return Page(title, headline, {"rows": rows}, cpu_runs.summary(rows), cpu_runs.table(rows))
