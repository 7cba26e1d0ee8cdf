"""Shows what a probe measured."""

from pathlib import Path

from harness.predict.prediction import BUILT_IN
from harness.records.calibration import Probe
from harness.show.json import Document
from harness.show.page import Code, Column, Line, Page, table
from harness.units import command_text, format_bytes


class ProbeDocument(Document):
    """``mbr-perf probe --json``: the file that it wrote, and what is in it."""

    path: Path
    probe: Probe


_SHARES = {"gemm_bf16": "bf16", "gemm_low_precision": "FP8", "attention": "attention", "memory": "memory"}


def probe_page(probe: Probe, path: Path) -> Page:
    """The rates as shares of the data sheet, the seconds of the host, and how to use them."""
    if not probe.constants:
        return Page(
            (Line(f"{len(probe.rows)} operations, all on the processor"),), answer=f"REHEARSED: {path} has no constants"
        )
    found = probe.constants
    shares = ", ".join(f"{name} {found[key]:.0%}" for key, name in _SHARES.items() if key in found)
    launch, call = (f"{found[name] * 1e6:.0f} us" for name in ("launch_s", "call_s"))
    host = f"with the waits of a step {launch} a launch, {call} a product or attention"
    built_in = BUILT_IN.efficiency(probe.gpu)
    rows = [
        (name, _text(name, value), _text(name, getattr(built_in, name, BUILT_IN.outside_allocator_bytes)))
        for name, value in found.items()
    ]
    of_rows = [
        (row.what, row.of, f"{row.seconds * 1e6:.1f} us", f"{row.flops / row.seconds / 1e12:.1f}" if row.flops else "")
        for row in probe.rows
    ]
    right = ("Measured", "Built in")
    return Page(
        (
            table(("Constant", *right), rows, right=right),
            table((Column("Operation", whole=True), "Of", "Seconds", "TFLOP/s"), of_rows, right=("Seconds", "TFLOP/s")),
            Code(f"Next: {command_text('plan', '--calibrate', path)}"),
        ),
        answer=f"PROBED {probe.gpu}: of the data sheet {shares}; {host}",
    )


def _text(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    return f"{value * 1e6:.1f} us" if name.endswith("_s") else f"{value:.3f}"
