"""How a run of a sweep ended, in one line."""

from harness.analysis.derive import derive
from harness.records.run import RunRecord
from harness.report.figures import BY_NAME, figure

_SHOWN = ("step_time_s", "peak_allocated_bytes")


def run_line(record: RunRecord) -> str:
    """``ok: 213 ms per step, 152 MiB allocated``, or what went wrong."""
    if record.status != "ok":
        first = (record.failure or "no failure recorded").splitlines()[0]
        return f"{record.status.replace('oom', 'out of memory')}: {first}"
    metrics = derive(record)
    step, peak = (figure(BY_NAME[name], BY_NAME[name].read(metrics)) for name in _SHOWN)
    return f"ok: {step} per step, {peak} allocated"
